-- An error of the server that has nothing to do with a row's values ended, or spent an attempt
-- of, whatever row of an adopted table it met.

local designs = require "spec.support.designs"
local host = require "spec.support.host"

local db, _, url
with_database(function(...) db, _, url = ... end)

local function all(sql, ...) return assert(db:execute(sql, ...)) end
local function complete() return all("SELECT COUNT(*) AS n FROM migration_task WHERE status = 'complete'")[1].n end

it("is waited for: the row is done in the end, and was begun once", function()
  designs.create(db, "migration_task", 3)
  all "CREATE TABLE trouble (number INT)"
  all "INSERT INTO trouble VALUES (1175)"
  all [[CREATE TRIGGER theirs BEFORE UPDATE ON migration_task FOR EACH ROW
    IF NEW.status = 'complete' AND NEW.id = 2 AND EXISTS(SELECT 1 FROM trouble) THEN
      SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1175, MESSAGE_TEXT = 'planted';
    END IF]]
  local begun = fixture.file("begun", "")
  local h = host.start(url, ([[return { migrate = function(job)
      local file <close> = assert(io.open(%q, "ab"))
      file:write(job.id .. "\n")
    end }]]):format(begun), { "--adopt", designs.file "migration_task" })
  h:wait_line "event=db.error .*number=1175 "
  eventually(function() return complete() == 2 end)
  assert.equal("processing", all("SELECT status FROM migration_task WHERE id = 2")[1].status)
  all "DELETE FROM trouble"
  eventually(function() return complete() == 3 end, 20)
  h:signal "TERM"
  assert.equal(0, h:wait())
  local lines = {}
  for line in io.lines(begun) do lines[#lines + 1] = line end
  table.sort(lines)
  assert.same({ "1", "2", "3" }, lines)
end)
