-- With innodb_rollback_on_timeout a row that somebody holds costs the whole transaction.
-- A host without history passed over such a row among the jobs of a stretch, and went on:
-- half of its cycle was undone, the rest written at once, and it took itself for dead.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local LENGTH, STRETCHES = 9, 3

describe("where a lock wait ends the transaction", function()
  local server, url, handle

  setup(function()
    server = db.server "innodb_rollback_on_timeout=ON\n"
    url = server:fresh()
    handle = assert(nightshift.open(url))
  end)
  teardown(function() handle:close() end)

  local function live(ids)
    local list = table.concat(ids, ",")
    return handle:execute(("SELECT COUNT(*) AS n FROM nightshift_job WHERE id IN (%s)"):format(list))[1].n
  end

  it("a host that keeps failures only ends all jobs but the one that is held", function()
    local ids = {}
    for _ = 1, STRETCHES do
      assert(handle:transaction(function(tx)
        for i = 1, LENGTH do ids[#ids + 1] = assert(tx:queue "q":push("job", i)) end
        assert(tx:queue "gap":push "job")
      end))
    end
    local others <close> = assert(core.open { url = url })
    local its <close> = assert(core.open { url = url })
    local last = ids[#ids]
    assert(others:begin())
    assert(others:execute("SELECT id FROM nightshift_job WHERE id < ? FOR UPDATE", last))
    assert(its:begin())
    assert(its:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", last))
    local trace = fixture.file("trace", "")
    local h = host.start(url, ([[return { job = function(job)
      local file <close> = assert(io.open(%q, "a"))
      file:write(job.id, "\n")
    end }]]):format(trace), { "--history", "failed", "--queues", "q=1" })
    eventually(function()
      local n = 0
      for _ in io.lines(trace) do n = n + 1 end
      return n == #ids
    end)
    local holder = its:execute("SELECT id FROM nightshift_holder WHERE kind = 'host'")
    assert(others:rollback())
    eventually(function() return live(ids) == 1 end)
    assert.same(holder, its:execute("SELECT id FROM nightshift_holder WHERE kind = 'host' AND dead IS NULL"))
    assert(its:rollback())
    eventually(function() return live(ids) == 0 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
