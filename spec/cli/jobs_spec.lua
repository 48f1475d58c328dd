-- Commands on jobs and queues, end to end through the program.

local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

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

local function ok(argv, stdin)
  local result = run(argv, stdin)
  assert.equal("", result.err)
  assert.equal(0, result.exit)
  return result.out
end

local function fails(exit, argv, ...)
  local result = run(argv)
  assert.equal(exit, result.exit, result.err .. result.out)
  for _, text in ipairs { ... } do assert.is_truthy(result.err:find(text, 1, true), result.err) end
  return result
end

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
    assert.same({ "scheduled", 7, "k", 2, 3, 4, 300000000 },
      { info.state, info.priority, info.unique, info.max_attempts, info.max_polls, info.max_crashes, info.timeout })
    assert.is_truthy(info.deadline)
    fails(1, { "push", name, "a", "1", "--unique", "k" }, "(DUPLICATE)", tostring(id))
  end)

  it("refuses bad names and values with exit 2, a payload over the limit with 1, before anything is written", function()
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
    local result = fails(1, { "retry", tostring(one), tostring(two) }, two .. ": ", "(STATE)")
    assert.equal(one .. " retried\n", result.out)
    fails(1, { "cancel", tostring(1 << 60) }, "(NOT_FOUND)")
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
    job:ack()
    fails(1, { "pause", "no such queue" }, "no such queue", "(NOT_FOUND)")
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
    local result = fails(2, { "prune", "--done", "0", "--dead", "never" }, "0 dead, 0 cancelled jobs would be deleted")
    assert.is_truthy(result.err:find "nightshift: %d+ done, ")
    assert.is_truthy(ok({ "prune", "--done", "0", "--dead", "never", "--yes" }):find "^deleted %d+ job")
    assert.equal("nothing to delete\n", ok { "prune", "--done", "0", "--dead", "never" })
  end)
end)
