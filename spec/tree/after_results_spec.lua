-- A job that was pushed to wait for others has what became of them, as a parent has what
-- became of its children.

local core = require "nightshift.core"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local handle, q, url

with_database(function(...) handle, q, url = ... end)

local function take(name)
  local job = assert(q:claim())
  assert.equal(name, job.name)
  return job
end

local function done(name, result) assert(take(name):ack(result)) end

local function questions()
  return tonumber(assert(handle:execute "SHOW SESSION STATUS LIKE 'Questions'")[1].Value)
end

describe("job.results of a job with after", function()
  it("has what became of each, in the order of after", function()
    local a, b, c = assert(q:push "a"), assert(q:push "b"), assert(q:push "c")
    local id = assert(q:push("late", nil, { after = { c, a, b }, on_fail = "run" }))
    done("a", { n = 1 })
    assert(take "b":discard "not this")
    done("c", "third")
    local job = take "late"
    assert.same({ id, { c, a, b }, 3 }, { job.id, job.after, #job.results })
    assert.same({ id = c, name = "c", outcome = "done", result = "third", after = true }, job.results[1])
    assert.same({ id = a, name = "a", outcome = "done", result = { n = 1 }, after = true }, job.results[2])
    assert.same({ id = b, name = "b", outcome = "dead", reason = "discarded", error = "not this", after = true },
      job.results[3])
    assert.is_nil(job.results[4])
    local n = 0
    for i, result in ipairs(job.results) do
      n = n + 1
      assert.equal(job.after[i], result.id)
    end
    assert.equal(3, n)
    assert(job:ack())
    assert.same({ c, a, b }, handle:job(id).after)
  end)

  it("is there whenever the others have ended, and for every attempt", function()
    local a = assert(q:push "a")
    done("a", 1)
    local id = assert(q:push("late", nil, { after = { a }, backoff = 0.001, max_attempts = 2 }))
    assert.same({ a }, handle:job(id).after)
    local job = take "late"
    assert.equal(1, job.results[1].result)
    assert(job:again(0))
    eventually(function() return handle:run_now(id) or handle:job(id).state == "ready" end)
    job = take "late"
    assert.equal(1, job.results[1].result)
    assert(job:discard "no")
    assert.same({ a }, handle:job(id).after)
    assert(handle:retry(id))
    job = take "late"
    assert.same({ { a }, 1 }, { job.after, job.results[1].result })
    assert(job:ack())
    assert(handle:retry(id))
    assert.equal(1, take "late".results[1].result)
  end)

  it("says of one that was pruned that it is gone, of one that was retried that it lives", function()
    local a, b = assert(q:push "a"), assert(q:push "b")
    assert(q:push("late", nil, { after = { a, b }, delay = "1h" }))
    local id = assert(q:push("later", nil, { after = { a, b }, on_fail = "run" }))
    done("a", 1)
    assert(take "b":discard "no")
    assert.equal(1, handle:prune { done = 0, dead = false })
    assert(handle:retry(b))
    local job = assert(q:claim())
    assert.equal(id, job.id)
    assert.same({ id = a, outcome = "gone", after = true }, job.results[1])
    assert.same({ id = b, name = "b", after = true }, job.results[2])
  end)

  it("stands behind its children, and a wait is for those", function()
    local a = assert(q:push "a")
    local id = assert(q:push("late", nil, { after = { a } }))
    done("a", "first")
    local job = take "late"
    assert.error_matches(function() job:wait() end, ("wait: job %d has no children"):format(id))
    assert(job:spawn "kid")
    assert(job:wait())
    done("kid", "second")
    job = take "late"
    assert.same({ 2, "second", "first" }, { #job.results, job.results[1].result, job.results[2].result })
    assert.same({ nil, true, nil }, { job.results[1].after, job.results[2].after, job.results[3] })
    local seen = {}
    for _, result in ipairs(job.results) do seen[#seen + 1] = result.result end
    assert.same({ "second", "first" }, seen)
  end)

  it("does not have the parent of a child that was spawned before an again", function()
    assert(q:push "parent")
    local a = assert(q:push "a")
    local parent = take "parent"
    assert(parent:spawn "kid")
    assert(parent:spawn("late", nil, { after = { a } }))
    assert(parent:again(0))
    done("a", 1)
    eventually(function() return handle:run_now(parent.id) or handle:job(parent.id).state == "ready" end)
    done("parent", 2)
    local kid = take "kid"
    assert.same({ {}, 0 }, { kid.after, #kid.results })
    assert.is_nil(handle:job(kid.id).after)
    local late = take "late"
    assert.same({ { a }, 1, 1 }, { late.after, #late.results, late.results[1].result })
  end)

  it("is there for jobs that SQL has pushed", function()
    local a = assert(q:push "a")
    assert(handle._handle:execute("CALL nightshift_push('q', 'late', 'null', ?)", core.encode { after = { a } }))
    done("a", { 1, 2 })
    local job = take "late"
    assert.same({ { a }, { 1, 2 } }, { job.after, job.results[1].result })
  end)

  it("is read a page at a time, of large results in small ones", function()
    local large = ("x"):rep(1000000)
    local ids = {}
    for i = 1, 10 do ids[i] = assert(q:push "large") end
    for i = 11, 1200 do ids[i] = assert(q:push "small") end
    assert(q:push("late", nil, { after = ids }))
    for i, job in ipairs(q:claim_many(1200)) do assert(job:ack(i <= 10 and large .. i or i)) end
    local job = take "late"
    assert.equal(1200, #job.results)
    for i, result in ipairs(job.results) do assert.equal(i <= 10 and large .. i or i, result.result) end
    assert.equal(700, job.results[700].result)
    assert.equal(large .. 3, job.results[3].result)
  end)

  it("costs nothing where it is not used", function()
    assert(q:push "parent")
    local job = take "parent"
    local before = questions()
    assert.same({}, job.after)
    assert.equal(1, questions() - before) -- the question itself
    assert(job:spawn "kid")
    assert(job:wait())
    done("kid", 1)
    job = take "parent"
    before = questions()
    local n = 0
    for _ in ipairs(job.results) do n = n + 1 end
    assert.same({ 1, 3 }, { n, questions() - before }) -- a page, an empty one behind it
  end)

  it("is there in a worker, and in what people see", function()
    local h = host.start(url, [[return {
      a = function(job) return job.payload * 2 end,
      late = function(job)
        local sum = 0
        for _, result in ipairs(job.results) do sum = sum + result.result end
        return { sum, #job.after, job.after[1] }
      end,
    }]])
    local a = assert(q:push("a", 2))
    local id = assert(q:push("late", nil, { after = { a, assert(q:push("a", 3)) } }))
    eventually(function() return handle:job(id).state == "done" end)
    assert.same({ 10, 2, a }, handle:job(id).result)
    local _, out = proc.nightshift({ "show", tostring(id) }, url)
    assert.matches(("\nafter         %d %d\n"):format(table.unpack(handle:job(id).after)), out)
    _, out = proc.nightshift({ "show", tostring(id), "--json" }, url)
    assert.same(handle:job(id).after, nightshift.decode(out).after)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
