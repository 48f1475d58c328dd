-- Trees from SQL: nightshift_push with parent, after and on_fail.

local core = require "nightshift.core"
local db = require "spec.support.db"

local url, name, handle, q

with_database(function(...) handle, q, url, name = ... end)

local function call(options, on)
  local h = on or handle._handle
  local ok, message = h:execute("CALL nightshift_push('q', 'late', '1', ?)", (assert(core.encode(options))))
  if not ok then return nil, message end
  return assert(h:execute "SELECT @nightshift_id AS id")[1].id
end

local function edges() return assert(handle:execute "SELECT on_id, job_id FROM nightshift_edge ORDER BY on_id") end

local function end_one(how, ...)
  local job = assert(q:claim())
  assert(job[how](job, ...))
  return job.id
end

-- What an ended target means: how it ends, on_fail, state of the new job.
local CASES = {
  { "ack", "cancel", "ready" }, { "discard", "cancel", "cancelled" }, { "discard", "run", "ready" },
}

for _, within in ipairs { "in autocommit", "in a transaction" } do
  describe("CALL nightshift_push " .. within, function()
    local function push(options)
      if within == "in autocommit" then return call(options) end
      assert(handle._handle:begin())
      local id, message = call(options)
      assert(handle._handle:commit())
      return id, message
    end

    it("waits for all that it names, once each", function()
      local a, b = assert(q:push "a"), assert(q:push "b")
      local id = assert(push { after = { b, a, a } })
      assert.same({ { on_id = a, job_id = id }, { on_id = b, job_id = id } }, edges())
      assert.same({ "waiting", 2 }, { handle:job(id).state, handle:job(id).unmet })
      end_one "ack"
      assert.equal(1, handle:job(id).unmet)
      end_one "ack"
      assert.equal(id, assert(q:claim()).id)
      assert.same({}, edges())
    end)

    it("waits for its delay as well", function()
      local a = assert(q:push "a")
      local id = assert(push { after = { a }, delay = 3600 })
      end_one "ack"
      assert.equal("scheduled", handle:job(id).state)
    end)

    for _, case in ipairs(CASES) do
      local how, on_fail, state = table.unpack(case)
      it(("with on_fail %s is %s after %s"):format(on_fail, state, how), function()
        local a = assert(q:push "a")
        end_one(how, "no")
        local id = assert(push { after = { a }, on_fail = on_fail, unique = "u" })
        assert.equal(state, handle:job(id).state)
        assert.same({}, edges())
        assert.equal(state == "ready" and 1 or 0, (#assert(handle:execute "SELECT 1 FROM nightshift_unique_key")))
        if state == "cancelled" then assert.equal("dependency", handle:job(id).reason) end
      end)

      it(("with on_fail %s is %s before %s"):format(on_fail, state, how), function()
        local id = assert(push { after = { (assert(q:push "a")) }, on_fail = on_fail })
        assert.equal("waiting", handle:job(id).state)
        end_one(how, "no")
        assert.equal(state, handle:job(id).state)
      end)
    end

    it("waits for who lives, and is cancelled for who has failed", function()
      local a = assert(q:push "a")
      end_one("discard", "no")
      local id = assert(push { after = { a, (assert(q:push "b")) } })
      assert.equal("cancelled", handle:job(id).state)
      assert.same({}, edges())
    end)

    it("makes a child of a live job", function()
      local top = assert(q:push "top")
      local id = assert(push { parent = top })
      local below = assert(push { parent = id })
      assert.same({ top, top, id, top }, { handle:job(id).parent, handle:job(id).root, handle:job(below).parent,
        handle:job(below).root })
      local job = assert(q:claim())
      assert.same({ top, 1, id }, { job.id, #job.results, job.results[1].id })
    end)

    for what, options in pairs {
      ["job 4711, which this is to wait for, is unknown"] = { after = { 4711 } },
      ["the parent, job 4711, is no live job"] = { parent = 4711 },
      ["out of range: after"] = { after = core.array {} },
      ["wrong type: after"] = { after = 12 },
      ["wrong type: parent"] = { parent = "x" },
      ["wrong type: on_fail"] = { on_fail = 1 },
      ["out of range: on_fail"] = { on_fail = "stop" },
      ["out of range: parent"] = { parent = 0 },
    } do
      it("says: " .. what, function()
        local id, message = push(options)
        assert.is_nil(id)
        assert.is_truthy(message:find(what, 1, true), message)
        for _, list in ipairs { { 0 }, { "1.5" }, { -1 }, { { 1 } } } do
          assert.is_truthy(select(2, push { after = list }):find("out of range: after", 1, true))
        end
        assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
        assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_child", name))
      end)
    end
  end)
end

describe("CALL nightshift_push", function()
  it("in a transaction holds what it waits for until the commit", function()
    local a = assert(q:push "a")
    local job = assert(q:claim())
    local other <close> = assert(core.open { url = url })
    assert(other:begin())
    local id = assert(call({ after = { a } }, other))
    assert.same({}, handle:execute("SELECT 1 FROM nightshift_job WHERE id = ? FOR UPDATE SKIP LOCKED", a))
    assert(other:commit())
    assert(job:ack())
    assert.equal(id, assert(q:claim()).id)
  end)

  it("from a trigger", function()
    local a = assert(q:push "a")
    db.sql([[CREATE TABLE ours (id BIGINT) ENGINE=InnoDB;
      CREATE TRIGGER pushes AFTER INSERT ON ours FOR EACH ROW
      CALL nightshift_push('q', 'late', '1', CONCAT('{"after":[', NEW.id, ']}'))]], name)
    assert(handle:execute("INSERT INTO ours VALUES (?)", a))
    assert.equal("waiting", handle:job(edges()[1].job_id).state)
    end_one "ack"
    assert.equal("late", assert(q:claim()).name)
  end)

  it("loses no edge to those who end what it waits for", function()
    local N = 300
    local targets = {}
    for i = 1, N do targets[i] = { "a", i } end
    local ids = assert(q:push_many(targets))
    local proc = require "spec.support.proc"
    local path = fixture.file("end.lua", [[
      local q = assert(require "nightshift".open(arg[1])):queue "q"
      for _ = 1, ]] .. N .. [[ do
        local job = assert(q:claim { wait = 20 })
        if job.name == "late" then job:ack() else assert(job:ack()) end
      end
    ]])
    local p = proc.start { proc.lua, path, url }
    for i = 1, N do assert(call { after = { ids[i], ids[N + 1 - i] } }) end
    assert.equal(0, p:wait())
    while true do
      local job = q:claim()
      if not job then break end
      assert(job:ack())
    end
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
    assert.same({}, edges())
    assert.equal(tostring(2 * N), db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
  end)
end)
