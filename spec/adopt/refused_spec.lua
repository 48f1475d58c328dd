-- A row that the server refuses to mark as taken, because of a trigger or a constraint of
-- the table's people: the others are done all the same, and somebody is told.

local designs = require "spec.support.designs"
local host = require "spec.support.host"

local db, _, url
with_database(function(...) db, _, url = ... end)

local function all(sql, ...) return assert(db:execute(sql, ...)) end

local function open_ids()
  local ids = {}
  for i, row in ipairs(all "SELECT id FROM migration_task WHERE status = 'open' ORDER BY id") do ids[i] = row.id end
  return ids
end

local TRIGGER = [[CREATE TRIGGER theirs BEFORE UPDATE ON migration_task FOR EACH ROW
  IF NEW.id IN (%s) AND NEW.status = 'processing' THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one';
  END IF]]

local function prepare(rows, refused)
  designs.create(db, "migration_task", rows)
  all(TRIGGER:format(refused))
end

local HANDLERS = "return { migrate = function() end }"

for _, strategy in ipairs(designs.migration_task.strategies) do
  describe("by " .. strategy .. " a row that is refused", function()
    local function adopt() return assert(db:adopt(designs.map("migration_task", { strategy = strategy }))) end

    it("stays open, and a host does the others, tells of it once, and ends", function()
      prepare(30, "2")
      local status, log = host.drain(url, HANDLERS,
        { "--drain", "--workers", "2", "--adopt", designs.file("migration_task", { strategy = strategy }) })
      assert.same({ 2 }, open_ids(), log)
      assert.equal(1, status, log)
      local lines = host.events(log, "row.refused")
      assert.equal(1, #lines, log)
      assert.same({ "migration_task", "2" }, { lines[1].table, lines[1].id })
      assert.is_truthy(log:find('error="not this one', 1, true), log)
    end)

    it("is passed over by a program, which is told when there is no other", function()
      prepare(6, "1, 3, 4")
      local t = adopt()
      for _, id in ipairs { 2, 5 } do
        local job = assert(t:claim())
        assert.equal(id, job.id)
        assert.is_true((job:ack()))
      end
      assert(assert(t:claim_many(10))[1]:ack())
      assert.same({ 1, 3, 4 }, open_ids())
      assert.same({}, t:claim_many(10))
      local other <close> = assert(require "nightshift".open(url))
      local jobs, message, code = assert(other:adopt(designs.map("migration_task", { strategy = strategy })))
        :claim_many(10)
      assert.same({ nil, "SQL" }, { jobs, code })
      assert.is_truthy(message:find("row %d of 'migration_task' cannot be claimed: .*not this one"), message)
    end)
  end)
end

it("a row that breaks a constraint of the table is passed over", function()
  designs.create(db, "migration_task", 3)
  all "UPDATE migration_task SET imageUrl = 'none' WHERE id = 1"
  all "ALTER TABLE migration_task ADD CHECK (imageUrl <> 'none' OR claimedBy IS NULL)"
  local t = assert(db:adopt(designs.map "migration_task"))
  for id = 2, 3 do assert.equal(id, assert(t:claim()).id) end
end)
