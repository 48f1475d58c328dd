-- Waiting for the ends of jobs, without polling: db:wait and db:wait_all. A wait that is not rung
-- looks again after ten seconds, so what takes less has been rung.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

describe("a wait for the end of a job", function()
  local RUNG = 6 -- seconds

  local handle, q, url, name

  with_database(function(...) handle, q, url, name = ... end)
  after_each(crew.clean)

  local function edges() return db.sql("SELECT COUNT(*) FROM nightshift_edge WHERE job_id < 0", name) end

  --- Has `fn` called once `n` waits sleep; the waits run in processes, and write their answers.
  local function waiting(n, ids, wait, fn)
    db.sql("CREATE TABLE IF NOT EXISTS answer (text TEXT, took DOUBLE)", name)
    local c = crew.fork(n, function(i)
      local own <close> = eventually(function() return nightshift.open(url) end)
      local started = nightshift.clock()
      local id = ids[(i - 1) % #ids + 1]
      local outcome, result, why = own:wait(id, wait)
      assert(own:execute("INSERT INTO answer VALUES (?, ?)",
        ("%s %s %s"):format(outcome, result and nightshift.encode(result), why), nightshift.clock() - started))
    end)
    eventually(function()
      return edges() == tostring(n) and tonumber(db.sql(([[SELECT COUNT(*) FROM information_schema.processlist
        WHERE state = 'User lock' AND db = '%s']]):format(name), name)) >= n
    end)
    fn(c)
    c:wait()
    assert.equal("0", edges())
    local text, longest = db.sql("SELECT GROUP_CONCAT(DISTINCT text), MAX(took) FROM answer", name):match "(.*)\t(.*)"
    db.sql("DELETE FROM answer", name)
    assert.is_true(tonumber(longest) < RUNG, longest)
    return text
  end

  it("gives the outcome and the result at once when it has ended", function()
    local id = assert(q:push("a", 1))
    assert(q:claim():ack { sum = 7 })
    assert.same({ "done", { sum = 7 } }, { handle:wait(id, 0) })
    id = assert(q:push("a", 1))
    assert(q:claim():discard "broken")
    assert.same({ "dead", nil, "broken" }, { handle:wait(id, 5) })
    id = assert(q:push("a", 1))
    assert(handle:cancel(id, { reason = "not needed" }))
    assert.same({ "cancelled", nil, "not needed" }, { handle:wait(id, 5) })
    local outcome, message, code = handle:wait(id + 50, 5)
    assert.same({ nil, "NOT_FOUND" }, { outcome, code })
    assert.matches("no job " .. id + 50, message)
  end)

  it("says BUSY when the time is up, and leaves nothing behind", function()
    local id, other = assert(q:push("a", 1)), assert(q:push("b", 1))
    local outcome, message, code = handle:wait(id, 0.05)
    assert.same({ nil, "BUSY" }, { outcome, code })
    assert.matches(("job %d has not ended within 0%%.05 s"):format(id), message)
    assert(q:claim():ack())
    outcome, message, code = handle:wait_all({ id, other }, 0.05)
    assert.same({ nil, "BUSY" }, { outcome, code })
    assert.matches(("1 of 2 jobs have not ended within 0%%.05 s, job %d among them"):format(other), message)
    assert.equal("0", edges())
    handle:transaction(function() assert.equal("STATE", select(3, handle:wait(other, 1))) end)
    assert.has_error(function() handle:wait("x", 1) end)
    assert.has_error(function() handle:wait_all({ id, nil, id }, 1) end)
    assert.equal("INVALID", select(3, handle:wait(id, "soon")))
  end)

  it("is woken by an end of any kind", function()
    local kinds = {
      ["done {\"n\":1} nil"] = function() return q:push("a", 1), function() assert(q:claim():ack { n = 1 }) end end,
      ["dead nil no"] = function()
        return q:push("a", 1, { max_attempts = 1 }), function() assert(q:claim():fail "no") end
      end,
      ["cancelled nil cancelled"] = function()
        local id = assert(q:push("a", 1, { delay = 60 }))
        return id, function() assert(handle:cancel(id)) end
      end,
      ["gone nil nil"] = function()
        local id = assert(q:push("a", 1, { delay = 60 }))
        return id, function() assert(handle:delete(id)) end
      end,
      ["dead nil in a transaction"] = function()
        return q:push("a", 1), function()
          local job = assert(q:claim())
          assert(handle:transaction(function() return job:discard "in a transaction" end))
        end
      end,
    }
    for answer, make in pairs(kinds) do
      local id, ends = make()
      assert.equal(answer, waiting(1, { id }, 60, ends))
    end
    local first = assert(q:push("a", 1, { delay = 60 }))
    local second = assert(q:push("b", 1, { after = { first } }))
    assert.matches("^cancelled nil job %d+, which it waited for, failed$",
      waiting(2, { second }, 60, function() assert(handle:cancel(first, { tree = true })) end))
  end)

  it("by a host's verdict wakes 50, which ask nothing before", function()
    local id = assert(q:push("n", 1, { delay = 3600 }))
    local function questions()
      return tonumber(db.sql([[SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'QUESTIONS']]))
    end
    local h = host.start(url, "return { n = function() return { ok = true } end }", { "--workers", "1" })
    assert.equal('done {"ok":true} nil', waiting(50, { id }, 60, function()
      h:signal "STOP"
      eventually(function() -- but for these questions; 50 that poll would ask more all the time
        local before = questions()
        nst.sleep(0.3)
        return questions() - before < 25
      end)
      h:signal "CONT"
      assert(handle:run_now(id))
    end))
    h:signal "TERM"
    assert.equal(0, h:wait(30))
  end)

  it("costs an end without waits nothing more", function()
    local function calls()
      return tonumber(db.sql([[SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS
        WHERE VARIABLE_NAME = 'COM_CALL_PROCEDURE']]))
    end
    assert(q:push_many { { "a", 1 }, { "b", 1 } })
    local jobs = q:claim_many(2)
    local before = calls()
    assert(jobs[1]:ack())
    assert.equal(before, calls())
    waiting(1, { jobs[2].id }, 60, function()
      before = calls()
      assert(jobs[2]:ack())
      assert.equal(before + 1, calls())
    end)
  end)

  it("that was killed, or hangs, keeps nothing from ending", function()
    local id = assert(q:push("a", 1))
    assert.equal("done nil nil", waiting(3, { id }, 60, function(c)
      c:kill(1)
      assert(q:claim():ack())
    end))
    assert.equal("done", handle:job(id).state)
  end)

  it("of many gives all ends in their order", function()
    local ids = {}
    for i = 1, 30 do ids[i] = assert(q:push("n", i)) end
    local c = crew.fork(1, function()
      local own <close> = assert(nightshift.open(url))
      for job in own:queue "q":jobs { wait = 1 } do
        if job.payload % 3 == 0 then assert(job:discard "third") else assert(job:ack(job.payload)) end
      end
    end)
    local ends = assert(handle:wait_all(ids, 30))
    for i, row in ipairs(ends) do
      assert.same({ ids[i], i % 3 == 0 and "dead" or "done" }, { row.id, row.outcome })
      assert.equal(i % 3 ~= 0 and i or nil, row.result)
    end
    c:wait()
    assert.same({}, handle:wait_all({}, 0))
    assert.equal("0", edges())
  end)
end)
