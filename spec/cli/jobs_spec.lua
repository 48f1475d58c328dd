-- Commands on jobs, queues and trees, end to end through the program.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

-- Commands on jobs and queues, end to end through the program.
describe("queues and jobs:", function()
  local url, db

  setup(function()
    url = server.fresh()
    db = assert(nightshift.open(url))
  end)

  teardown(function() db:close() end)

  local function run(argv, stdin)
    local exit, out, err = proc.nightshift(argv, url, { stdin = stdin })
    return { exit = exit, out = out, err = err }
  end

  local names = 0
  local function fresh_name()
    names = names + 1
    return "cli" .. names
  end

  local function ok(argv, stdin) return proc.succeeds(argv, url, { stdin = stdin }) end
  local function fails(exit, argv, ...) return proc.fails(exit, argv, url, ...) end

  describe("push", function()
    it("takes a negative number as a payload, not for an option", function()
      local name = fresh_name()
      for _, payload in ipairs { "-5", "-0.5", "-1e3" } do ok { "push", name, "n", payload } end
      ok { "push", "-7", "-8", "--unique", "-9", "--priority=5" }
      local claimed = db:queue(name):claim_many(5)
      assert.same({ -5, -0.5, -1000.0 }, { claimed[1].payload, claimed[2].payload, claimed[3].payload })
      claimed[4] = db:queue "-7":claim()
      assert.same({ "-8", 5, "-9" }, { claimed[4].name, claimed[4].priority, db:job(claimed[4].id).unique })
      for _, job in ipairs(claimed) do job:ack() end
    end)

    it("prints the id of a durable job", function()
      local name = fresh_name()
      local id = tonumber(ok { "push", name, "email.send", '{"to":"a@example.com","n":4611686018427387904,"list":[]}' })
      local job = db:queue(name):claim()
      assert.same({ id, "email.send" }, { job.id, job.name })
      assert.same({ to = "a@example.com", n = 1 << 62, list = {} }, job.payload)
      job:ack()
    end)

    it("reads the payload from stdin, and takes none as null", function()
      local name = fresh_name()
      ok({ "push", name, "a", "-" }, '{"big": "' .. ("x"):rep(100000) .. '"}')
      ok { "push", name, "b" }
      local q = db:queue(name)
      local a, b = q:claim(), q:claim()
      assert.equal(100000, #a.payload.big)
      assert.is_nil(b.payload)
      a:ack()
      b:ack()
    end)

    it("passes every option on", function()
      local name = fresh_name()
      local id = tonumber(ok { "push", name, "a", "1", "--delay", "1h", "--priority", "7", "--unique", "k",
        "--max-attempts", "2", "--max-polls", "3", "--max-crashes", "4", "--timeout", "5m", "--deadline", "2h",
        "--backoff", "1.5" })
      local info = db:job(id)
      assert.same({ "scheduled", 7, "k", 2, 3, 4, 300.0 },
        { info.state, info.priority, info.unique, info.max_attempts, info.max_polls, info.max_crashes, info.timeout })
      assert.is_truthy(info.deadline)
      fails(1, { "push", name, "a", "1", "--unique", "k" }, "(DUPLICATE)", tostring(id))
    end)

    it("waits for jobs, and is a child of one", function()
      local name = fresh_name()
      local first, second = tonumber(ok { "push", name, "a" }), tonumber(ok { "push", name, "b" })
      local third = tonumber(ok { "push", name, "c", "--after", first, "--after", second, "--on-fail", "run" })
      assert.same({ "waiting", { first, second } }, { db:job(third).state, db:job(third).after })
      local child = tonumber(ok { "push", name, "d", "--parent", first })
      assert.equal(first, db:job(child).parent)
      fails(2, { "push", name, "e", "--on-fail", "run" }, "--on-fail wants --after")
      fails(2, { "push", name, "e", "--after", "x" }, "--after: 'x' is not a job id")
    end)

    it("refuses bad names and values with exit 2, a payload over the limit with 1, and writes nothing", function()
      local name = fresh_name()
      local cases = {
        { { "push", "", "a" }, "queue name is empty" },
        { { "push", ("q"):rep(65), "a" }, "queue name has 65 bytes" },
        { { "push", "a\n", "a" }, "control character" },
        { { "push", name, "" }, "name is empty" },
        { { "push", name, ("n"):rep(101) }, "100" },
        { { "push", name, "a\27[31m" }, "control character" },
        { { "push", name, "a", "1", "--priority", "256" }, "priority" },
        { { "push", name, "a", "1", "--delay", "5x" }, "delay: bad duration '5x'" },
        { { "push", name, "a", "1", "--max-attempts", "0" }, "--max-attempts must be" },
      }
      for _, case in ipairs(cases) do fails(2, table.unpack(case)) end
      local big = run({ "push", name, "a", "-" }, '"' .. ("x"):rep(2 << 20) .. '"')
      assert.equal(1, big.exit)
      assert.is_truthy(big.err:find("over the limit of 1048576", 1, true), big.err)
      assert.is_truthy(big.err:find("(TOO_BIG)", 1, true), big.err)
      assert.equal(2, run({ "push", name, "a", "-" }, '"\xff"').exit)
      assert.same({}, db:jobs { queue = name })
    end)
  end)

  describe("push --lines", function()
    local function lines_of(text)
      local list = {}
      for line in text:gmatch "[^\n]+" do list[#list + 1] = tonumber(line) end
      return list
    end

    it("pushes a job for each line, in order, and prints the ids", function()
      local name, lines = fresh_name(), {}
      for i = 1, 2500 do lines[i] = ('{"n": %d}'):format(i) end
      local ids = lines_of(ok({ "push", name, "count", "--lines", "--priority", "7" }, table.concat(lines, "\n")))
      assert.equal(2500, #ids)
      for _, i in ipairs { 1, 1000, 1001, 2500 } do
        local job = db:job(ids[i])
        assert.same({ "count", { n = i }, 7 }, { job.name, job.payload, job.priority })
      end
      assert.equal(2500, #db:jobs { queue = name, limit = 5000 })
    end)

    it("takes names and options from objects, empty lines, and ends of lines of another system", function()
      local name = fresh_name()
      local ids = lines_of(ok({ "push", name, "--lines", "--priority", "9", "--tag", "all" },
        '{"name": "a", "payload": [1], "delay": "1h", "group": "tenant:7"}\r\n\n  \n'
          .. '{"name": "b", "priority": 3, "tags": ["x"]}\r\n'))
      local a, b = db:job(ids[1]), db:job(ids[2])
      assert.same({ "a", { 1 }, 9, "scheduled", { "all" } }, { a.name, a.payload, a.priority, a.state, a.tags })
      assert.same({ "b", 3, "ready", { "x" } }, { b.name, b.priority, b.state, b.tags })
      assert.same({ "tenant:7" }, { a.group, b.group })
      local one = db:job(tonumber((ok { "push", name, "a", "--group", "tenant:8" })))
      assert.equal("tenant:8", one.group)
      assert.is_nil(b.payload)
      assert.equal("", ok({ "push", name, "--lines" }, ""))
    end)

    it("ends at the first bad line: those before it are pushed, those behind it are not", function()
      local name = fresh_name()
      local result = run({ "push", name, "n", "--lines" }, "1\n2\n{x\n4\n")
      assert.same({ 1, 2 }, { result.exit, #lines_of(result.out) })
      assert.matches("^nightshift: line 3: not JSON: column 2.*; 2 jobs before it pushed, none behind it", result.err)
      assert.same({ 2, 1 }, { #db:jobs { queue = name }, #result.err:gsub("[^\n]", "") })
    end)

    it("goes on behind bad lines with --skip-bad, and says each", function()
      local name = fresh_name()
      local lines = { '{"name": "a"}', "17", '{"name": "a", "priority": 300}', '{"name": "a", "dealy": 5}',
        '{"name": "a", "priority": "high"}', '{"name": ""}', '{"name": "a", "unique": "k"}',
        '{"name": "a", "unique": "k"}', '{"name": "a", "payload": 8}' }
      local result = run({ "push", name, "--lines", "--skip-bad" }, table.concat(lines, "\n"))
      assert.same({ 1, 3 }, { result.exit, #lines_of(result.out) })
      for _, words in ipairs { 'line 2: an object with a "name" is expected, for no NAME was given\n',
        "line 3: priority must be a whole number from 0 to 255, got 300\n",
        "line 4: unknown option 'dealy'; did you mean 'delay'?\n",
        "line 5: priority must be a whole number, got string\n", "line 6: job name is empty\n", "line 8: ",
        " (DUPLICATE)\n", "nightshift: 3 jobs pushed, 6 lines bad\n" } do
        assert.is_truthy(result.err:find(words, 1, true), words .. result.err)
      end
      local last = lines_of(result.out)
      assert.same({ 8, "k" }, { db:job(last[3]).payload, db:job(last[2]).unique })
    end)

    it("wants arguments that go with it", function()
      fails(2, { "push", "q", "n", "5", "--lines" }, "--lines reads payloads from stdin")
      fails(2, { "push", "q", "n", "--skip-bad" }, "--skip-bad wants --lines")
    end)

    it("takes more lines than fit into its memory", function()
      local name = fresh_name()
      local make = fixture.file("make.lua",
        [[for i = 1, 10000 do io.write('{"n": ', i, ', "text": "', ("x"):rep(4000), '"}\n') end]])
      local command = ("%s %s | (ulimit -v 100000; exec %s push %s big --lines)")
        :format(proc.lua, make, proc.program, name)
      local status, out, err = proc.run { "sh", "-c", command, env = { NIGHTSHIFT_URL = url }, timeout = 120 }
      assert.same({ 0, "" }, { status, err })
      assert.equal(10000, #lines_of(out))
    end)
  end)

  describe("jobs and show", function()
    it("list jobs as a table and as JSON", function()
      local name = fresh_name()
      local id = db:queue(name):push("email.send", { 1 })
      local text = ok { "jobs", "--queue", name, "--state", "ready" }
      assert.is_truthy(text:find("^ +ID +QUEUE"), text)
      assert.is_truthy(text:find("\n *" .. id .. "  " .. name .. " +email.send  ready +100 +0/10 +0  "), text)
      local rows = nightshift.decode(ok { "jobs", "--queue", name, "--json" })
      assert.same({ id, "ready", name }, { rows[1].id, rows[1].state, rows[1].queue })
      assert.equal("[]\n", ok { "jobs", "--queue", "no such queue", "--json" })
      assert.equal("no such jobs\n", ok { "jobs", "--queue", "no such queue" })
      assert.equal(1, #nightshift.decode(ok { "jobs", "--limit", "1", "--json" }))
      local page = run { "jobs", "--limit", "1" }
      assert.equal(0, page.exit)
      assert.matches("^nightshift: there are more than these 1: %-%-after %d+ goes on", page.err)
      fails(2, { "jobs", "--limit", "0" }, "limit")
    end)

    it("show one job with everything, and its failed attempts", function()
      local q = db:queue(fresh_name())
      local id = q:push("email.send", { to = "a" }, { max_attempts = 2 })
      local job = q:claim()
      job:log "half way"
      job:fail("first\nboom \27[31mred", { retry_in = 0 })
      job = q:claim { wait = 20 }
      job:fail "second"
      local text = ok { "show", tostring(id) }
      for _, part in ipairs { "state         dead", 'payload       {"to":"a"}', "attempts      2", "half way", "second",
        "boom \\x1b[31mred", "run 1 failed at 20" } do
        assert.is_truthy(text:find(part, 1, true), text)
      end
      assert.is_nil(text:find("\27", 1, true))
      local info = nightshift.decode(ok { "show", tostring(id), "--json" })
      assert.same({ id, "dead", "second", 2 }, { info.id, info.state, info.error, #info.failures })
      for _, instant in ipairs { info.created, info.finished_at, info.failures[1].ended } do
        assert.matches("^20%d%d%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%d%d%d%dZ$", instant)
      end
      assert.equal(3600, info.timeout)
      assert.equal("half way", info.failures[1].log)
      fails(1, { "show", tostring(1 << 60) }, "(NOT_FOUND)")
    end)

    it("show the log of an attempt without an empty line at its end", function()
      local q = db:queue(fresh_name())
      local id = q:push("email.send", nil, { max_attempts = 1 })
      local job = q:claim()
      job:log "one\ntwo\n" -- as a host keeps it, with the end of the last line
      job:fail "no"
      assert.matches("  log:\n    one\n    two\n$", (ok { "show", tostring(id) }))
    end)
  end)

  describe("retry, cancel and run-now", function()
    it("work on ids and tell each failure", function()
      local q = db:queue(fresh_name())
      local one, two = q:push("a", 1, { delay = 60 }), q:push("a", 2, { delay = 60 })
      assert.equal(one .. " is ready\n", ok { "run-now", tostring(one) })
      assert.equal(one .. " cancelled\n" .. two .. " cancelled\n",
        ok { "cancel", tostring(one), tostring(two), "--reason", "not needed" })
      assert.equal("not needed", db:job(one).reason)
      assert.equal(two .. " retried\n", ok { "retry", tostring(two) })
      local out = fails(1, { "retry", tostring(one), tostring(two) }, two .. ": ", "(STATE)")
      assert.equal(one .. " retried\n", out)
      fails(1, { "cancel", tostring(1 << 60) }, "(NOT_FOUND)")
    end)

    it("delete takes ids, or what a filter finds, and trees", function()
      local name = fresh_name()
      local q = db:queue(name)
      local one, two = q:push("a", 1), q:push("a", 2, { delay = 60 })
      assert.equal(two .. " deleted\n", ok { "delete", tostring(two) })
      assert(q:claim())
      fails(1, { "delete", tostring(one) }, one .. ": ", "is running", "(STATE)")
      assert(db:cancel(one))
      fails(2, { "delete", "--queue", name }, "1 job would be deleted; add --yes")
      assert.equal("1 job deleted\n", ok { "delete", "--queue", name, "--yes" })
      assert.is_nil(db:job(one))
      local top = q:push("a", 1)
      assert(q:claim():discard "no")
      fails(2, { "delete", "--tree", tostring(top) }, "1 job would be deleted; add --yes")
      assert.equal(top .. ": 1 job deleted\n", ok { "delete", "--tree", tostring(top), "--yes" })
    end)

    it("update mends the dead jobs of a filter, and counts them first", function()
      local q = db:queue "mends"
      for i = 1, 3 do
        assert(q:push("mend", { n = i, to = "old" }))
        assert(assert(q:claim()):discard "no such address")
      end
      local filter = { "--state", "dead", "--queue", "mends", "--error", "no such address" }
      local function with(...) return { "update", table.unpack(table.move({ ... }, 1, select("#", ...), #filter + 1,
        { table.unpack(filter) })) } end
      fails(2, with("--set", '{"to": "new"}'), "3 jobs would be changed; add --yes to do it")
      assert.equal("3 jobs changed\n", ok(with("--set", '{"to": "new"}', "--yes")))
      assert.equal("3 jobs changed and retried\n", ok(with("--priority", "9", "--retry", "--yes", "--rate", "500")))
      for _, job in ipairs(q:claim_many(5)) do
        assert.same({ "new", 9 }, { job.payload.to, job.priority })
        assert(job:ack())
      end
      assert.equal("no such jobs\n", ok(with("--set", '{}', "--yes")))
      fails(2, with("--set", '[1]'), "--set wants an object")
      fails(2, { "update", "--queue", "mends", "--set", "{}", "--retry" }, "--retry wants --state")
      fails(2, { "update", "--set", "{}" }, "give either job ids or a filter")
      fails(2, { "update", "5", "--name", "x", "--set", "{}" }, "give either job ids or a filter")
      fails(2, { "update", "5", "--rate", "5", "--set", "{}" }, "want a filter")
    end)

    it("update changes jobs, and mends dead ones", function()
      local name = fresh_name()
      local q = db:queue(name)
      local id = tonumber((ok { "push", name, "a", "1", "--at", "2030-01-31T12:00:00+01:00", "--tag", "x",
        "--tag", "y" }))
      assert.matches("tags          x, y\n", (ok { "show", tostring(id) }))
      assert.matches("due           2030%-01%-31T11:00:00", (ok { "show", tostring(id) }))
      assert.equal(id .. " changed\n", ok { "update", tostring(id), "--due", "1970-01-01T00:00:01Z", "--tag", "" })
      local job = q:claim { wait = 5 }
      assert.same({ id, {} }, { job.id, job.tags })
      fails(1, { "update", tostring(id), "--priority", "7" }, "is running", "(STATE)")
      local other = tostring(assert(q:push("b", 1, { group = name })))
      assert.matches("group         " .. name .. "\n", (ok { "show", other }))
      assert.matches('"group":"' .. name .. '"', (ok { "jobs", "--group", name, "--json" }))
      assert.equal(other .. " changed\n", ok { "update", other, "--group", name .. "x" })
      assert.equal("1 job moved\n", ok { "move", name .. "y", "--group", name .. "x", "--yes" })
      assert.equal(other .. " changed\n", ok { "update", other, "--group", "" })
      assert.same({ name .. "y" }, { db:job(tonumber(other)).queue, db:job(tonumber(other)).group })
      assert(job:discard "no")
      assert.equal(id .. " changed\n", ok({ "update", tostring(id), "--payload", "-" }, '{"to":"ann"}'))
      assert.equal(id .. " retried\n", ok { "retry", tostring(id) })
      assert.same({ to = "ann" }, q:claim().payload)
      fails(2, { "update", tostring(id) }, "say what to change")
      fails(2, { "update", tostring(id), "--due", "soon" }, "--due must be seconds since 1970")
      fails(2, { "push", name, "a", "--at", "2030-01-31", "--delay", "5" }, "either --at or --delay")
      fails(2, { "push", name, "a", "--tag", "a\nb" }, "control character")
    end)

    it("wait tells the ends of jobs", function()
      local q = db:queue(fresh_name())
      local one, two = q:push("a", 1), q:push("a", 2)
      assert(q:claim():ack { 7 })
      assert.equal(one .. " done [7]\n", ok { "wait", tostring(one) })
      fails(1, { "wait", tostring(one), tostring(two), "--timeout", "0.05" }, "1 of 2 jobs have not ended", "(BUSY)")
      assert(q:claim():discard "broken")
      local answer = run { "wait", tostring(one), tostring(two) }
      assert.same({ 1, one .. " done [7]\n" .. two .. " dead broken\n" }, { answer.exit, answer.out })
      assert.equal("dead", nightshift.decode(run { "wait", "--json", tostring(two) }.out)[1].outcome)
      fails(1, { "wait", "4611686018427387904" }, "(NOT_FOUND)")
    end)

    it("tell a job its signal", function()
      local q = db:queue(fresh_name())
      local id = q:push("a", 1)
      local text = tostring(id)
      assert(q:claim():wait { signal = "approved" })
      assert.equal(text .. " is told\n", ok({ "signal", text, "-", "--name", "approved" }, '{"by":"me"}'))
      local job = q:claim()
      assert.same({ by = "me" }, job.signal)
      assert(job:wait { signal = "approved" })
      assert.equal(text .. " is told 'approvd', but waits for 'approved'\n",
        ok { "signal", text, "--name", "approvd" })
      assert.matches("waits for the signal 'approved'; 'approvd' has come, for which it does not wait\n$",
        (ok { "why", text }))
      assert.same({ "approvd" }, select(2, db:why(id)).came)
      assert.equal(text .. " is told\n", ok { "signal", text })
      job = q:claim()
      assert.equal(nightshift.null, job.signal)
      assert(job:ack())
      fails(1, { "signal", text }, "(NOT_FOUND)")
    end)

    it("over a filter show the number and want --yes", function()
      local name = fresh_name()
      local q = db:queue(name)
      for i = 1, 5 do q:push(i % 2 == 0 and "even" or "odd", i) end
      fails(2, { "cancel", "--queue", name, "--name", "odd" }, "3 jobs would be cancelled; add --yes to do it")
      assert.equal(5, #db:jobs { queue = name, state = "ready" })
      assert.equal("3 jobs cancelled\n", ok { "cancel", "--queue", name, "--name", "odd", "--yes" })
      assert.equal("2 jobs cancelled\n", ok { "cancel", "--queue", name, "--state", "ready", "--yes" })
      assert.equal("no such jobs\n", ok { "cancel", "--queue", name, "--yes" })
      fails(2, { "retry", "--queue", name, "--state", "cancelled" }, "5 jobs would be retried; add --yes")
      assert.equal("5 jobs retried\n", ok { "retry", "--queue", name, "--state", "cancelled", "--yes" })
      assert.equal(5, #db:jobs { queue = name, state = "ready" })
      assert.equal("no such jobs\n", ok { "retry", "--queue", name })
    end)

    it("count errors by kinds, which a filter takes as they are printed", function()
      local name = fresh_name()
      local q = db:queue(name)
      for i = 1, 3 do
        q:push("mail.send", i)
        q:claim():discard(("no route to 'host%d'"):format(i))
      end
      local text = ok { "errors", "--queue", name, "--since", "1h" }
      assert.is_truthy(text:find "^DEAD +RETRYING +FIRST +LAST +ID +QUEUE +NAME +ERROR\n", text)
      local kind = text:match(" +3 +0 +%S+ ago +%S+ ago +%d+ +" .. name .. " +mail%.send +([^\n]+)\n$")
      assert.equal("no route to #", kind)
      assert.equal(3, nightshift.decode(ok { "errors", "--queue", name, "--json" })[1].dead)
      assert.equal("3 jobs retried\n", ok { "retry", "--queue", name, "--error", kind, "--yes" })
      assert.equal("no errors\n", ok { "errors", "--queue", name })
      fails(2, { "errors", "--look", "0" }, "--look must be")
    end)

    it("take a filter to retry, run, reprioritise and move jobs", function()
      local name, other = fresh_name(), fresh_name()
      local q = db:queue(name)
      for i = 1, 3 do
        q:push("a", i)
        q:claim():discard(("disk %d is full"):format(i))
      end
      assert.equal("3 jobs retried\n", ok { "retry", "--error", "disk # is full", "--queue", name, "--rate", "1000",
        "--since", "1h", "--state", "dead", "--yes" })
      fails(2, { "move", other, "--queue", name }, "3 jobs would be moved; add --yes to do it")
      assert.equal("3 jobs moved\n", ok { "move", other, "--queue", name, "--yes" })
      assert.equal("3 jobs with priority 7\n", ok { "reprioritise", "7", "--queue", other, "--yes" })
      local id = db:jobs({ queue = other })[1].id
      assert.equal(id .. " with priority 8\n", ok { "reprioritise", tostring(id), "8" })
      assert.equal(8, db:job(id).priority)
      q:push("later", 1, { delay = 60 })
      fails(2, { "run-now", "--queue", name }, "1 job would be made ready; add --yes")
      assert.equal("1 job made ready\n", ok { "run-now", "--name", "later", "--queue", name, "--yes" })
      fails(2, { "move", other }, "move wants a filter")
      fails(2, { "run-now" }, "give either job ids or a filter")
      fails(2, { "retry", "7", "--queue", name }, "give either job ids or a filter")
      fails(2, { "retry", "--queue", name, "--rate", "fast" }, "'fast' is not a number")
      fails(2, { "retry", "--since", "yesterday" }, "--since must be an instant")
      local keyed = db:queue(fresh_name())
      db:cancel(keyed:push("a", 1, { unique = "k" }))
      keyed:push("a", 1, { unique = "k" })
      fails(1, { "retry", "--queue", keyed.name, "--state", "cancelled", "--yes" },
        "1 job as before: another live job has the unique key")
    end)
  end)

  describe("status, pause and resume", function()
    it("count jobs per queue and mark paused ones", function()
      local name = fresh_name()
      assert.equal("", ok({ "jobs", "--queue", name, "--state", "dead" }):gsub("no such jobs\n", ""))
      local q = db:queue(name)
      q:push("a", 1)
      q:push("a", 2, { delay = 60 })
      local text = ok { "status" }
      assert.is_truthy(text:find "^QUEUE +READY +SCHEDULED +RUNNING +WAITING +DEAD", text)
      assert.is_truthy(text:find("\n" .. name .. " +1 +1 +0 +0 +0 "), text)
      assert.equal(name .. " paused\n", ok { "pause", name })
      assert.is_truthy(ok({ "status" }):find("\n" .. name .. "[^\n]+paused\n"))
      assert.is_nil(q:claim())
      assert.equal(name .. " resumed\n", ok { "resume", name })
      local job = q:claim()
      local status = nightshift.decode(ok { "status", "--json" })
      local mine
      for _, row in ipairs(status.queues) do
        if row.name == name then mine = row end
      end
      assert.same({ 0, 1, 1, false }, { mine.ready, mine.scheduled, mine.running, mine.paused })
      assert.is_true(#status.holders >= 1)
      assert.is_truthy(ok({ "status" }):find "\n *HOLDER +KIND", "holders are shown")
      local series = ok { "status", "--series", "1d", "--queue", name }
      assert.is_truthy(series:find "^FROM +DONE +FAILED +DEAD +CANCELLED +PUSHED +WAIT +WAIT MAX +RUN +RUN MAX\n")
      assert.equal(97, select(2, series:gsub("\n", "")))
      fails(2, { "status", "--queue", name }, "--queue goes with --series")
      job:ack()
      fails(1, { "resume", "no such queue" }, "no such queue", "(NOT_FOUND)")
    end)
  end)

  describe("scale", function()
    it("shows queues and all of them, and refuses one that there is not", function()
      local name = fresh_name()
      ok { "push", name, "a" }
      local text = ok { "scale", name }
      assert.matches("^QUEUE +READY .* DRAIN +WORKERS +BUSY +WANTED\n", text)
      assert.matches("\n" .. name .. " +1 +0 +0 +[%d.]+s +0%.0 +0%.0 +%? +%? +0 +0 +1\n$", text)
      ok { "push", fresh_name(), "a" }
      assert.matches("\nall +%d", ok { "scale" })
      local found = nightshift.decode(ok { "scale", name, "--target", "2m", "--json" })
      assert.same({ 120, 1, nightshift.null, 1 },
        { found.target, found.total.ready, found.queues[1].drain_seconds, found.total.wanted })
      fails(1, { "scale", name .. "x" }, "there is no queue '" .. name .. "x'; did you mean 'cli")
      fails(2, { "scale", "--target", "soon" }, "--target")
      db:queue(name):claim():ack()
      assert.equal(0, nightshift.decode(ok { "scale", name, "--json" }).total.wanted)
    end)
  end)

  describe("prune", function()
    it("shows the numbers and wants --yes", function()
      local q = db:queue(fresh_name())
      q:push("a", 1)
      q:push("a", 2)
      q:claim():ack()
      q:claim():discard "x"
      assert.equal("nothing to delete\n", ok { "prune" })
      local _, err = fails(2, { "prune", "--done", "0", "--dead", "never" },
        "0 dead, 0 cancelled jobs would be deleted")
      assert.is_truthy(err:find "nightshift: %d+ done, ")
      assert.is_truthy(ok({ "prune", "--done", "0", "--dead", "never", "--yes" }):find "^deleted %d+ job")
      assert.equal("nothing to delete\n", ok { "prune", "--done", "0", "--dead", "never" })
    end)
  end)
end)

-- `nightshift push --unique`, for cron's "push it unless it is there".
describe("nightshift push --unique --on-conflict", function()
  local url

  setup(function() url = server.fresh() end)

  local function push(...)
    return proc.nightshift({ "push", "q", "nightly", "--unique", "k", ... }, url)
  end

  it("keep prints the job that is there and ends with 0, refuse ends with 1", function()
    local exit, id = push "--on-conflict=keep"
    assert.equal(0, exit)
    local again, kept, err = push "--on-conflict=keep"
    assert.same({ 0, id, "" }, { again, kept, err })
    again, kept, err = push "--on-conflict=refuse"
    assert.same({ 1, "" }, { again, kept })
    assert.is_truthy(err:find("DUPLICATE", 1, true), err)
    assert.equal(1, (push()))
  end)

  it("has a period, over the end of the job", function()
    local own <close> = assert(nightshift.open(url))
    local exit, id = proc.nightshift({ "push", "p", "n", "--unique", "k", "--unique-period", "10m" }, url)
    assert.equal(0, exit)
    assert(own:queue "p":claim():ack())
    local again, _, err = proc.nightshift({ "push", "p", "n", "--unique", "k" }, url)
    assert.equal(1, again)
    assert.is_truthy(err:find(("held by job %s, which is done"):format(id:match "%d+"), 1, true), err)
    for _, bad in ipairs { { "--unique-period", "1" }, { "--unique", "k", "--unique-period", "soon" } } do
      assert.equal(2, (proc.nightshift({ "push", "p", "n", table.unpack(bad) }, url)))
    end
  end)

  it("wants a key, and one of its words", function()
    local exit, _, err = proc.nightshift({ "push", "q", "n", "--on-conflict", "keep" }, url)
    assert.equal(2, exit)
    assert.is_truthy(err:find("wants --unique", 1, true), err)
    assert.equal(2, (push "--on-conflict=drop"))
  end)
end)

-- nightshift why, through the program.
describe("nightshift why", function()
  local url, db

  setup(function()
    url = server.fresh()
    db = assert(nightshift.open(url))
  end)

  teardown(function() db:close() end)

  it("prints the sentence, and the facts as JSON", function()
    local first = assert(db:queue("q"):push("first", nil, { delay = "1h" }))
    local id = assert(db:queue("q"):push("second", nil, { after = { first } }))
    local exit, out, err = proc.nightshift({ "why", tostring(id) }, url)
    assert.same({ 0, "" }, { exit, err })
    assert.matches(("^#%d 'second' waits for #%d 'first'; #%d 'first' is scheduled, due in 59 min %%d+ s\n$"):format(
      id, first, first), out)
    exit, out = proc.nightshift({ "why", tostring(id), "--json" }, url)
    assert.equal(0, exit)
    local fact = nightshift.decode(out)
    assert.same({ id, "waits", first, "scheduled" }, { fact.id, fact.kind, fact.on[1].id, fact.cause.kind })
    assert.matches("^#%d+ 'second' waits", fact.text)
  end)

  it("shows what a terminal would obey escaped", function()
    local id = assert(db:queue("q"):push("x\u{202E}y", nil, { max_attempts = 1 }))
    assert(db:queue("q"):claim():fail "red \27[31m\nsecond line")
    local _, out = proc.nightshift({ "why", tostring(id) }, url)
    assert.is_truthy(out:find("'x\\u{202e}y' ended", 1, true), out)
    assert.is_truthy(out:find("red \\x1b[31m\n", 1, true), out)
  end)

  it("of a job that is not there fails", function()
    local exit, out, err = proc.nightshift({ "why", "4711" }, url)
    assert.same({ 1, "" }, { exit, out })
    assert.matches("there is no job 4711.*%(NOT_FOUND%)", err)
    assert.equal(2, (proc.nightshift({ "why", "x" }, url)))
    assert.equal(2, (proc.nightshift({ "why" }, url)))
  end)
end)

-- Commands on a job and all below it, end to end through the program.
describe("a job and all below it:", function()
  local url, db, q

  before_each(function()
    url = server.fresh()
    db = assert(nightshift.open(url))
    q = db:queue "q"
  end)

  after_each(function() db:close() end)

  local function ok(argv, env) return proc.succeeds(argv, url, { env = env }) end
  local function fails(exit, argv, ...) return proc.fails(exit, argv, url, ...) end

  local function family(n)
    local parent = assert(q:push "parent")
    local job = assert(q:claim())
    local kids = {}
    for i = 1, n do kids[i] = assert(job:spawn("kid", i)) end
    assert(job:wait { on_fail = "continue" })
    return parent, kids
  end

  local function text(id) return tostring(id) end

  describe("show --tree", function()
    it("draws all below a job: states, names, ids, progress, errors", function()
      local parent, kids = family(3)
      local deep = assert(q:push("deep", nil, { parent = kids[2] }))
      assert(q:claim():ack())
      assert(q:claim():discard "disk\nfull")
      local third = assert(q:claim())
      assert.equal(kids[3], third.id)
      assert(third:progress(0.4, "page 4"))
      assert.equal(([[
waiting parent %d
├─ done kid %d
├─ dead kid %d: discarded: disk
│  └─ ready deep %d
└─ running kid %d 40%% page 4
1 of 5 done, 1 running, 1 ready, 1 waiting, 1 dead
]]):format(parent, kids[1], kids[2], deep, kids[3]), ok({ "show", text(parent), "--tree" }, { LC_ALL = "C.UTF-8" }))
      local plain = ok({ "show", text(parent), "--tree" }, { LC_ALL = "C" })
      assert.is_nil(plain:find "[\x80-\xFF]")
      assert.is_truthy(plain:find(("|  `- ready deep %d"):format(deep), 1, true), plain)
    end)

    it("says of a live job what it is tried again after", function()
      local parent, kids = family(2)
      assert(q:claim():fail("codec exploded", { retry_in = 60 }))
      local out = ok({ "show", text(parent), "--tree" }, { LC_ALL = "C" })
      local line = ("scheduled kid %d: attempt 2 of 10, after: codec exploded\n"):format(kids[1])
      assert.is_truthy(out:find(line, 1, true), out)
    end)

    it("cuts long lists and says what is left out", function()
      local parent, kids = family(1500)
      for _, job in ipairs(q:claim_many(1400)) do assert(job:ack()) end
      local out = ok({ "show", text(parent), "--tree", "--children", "3" }, { LC_ALL = "en_GB.utf8" })
      assert.equal(([[
waiting parent %d
├─ done kid %d
├─ done kid %d
├─ done kid %d
└─ … and 1,497 more: 1,397 done, 100 ready
1,400 of 1,501 done, 100 ready, 1 waiting
]]):format(parent, kids[1], kids[2], kids[3]), out)
      local json = nightshift.decode(ok { "show", text(parent), "--tree", "--json" })
      assert.same({ 10, 1390, 100, 1400 },
        { #json.children, json.more.done, json.more.ready, json.counts.done })
      assert.same({ parent, "parent", "waiting" }, { json.id, json.name, json.state })
    end)

    it("of a job without children, or none", function()
      local id = assert(q:push "job")
      assert.equal(("ready job %d\n0 of 1 done, 1 ready\n"):format(id), ok { "show", text(id), "--tree" })
      fails(1, { "show", "4711", "--tree" }, "there is no job 4711", "NOT_FOUND")
      assert.is_nil(ok({ "show", text(id) }):find("\ntree ", 1, true))
      assert(q:claim():ack())
      local parent = family(2)
      assert.is_truthy(ok({ "show", text(parent) }):find("\ntree +0 of 3 done, 2 ready, 1 waiting\n"))
    end)
  end)

  describe("cancel without --tree", function()
    it("says how many children go on, and retry which job had been done", function()
      local parent, kids = family(3)
      assert(q:claim():ack())
      assert.equal(("%d cancelled; 2 jobs below it go on (--tree)\n"):format(parent), ok { "cancel", text(parent) })
      assert.equal(("%d cancelled\n"):format(kids[2]), ok { "cancel", text(kids[2]) })
      assert.equal(("%d retried; it had been done\n%d retried\n"):format(kids[1], kids[2]),
        ok { "retry", text(kids[1]), text(kids[2]) })
    end)
  end)

  describe("cancel and retry --tree", function()
    it("show how many they would touch, and want --yes", function()
      local parent, kids = family(3)
      assert(q:claim():ack())
      fails(2, { "cancel", text(parent), "--tree" }, "3 jobs would be cancelled; add --yes")
      assert.equal("waiting", db:job(parent).state)
      assert.equal(("%d: 3 jobs cancelled\n"):format(parent),
        ok { "cancel", text(parent), "--tree", "--yes", "--reason", "wrong file" })
      assert.equal(("with job %d: wrong file"):format(parent), db:job(kids[2]).reason)
      fails(1, { "cancel", text(parent), "--tree", "--yes" }, "has finished already", "STATE")
      fails(2, { "retry", text(parent), "--tree" }, "3 jobs would be retried; add --yes")
      assert.equal(("%d: 3 jobs retried\n"):format(parent), ok { "retry", text(parent), "--tree", "--yes" })
      assert.equal("ready", db:job(kids[2]).state)
      fails(2, { "cancel", "--queue", "q", "--tree" }, "--tree wants job ids")
    end)
  end)

  describe("pause and resume", function()
    it("take a number for a job and --queue for a queue", function()
      local parent = family(2)
      assert(db:queue "7":push "x")
      assert.equal(("%d: 3 jobs paused\n"):format(parent), ok { "pause", text(parent) })
      local drawn = ok({ "show", text(parent), "--tree" }, { LC_ALL = "C" })
      assert.is_truthy(drawn:find(("waiting parent %d, paused\n"):format(parent), 1, true), drawn)
      assert.is_truthy(drawn:find((", paused with %d\n"):format(parent), 1, true), drawn)
      assert.equal(("%d: 3 jobs resumed\n"):format(parent), ok { "resume", text(parent) })
      assert.equal("7 paused\nq paused\n", ok { "pause", "q", "--queue", "7" })
      assert.equal("q resumed\n", ok { "resume", "q" })
      fails(1, { "pause", "4711" }, "4711: there is no job 4711", "NOT_FOUND")
      fails(1, { "resume", text(parent) }, "is not paused", "STATE")
      fails(2, { "pause" }, "give queue names, job ids, --name or --all")
    end)
  end)

  describe("reprioritise, run-now and deadline", function()
    it("touch one job, or its tree", function()
      local parent, kids = family(2)
      assert.equal(("%d with priority 7\n"):format(kids[1]), ok { "reprioritise", text(kids[1]), "7" })
      assert.same({ 7, 100 }, { db:job(kids[1]).priority, db:job(kids[2]).priority })
      assert.equal(("%d: 3 jobs with priority 200\n"):format(parent),
        ok { "reprioritise", text(parent), "200", "--tree" })
      assert.equal(200, db:job(kids[1]).priority)
      fails(2, { "reprioritise", text(parent), "256" }, "priority")
      assert(q:push("late", nil, { parent = parent, delay = 60 }))
      assert.equal(("%d: 1 job ready\n"):format(parent), ok { "run-now", text(parent), "--tree" })
      assert.equal(("%d with a deadline in 2h\n"):format(parent), ok { "deadline", text(parent), "2h" })
      assert.is_nil(db:job(kids[1]).deadline)
      assert.equal(("%d: 4 jobs with a deadline in 90\n"):format(parent), ok { "deadline", text(parent), "90",
        "--tree" })
      assert.is_truthy(db:job(kids[1]).deadline)
      assert.equal(("%d without a deadline\n"):format(kids[1]), ok { "deadline", text(kids[1]), "never" })
      assert.is_nil(db:job(kids[1]).deadline)
      fails(2, { "deadline", text(parent), "soon" }, "soon")
    end)
  end)
end)

-- It could not be seen what the workers of a host did: status showed none of them. So a host
-- with idle workers that got no jobs looked like any other.
describe("status", function()
  local url, handle, q
  with_database(function(...) handle, q, url = ... end)

  local function holder()
    local _, out = proc.nightshift({ "status", "--json" }, url)
    for _, row in ipairs(nightshift.decode(out).holders) do
      if row.kind == "host" then return row end
    end
  end

  local function shows(workers, busy, leaving, loads)
    eventually(function()
      local row = holder()
      return row and row.workers == workers and row.busy == busy and row.leaving == leaving
        and row.loads == loads
    end, 20)
  end

  it("shows a host's workers and how often it has loaded its scripts", function()
    local h = host.start(url, [[return { long = function() os.execute "sleep 600" end }]], { "--workers", "3" })
    shows(3, 0, 0, 1)
    assert(q:push "long")
    shows(3, 1, 0, 1)
    h:signal "HUP"
    shows(2, 1, 1, 2)
    local _, text = proc.nightshift({ "status" }, url)
    assert.matches("2, 1 busy, 1 leaving", text, 1, true)
    local row = handle:stats().holders[1]
    assert.same({ 2, 1, 1, 2 }, { row.workers, row.busy, row.leaving, row.loads })
    h:signal "QUIT"
    h:wait(20)
  end)
end)

-- status showed the progress of adopted rows only; a paused job waited "for 1 jobs". A host of
-- adopted tables "serves "; a tree showed old errors of jobs that are done.
describe("what is shown:", function()
  local handle, q, url

  with_database(function(...) handle, q, url = ... end)

  local function shown(...)
    local exit, out, err = proc.nightshift({ ... }, url)
    assert.same({ 0, "" }, { exit, err })
    return out
  end

  describe("status", function()
    it("shows how far jobs are that say so", function()
      assert(q:push "silent")
      local id = assert(q:push "loud")
      local silent, loud = assert(q:claim()), assert(q:claim())
      assert.same({ "silent", "loud" }, { silent.name, loud.name })
      assert(silent:touch())
      assert.is_nil(shown "status":find "STARTED")
      assert(loud:progress(0.25, "page 1\27[31m"))
      local out = shown "status"
      assert.matches("\n *ID  QUEUE  NAME +HOST +PID +STARTED +SEEN +DONE +STATUS\n", out)
      assert.is_truthy(out:find(("\n *%d +q +loud +%%S+ +%%d+ +%%S+Z +[%%d.]+m?s +25%%%% +page 1\\x1b%%[31m\n")
        :format(id)), out)
      assert.is_nil(out:find("silent", 1, true))
      local running = nightshift.decode(shown("status", "--json")).running
      assert.same({ 1, id, 0.25, "q" }, { #running, running[1].id, running[1].progress, running[1].queue })
      assert(loud:ack())
      assert.is_nil(shown "status":find "STARTED")
      assert.same({}, nightshift.decode(shown("status", "--json")).running)
    end)

    it("shows twenty of them", function()
      for _ = 1, 22 do assert(q:push "a") end
      for i, job in ipairs(q:claim_many(22)) do assert(job:progress(i / 22)) end
      local out = shown "status"
      assert.equal(20, select(2, out:gsub("\n *%d+  q +a ", "")))
      assert.is_truthy(out:find("… and more: nightshift jobs --state running\n", 1, true), out)
      assert.equal(22, #nightshift.decode(shown("status", "--json")).running)
    end)

    it("explains its columns", function()
      local out = shown("status", "--help")
      for _, word in ipairs { "OLDEST", "UP", "BEAT", "WORKERS", "BATCHES", "SEEN" } do
        assert.is_truthy(out:find(word .. "[^\n]*: "), word)
      end
    end)
  end)

  it("jobs says of a paused one whose pause it is", function()
    local id = assert(q:push "top")
    local kid = assert(q:push("kid", nil, { parent = id }))
    local join = assert(q:push("join", nil, { parent = id, after = { kid } }))
    assert(handle:pause(id))
    for _, state in ipairs { {}, { "--state", "waiting" } } do
      local out = shown("jobs", table.unpack(state))
      assert.is_truthy(out:find(" top +waiting [^\n]* paused\n"), out)
      assert.is_truthy(out:find((" kid +waiting [^\n]* paused with %d\n"):format(id)), out)
      assert.is_truthy(out:find((" join +waiting [^\n]* paused with %d, for 1 job\n"):format(id)), out)
    end
    for _, row in ipairs(handle:jobs()) do assert.same({ id, row.id == join and 2 or 1 }, { row.paused, row.unmet }) end
    assert(handle:resume(id))
    assert.is_truthy(shown("jobs"):find " join +waiting [^\n]* for 1 job\n")
    for _, row in ipairs(handle:jobs { state = "waiting" }) do assert.same({ join }, { row.id, row.paused }) end
  end)

  it("why says of a host which adopted tables it serves", function()
    designs.create(handle, "migration_task", 1)
    local h = host.start(url, "return { migrate = function() end }", { "--adopt", designs.file "migration_task" })
    local id = assert(q:push "migrate")
    eventually(function() return not handle:why(id):find("did not tell", 1, true) end)
    assert.matches("; %S+ %(pid %d+%) serves migration_task$", (handle:why(id)))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("a tree shows no old error of a job that is done", function()
    local id = assert(q:push("top", nil, { backoff = 0.001 }))
    local job = assert(q:claim())
    local kid = assert(job:spawn("kid", nil, { backoff = 0.001 }))
    assert(job:ack())
    assert(q:claim():fail "at first")
    job = eventually(function() return q:claim() end)
    local drawn = shown("show", tostring(id), "--tree")
    assert.is_truthy(drawn:find(("running kid %d: attempt 2 of 10, after: at first\n"):format(kid)), drawn)
    assert(job:ack())
    assert.is_truthy(shown("show", tostring(id), "--tree"):find(("done kid %d\n"):format(kid)))
  end)
end)
