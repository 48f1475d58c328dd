-- Jobs that end in long stretches, as they were pushed: whole stretches of rows
-- move to the history at once, and nobody can tell.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local HANDLERS = [[return { noop = function() end, answer = function() return 42 end }]]

describe("a stretch of jobs that are done", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function done() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n end

  local function push(n, name, options)
    local jobs = {}
    for i = 1, n do jobs[i] = { name or "noop", i, options } end
    return assert(q:push_many(jobs))
  end

  it("leaves one that somebody holds for later", function()
    local ids = push(200)
    local other <close> = assert(core.open { url = url })
    assert(other:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", ids[100]))
    local h = host.start(url, HANDLERS)
    eventually(function() return done() == 199 end)
    assert.equal("running", handle:job(ids[100]).state)
    assert(other:rollback())
    eventually(function() return done() == 200 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("passes over those that were ended while they ran", function()
    local ids = push(200)
    local held <close> = assert(core.open { url = url })
    assert(held:begin())
    assert(held:execute("SELECT id FROM nightshift_job WHERE id BETWEEN ? AND ? FOR UPDATE", ids[1], ids[200]))
    local h = host.start(url, HANDLERS)
    eventually(function() return handle:job(ids[200]).state == "running" end)
    -- as db:cancel and db:retry do: their rows are gone, or have another run
    assert(held:execute("DELETE FROM nightshift_job WHERE id = ?", ids[50]))
    assert(held:execute("UPDATE nightshift_job SET run = 7 WHERE id = ?", ids[60]))
    assert(held:commit())
    eventually(function() return done() == 198 end)
    assert.same({ 0, 7 }, {
      handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE id IN (?, ?)", ids[50], ids[60])[1].n,
      handle:execute("SELECT run FROM nightshift_job")[1].run,
    })
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("leaves the same history as jobs that end one by one", function()
    local options = { priority = 120, max_attempts = 4, max_polls = 9, backoff = 3, timeout = 77, deadline = 3600 }
    local ids = push(100, "noop", options)
    local one = assert(q:push("answer", 1, options))
    assert.equal(0, host.drain(url, HANDLERS))
    local function row(id)
      local r = assert(handle:execute("SELECT * FROM nightshift_finished WHERE id = ?", id))[1]
      for _, name in ipairs { "id", "name", "payload", "nonce", "result", "holder" } do r[name] = nil end
      for _, name in ipairs { "created", "finished_at", "deadline" } do r[name] = r[name] > 0 end
      return r
    end
    assert.same(row(one), row(ids[50]))
    assert.equal(101, done())
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_lease")[1].n)
  end)

  it("releases what waited for them", function()
    local ids = push(100)
    local join = assert(q:push("noop", nil, { after = ids }))
    assert.equal(0, host.drain(url, HANDLERS))
    assert.equal("done", handle:job(join).state)
  end)
end)

describe("a host that keeps the history of failures only", function()
  local HISTORY = { "--drain-within", "500ms", "--history", "failed" }
  local MORE = [[return {
    noop = function() end,
    answer = function(job) return job.payload end,
    parent = function(job)
      if job.phase > 0 then return #job.results end
      for i = 1, 20 do job:spawn("noop", i) end
      return job:wait()
    end,
    bad = function(job) return job:discard "no" end,
  }]]
  local url, handle, q

  before_each(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
  end)

  after_each(function() handle:close() end)

  it("forgets what is done and keeps what is dead", function()
    for i = 1, 50 do assert(q:push("noop", i)) end
    for i = 1, 50 do assert(q:push("answer", i, { unique = "k" .. i })) end
    local dead = assert(q:push "bad")
    assert.equal(0, host.drain(url, MORE, HISTORY))
    local rows = assert(handle:execute "SELECT id, outcome FROM nightshift_finished")
    assert.same({ { id = dead, outcome = "dead" } }, rows)
    for _, name in ipairs { "job", "ready", "lease", "unique_key" } do
      assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. name .. " WHERE "
        .. (name == "ready" and "job_id > 0" or "TRUE"))[1].n, name)
    end
  end)

  it("keeps children, whose parents ask for them, and lets go what waits", function()
    local parent = assert(q:push "parent")
    local after = assert(q:push("noop", nil, { after = { parent } }))
    assert.equal(0, host.drain(url, MORE, HISTORY))
    assert.equal(20, handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE parent = ?", parent)[1].n)
    for _, id in ipairs { parent, after } do
      assert.same({ nil, "NOT_FOUND" }, { handle:job(id), select(3, handle:job(id)) })
    end
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
  end)

  it("leaves one that somebody holds for later", function()
    local ids = {}
    for i = 1, 50 do ids[i] = assert(q:push("noop", i)) end
    local other <close> = assert(core.open { url = url })
    assert(other:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", ids[20]))
    local h = host.start(url, MORE, { "--history", "failed" })
    local function live() return handle:execute("SELECT COUNT(*) AS n FROM nightshift_job")[1].n end
    eventually(function() return live() == 1 end)
    assert(other:rollback())
    eventually(function() return live() == 0 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is there for embedded handles, too", function()
    local short <close> = assert(nightshift.open { url = url, history = "failed" })
    assert(q:push "noop")
    assert(short:queue("q"):claim():ack())
    assert.equal(0, handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished")[1].n)
    assert.same({ nil, "INVALID" }, { (nightshift.open { url = url, history = "none" }),
      (select(3, nightshift.open { url = url, history = "none" })) })
  end)
end)
