-- An error was cut at its first NUL on its way through a traceback, and so was a text of
-- job:progress: `error "a\0b"` was kept as "a". What a job says is kept to its last byte,
-- and shown with "\0" in its place.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"

-- Each fails with "a", NUL and its name, or has it in front of what follows.
local SCRIPT = [[
local nightshift = require "nightshift"
local function poll(job) error("a\0" .. job.name, 0) end
return {
  raised = function() error("a\0raised") end,
  bare = function() error("a\0bare", 0) end,
  made = function() error(setmetatable({}, { __tostring = function() return "a\0made" end })) end,
  asserted = function() assert(nil, "a\0asserted") end,
  returned = function() return nil, "a\0returned" end,
  failed = function(job) job:fail("a\0failed") end,
  discarded = function(job) job:discard("a\0discarded") end,
  wrapped = function() coroutine.wrap(function() error("a\0wrapped") end)() end,
  transaction = function(job)
    job:db():transaction(function() error("a\0transaction", 0) end)
  end,
  locked = function(job) job:db():lock "l" (function() error("a\0locked", 0) end) end,
  left = function(job)
    job:db()._handle:begin()
    error("a\0left", 0)
  end,
  looked = nightshift.background { start = function() return 1 end, max_polls = 1, every = 0.1, max_attempts = 1,
    poll = function(job) return job:again() end, on_timeout = poll },
  polled = nightshift.background { start = function() return 1 end, poll = poll, max_attempts = 1 },
  child = function() error("a\0child", 0) end,
  parent = function(job)
    if job.phase > 0 then return job:discard(job.results[1].error:match "^[^\n]*" .. "\0parent") end
    job:spawn("child", nil, { max_attempts = 1 })
    return job:wait { on_fail = "continue" }
  end,
  logs = function(job)
    job:log "a\0logs"
    job:progress(0.5, "a\0progress")
    error("a\0after", 0)
  end,
}]]

local NAMES = { "raised", "bare", "made", "asserted", "returned", "failed", "discarded", "wrapped", "transaction",
  "locked", "left", "parent", "logs" }
local at_once = { discarded = true, parent = true }

--- The first row of a query on a job.
local function first(handle, sql, id) return assert(handle:execute(sql, id))[1] end

describe("a NUL in an error", function()
  local url, handle

  before_each(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
  end)

  after_each(function() handle:close() end)

  local function drained(names, ...)
    local q, ids = assert(handle:queue "q"), {}
    for _, name in ipairs(names) do ids[name] = assert(q:push(name, nil, { max_attempts = 1 })) end
    local status, log = host.drain(url, SCRIPT, ...)
    assert.equal(0, status, log)
    return ids, log
  end

  it("and all behind it is in the tables, in the log and shown", function()
    local ids, log = drained(NAMES)
    for _, name in ipairs(NAMES) do
      local want = "a\0" .. (name == "parent" and "child\0" or "") .. (name == "logs" and "after" or name)
      local shown = want:gsub("%z", "\\0")
      for _, sql in ipairs { "SELECT error FROM nightshift_finished WHERE id = ?",
        "SELECT error FROM nightshift_attempt WHERE job_id = ? ORDER BY run DESC" } do
        local row = first(handle, sql, ids[name])
        local discarded = not row and at_once[name] -- which is no attempt
        assert.is_truthy(discarded or row.error:find(want, 1, true), ("%s: %q"):format(name, row and row.error))
      end
      assert.is_truthy(handle:job(ids[name]).error:find(want, 1, true), name)
      assert.is_truthy(log:gsub("\\\\", "\\"):find(shown, 1, true), log)
      for _, command in ipairs { "show", "why" } do
        local _, out = proc.nightshift({ command, ids[name] }, url)
        assert.is_truthy(out:find(shown, 1, true), command .. out)
        local _, json = proc.nightshift({ command, ids[name], "--json" }, url)
        assert.is_truthy(json:find((want:gsub("%z", "\\u0000")), 1, true), command .. json)
      end
    end
    assert.is_nil(log:find("\0", 1, true))
    assert.matches("stack traceback:.*jobs.lua", handle:job(ids.raised).error)
    assert.matches("a%zleft.*it was rolled back", handle:job(ids.left).error)
    assert.equal("a\0logs\n", first(handle, "SELECT log FROM nightshift_attempt WHERE job_id = ?", ids.logs).log)
    local _, jobs = proc.nightshift({ "jobs", "--state", "dead" }, url)
    assert.is_truthy(jobs:find("a\\0bare", 1, true), jobs)
  end)

  it("of a poll, and of what is called at its end", function()
    drained { "polled", "looked" }
    local rows = assert(handle:execute "SELECT name, error FROM nightshift_finished WHERE outcome = 'dead' ORDER BY id")
    assert.equal(2, #rows)
    for _, row in ipairs(rows) do
      assert.is_truthy(row.error:find("a\0" .. row.name, 1, true), ("%q"):format(row.error))
    end
  end)

  it("of a handler file is on stderr, and of a hook in the log", function()
    local status, log = host.drain(url, 'error("a\\0file and more", 0)')
    assert.equal(78, status, log)
    assert.is_truthy(log:find("a\\0file and more\n", 1, true), log)
    local _, _, err = proc.nightshift({ "run", "n", "--script", fixture.file("j.lua", 'error("a\\0file", 0)') }, url)
    assert.is_truthy(err:find("a\\0file\n", 1, true), err)
    status, log = host.drain(url, [[require "nightshift".on("worker.start", function() error("a\0hook", 0) end)
      return {}]])
    assert.equal(0, status, log)
    assert.is_truthy(log:find("a\\0hook", 1, true), log)
  end)

  it("is kept by who claims in a program, and its text in what is shown", function()
    local q = assert(handle:queue "q")
    local id = assert(q:push("a", nil, { max_attempts = 1 }))
    pcall(function()
      local job <close> = assert(q:claim())
      assert(job:progress(0.5, "a\0progress"))
      assert.equal("a\0progress", assert(handle:job(id)).status)
      error("a\0program", 0)
    end)
    assert.equal("a\0program", handle:job(id).error)
    assert.equal("a\0program", first(handle, "SELECT error FROM nightshift_finished WHERE id = ?", id).error)
  end)

  it("is one in a log of JSON", function()
    local _, log = drained({ "bare" }, { "--drain-within", "500ms", "--log", "json" })
    local found
    for line in log:gmatch "[^\n]+" do
      local entry = assert(nightshift.decode(line))
      if entry.event == "job.failed" then found = entry.error end
    end
    assert.equal("a\0bare", found)
  end)
end)
