-- Unique keys: who has one is told, and a push may keep that job in place of its own.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local PROGRAMS = proc.root .. "/spec/support/programs/"

local function keep(key) return { unique = { key = key, on_conflict = "keep" } } end

describe("a taken unique key", function()
  local handle, q

  with_database(function(...) handle, q = ... end)

  it("is refused with the id of the job that has it", function()
    local id = assert(q:push("a", 1, { unique = "k" }))
    local again = { unique = { key = "k" } }
    local ways = {
      push = function() return q:push("a", 2, again) end,
      push_many = function() return q:push_many { { "b" }, { "a", 2, again } } end,
      flow = function() return handle:flow { name = "a", queue = "q", unique = "k" } end,
      flow_many = function() return handle:flow_many { { name = "a", queue = "q", unique = "k" } } end,
      transaction = function()
        return handle:transaction(function(tx)
          tx:queue("q"):push("a", 2, again)
          return true
        end)
      end,
      try = function()
        local results
        assert(handle:transaction(function(tx)
          results = table.pack(tx:try(function() return q:push("a", 2, again) end))
          return true
        end))
        return table.unpack(results, 1, results.n)
      end,
      ["a refusing push"] = function()
        return q:push("a", 2, { unique = { key = "k", on_conflict = "refuse" } })
      end,
    }
    for name, way in pairs(ways) do
      local none, message, code, holder = way()
      assert.same({ nil, "DUPLICATE", id }, { none, code, holder }, name)
      assert.is_truthy(message:find(("is held by job %d"):format(id), 1, true), message)
    end
    assert.equal(1, #handle:jobs())
  end)

  it("is told by a retry, too", function()
    local first = assert(q:push("a", 1, { unique = "k" }))
    assert(q:claim():discard "no")
    local second = assert(q:push("a", 2, { unique = "k" }))
    local none, message, code, holder = handle:retry(first)
    assert.same({ nil, "DUPLICATE", second }, { none, code, holder })
    assert.is_truthy(message:find(("job %d"):format(second), 1, true), message)
  end)

  it("is no job's when it stands twice in one push", function()
    local one = { "a", 1, { unique = "twice" } }
    local none, message, code, holder = q:push_many { one, one }
    assert.same({ nil, "DUPLICATE", nil }, { none, code, holder })
    assert.is_truthy(message:find("stands twice", 1, true), message)
  end)

  it("may be kept: nothing is pushed, and the id is that job's", function()
    local id = assert(q:push("a", 1, keep "k"))
    assert.equal(id, q:push("other", 2, keep "k"))
    assert.equal(id, q:push("later", 2, { delay = 60, unique = keep("k").unique }))
    assert.equal(id, q:push("child", 2, { after = { id }, unique = keep("k").unique }))
    assert.same({ "a", 1 }, { handle:job(id).name, handle:job(id).payload })
    assert.equal(1, #handle:jobs())
    assert.not_equal(id, handle:queue("another"):push("a", 1, keep "k"))
    local job = assert(q:claim())
    assert.equal(id, q:push("a", 3, keep "k")) -- it runs
    assert(job:ack())
    assert.is_true(assert(q:push("a", 4, keep "k")) > id)
  end)

  it("is kept for those of many that have one, and the others are pushed", function()
    local a = assert(q:push("a", 1, keep "a"))
    local waits = { after = { a }, unique = keep("c").unique }
    local ids = assert(q:push_many {
      { "x", 1 }, { "a", 2, keep "a" }, { "b", 2, keep "b" }, { "b", 3, keep "b" }, { "y", 3, { delay = 60 } },
      { "c", 4, waits } })
    assert.same({ a, ids[3] }, { ids[2], ids[4] })
    assert.equal("waiting", handle:job(ids[6]).state)
    assert.equal("scheduled", handle:job(ids[5]).state)
    local names = {}
    for i, id in ipairs(ids) do names[i] = handle:job(id).name .. ":" .. handle:job(id).payload end
    assert.same({ "x:1", "a:1", "b:2", "b:2", "y:3", "c:4" }, names)
    assert.equal(5, #handle:jobs())
    assert.equal(a, q:push_many({ { "a", 9, keep "a" } })[1])
    local all = assert(q:push_many { { "a", 9, keep "a" }, { "b", 9, keep "b" } }) -- nothing to write
    assert.same({ a, ids[3] }, all)
  end)

  it("is kept in a transaction, which goes on, however old its view is", function()
    local url = db.fresh()
    for _, level in ipairs { "READ COMMITTED", "REPEATABLE READ" } do
      local own <close> = assert(nightshift.open(url))
      local other <close> = assert(nightshift.open(url))
      assert(own:execute("SET SESSION TRANSACTION ISOLATION LEVEL " .. level))
      local key, id, kept, fresh = "of " .. level, nil, nil, nil
      assert(own:transaction(function(tx)
        assert(tx:execute "SELECT COUNT(*) FROM nightshift_unique_key")
        id = assert(other:queue("q"):push("a", 1, keep(key)))
        kept = assert(tx:queue("q"):push("a", 2, keep(key)))
        fresh = assert(tx:queue("q"):push("b", 2))
        return true
      end))
      assert.equal(id, kept)
      assert.equal("ready", other:job(fresh).state)
    end
  end)

  it("of a transaction that rolls back is free again", function()
    local id
    handle:transaction(function(tx)
      id = assert(tx:queue("q"):push("a", 1, keep "k"))
      assert.equal(id, tx:queue("q"):push("a", 1, keep "k"))
      return nil, "no"
    end)
    assert.not_equal(id, assert(q:push("a", 2, keep "k")))
  end)

  it("wants a key, words that are known, and a job of its own", function()
    for bad, words in pairs {
      ["has no key"] = { on_conflict = "keep" },
      ["did you mean 'on_conflict'?"] = { key = "k", on_conflit = "keep" },
    } do
      local ok, message = pcall(q.push, q, "a", 1, { unique = words })
      assert.is_false(ok)
      assert.is_truthy(message:find(bad, 1, true), message)
    end
    local none, message, code = q:push("a", 1, { unique = { key = "k", on_conflict = "drop" } })
    assert.same({ nil, "INVALID" }, { none, code })
    assert.is_truthy(message:find("refuse, keep", 1, true), message)
    none, message, code = handle:flow { name = "a", unique = { key = "k", on_conflict = "keep" } }
    assert.same({ nil, "INVALID" }, { none, code })
    assert.is_truthy(message:find("is its own job", 1, true), message)
    assert(q:push("a"))
    assert.has_error(function() q:claim():spawn("b", 1, keep "k") end)
  end)
end)

describe("many that keep the same keys", function()
  it("have jobs that are there, whoever ends them and whatever is killed", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local keepers = {}
    for i = 1, 3 do keepers[i] = proc.start { proc.lua, PROGRAMS .. "keeper.lua", url, "150" } end
    local left = 3
    while left > 0 do
      local job = q:claim { wait = 0.1 }
      if job then assert(job:ack()) end
      if job and job.id % 7 == 0 then -- one of them is cut, wherever it is
        pcall(db.sql, [[EXECUTE IMMEDIATE (SELECT CONCAT('KILL ', id) FROM information_schema.PROCESSLIST
          WHERE db = DATABASE() AND info LIKE '%unique_key%' AND id <> CONNECTION_ID() LIMIT 1)]], name)
      end
      left = 0
      for _, keeper in ipairs(keepers) do left = left + (keeper:ended() and 0 or 1) end
    end
    for _, keeper in ipairs(keepers) do
      local out, err = keeper:text()
      assert.is_truthy(out:find "done\n$", err)
      local n = 0
      for id in out:gmatch "%d+" do
        n = n + 1
        assert(handle:job(math.tointeger(id)), "job " .. id .. " was given by a push and is nowhere")
      end
      assert.equal(50 * 5, n)
    end
  end)
end)
