-- Hosts on an adopted table beside the workers that were published with it, in their own SQL: no row
-- is done twice, none is lost, and none of their statements is refused because of us. Where there are
-- many of them the server refuses some (1213, a deadlock) without us as well: a claim of theirs locks
-- the index first and then the row, a reset the row and then the index.

local crew = require "spec.support.crew"
local host = require "spec.support.host"
local lab = require "spec.support.lab"
local nst = require "nst"
local nightshift = require "nightshift"
local published = require "spec.support.published"

local ROWS <const>, BLOCK <const> = 2000, 10

local db, path
lab.handles(1, function(handle) db, path = handle, fixture.dir() .. "/ledger" end)
after_each(crew.clean)

local function count(name, where)
  return assert(db:execute(("SELECT COUNT(*) AS n FROM %s WHERE %s"):format(name, where or "TRUE")))[1].n
end

local function write(line)
  local file <close> = assert(io.open(path, "ab"))
  file:write(line, "\n")
end

-- As published, but for its 35 characters of a UUID.
local CLAIM = [[UPDATE migration_task SET status = 'processing', claimedBy = ?, claimedAt = UTC_TIMESTAMP()
WHERE status = 'open' ORDER BY id ASC LIMIT ]] .. BLOCK
local READ = "SELECT id, iteration, imageUrl FROM migration_task WHERE claimedBy = ? AND status = 'processing'"
local DONE = [[UPDATE migration_task SET status = 'complete', completedAt = UTC_TIMESTAMP()
WHERE id = ? AND status = 'processing']]
local RESET = [[UPDATE migration_task SET status = 'open', iteration = ( iteration + 1 ), claimedBy = NULL,
claimedAt = NULL WHERE id = ?]]
local REAP = [[UPDATE migration_task SET status = 'open', iteration = ( iteration + 1 ), claimedBy = NULL,
claimedAt = NULL WHERE status = 'processing' AND completedAt IS NULL
AND claimedAt <= DATE_ADD( UTC_TIMESTAMP(), INTERVAL -2 MINUTE )]]

--- Runs a statement of theirs; what is refused is written down, and tried again.
local function ask(own, sql, ...)
  local rows, message
  repeat
    rows, message = own:execute(sql, ...)
    if not rows then
      write("refused " .. message:gsub("\n", " "))
      nst.sleep(0.01)
    end
  until rows
  return rows
end

--- One of theirs: claims blocks, completes most, resets some, until nothing is left.
local function work(number)
  local own <close> = assert(nightshift.open(lab.url()))
  ask(own, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ") -- the server's own
  local round = 0
  repeat
    round = round + 1
    local me = ("%032d-%d"):format(round, number)
    ask(own, REAP)
    ask(own, CLAIM, me)
    for _, task in ipairs(ask(own, READ, me)) do
      local fails = task.id % 50 == 0 and task.iteration == 0
      if not fails then write("did " .. task.id) end
      ask(own, fails and RESET or DONE, task.id)
    end
  until ask(own, "SELECT COUNT(*) AS n FROM migration_task WHERE status <> 'complete'")[1].n == 0
end

--- What the ledger says: who did how many rows, and what was refused. No row is there twice.
local function read()
  local done, ours, refused = {}, 0, {}
  for line in io.lines(path) do
    local id = line:match "^did (%d+)$"
    if id then
      assert.is_nil(done[id], id)
      done[id] = true
    elseif line == "ours" then
      ours = ours + 1
    else
      refused[#refused + 1] = line
    end
  end
  return ours, refused
end

describe("a host beside published workers", function()
  for _, theirs in ipairs { 1, 3 } do
    it("does rows that they do not, and waits for none that they lock: " .. theirs, function()
      local name, definition, columns, map = table.unpack(published[1])
      assert(db:execute "DROP TABLE IF EXISTS migration_task")
      assert(db:execute(definition))
      assert(db:execute(("INSERT INTO %s %s FROM seq_1_to_%d"):format(name, columns, ROWS)))
      local h = host.start(lab.url(), ([[return { task = function(job)
        local file <close> = assert(io.open(%q, "ab"))
        file:write("did " .. job.row .. "\n", "ours\n")
      end }]]):format(path), { "--workers", "4", "--adopt", fixture.file("map.lua", "return " .. map) })
      crew.fork(theirs, work):wait(110) -- their claims are reset after two minutes
      eventually(function() return count "nightshift_owed" == 0 end)
      h:signal "TERM"
      assert.equal(0, h:wait(20))
      local ours, refused = read()
      if theirs == 1 then assert.same({}, refused) end
      assert.equal(ROWS, count(name, "status = 'complete' AND completedAt >= claimedAt"))
      assert.equal(count(name, "claimedBy LIKE 'ns:%'"), ours)
      assert.is_true(ours > 0 and ours < ROWS, ours)
      assert.is_nil(h:transcript():find "level=error", h:transcript())
      assert.equal(0, count "nightshift_job")
    end)
  end
end)
