-- What a host's log says of rows of adopted tables that fail or come back: whose claim
-- it was, since when, why it ended, and when the row may be claimed again.

local designs = require "spec.support.designs"
local host = require "spec.support.host"

local db, _, url
with_database(function(...) db, _, url = ... end)

local function all(sql) return assert(db:execute(sql)) end

local function start(name, script, changes)
  return host.start(url, script, { "--adopt", designs.file(name, changes), "--log", "json", "--workers", "2" })
end

local function stop(h)
  h:signal "TERM"
  assert.equal(0, h:wait(20))
end

local function is_time(text) return text and text:find "^20%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$" == 1 end

describe("the log of a host", function()
  it("says of a failed task whose claim it was, since when, and when it comes next", function()
    designs.create(db, "queue_table", 1)
    all "UPDATE queue_table SET attempts = 2"
    local h = start("queue_table", [[return { queue_table = function(job)
      return job:fail("no disk\nat all", { retry_in = job.attempt == 29 and 1.5 or 0 })
    end }]], { strategy = "skip_locked" })
    eventually(function() return #host.logged(h, "row.failed") == 2 end)
    local first, last = table.unpack(host.logged(h, "row.failed"))
    for i, line in ipairs { first, last } do
      assert.same({ "queue_table", 1, "no disk", 28 + i }, { line.table, line.id, line.error, line.attempts })
      assert.is_truthy(line.claim:find "^ns:%w+:%w+$", line.claim)
      assert.is_true(is_time(line.claimed_at) and line.claimed_at <= line.ts)
    end
    assert.equal("open", first["then"])
    assert.is_true(is_time(first.next) and first.next > first.claimed_at and first.next <= last.ts, first.next)
    assert.same({ "dead" }, { last["then"], last.next })
    assert.not_equal(first.claim, last.claim)
    stop(h)
  end)

  it("says which tasks were reset, of whom, since when, and why", function()
    designs.create(db, "migration_task", 4)
    local endless = "return { migrate = function() require 'nightshift.core'.sleep(1000) end }"
    local other = start("migration_task", endless, { strategy = "update_limit" })
    eventually(function() return #all "SELECT 1 FROM migration_task WHERE claimedBy LIKE 'ns:%'" >= 2 end)
    local held = {}
    for _, row in ipairs(all "SELECT id, claimedBy AS claim FROM migration_task WHERE claimedBy IS NOT NULL") do
      held[row.id] = row.claim
    end
    all [[UPDATE migration_task SET status = 'processing', claimedBy = 'a program', claimedAt = '2020-01-02 03:04:05'
      WHERE id = 4]]
    held[4] = "a program"
    local h = start("migration_task", "return { migrate = function() end }", { strategy = "update_limit" })
    eventually(function() return #host.logged(h, "row.reset") == 1 end)
    other:signal "KILL"
    other:wait()
    local count = 0
    for _ in pairs(held) do count = count + 1 end
    eventually(function() return #host.logged(h, "row.reset") == count end)
    for _, line in ipairs(host.logged(h, "row.reset")) do
      assert.equal("migration_task", line.table)
      assert.equal(held[line.id], line.claim)
      assert.is_true(is_time(line.claimed_at) and line.claimed_at < line.ts)
      assert.equal(line.id == 4 and "overdue: it was claimed too long" or "its holder died", line.why)
    end
    assert.is_truthy(host.logged(h, "rescue")[1].rows)
    eventually(function() return #all "SELECT 1 FROM migration_task WHERE status = 'complete'" == 4 end)
    stop(h)
  end)
end)
