-- Texts as they are said: errors with a NUL, text that is not UTF-8, characters that cannot be seen.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- An error was cut at its first NUL on its way through a traceback, and so was a text of
-- job:progress: `error "a\0b"` was kept as "a". What a job says is kept to its last byte,
-- and shown with "\0" in its place.
describe("a NUL in an error", function()
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

-- Text that is not UTF-8 was copied whole for each bad byte: 100,000 such bytes in job:log
-- took five seconds, and an error of 64 KiB of them held its worker for three. An error
-- value whose metatable is protected by a number or true raised in the library itself: the
-- job stayed claimed, and in a handler the error that was kept was the library's.
describe("bytes:", function()
  local job = require "nightshift.job"

  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function seconds(fn)
    local before = nst.clock()
    fn()
    return nst.clock() - before
  end

  describe("text that is not UTF-8", function()
    it("costs no more than text that is", function()
      assert(q:push "a")
      local claimed = assert(q:claim())
      local bad = ("\xff"):rep(100000)
      assert.is_true(seconds(function() assert(claimed:log(bad)) end) < 3)
      assert.is_true(seconds(function() assert(claimed:fail(bad)) end) < 3)
      local row = handle:execute("SELECT error, log FROM nightshift_attempt WHERE job_id = ?", claimed.id)[1]
      assert.equal(16384, #row.log)
      assert.matches("^%?+$", row.log)
      assert.matches("^%?+… %(100000 bytes%)$", row.error)
    end)

    it("keeps what is good between what is not", function()
      assert.equal("a?b??c", job.error_text "a\xffb\xc3\xe2c")
      assert.equal("?", job.error_text "\xff")
      assert.equal("?ä", job.error_text "\xffä")
    end)

    it("is cut on a whole character in a log", function()
      assert(q:push "a")
      local claimed = assert(q:claim())
      assert(claimed:log("x" .. ("ä"):rep(20000)))
      assert(claimed:fail "e")
      local log = handle:execute("SELECT log FROM nightshift_attempt WHERE job_id = ?", claimed.id)[1].log
      assert.is_truthy(utf8.len(log))
      assert.is_nil(log:find("?", 1, true))
      assert.equal(16384, #log)
    end)
  end)

  describe("an error value whose metatable is protected", function()
    local SHIELDS = { 1, true, false, "no" }

    it("is kept as what it is", function()
      for _, shield in ipairs(SHIELDS) do
        assert.equal('{"code":5}', job.error_text(setmetatable({ code = 5 }, { __metatable = shield })))
        assert.equal("shown", job.error_text(setmetatable({},
          { __metatable = shield, __tostring = function() return "shown" end })))
      end
    end)

    it("fails the job that it was raised in", function()
      local id = assert(handle:queue "default":push("a", nil, { max_attempts = 1 }))
      assert.equal(0, (host.drain(url, [[return {
      a = function() error(setmetatable({ code = 5 }, { __metatable = 1 })) end,
    }]])))
      assert.matches('^{"code":5}', handle:job(id).error)
    end)
  end)
end)

-- Characters that turn the direction of text, or hide in it, went to the terminal
-- as they are: a queue or job could look like another one.
describe("a character that cannot be seen", function()
  local HIDDEN = { 0x61C, 0x200B, 0x200E, 0x200F, 0x2028, 0x202A, 0x202E, 0x2060, 0x2066, 0x2069, 0xFEFF, 0xE0041 }

  it("is written out where queues and jobs are shown, and kept in JSON", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    for _, code in ipairs(HIDDEN) do
      local char = utf8.char(code)
      local id = assert(handle:queue("q" .. char .. "x"):push("n" .. char .. "x", 1, { unique = "u" .. char }))
      local shown = ("\\u{%x}x"):format(code)
      for _, argv in ipairs { { "jobs" }, { "status" }, { "show", id } } do
        local exit, out = proc.nightshift(argv, url)
        assert.equal(0, exit)
        assert.is_nil(out:find(char, 1, true), argv[1] .. shown)
        assert.is_truthy(out:find("q" .. shown, 1, true), out)
      end
      local _, json = proc.nightshift({ "show", id, "--json" }, url)
      assert.equal("n" .. char .. "x", nightshift.decode(json).name)
    end
  end)

  it("is written out in errors and logs", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push("a", "\u{202E}\u{9B}31mred", { max_attempts = 1 }))
    local status, log = host.drain(url, [[return { a = function(job)
      job:log(job.payload)
      error(job.payload, 0)
    end }]])
    assert.equal(0, status)
    assert.is_truthy(log:find("\\u{202e}\\u{9b}31mred", 1, true), log)
    assert.is_nil(log:find("\u{202E}", 1, true), log)
    local _, out = proc.nightshift({ "jobs" }, url)
    assert.is_truthy(out:find("\\u{202e}\\u{9b}31mred", 1, true), out)
    assert.is_nil(out:find("\u{202E}", 1, true) or out:find("\u{9B}", 1, true))
    status, log = host.drain(url, "return {}", { "--drain", "--log", "json" })
    assert.equal(0, status, log)
  end)

  it("leaves what can be seen as it is", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local name = "über.צ.שם.名前.🚀"
    assert(handle:queue("q"):push(name, 1))
    local _, out = proc.nightshift({ "jobs" }, url)
    assert.is_truthy(out:find(name, 1, true), out)
  end)
end)

-- A host whose log is read slowly dropped at its end what was not written yet. The line that
-- says how much was lost as well, because the pipe was full, or it told of the same lines that
-- another line had told of: nobody learned how many there were.
describe("the end of a log:", function()
  local url, _, q
  with_database(function(...) _, q, url = ... end)

  local JOBS <const>, LINES <const> = 100, 20 -- of 1500 bytes: three times what is kept for a reader

  local SCRIPT = ([[return { log = function(job) for _ = 1, %d do job:log(("x"):rep(1500)) end end }]]):format(LINES)

  it("a host that ends says what its slow reader will never see", function()
    local pipe = fixture.dir() .. "/pipe"
    assert(os.execute("mkfifo " .. pipe))
    local reader = proc.start { proc.lua, proc.root .. "/spec/torture/programs.lua", "reader", pipe }
    for i = 1, JOBS do assert(q:push("log", i)) end
    local h = proc.start { "sh", "-c", 'exec "$@" 2>' .. pipe, "sh", proc.program, "work",
      fixture.file("jobs.lua", SCRIPT), "--workers", "2", "--drain", env = { NIGHTSHIFT_URL = url } }
    assert.equal(0, h:wait(60))
    reader:wait(20)
    local log, dropped = reader:text(), 0
    for n in log:gmatch "event=log.dropped lines=(%d+)" do dropped = dropped + tonumber(n) end
    local told = select(2, log:gsub("event=job.log ", "")) + dropped
    assert.is_true(told >= JOBS * LINES and told <= JOBS * LINES + 3, told) -- the host's ready, drain and end
  end)
end)
