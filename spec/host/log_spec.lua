-- The output of a host: to a slow reader, or to none; when its database is slow.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

-- A run that ended well left no line unless all events of level debug were shown.
describe("lines of jobs:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local SCRIPT = [[return {
    noop = function() end,
    poll = function(job) if job.polls == 0 then return job:again(0) end end,
    fail = function() error("broken\nfor good", 0) end,
  }]]

  local function run(...)
    local status, log = host.drain(url, SCRIPT, { "--drain-within", "500ms", "--log", "json", ... })
    assert.equal(0, status)
    local lines = {}
    for line in log:gmatch "{[^\n]+" do
      local entry = nightshift.decode(line)
      local event = entry.event:match "^job%.(%a+)$"
      if event then lines[event] = lines[event] or {} table.insert(lines[event], entry) end
    end
    return lines
  end

  it("with --log-done on there is one for each run, with the facts about it", function()
    local noop, poll = assert(q:push "noop"), assert(q:push "poll")
    local fail = assert(handle:queue "other":push("fail", nil, { max_attempts = 1 }))
    local lines = run("--log-done", "on")
    local facts = {}
    for _, event in ipairs { "done", "again", "dead" } do
      for _, entry in ipairs(lines[event]) do
        assert.equal("number", type(entry.seconds))
        assert.is_true(entry.seconds >= 0 and entry.seconds < proc.limit(5) and entry.pid > 1)
        assert.is_true(entry.worker == 1 or entry.worker == 2)
        assert.equal(handle:execute "SELECT @@hostname AS name"[1].name, entry.host)
        assert.equal(event, entry.outcome)
        assert.matches("^%d%d%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$", entry.ts)
        facts[#facts + 1] = { entry.id, entry.run, entry.name, entry.queue, event, entry.level,
          entry.reason, entry.error and entry.error:match "^(.-)\nstack traceback:\n" }
      end
    end
    table.sort(facts, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
    assert.same({ { noop, 1, "noop", "q", "done", "info" }, { poll, 1, "poll", "q", "again", "info" },
      { poll, 2, "poll", "q", "done", "info" },
      { fail, 1, "fail", "other", "dead", "warn", "failed", "broken\nfor good" } }, facts)
  end)

  it("there are at most 100 a second, and the rest is counted", function()
    local items = {}
    for i = 1, 1200 do items[i] = { "noop" } end
    assert(q:push_many(items))
    local lines = run("--log-done", "on")
    local more, in_second = 0, {}
    for _, entry in ipairs(lines.more) do more = more + entry.n end
    assert.equal(1200, #lines.done + more)
    for _, entry in ipairs(lines.done) do
      local second = entry.ts:sub(1, 19)
      in_second[second] = (in_second[second] or 0) + 1
      assert.is_true(in_second[second] <= 200) -- seconds of the clock: the ends of two of ours
    end
  end)

  it("there is none for a run that ends well unless it was asked for", function()
    assert(q:push "noop")
    local fail = assert(q:push("fail", nil, { max_attempts = 1 }))
    for _, more in ipairs { {}, { "--log-done", "off" } } do
      local lines = run(table.unpack(more))
      assert.is_nil(lines.done)
      if #more == 0 then assert.equal(fail, lines.dead[1].id) end
    end
  end)

  -- A failure with which its job was dead had two lines, of which the second had but an id. The
  -- first had the first line of the error. A crash had one for the worker, too.
  it("there is one for each failure, with all of its error", function()
    local LAWS = [[return {
      twice = function(job) error("no\n" .. job.attempt, 0) end,
      gone = function(job) return job:discard "spoilt" end,
      crash = function() os.execute "kill -9 $PPID" end,
      odd = function(job) return job:fail("\xff\0\27[31m\u{202E}\n\"\\", { retry_in = 0 }) end,
    }]]
    local ids = {}
    local function push(name, options) ids[assert(q:push(name, nil, options))] = name end
    push("twice", { max_attempts = 2, backoff = 0 })
    push "gone"
    push("crash", { max_crashes = 2 })
    push("odd", { max_attempts = 1 })
    local status, log = host.drain(url, LAWS, { "--drain-within", "3s", "--log", "json" })
    assert.equal(0, status)
    local seen = {}
    for line in log:gmatch "[^\n]+" do
      local entry = assert(nightshift.decode(line))
      if entry.level ~= "info" and entry.event ~= "host.root" then
        seen[#seen + 1] = table.concat({ ids[entry.id] or "?", entry.event, entry.run or "?", entry.outcome or "?",
          entry.reason or "-", ((entry.error or ""):gsub("\nstack traceback:\n\t.*", "")) }, " ")
      end
    end
    table.sort(seen)
    assert.same({ "crash job.crashed 1 crashed - worker killed by signal 9 (Killed)",
      "crash job.dead 2 dead poison worker killed by signal 9 (Killed)", "gone job.dead 1 dead discarded spoilt",
      "odd job.dead 1 dead failed ?\0\27[31m\u{202E}\n\"\\", "twice job.dead 2 dead failed no\n2",
      "twice job.failed 1 failed - no\n1" }, seen)
    log = select(2, host.drain(url, LAWS, { "--drain" })) -- nothing is left
    assert.is_nil(log:find("level=warn event=job", 1, true))
  end)

  it("a name without a handler has one a minute, and the host says how many had none", function()
    local items = {}
    for i = 1, 5 do items[i] = { "nosuch" } end
    assert(q:push_many(items))
    handle:execute "UPDATE nightshift_ready SET kind = 0" -- as an older program writes it
    local h = host.start(url, SCRIPT)
    eventually(function() return handle:execute "SELECT MIN(run) AS n FROM nightshift_job"[1].n > 1 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
    local _, log = h:text()
    assert.equal(1, #host.events(log, "job.no_handler"))
    local more = host.events(log, "job.more")
    assert.same({ 1, "no_handler" }, { #more, more[1].outcome })
    assert.is_true(tonumber(more[1].n) >= 4)
  end)
end)

-- What handlers print went to the host's output, without a word about the job, and was kept nowhere.
describe("what a handler prints", function()
  local url, handle, q

  local function take(...) handle, q, url = ... end

  local SCRIPT = [[return {
    say = function(job)
      print("hello", job.id)
      job:log "logged"
      io.stderr:write "oops"
      io.stderr:write("\\n\27[1m\n")
      io.write "no newline"
    end,
    silent = function(job) return job.id end,
    fail = function() print "before" error "no" end,
    die = function(job)
      print("run " .. job.run)
      if job.crashes == 0 then os.execute "kill -9 $PPID" end
    end,
    many = function() for i = 1, 20000 do print("line " .. i) end end,
    long = function() io.write(("x"):rep(5000), "\n") end,
    child = function() os.execute "echo of a child; echo of its errors >&2" end,
    piped = function()
      for line in io.popen "{ echo of a child; echo of its errors >&2; } 2>&1":lines() do print(line) end
    end,
    poll = function(job)
      print("look " .. job.polls)
      if job.polls < 12 then return job:again(0) end
    end,
    flaky = function(job)
      print "tries"
      if job.attempts == 0 then return job:fail("no", { retry_in = 0 }) end
    end,
  }]]

  --- Ids of new jobs, by their names.
  local function push(names)
    local ids = {}
    for _, name in ipairs(names) do
      ids[name] = assert(q:push(name, nil, { max_attempts = name == "flaky" and 2 or 1 }))
    end
    return ids
  end

  --- What is kept of these jobs.
  local function kept(ids)
    local list = {}
    for _, row in ipairs(handle:execute "SELECT job_id, kind, log FROM nightshift_attempt ORDER BY job_id, run") do
      for _, id in pairs(ids) do
        if row.job_id == id then list[#list + 1] = row end
      end
    end
    return list
  end

  local function lines_of(log, id)
    local list = {}
    for line in log:gmatch "[^\n]+" do
      local entry = assert(nightshift.decode(line), line)
      if entry.event == "job.output" and entry.id == id then list[#list + 1] = entry.stream .. ": " .. entry.text end
    end
    return list
  end

  describe("of a host as usual", function()
    local serve = host.lend(take)

    local function run(names)
      local h, ids = serve(SCRIPT), push(names)
      for _, id in pairs(ids) do
        eventually(function() return handle:job(id).state:match "^d" end)
      end
      return ids, h
    end

    it("goes where it always went, and its end is kept with the run", function()
      local ids, h = run { "say", "silent", "child" }
      local out, err
      eventually(function()
        out, err = h:text()
        return out:find("no newline", 1, true) and out:find("of a child\n", 1, true) -- which may outlive its job
          and err:find("of its errors\n", 1, true)
      end)
      assert.is_truthy(("\n" .. out):find(("\nhello\t%d\n"):format(ids.say), 1, true), out)
      -- two pieces: the host's own line on the job's log may stand between them
      for _, piece in ipairs { "oops", "\\n\27[1m\n" } do assert.is_truthy(err:find(piece, 1, true), err) end
      local said = ("hello\t%d\nlogged\noops\\n\27[1m\nno newline"):format(ids.say)
      assert.equal(said, handle:job(ids.say).output)
      local _, shown = proc.nightshift({ "show", ids.say }, url)
      assert.is_truthy(shown:find(("\noutput:\n    hello\t%d\n    logged\n    oops\\n\\x1b[1m\n    no newline\n")
        :format(ids.say), 1, true), shown)
      assert.same({ nil, nil }, { handle:job(ids.silent).output, handle:job(ids.child).output })
      assert.same({ { job_id = ids.say, kind = "printed", log = said } }, kept(ids)) -- the others cost no row
      assert(handle:delete(ids.say))
      assert.same({}, kept(ids))
    end)

    it("is bounded: the last 16 KiB of whole lines", function()
      local ids, h = run { "many" }
      eventually(function() return select(2, h:text():gsub("\n", "")) >= 20000 end)
      assert.equal(20000, select(2, h:text():gsub("\n", "")))
      local output = handle:job(ids.many).output
      assert.is_true(#output > 6000 and #output <= 16384, #output)
      assert.matches("^line %d+\nline .*\nline 20000\n$", output)
    end)

    -- Nothing was kept of runs that said "not yet".
    it("of polls is kept as well, of the last ten", function()
      local ids = run { "poll" }
      local rows = kept(ids)
      assert.equal(10 + 1, #rows)
      for i, row in ipairs(rows) do assert.same({ "printed", ("look %d\n"):format(i + 1) }, { row.kind, row.log }) end
      local _, shown = proc.nightshift({ "show", ids.poll }, url)
      assert.matches("\nrun 3, until %S+Z\n  output:\n    look 2\n\nrun 4, .*\n    look 11\n\noutput:\n    look 12\n$",
        shown)
      _, shown = proc.nightshift({ "show", ids.poll, "--json" }, url)
      local outputs = nightshift.decode(shown).outputs
      assert.same({ 10, 12, "look 11\n" }, { #outputs, outputs[10].run, outputs[10].log })
      assert(handle:delete(ids.poll))
      assert.same({}, kept(ids))
    end)

    it("of a program that it reads from is kept, too", function()
      local ids = run { "piped" }
      assert.equal("of a child\nof its errors\n", handle:job(ids.piped).output)
    end)
  end)

  describe("with other options", function()
    with_database(take)

    local function run(names, ...)
      local ids = push(names)
      local h = host.spawn(url, SCRIPT, { "--drain-within", "500ms", ... })
      assert.equal(0, h:wait(60))
      local out, err = h:text()
      return ids, out, err
    end

    it("is lines of the log where that is no logfmt, with the job", function()
      local ids, out, err = run({ "say", "long" }, "--log", "json")
      assert.equal("", out)
      assert.same({ ("stdout: hello\t%d"):format(ids.say), "stderr: oops\\n\27[1m", "stdout: no newline" },
        lines_of(err, ids.say))
      local long = lines_of(err, ids.long)
      assert.equal(3, #long)
      assert.equal(5000 + 3 * #"stdout: ", #table.concat(long))
      ids, out, err = run({ "say" }, "--log", "json", "--output", "raw")
      -- two pieces again, of which a line of the host's own may be the end of the first
      local rest = err:gsub("oops", "", 1):gsub("\\n\27%[1m\n", "", 1)
      assert.same({}, lines_of(rest, ids.say))
      assert.matches("^hello", out)
      ids, out, err = run({ "say" }, "--output", "log")
      assert.equal("", out)
      assert.is_truthy(err:find("event=job.output id=" .. ids.say .. " run=1 name=say queue=q ", 1, true), err)
    end)

    it("of a run that failed is kept with it, also when its worker was killed", function()
      local ids, _, err = run({ "fail", "die" }, "--log", "json")
      assert.same({ { job_id = ids.fail, kind = "failed", log = "before\n" },
        { job_id = ids.die, kind = "crashed", log = "run 1\n" },
        { job_id = ids.die, kind = "printed", log = "run 2\n" } }, kept(ids))
      assert.equal("before\n", handle:job(ids.fail).output)
      assert.equal("run 2\n", handle:job(ids.die).output)
      assert.same({ "stdout: run 1", "stdout: run 2" }, lines_of(err, ids.die))
      assert(handle:retry(ids.die)) -- what it has printed is no failure
      assert.matches("is ready", handle:why(ids.die))
      local _, shown = proc.nightshift({ "show", ids.die, "--json" }, url)
      assert.equal(1, #nightshift.decode(shown).failures)
    end)

    -- Failures of a job that was done at last stayed for ever.
    it("leaves nothing where done jobs leave no history", function()
      local ids = run({ "say", "poll", "flaky" }, "--history", "failed")
      assert.same({}, kept(ids))
    end)
  end)
end)

-- Under systemd, stderr is a socket of the journal's, which would make a message of each line, and
-- nothing more.
describe("the journal:", function()
  local url, _, q, socket, path

  with_database(function(...) _, q, url = ... end)

  before_each(function()
    path = fixture.dir() .. "/journal"
    socket = assert(nst.datagrams(path))
  end)
  after_each(function() nst.close(socket) end)

  local SCRIPT = [[return { fail = function() error("broken\nfor good", 0) end }]]
  local STREAM = "JOURNAL_STREAM=$(stat -L -c %d:%i /dev/stderr) "

  -- A host whose stderr is what the environment says; its records, and its stderr.
  local function run(stream, ...)
    local h = proc.start { env = { NIGHTSHIFT_URL = url, NIGHTSHIFT_JOURNAL = path },
      "sh", "-c", stream .. [[exec "$@"]], "sh", proc.program, "work", fixture.file("jobs.lua", SCRIPT),
      "--workers", "2", "--drain", ... }
    local records = {}
    local function read()
      local text = nst.datagram(socket)
      while text do
        local record = {}
        for key, value in text:gmatch "([%u_]+)=([^\n]*)\n" do record[key] = value end
        records[record.NIGHTSHIFT_EVENT] = record
        text = nst.datagram(socket)
      end
      return h:ended()
    end
    eventually(read, 60)
    read()
    assert.equal(0, h:wait())
    return records, select(2, h:text())
  end

  it("lines are its records, with fields", function()
    local id = assert(q:push("fail", nil, { max_attempts = 1 }))
    local records, log = run(STREAM)
    assert.equal("", log)
    local dead = records["job.dead"]
    assert.same({ "4", "nightshift", tostring(id), "1", "fail", "q", "dead", "failed" },
      { dead.PRIORITY, dead.SYSLOG_IDENTIFIER, dead.NIGHTSHIFT_JOB, dead.NIGHTSHIFT_RUN, dead.NIGHTSHIFT_NAME,
        dead.NIGHTSHIFT_QUEUE, dead.NIGHTSHIFT_OUTCOME, dead.NIGHTSHIFT_REASON })
    assert.matches("^event=job.dead id=" .. id .. [[ run=1 name=fail .*error="broken\nfor good\nstack traceback:]],
      dead.MESSAGE)
    assert.equal("6", records["host.ready"].PRIORITY)
    assert.is_truthy(records["host.end"])
  end)

  it("lines go to stderr where that is another file, or a form was asked for", function()
    for _, case in ipairs { { "JOURNAL_STREAM=1:2 " }, { STREAM, "--log", "logfmt" } } do
      local records, log = run(table.unpack(case))
      assert.same({}, records)
      assert.matches("event=host.end", log)
    end
  end)
end)

-- What a host and its handlers write is not read, or cannot be written.
describe("unread:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local ONCE = { max_attempts = 1 }

  local SCRIPT = [[
local line = ("x"):rep(1000)
return {
  log = function(job) for _ = 1, 20 do job:log(line) end return "logged" end,
  print = function() for _ = 1, 1000 do print(line) end io.stdout:flush() return "printed" end,
  noop = function() return "ran" end,
}]]

  local function ended(id)
    return eventually(function()
      local job = handle:job(id)
      return (job.state == "done" or job.state == "dead") and job
    end)
  end

  -- A host with output that goes where the shell says; its process is the host.
  local function start(redirection)
    return proc.start { "sh", "-c", [[exec "$@" ]] .. redirection, "sh", proc.program, "work",
      fixture.file("jobs.lua", SCRIPT), "--workers", "2", env = { NIGHTSHIFT_URL = url } }
  end

  -- A reader of a new pipe; its path, and the process.
  local function reader()
    local path = fixture.dir() .. "/pipe"
    assert(os.execute("mkfifo " .. path))
    return path, proc.start { "cat", path }
  end

  local function stop(h)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  describe("a log that nobody reads", function()
    it("stops no job; lines are dropped and counted", function()
      local path, r = reader()
      local h = start("2>" .. path)
      r:wait_line("host.ready", 20)
      r:signal "STOP"
      for _ = 1, 100 do q:push("log", nil, ONCE) end
      local DONE = "SELECT id FROM nightshift_finished WHERE outcome = 'done'"
      eventually(function() return #handle:execute(DONE) == 100 end,
        60)
      r:signal "CONT"
      assert.equal("ran", ended(q:push("noop", nil, ONCE)).result)
      h:signal "USR1"
      r:wait_line "event=log.dropped lines=%d+"
      stop(h)
    end)

    it("because its reader has died stops no job either", function()
      local path, r = reader()
      local h = start("2>" .. path)
      r:wait_line("host.ready", 20)
      r:signal "KILL"
      r:wait()
      assert.equal("logged", ended(q:push("log", nil, ONCE)).result)
      stop(h)
    end)

    it("because its disk is full stops no job either", function()
      if not io.open "/dev/full" then return pending "no /dev/full" end
      local h = start(">/dev/full 2>&1")
      assert.equal("logged", ended(q:push("log", nil, ONCE)).result)
      assert.equal("printed", ended(q:push("print", nil, ONCE)).result)
      stop(h)
    end)
  end)

  describe("standard output that nobody reads", function()
    it("holds up who prints, until the job's timeout, and nobody else", function()
      local path, r = reader()
      local h = start(">" .. path)
      h:wait_line("host.ready", 20)
      r:signal "STOP"
      local id = q:push("print", nil, { timeout = 0.5, max_attempts = 1 })
      for _ = 1, 20 do assert.equal("ran", ended(q:push("noop", nil, ONCE)).result) end
      local job = ended(id)
      assert.same({ "dead", 0 }, { job.state, job.crashes })
      assert.matches("^timeout after 0.5 s", job.error)
      r:signal "CONT"
      assert.equal("printed", ended(q:push("print", nil, ONCE)).result)
      stop(h)
    end)
  end)
end)

-- The host waited up to 0.1 s for the reader of its log, line by line, while workers and
-- dispatcher waited for the host. With a reader of 100 KB/s, such as a serial console, one
-- queue of failing jobs slowed all the rest down.
describe("slow readers:", function()
  local url, handle, q
  with_database(function(...) handle, q, url = ... end)

  local FLOOD <const> = 1500
  local SCRIPT = [[
  local line = ("x"):rep(1500)
  return {
    fail = function() error(line) end,
    log = function(job) for _ = 1, 20 do job:log(line) end end,
    brief = function(job) for i = 1, 20 do job:log("line " .. i) end end,
    stamp = function() return require "nst".clock() end,
  }]]

  -- Reads 100 KB a second, until it is told to hurry.
  local READER = [[
  local nst = require "nst"
  local pipe, out = assert(io.open(arg[1])), io.stdout
  local n = 0
  for line in pipe:lines "L" do
    out:write(line)
    out:flush()
    n = n + #line
    if n > 10240 and not io.open(arg[2]) then
      n = 0
      nst.sleep(0.1)
    end
  end]]

  --- A host, and the reader of its log.
  local function start()
    local pipe, hurry = fixture.dir() .. "/pipe", fixture.dir() .. "/hurry"
    assert(os.execute("mkfifo " .. pipe))
    local reader = proc.start { proc.lua, fixture.file("reader.lua", READER), pipe, hurry }
    local h = proc.start { "sh", "-c", 'exec "$@" 2>' .. pipe, "sh", proc.program, "work",
      fixture.file("jobs.lua", SCRIPT), "--workers", "2", env = { NIGHTSHIFT_URL = url } }
    reader:wait_line("host.ready", 20)
    return h, reader, hurry
  end

  --- Pushes 'n' jobs, in transactions of at most 500.
  local function push(n, name)
    for from = 1, n, 500 do
      assert(handle:transaction(function(tx)
        for i = from, math.min(n, from + 499) do assert(tx:queue("flood"):push(name, i, { max_attempts = 1 })) end
      end))
    end
  end

  --- The median of how long jobs of another queue wait for their start, seconds.
  local function latency()
    local waits = {}
    for i = 1, 15 do
      local pushed = nst.clock()
      local id = assert(q:push "stamp")
      waits[i] = eventually(function() return handle:job(id).result end, 20) - pushed
    end
    table.sort(waits)
    return waits[8]
  end

  --- Five tries: the machine may be slow for a moment, while a reader is slow all along.
  local function is_quick()
    local took
    for _ = 1, 5 do
      took = latency()
      if took < proc.limit(1) then return true end
    end
    return false, ("a start took %.3f s"):format(took)
  end

  local function count(text, pattern)
    local n = 0
    for _ in text:gmatch(pattern) do n = n + 1 end
    return n
  end

  describe("a log whose reader is slow", function()
    it("slows no queue down, and says how many lines it dropped", function()
      local h, reader, hurry = start()
      push(FLOOD, "fail")
      eventually(function() return #handle:jobs { queue = "flood", state = "dead", limit = 800 } == 800 end, 60)
      assert.is_true(is_quick())
      eventually(function() return handle:execute "SELECT COUNT(*) AS n FROM nightshift_job"[1].n == 0 end, 60)
      assert(io.open(hurry, "w")):close()
      h:signal "TERM"
      assert.equal(0, h:wait(20))
      reader:wait(20)
      local log, dropped = reader:text(), 0
      for n in log:gmatch "event=log.dropped lines=(%d+)" do dropped = dropped + tonumber(n) end
      assert.is_true(dropped > 0)
      local told = count(log, "event=job.dead") + dropped
      assert.is_true(told >= FLOOD and told <= FLOOD + 2, told) -- the host's end may be among them
    end)

    it("costs no time with job:log either", function()
      local h = start()
      push(250, "log")
      eventually(function() return #handle:jobs { queue = "flood", state = "done", limit = 100 } == 100 end, 60)
      assert.is_true(is_quick())
      h:signal "QUIT"
      h:wait(20)
    end)
  end)

  describe("a log of less than waits for its reader", function()
    it("has every line at the end of its host", function()
      push(100, "brief")
      local h = proc.start { proc.program, "work", fixture.file("jobs.lua", SCRIPT), "--workers", "2",
        "--drain", env = { NIGHTSHIFT_URL = url } }
      assert.equal(0, h:wait(60))
      local _, log = h:text()
      assert.equal(100 * 20, count(log, "event=job.log"))
      assert.matches("event=host.end [^\n]*\n$", log)
    end)
  end)
end)

-- A verdict on a job with a row that another session had locked was logged as refused, hundreds
-- of times a second. Yet it was written in the end.
describe("a verdict on a job that a stranger has locked", function()
  it("is written later, and the log does not call it refused", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local stranger <close> = assert(nightshift.open(url))
    local h = host.start(url, [[return { hold = function() print "holds" io.flush() os.execute "sleep 0.3" end }]])
    local id = handle:queue("q"):push "hold"
    h:wait_line "^holds"
    stranger:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
      nst.sleep(0.8)
    end)
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.same({}, host.events(select(2, h:text()), "job.refused"))
  end)
end)

-- A cycle with a claim that failed had written its verdicts one by one. They came again with
-- the next, and were told, and logged, as claims that were lost: job.stale, of a job that was
-- done.
describe("a cycle whose claim fails:", function()
  local HANDLERS = [[return { job = function(job)
  while not io.open(job.payload) do require "nightshift.core".sleep(0.01) end
end }]]

  it("verdicts that were written before the claim failed are not stale", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    db.sql([[CREATE TABLE trouble (number INT);
    DELIMITER $$
    CREATE TRIGGER trouble BEFORE INSERT ON nightshift_lease FOR EACH ROW
      IF EXISTS(SELECT 1 FROM trouble) THEN
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1175, MESSAGE_TEXT = 'planted';
      END IF$$]], name)
    local h = host.start(url, HANDLERS)
    local go, ids = fixture.dir() .. "/go", {}
    for i = 1, 2 do ids[i] = assert(q:push("job", go)) end
    for i = 1, 2 do
      eventually(function() return handle:job(ids[i]).state == "running" end)
    end
    db.sql("INSERT INTO trouble VALUES (1)", name)
    for i = 3, 12 do ids[i] = assert(q:push("job", go)) end
    io.open(go, "w"):close()
    h:wait_line "event=db.error .*number=1175 "
    for i = 1, 2 do
      eventually(function() return handle:job(ids[i]).state == "done" end)
    end
    h:wait_line("event=db.error .*number=1175 ", 20, 2)
    db.sql("DELETE FROM trouble", name)
    for _, id in ipairs(ids) do
      eventually(function() return handle:job(id).state == "done" end, 20)
      assert.same({ 1, 0 }, { handle:job(id).run, handle:job(id).attempts })
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.same({}, host.events(select(2, h:text()), "job.stale"))
  end)

  -- The same of a program: of verdicts that were settled apart the first are written, and then
  -- the server is gone.
  it("verdicts that were written before the call failed are told so when they come again", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local claimer <close> = assert(core.open { url = url })
    local items, acks = {}, {}
    for i = 1, 4 do items[i] = { "job", i } end
    assert(handle:queue("q"):push_many(items))
    for i, job in ipairs(claimer:claim("q", 4)) do
      acks[i] = { id = job.id, run = job.run, lease = job.lease, kind = "ack" }
    end
    -- trouble of all together, then of the second half a link that is cut
    db.sql(([[CREATE TABLE tries (n INT) ENGINE=Aria;
    INSERT INTO tries VALUES (0);
    DELIMITER $$
    CREATE TRIGGER trouble BEFORE INSERT ON nightshift_finished FOR EACH ROW
      IF NEW.id = %d THEN
        UPDATE tries SET n = n + 1;
        IF (SELECT n FROM tries) = 1 THEN
          SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1175, MESSAGE_TEXT = 'planted';
        ELSE
          KILL CONNECTION_ID();
        END IF;
      END IF$$]]):format(acks[3].id), name)
    local ok, message, code = claimer:settle_all(acks)
    assert.same({ nil, "GONE" }, { ok, code }, message)
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_finished", name))
    db.sql("DROP TRIGGER trouble", name)
    assert(claimer:settle_all(acks))
    assert.equal("4", db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
  end)
end)

-- A database that answers slowly is told of in the log while it lasts, and so is one that
-- answers nothing. Commits wait for a replica that is not there: reads are answered, writes
-- are not.
describe("a slow database", function()
  local LATE = "SET GLOBAL rpl_semi_sync_master_timeout=600000; SET GLOBAL rpl_semi_sync_master_enabled=1"
  local PROMPT = "SET GLOBAL rpl_semi_sync_master_enabled=0"

  local server, url, handle
  setup(function()
    server = db.server("log-bin\nlog-bin-trust-function-creators=1\n"
      .. "rpl-semi-sync-master-wait-point=AFTER_SYNC\n")
  end)
  before_each(function()
    url = server:fresh()
    handle = assert(nightshift.open(url))
  end)
  after_each(function()
    handle:close()
    server:sql(PROMPT)
  end)

  --- A host with a job that has run up to its verdict; `go` lets it end.
  local function started()
    local go = fixture.dir() .. "/go"
    local h = host.start(url, host.holding(go), { "--log", "json", "--output", "raw" })
    local id = assert(handle:queue("q"):push "hold")
    h:wait_line "^holds"
    return h, id, function() assert(io.open(go, "w")):close() end
  end

  local function ends_well(h, id)
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  it("is told of while a commit lasts, and when it is over", function()
    local h, id, go = started()
    server:sql(LATE)
    go()
    h:wait_line '"db.slow"'
    local line = host.logged(h, "db.slow")[1]
    assert.same({ "no", "verdicts of 1 job", "COMMIT" }, { line.over, line.what:sub(1, 17), line.statement })
    -- Commits wait one behind the other: the first for the replica, the next ones are at "Commit".
    assert.is_true(line.server == "Waiting for semi-sync ACK from slave" or line.server == "Commit", line.server)
    local seconds = tonumber(line.seconds)
    assert.is_true(seconds >= 1 and seconds < proc.limit(3), line.seconds)
    assert.equal("running", handle:job(id).state)
    server:sql(PROMPT)
    h:wait_line('"db.slow".*"over":"yes"')
    ends_well(h, id)
    local lines = host.logged(h, "db.slow")
    assert.equal(2, #lines)
    assert.is_true(tonumber(lines[2].seconds) >= seconds)
  end)

  it("is told of once in ten seconds, however many answers are slow", function()
    local p = proxy.start(server)
    local h = host.start(p:url(url), "return { a = function() end }", { "--log", "json" })
    p:tell "delay 1050"
    assert(handle:queue("q"):push "a")
    h:wait_line('"db.slow".*"more":', 40)
    p:tell "delay 0"
    local lines = host.logged(h, "db.slow")
    assert.is_true(#lines <= 4, #lines)
    local last = lines[#lines]
    assert.is_true(last.more >= 5 and tonumber(last.worst) >= 1.05, last.more)
  end)

  it("is counted by a program's handle", function()
    assert(handle:queue("q"):push "a")
    assert.equal(0, handle:stats().counters.slow)
    local locker <close> = assert(nightshift.open(url))
    local program = proc.start { proc.lua, "-e", ([[
      local db = assert(require "nightshift".open(%q))
      assert(db:queue "q":push "a")
      local c = db:stats().counters
      assert(c.slow == 1 and c.slowest > 1 and c.slowest < 100, c.slow)
      assert(db:execute "DO SLEEP(1.1)")
      assert(db:stats().counters.slow == 1, "that of the program's own")]]):format(url) }
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    eventually(function()
      return program:ended() or server:sql([[SELECT COUNT(*) FROM information_schema.processlist
        WHERE time_ms > 1200 AND state = 'Waiting for backup lock']]) == "1"
    end)
    assert(locker:execute "UNLOCK TABLES")
    assert.equal(0, program:wait(), select(2, program:text()))
  end)

  it("is not a frozen one", function()
    local h, id, go = started()
    server:freeze()
    go()
    local ok, err = pcall(h.wait_line, h, '"db.frozen"')
    server:thaw()
    assert(ok, err)
    local line = host.logged(h, "db.frozen")[1]
    assert.same({ "error", "no" }, { line.level, line.over })
    assert.is_truthy(line.advice:find("answers nothing", 1, true))
    for _, slow in ipairs(host.logged(h, "db.slow")) do assert.equal("yes", slow.over) end -- said when it answers again
    ends_well(h, id)
  end)
end)

-- Signs of life of many jobs at once.
describe("signs of life:", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local SCRIPT = [[
local nightshift, core = require "nightshift", require "nightshift.core"
return {
  show = function(job)
    job:progress(0.25, "the first word")
    job:progress(0.5)
    repeat core.sleep(0.05) until nightshift.shared:get "go" or job:cancelled()
    return job:cancelled() and "cancelled" or "went"
  end,
  go = function() nightshift.shared:set("go", true) end,
}]]

  local function shown()
    return handle:execute "SELECT COUNT(*) AS n FROM nightshift_running WHERE worker IS NOT NULL"[1].n
  end

  it("many jobs show how far they are, and those that are lost hear of it", function()
    local h = host.start(url, SCRIPT, { "--workers", "80" })
    local items = {}
    for i = 1, 79 do items[i] = { "show" } end
    local ids = assert(q:push_many(items))
    eventually(function() return shown() == 79 end, 60)
    eventually(function()
      local row = handle:execute "SELECT MIN(progress) AS least, COUNT(status) AS n FROM nightshift_running"[1]
      return row.least == 0.5 and row.n == 79
    end, 60)
    -- As if a session had ended their claims and left no notice.
    for i = 1, 20 do assert(handle:execute("UPDATE nightshift_job SET run = run + 1 WHERE id = ?", ids[i])) end
    eventually(function()
      return select(2, h:transcript():gsub("job%.stop[^\n]*the claim is lost", "")) == 20
    end, 60)
    assert(q:push "go")
    eventually(function()
      return handle:execute "SELECT COUNT(*) AS n FROM nightshift_finished WHERE outcome = 'done'"[1].n == 60
    end, 60)
    assert.equal(20, handle:execute "SELECT COUNT(*) AS n FROM nightshift_job"[1].n)
    h:signal "TERM"
    assert.equal(0, h:wait(60))
  end)
end)
