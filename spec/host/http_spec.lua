-- `work --http`: what /metrics says after jobs of every ending, line by line; health while the
-- database, or a thread of the host, stands still.
-- The alerts of doc/monitoring/alerts.yml: each is provoked, and cleared as its section of
-- doc/runbook.md says. A host's /metrics are read before, meanwhile and after; Prometheus's own
-- promtool reckons from these figures when the alert fires.

local db = require "spec.support.db"
local grants = require "nightshift.doctor.grants"
local host = require "spec.support.host"
local http = require "socket.http"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local socket = require "socket"

http.TIMEOUT = proc.limit(20)

local SCRIPT = [[local tried = {}
return {
  ok = function() return 1 end,
  slow = function() require "nightshift.core".sleep(0.06) end,
  fails = function() error "no" end,
  poll = function(job) if job.polls == 0 then return job:again(0) end end,
  gone = function(job) return job:discard "no" end,
}]]

--- Starts one at a free port; it has `at`, the address.
local function start(url, script, ...)
  local h = host.start(url, script, { "--http", "127.0.0.1:0", ... })
  h.at = h:wait_line "event=host%.http address=(%S+)"
  return h
end

local function get(h, path)
  local body, status, headers = http.request("http://" .. h.at .. path)
  assert(body, status)
  return status, body, headers
end

-- ------------------------------------------------------------------- the format

local ESCAPES = { ["\\\\"] = "\\", ['\\"'] = '"', ["\\n"] = "\n" }

--- The labels of a sample: {key = value}.
local function labels_of(text)
  local labels, at = {}, 1
  while at <= #text do
    local key, from = text:match('^([a-z_]+)="()', at)
    assert(key, text)
    local last = from
    while text:sub(last, last) ~= '"' do
      last = last + (text:sub(last, last) == "\\" and 2 or 1)
      assert(last <= #text, text)
    end
    labels[key] = text:sub(from, last - 1):gsub("\\.", function(escape) return assert(ESCAPES[escape], escape) end)
    assert.is_true(last == #text or text:sub(last + 1, last + 1) == ",", text)
    at = last + 2
  end
  return labels
end

--- Reads the text, by the rules of the format. Samples stand behind the HELP and TYPE of their
-- family, which come once. No sample comes twice.
-- @treturn table[] {name, labels, value, family}
-- @treturn table family = type
local function parse(text)
  local list, types, seen, family = {}, {}, {}, nil
  assert.equal("\n", text:sub(-1))
  for line in text:gmatch "([^\n]*)\n" do
    local helped = line:match "^# HELP (%S+) %S.*$"
    local typed, kind = line:match "^# TYPE (%S+) (%l+)$"
    if helped then
      assert.is_nil(types[helped], line)
      family = helped
    elseif typed then
      assert.equal(family, typed)
      types[typed] = kind
    else
      local name, labels, value = line:match "^([a-z_]+)(%b{}) (%S+)$"
      if not name then name, value = line:match "^([a-z_]+) (%S+)$" end
      assert(name and tonumber(value), line)
      local series = line:match "^(.*) %S+$"
      assert.is_nil(seen[series], line)
      seen[series] = true
      local base = name
      if types[family] == "histogram" then base = name:gsub("_bucket$", ""):gsub("_sum$", ""):gsub("_count$", "") end
      assert.equal(family, base, line)
      list[#list + 1] = { name = name, labels = labels and labels_of(labels:sub(2, -2)) or {}, family = family,
        value = tonumber(value) }
    end
  end
  return list, types
end

local function scrape(h)
  local status, body, headers = get(h, "/metrics")
  assert.equal(200, status)
  assert.equal("text/plain; version=0.0.4; charset=utf-8", headers["content-type"])
  return parse(body)
end

--- The value of the sample with these labels; nil: there is none.
local function value(list, name, labels)
  for _, sample in ipairs(list) do
    local same = sample.name == name
    for key, wanted in pairs(labels or {}) do same = same and sample.labels[key] == wanted end
    if same then return sample.value end
  end
end

-- Buckets grow, and the last is the count.
local function check_histograms(list)
  local last, n = {}, 0
  for _, sample in ipairs(list) do
    local base, part = sample.name:match "^(.*)_(%l+)$"
    local key = ("%s %s %s"):format(base, sample.labels.queue, sample.labels.job)
    if part == "bucket" then
      local before = last[key] or { le = -1, value = 0 }
      local le = sample.labels.le == "+Inf" and math.huge or tonumber(sample.labels.le)
      assert.is_true(le > before.le and sample.value >= before.value, key)
      last[key], n = { le = le, value = sample.value }, n + 1
    elseif part == "count" then
      assert.same({ le = math.huge, value = sample.value }, last[key])
    end
  end
  assert.is_true(n > 0)
end

-- ---------------------------------------------------------------------- metrics

describe("the metrics of a host", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  --- Waits until all jobs have ended and the host has written that.
  local function settled(h)
    eventually(function()
      if #assert(handle:jobs { state = "ready" }) + #assert(handle:jobs { state = "running" }) > 0 then return end
      local list = scrape(h)
      return value(list, "nightshift_jobs_held") == 0 and value(list, "nightshift_verdicts_waiting") == 0
        or nst.sleep(0.1)
    end)
    return scrape(h)
  end

  it("count runs by their outcome, with their times", function()
    local h = start(url, SCRIPT)
    assert(q:push_many { { "ok" }, { "ok" }, { "ok" }, { "slow" }, { "poll" }, { "gone" },
      { "fails", nil, { max_attempts = 2, backoff = 0 } } })
    eventually(function()
      local _, dead = h:text(), value(scrape(h), "nightshift_jobs_dead_total")
      return dead == 2
    end)
    local list = settled(h)
    local function ended(job, outcome)
      return value(list, "nightshift_jobs_finished_total", { queue = "q", job = job, outcome = outcome })
    end
    assert.equal(3, ended("ok", "done"))
    assert.equal(1, ended("poll", "again"))
    assert.equal(1, ended("poll", "done"))
    assert.equal(1, ended("gone", "discarded"))
    assert.equal(2, ended("fails", "failed"))
    assert.equal(0, ended("fails", "done")) -- there from the first run on: an increase to 1 is seen
    assert.is_nil(ended("fails", "again"))
    assert.equal(1, value(list, "nightshift_job_retries_total"))
    assert.equal(9, value(list, "nightshift_jobs_claimed_total"))
    assert.equal(9, value(list, "nightshift_verdicts_settled_total"))
    assert.equal(0, value(list, "nightshift_verdicts_stale_total"))
    check_histograms(list)
    local slow = { queue = "q", job = "slow" }
    assert.equal(1, value(list, "nightshift_job_duration_seconds_count", slow))
    assert.is_true(value(list, "nightshift_job_duration_seconds_sum", slow) >= 0.06)
    slow.le = "0.05"
    assert.equal(0, value(list, "nightshift_job_duration_seconds_bucket", slow))
    assert.equal(9, value(list, "nightshift_job_wait_seconds_count", { queue = "q" }))
    host.stop(h)
  end)

  it("tell how long jobs have waited for a worker", function()
    local go = fixture.dir() .. "/go"
    local h = start(url, host.holding(go), "--workers", "1")
    assert(q:push "hold")
    h:wait_line "^holds"
    assert(q:push "hold")
    nst.sleep(0.3)
    assert(io.open(go, "w")):close()
    local list = settled(h)
    local waited = value(list, "nightshift_job_wait_seconds_sum", { queue = "q" })
    assert.is_true(waited >= 0.3 and waited < proc.limit(5), waited)
    host.stop(h)
  end)

  it("count what was rescued of a host that was killed", function()
    local dead = host.start(url, host.holding(fixture.dir() .. "/go"), { "--workers", "1" })
    assert(q:push "hold")
    dead:wait_line "^holds"
    local h = start(url, SCRIPT)
    dead:signal "KILL"
    eventually(function() return value(scrape(h), "nightshift_rescued_jobs_total") == 1 end)
    local list = scrape(h)
    assert.equal(1, value(list, "nightshift_rescued_holders_total"))
    assert.equal(0, value(list, "nightshift_mended_jobs_total"))
    assert.equal(0, value(list, "nightshift_db_errors_total", { code = "BUSY" }))
    host.stop(h)
  end)

  it("have the figures of the database that status has", function()
    local h = start(url, SCRIPT)
    local resting = handle:queue "rests"
    assert(resting:push "ok")
    assert(resting:pause())
    assert(resting:limit { running = 3, rate = { 1, "1h" }, backlog = 9 })
    assert(q:push("ok", nil, { delay = 60 }))
    assert(q:push("unknown"))
    assert(q:push "gone")
    local list
    eventually(function()
      list = scrape(h)
      return value(list, "nightshift_jobs", { queue = "q", state = "dead" }) == 1 or nst.sleep(0.1)
    end)
    assert.equal(1, value(list, "nightshift_jobs", { queue = "q", state = "scheduled" }))
    assert.equal(1, value(list, "nightshift_jobs", { queue = "q", state = "ready" }))
    assert.equal(0, value(list, "nightshift_jobs", { queue = "q", state = "running" }))
    assert.equal(1, value(list, "nightshift_queue_paused", { queue = "rests" }))
    assert.equal(0, value(list, "nightshift_queue_paused", { queue = "q" }))
    assert.is_truthy(value(list, "nightshift_backlog_jobs", { queue = "rests" }))
    for name, n in pairs { nightshift_limit_running = 0, nightshift_limit_places = 3, nightshift_limit_full = 0,
      nightshift_queue_full = 0 } do
      assert.equal(n, value(list, name, { queue = "rests" }), name)
      assert.is_nil(value(list, name, { queue = "q" }))
    end
    assert.is_true(value(list, "nightshift_queue_oldest_ready_age_seconds", { queue = "q" }) > 0)
    assert.equal(0, value(list, "nightshift_queue_drain_seconds", { queue = "rests" }) or 0) -- it is paused
    assert.is_true(value(list, "nightshift_queue_workers_wanted", { queue = "q" }) >= 1)
    assert.equal(1, value(list, "nightshift_hosts"))
    assert.equal(1, value(list, "nightshift_database_up"))
    assert.equal(1, value(list, "nightshift_ready"))
    local server = db.sql "SELECT VERSION()"
    local version = nightshift._VERSION:match "%S+$"
    assert.equal(1, value(list, "nightshift_build_info", { mariadb = server, version = version }))
    host.stop(h)
  end)

  it("count pushed jobs over all restarts, by a hundred queues", function()
    for _ = 1, 2 do
      local other <close> = assert(nightshift.open(url))
      assert(other:queue("other"):push_many { { "a" }, { "b" } })
    end
    db.sql([[INSERT INTO nightshift_queue (name, created) SELECT CONCAT('q', seq), 1 FROM seq_1_to_120;
      INSERT INTO nightshift_minute SELECT 0, 0, id, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0 FROM nightshift_queue
        WHERE name LIKE 'q_%';
      UPDATE nightshift_minute SET pushed = pushed + 1200 WHERE minutes = 0 AND queue_id = 0]], db.name(url))
    local h = start(url, SCRIPT)
    local list, types
    eventually(function()
      list, types = scrape(h)
      return value(list, "nightshift_jobs_enqueued_total", { queue = "q1" }) == 10 or nst.sleep(0.1)
    end)
    assert.equal("counter", types.nightshift_jobs_enqueued_total)
    local sum, n = 0, 0
    for _, sample in ipairs(list) do
      if sample.name == "nightshift_jobs_enqueued_total" then sum, n = sum + sample.value, n + 1 end
    end
    assert.same({ 1204, 100 }, { sum, n }) -- its own queue "other" is among the hundred, and has the rest
    host.stop(h)
  end)

  it("escape names, and count those beyond 200 together", function()
    local lines = { "local all = {}", "for i = 1, 230 do all['n' .. i] = function() end end" }
    lines[3] = [[all['odd "name" \\ here'], all["bühne{a='b'},"] = all.n1, all.n1 return all]]
    local h = start(url, table.concat(lines, "\n"))
    local odd = { 'odd "name" \\ here', "bühne{a='b'}," }
    for _, name in ipairs(odd) do
      local id = assert(q:push(name))
      eventually(function() return handle:job(id).state == "done" end)
    end
    local items = {}
    for i = 1, 230 do items[i] = { "n" .. i } end
    assert(q:push_many(items))
    local list = settled(h)
    local sum = 0
    for _, sample in ipairs(list) do
      if sample.name == "nightshift_jobs_finished_total" then sum = sum + sample.value end
    end
    assert.equal(232, sum)
    for _, name in ipairs(odd) do
      assert.equal(1, value(list, "nightshift_jobs_finished_total", { job = name, outcome = "done" }))
    end
    assert.equal(32, value(list, "nightshift_jobs_finished_total", { job = "other", outcome = "done" }))
    host.stop(h)
  end)

  it("are those of the reference, and all of them", function()
    local h = start(url, SCRIPT)
    local _, types = scrape(h)
    local page, named = io.open("doc/reference.md"):read "a", {}
    local section = page:match "\n## Metrics and health\n(.-)\n## "
    for row in section:gmatch "\n| (`nightshift_[^\n]*)" do
      local kind = row:match "| (%l+) |[^|]*|$"
      for name in row:match "^[^|]*":gmatch "`([^`]+)`" do named[name] = kind end
    end
    assert.same(named, types)
    host.stop(h)
  end)

  it("pass promtool, where it is installed", function()
    if not os.execute "command -v promtool >/dev/null" then return pending "no promtool" end
    local h = start(url, SCRIPT)
    assert(q:push "ok")
    settled(h)
    local _, body = get(h, "/metrics")
    local status, out, err = proc.run { "promtool", "check", "metrics", stdin = body }
    assert.equal(0, status, out .. err)
    host.stop(h)
  end)

  it("leave dead jobs out for an account that may not count them", function()
    local weak, user = db.user(url, "")
    local _, text = proc.nightshift { "doctor", "--grants", "worker", "--user", user .. "@localhost" }
    db.sql(text, db.name(url))
    assert.is_truthy(grants.worker)
    local h = start(weak, SCRIPT)
    assert(q:push "gone")
    settled(h)
    local list
    eventually(function() -- figures are up to five seconds old
      list = scrape(h)
      return value(list, "nightshift_jobs", { queue = "q", state = "ready" }) == 0 or nst.sleep(0.1)
    end)
    assert.is_nil(value(list, "nightshift_jobs", { queue = "q", state = "dead" }))
    host.stop(h)
  end)
end)

-- ----------------------------------------------------------------------- server

describe("the server of --http", function()
  local url
  before_each(function() url = db.fresh() end)

  local function threads(h)
    local list = {}
    for id in io.popen("ls /proc/" .. h.pid .. "/task"):lines() do list[#list + 1] = id end
    return #list
  end

  it("is not there without the option", function()
    local plain, served = host.start(url, SCRIPT), start(url, SCRIPT)
    eventually(function() return threads(served) == threads(plain) + 2 end)
    local _, log = plain:text()
    assert.is_nil(log:find "host.http")
    host.stop(plain)
    host.stop(served)
  end)

  it("names a port that is taken, and a wrong address", function()
    local h = start(url, SCRIPT)
    local other = host.spawn(url, SCRIPT, { "--http", h.at })
    assert.equal(78, other:wait())
    local _, log = other:text()
    assert.is_truthy(log:find("--http: cannot listen on " .. h.at .. ": Address already in use", 1, true), log)
    for _, wrong in ipairs { "here", "127.0.0.1:", "127.0.0.1:70000", ":x" } do
      proc.fails(2, { "work", h.script, "--http", wrong }, url, "'" .. wrong .. "' is not ADDRESS:PORT")
    end
    host.stop(h)
  end)

  it("listens on the loopback when a port is all that is named", function()
    local port = proc.free_port()
    local h = host.start(url, SCRIPT, { "--http", tostring(port) })
    assert.equal("127.0.0.1:" .. port, h:wait_line "event=host%.http address=(%S+)")
    host.stop(h)
  end)

  it("answers GET and HEAD on three paths", function()
    local h = start(url, SCRIPT)
    local status, body = get(h, "/")
    assert.equal(404, status)
    assert.equal("there are /metrics, /livez and /readyz\n", body)
    local _, posted, headers = http.request("http://" .. h.at .. "/livez", "a=b")
    assert.equal(405, posted)
    assert.equal("GET, HEAD", headers.allow)
    local _, headed = http.request { url = "http://" .. h.at .. "/metrics", method = "HEAD" }
    assert.equal(200, headed)
    assert.equal(200, (get(h, "/livez?a=b")))
    host.stop(h)
  end)

  it("ends with its host, whoever is connected", function()
    local h = start(url, SCRIPT)
    local c = assert(require "socket".connect(h.at:match "^(.*):(%d+)$"))
    c:send "GET /metrics HTTP/1.1\r\n"
    host.stop(h)
    c:close()
  end)
end)

-- ----------------------------------------------------------------------- health

describe("the health of a host", function()
  local server, url, go
  setup(function() server = db.spare() end)
  before_each(function()
    url = server:fresh()
    go = fixture.dir() .. "/go"
  end)
  after_each(function()
    if not pcall(server.sql, server, "SELECT 1") then server:start() end
  end)

  local function is(h, path, status, text)
    local got, body = get(h, path)
    return got == status and (not text or body:find(text, 1, true) ~= nil), ("%d %s"):format(got, body)
  end

  --- A host with a job that ends when `go` is there.
  local function busy()
    local h = start(url, host.holding(go))
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue "q":push "hold")
    h:wait_line "^holds"
    eventually(function() return is(h, "/readyz", 200, "ok") or nst.sleep(0.1) end)
    return h
  end

  it("is ready, until the server is gone and again when it is back; it lives all the time", function()
    local h = busy()
    server:kill()
    assert(io.open(go, "w")):close()
    eventually(function() return is(h, "/readyz", 503, "the database is away") or nst.sleep(0.1) end, 15)
    assert(is(h, "/livez", 200, "ok"))
    local list = scrape(h)
    assert.equal(0, value(list, "nightshift_ready"))
    assert.equal(0, value(list, "nightshift_database_up"))
    assert.is_nil(value(list, "nightshift_hosts"))
    server:start()
    eventually(function() return is(h, "/readyz", 200, "ok") or nst.sleep(0.1) end)
    eventually(function() return value(scrape(h), "nightshift_database_up") == 1 end)
    assert.is_true(value(scrape(h), "nightshift_db_reconnects_total") >= 1)
    host.stop(h)
  end)

  it("is not ready while a lock on a table, or a frozen server, keeps the claim loop waiting", function()
    local h = busy()
    local locker <close> = assert(nightshift.open(url))
    assert(locker:execute "LOCK TABLES nightshift_finished WRITE")
    assert(io.open(go, "w")):close()
    eventually(function() return is(h, "/readyz", 503, "the database has not answered for") or nst.sleep(0.1) end, 15)
    assert(is(h, "/livez", 200, "ok"))
    assert(locker:execute "UNLOCK TABLES")
    eventually(function() return is(h, "/readyz", 200) or nst.sleep(0.1) end)
    server:freeze()
    eventually(function() return is(h, "/readyz", 503) or nst.sleep(0.1) end, 16) -- an idle one
    assert(is(h, "/livez", 200, "ok"))
    server:thaw()
    eventually(function() return is(h, "/readyz", 200) or nst.sleep(0.1) end)
    host.stop(h)
  end)

  it("is not ready while the host rests or drains; it lives", function()
    local h = busy()
    h:signal "TSTP"
    eventually(function() return is(h, "/readyz", 503, "the host rests") or nst.sleep(0.1) end)
    h:signal "CONT"
    eventually(function() return is(h, "/readyz", 200) or nst.sleep(0.1) end)
    h:signal "TERM"
    eventually(function() return is(h, "/readyz", 503, "the host drains") or nst.sleep(0.1) end)
    assert(is(h, "/livez", 200, "ok"))
    assert(io.open(go, "w")):close()
    assert.equal(0, h:wait())
  end)

  -- The id of the thread that claims.
  local function claimer(h)
    return eventually(function()
      for id in io.popen("ls /proc/" .. h.pid .. "/task"):lines() do
        local file <close> = io.open(("/proc/%d/task/%s/comm"):format(h.pid, id))
        if file and file:read "l" == "ns-dispatcher" then return math.tointeger(tonumber(id)) end
      end
    end)
  end

  it("fails within 15 s when the claim loop is stopped, or the loop", function()
    local claims, loop = start(url, SCRIPT), start(url, SCRIPT)
    local thread = claimer(claims)
    local held, message = nst.hold(thread)
    if not held then return pending(message) end
    assert(nst.hold(loop.pid))
    local begun = nst.clock()
    assert(is(loop, "/livez", 200)) -- it is asked
    eventually(function() return is(loop, "/livez", 503, "the loop has not moved for 1") or nst.sleep(0.1) end, 13)
    assert(is(loop, "/readyz", 503, "the loop has not moved for 1"))
    eventually(function() return is(claims, "/readyz", 503, "the claim loop has not ") or nst.sleep(0.1) end, 16)
    assert.is_true(nst.clock() - begun < proc.limit(16))
    eventually(function()
      return is(claims, "/livez", 503, "the claim loop has not moved for ") or nst.sleep(0.1)
    end, 60)
    assert(nst.hold(thread, false))
    assert(nst.hold(loop.pid, false))
    for _, h in ipairs { claims, loop } do
      eventually(function() return is(h, "/readyz", 200, "ok") and is(h, "/livez", 200, "ok") or nst.sleep(0.1) end)
      host.stop(h)
    end
  end)
end)

describe("nightshift health", function()
  local url
  before_each(function() url = db.fresh() end)

  local function health(...) return proc.nightshift({ "health", ... }, url) end

  it("asks the database whether a host of this machine lives", function()
    local exit, out, err = health()
    assert.equal(1, exit)
    assert.equal("", out)
    assert.is_truthy(err:find "^nightshift: no host of this database runs on %g+\n$", err)
    local h = host.start(url, SCRIPT)
    local id = db.sql("SELECT id FROM nightshift_holder WHERE kind = 'host'", db.name(url))
    local machine = db.sql("SELECT host FROM nightshift_holder WHERE kind = 'host'", db.name(url))
    for _, which in ipairs { {}, { "--host", id }, { "--host", machine } } do
      exit, out, err = health(table.unpack(which))
      assert.equal(0, exit, err)
      local line = ("^host %s %%(pid %d on %%g+%%) lives; its last beat was %%g+ ago\n$"):format(id, h.pid)
      assert.is_truthy(out:find(line), out)
    end
    local told = nightshift.decode(select(2, health("--json")))
    assert.same({ true, h.pid, machine }, { told.ok, told.pid, told.host })
    proc.fails(1, { "health", "--host", "elsewhere" }, url, "there is no host 'elsewhere'")
    h:signal "KILL"
    h:wait()
    exit, out, err = health() -- a look of any handle may have declared it dead by now
    assert.same({ 1, "" }, { exit, out })
    assert.is_truthy(err:find(("(pid %d on %s) is gone"):format(h.pid, machine), 1, true)
      or err:find "no host of this database runs on", err)
    assert.is_false(nightshift.decode(select(2, health("--json"))).ok)
  end)

  it("asks a host that serves it", function()
    local h = start(url, SCRIPT)
    eventually(function() return get(h, "/readyz") == 200 end)
    local _, out = health("--http", h.at)
    assert.equal(h.at .. " is ready\n", out)
    h:signal "TSTP"
    eventually(function() return (get(h, "/readyz")) == 503 end)
    local exit, _, err = health("--http", h.at)
    assert.equal(1, exit)
    assert.equal("nightshift: the host rests, as SIGTSTP has told it\n", err)
    h:signal "CONT"
    h:signal "STOP"
    proc.fails(1, { "health", "--http", h.at, "--timeout", "300ms" }, url,
      h.at .. " does not answer: Connection timed out")
    h:signal "CONT"
    host.stop(h)
    proc.fails(1, { "health", "--http", h.at }, url, h.at .. ": Connection refused")
    proc.fails(2, { "health", "--http", h.at, "--host", "x" }, url, "leave --host out")
  end)

  it("ends with 1 when the database is not there", function()
    proc.fails(1, { "health", "--timeout", "1s" }, "mysql://x@127.0.0.1:1/y", "127.0.0.1")
  end)
end)

-- ----- alerts

local RULES, PAGE, BOARD = "doc/monitoring/alerts.yml", "doc/runbook.md", "doc/monitoring/dashboard.json"

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

--- Prometheus's tool, of the machine or of the build; see mk/test.mk.
local function promtool()
  for _, path in ipairs { proc.root .. "/build/promtool", "/usr/bin/promtool" } do
    if proc.run { "test", "-x", path } == 0 then return path end
  end
  pending "promtool is not installed, and could not be fetched (Debian's package prometheus)"
end

--- The names of the alerts, with the sections that they name.
local function alerts()
  local found, list = {}, {}
  for name, rule in read(RULES):gmatch "%- alert: (%w+)(.-\n        annotations:.-runbook: [^\n]+)" do
    found[name], list[#list + 1] = rule:match "runbook: doc/runbook%.md#(%S+)$", name
  end
  return found, list
end

local function slug(title) return (title:lower():gsub("[^%w ]", ""):gsub(" ", "-")) end

local provoked = {} -- by the specs below

describe("the alerts", function()
  local url, name, handle, q, h, port

  --- A port that is free now.
  local function free_port()
    local one = assert(socket.bind("127.0.0.1", 0))
    local _, number = one:getsockname()
    one:close()
    return number
  end

  local HANDLERS = [[
  local core = require "nightshift.core"
  return {
    fine = function() end,
    fails = { max_attempts = 1, run = function(job) error("no route", 0) end },
    crashes = function(job) io.popen("kill -9 $PPID"):close() core.sleep(10) end,
    hangs = { timeout = 0.2, max_attempts = 1, run = function() core.sleep(30) end },
    waits = function() print "holds" while not io.open %q do core.sleep(0.02) end end,
  }]]

  local go

  local function launch(address, more)
    port, go = free_port(), fixture.dir() .. "/go"
    local args = { "--http", "127.0.0.1:" .. port, table.unpack(more or {}) }
    return host.start(address, HANDLERS:format(go), args)
  end

  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
  end)
  after_each(function() handle:close() end)

  --- The samples of /metrics by their series, with `up`, as Prometheus takes them. Figures of the
  -- database are at most so many seconds old.
  local function samples()
    local at = { ['up{instance="a",job="nightshift"}'] = 1 }
    local text, status = http.request(("http://127.0.0.1:%d/metrics"):format(port))
    if status ~= 200 then return { ['up{instance="a",job="nightshift"}'] = 0 } end
    for line in text:gmatch "[^\n]+" do
      local metric, labels, number = line:match "^([%w_]+){(.*)} (%S+)$"
      if not metric then metric, number = line:match "^([%w_]+) (%S+)$" end
      if metric then
        labels = labels and labels .. "," or ""
        labels = ("," .. labels):gsub(",job=", ",exported_job="):sub(2) -- Prometheus has a label of that name itself
        at[("%s{%sinstance=\"a\",job=\"nightshift\"}"):format(metric, labels)] = tonumber(number)
      end
    end
    return at
  end

  --- Waits until /metrics say so.
  local function scrape_when(check)
    local at
    eventually(function()
      at = samples()
      return check(at) or nst.sleep(0.1) -- figures are up to five seconds old
    end, 60)
    return at
  end

  local function figure(at, start_of, also)
    for series, number in pairs(at) do
      if series:find(start_of, 1, true) == 1 and (not also or series:find(also, 1, true)) then return number end
    end
  end

  --- The text of a rule.
  local function rule(alert) return assert((read(RULES) .. "\n\n"):match("alert: " .. alert .. "\n(.-)\n\n")) end

  --- Minutes of each phase: two hours where a rule asks for one hour, or half of one.
  local function span(alert) return rule(alert):find "1h%f[^%w]" and 120 or rule(alert):find "30m" and 120 or 30 end

  --- The samples that a rule reads, for promtool.
  local function input(alert, phases)
    local wanted, list = rule(alert), {}
    local series = {}
    for _, at in ipairs(phases) do for key in pairs(at) do series[key] = true end end
    for key in pairs(series) do
      if wanted:find(key:match "^[%w_]+", 1, true) then
        local values, quoted = {}, key:gsub("'", "''")
        for i, at in ipairs(phases) do
          values[i] = at[key] and ("%.6f+0x%d"):format(at[key], span(alert) - 1) or "_x" .. span(alert)
        end
        list[#list + 1] = ("   - series: '%s'\n     values: '%s'\n"):format(quoted, table.concat(values, " "))
      end
    end
    return table.concat(list)
  end

  -- Tests of rules, one for each `check`, for a single run of promtool behind all of them.
  local tests = {}

  --- Prometheus is to say that the alert fires meanwhile, and neither before nor after. What an
  -- increase fires is looked at eight minutes behind the change, all else in the end.
  local function check(alert, before, meanwhile, after)
    provoked[alert] = true
    local long = span(alert)
    local change = rule(alert):find("increase", 1, true) and long + 8 or 2 * long - 1
    local asked = {}
    for minute, firing in pairs { [8] = 0, [long - 1] = 0, [change] = 1, [3 * long - 1] = 0 } do
      asked[#asked + 1] = ([[
   - expr: count(ALERTS{alertname="%s",alertstate="firing"}) > bool 0 or vector(0)
     eval_time: %dm
     exp_samples: [{labels: '{}', value: %d}]
]]):format(alert, minute, firing)
    end
    tests[#tests + 1] = ([[
 - interval: 1m
   input_series:
%s   promql_expr_test:
%s]]):format(input(alert, { before, meanwhile, after }), table.concat(asked))
  end

  local function status_says(pattern)
    local _, out = proc.nightshift({ "status" }, url)
    assert.matches(pattern, out)
  end

  it("tell of a host that is away, until it is started again", function()
    h = launch(url)
    local before = samples()
    h:signal "KILL"
    h:wait()
    local meanwhile = samples()
    h = host.start(url, HANDLERS:format(go), { "--http", "127.0.0.1:" .. port })
    check("NightshiftHostAway", before, meanwhile, samples())
    host.stop(h)
  end)

  it("tell of a database that is away, and of results that it does not take", function()
    local server = db.spare()
    local there = server:fresh()
    h = launch(there)
    local other <close> = assert(nightshift.open(there))
    local before = scrape_when(function(at) return figure(at, "nightshift_database_up") == 1 end)
    assert(other:queue "q":push "waits")
    h:wait_line "^holds"
    local locker <close> = assert(nightshift.open(there))
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    assert(io.open(go, "w")):close()
    local meanwhile = scrape_when(function(at)
      return figure(at, "nightshift_verdicts_waiting") == 1 and figure(at, "nightshift_ready") == 0
    end)
    local _, out = proc.nightshift({ "status" }, there)
    assert.matches("the database does not take 1 verdict", out)
    assert(locker:execute "UNLOCK TABLES")
    local after = scrape_when(function(at)
      return figure(at, "nightshift_verdicts_waiting") == 0 and figure(at, "nightshift_ready") == 1
    end)
    check("NightshiftVerdictsWait", before, meanwhile, after)
    check("NightshiftNotReady", before, meanwhile, after)
    server:stop()
    meanwhile = scrape_when(function(at) return figure(at, "nightshift_database_up") == 0 end)
    assert.equal(69, (proc.nightshift({ "doctor" }, there)))
    server:start()
    after = scrape_when(function(at)
      return figure(at, "nightshift_database_up") == 1 and figure(at, "nightshift_ready") == 1
    end)
    check("NightshiftDatabaseAway", before, meanwhile, after)
    host.stop(h)
  end)

  it("tell of a queue that is late, and of workers that are all busy", function()
    h = launch(url, { "--workers", "1" })
    local before = scrape_when(function(at) return figure(at, "nightshift_workers{", 'state="idle"') == 1 end)
    assert(q:push "waits")
    h:wait_line "^holds"
    assert(q:push "waits")
    eventually(function() return q:stats().ready == 1 end)
    db.sql("UPDATE nightshift_ready SET ready_at = ready_at - 4e8 WHERE ready_at < (UNIX_TIMESTAMP() + 60) * 1e6", name)
    local meanwhile = scrape_when(function(at)
      return (figure(at, "nightshift_queue_oldest_ready_age_seconds") or 0) > 300
        and figure(at, "nightshift_workers{", 'state="busy"') == 1
    end)
    status_says "q +%d"
    local holder = handle:stats().holders[1].id
    assert.equal(0, (proc.nightshift({ "tune", "--host", tostring(holder), "--workers", "3" }, url)))
    local after = scrape_when(function(at)
      return figure(at, "nightshift_queue_oldest_ready_age_seconds") == 0
        and figure(at, "nightshift_workers{", 'state="busy"') == 2 and figure(at, "nightshift_workers_wanted") == 3
    end)
    check("NightshiftQueueLate", before, meanwhile, after)
    check("NightshiftWorkersBusy", before, meanwhile, after)
    assert(io.open(go, "w")):close()
    host.stop(h)
  end)

  it("tell of a queue that is paused", function()
    h = launch(url)
    assert(q:push "fine")
    local function state(n, paused)
      return scrape_when(function(at)
        return figure(at, "nightshift_jobs{", 'state="ready"') == n and figure(at, "nightshift_queue_paused") == paused
      end)
    end
    local before = state(0, 0)
    assert(q:pause())
    assert(q:push "fine")
    local meanwhile = state(1, 1)
    status_says "paused"
    assert.equal(0, (proc.nightshift({ "resume", "q" }, url)))
    check("NightshiftQueuePaused", before, meanwhile, state(0, 0))
    host.stop(h)
  end)

  it("tell of a queue that is full", function()
    h = launch(url)
    assert(q:pause())
    assert(q:limit { backlog = 1 })
    local function full(n) return scrape_when(function(at) return figure(at, "nightshift_queue_full{") == n end) end
    local before = full(0)
    assert(q:push "fine")
    assert.equal("FULL", (select(3, q:push "fine")))
    local meanwhile = full(1)
    status_says "pushes are refused: 1 of 1 jobs wait"
    assert.matches("full: pushes are refused", select(2, proc.nightshift({ "limits", "q" }, url)))
    assert.equal(0, (proc.nightshift({ "resume", "q" }, url)))
    check("NightshiftQueueFull", before, meanwhile, full(0))
    assert(q:push("fine", nil, { wait = 10 }))
    host.stop(h)
  end)

  it("tell of names that no host serves", function()
    h = launch(url)
    local before = {} -- a look at names is used for ten seconds
    assert(q:push "fin")
    local meanwhile = scrape_when(function(at) return figure(at, "nightshift_jobs_unserved") == 1 end)
    status_says "handler for 'fin'"
    local job = handle:jobs { name = "fin" }[1]
    assert.equal(0, (proc.nightshift({ "cancel", tostring(job.id) }, url)))
    local after = scrape_when(function(at) return (figure(at, "nightshift_jobs_unserved") or 0) == 0 end)
    check("NightshiftJobsUnserved", before, meanwhile, after)
    host.stop(h)
  end)

  --- Runs jobs until a count is there: the samples before and behind it.
  local function provoke(job, n, counter, also, wanted)
    assert(q:push "fine")
    assert(q:push_many((function()
      local list = {}
      for i = 1, n do list[i] = { job, i } end
      return list
    end)()))
    return scrape_when(function(at) return (figure(at, counter, also) or 0) >= (wanted or n) end)
  end

  it("tell of runs that fail, and of jobs that die of it", function()
    h = launch(url)
    provoke("fails", 1, "nightshift_jobs_dead_total")
    local before = samples()
    local meanwhile = provoke("fails", 25, "nightshift_jobs_dead_total", nil, 26)
    eventually(function() return q:stats().dead == 26 end)
    local _, out = proc.nightshift({ "errors" }, url)
    assert.matches("26 .*no route", out)
    host.stop(h)
    h = host.start(url, "return { fails = function() end }", { "--http", "127.0.0.1:" .. port })
    assert.equal(0, (proc.nightshift({ "retry", "--state", "dead", "--name", "fails", "--yes" }, url)))
    local after = scrape_when(function(at)
      return figure(at, "nightshift_jobs_finished_total{", 'exported_job="fails",outcome="done"') == 26
    end)
    check("NightshiftJobsDie", before, meanwhile, after)
    check("NightshiftJobsFail", before, meanwhile, after)
    host.stop(h)
  end)

  it("tell of workers that crash", function()
    h = launch(url)
    local crashed = 'exported_job="crashes",outcome="crashed"'
    provoke("crashes", 1, "nightshift_jobs_finished_total{", crashed)
    local before = samples()
    local n = figure(before, "nightshift_jobs_finished_total{", crashed) + 5
    local meanwhile = provoke("crashes", 5, "nightshift_jobs_finished_total{", crashed, n)
    h:wait_line "event=job.crashed .*Killed"
    assert.equal(0, (proc.nightshift({ "pause", "--name", "crashes" }, url)))
    check("NightshiftWorkersCrash", before, meanwhile, meanwhile)
    host.stop(h)
  end)

  it("tell of jobs that time out", function()
    h = launch(url)
    local before = samples()
    local meanwhile = provoke("hangs", 5, "nightshift_job_timeouts_total")
    h:wait_line "event=job.timeout"
    check("NightshiftJobsTimeOut", before, meanwhile, meanwhile)
    host.stop(h)
  end)

  it("tell of claims that are lost, of programs that die, and of jobs that were nowhere", function()
    h = launch(url)
    local before = samples()
    local meanwhile
    for i = 1, 4 do
      assert(handle:queue "theirs":push "unknown")
      local other = proc.start { proc.lua, "-e", ([[
        assert(require "nightshift".open(%q):queue "theirs":claim())
        print "claimed"
        io.stdout:flush()
        require "nightshift.core".sleep(60)]]):format(url) }
      other:wait_line("claimed", 20)
      other:signal "KILL"
      other:wait()
      meanwhile = scrape_when(function(at) return figure(at, "nightshift_rescued_holders_total") >= i end)
      eventually(function() return handle:queue "theirs":stats().ready == 1 end)
      assert(handle:cancel(handle:jobs { queue = "theirs" }[1].id))
    end
    check("NightshiftHoldersDie", before, meanwhile, meanwhile)

    assert(q:push "waits")
    h:wait_line "^holds"
    db.sql("UPDATE nightshift_holder SET dead = 1 WHERE kind = 'host'", name)
    meanwhile = scrape_when(function(at) return figure(at, "nightshift_leases_lost_total") >= 1 end)
    h:wait_line "event=holder.lost"
    check("NightshiftClaimsLost", before, meanwhile, meanwhile)
    assert(io.open(go, "w")):close()

    host.stop(h)
    assert(q:push "fine")
    db.sql("INSERT INTO nightshift_meta VALUES ('mend_every', '200000')", name)
    db.sql("DELETE FROM nightshift_ready WHERE ready_at < (UNIX_TIMESTAMP() + 60) * 1e6", name)
    h = launch(url)
    meanwhile = scrape_when(function(at) return figure(at, "nightshift_mended_jobs_total") >= 1 end)
    status_says "mended"
    check("NightshiftJobsMended", before, meanwhile, meanwhile)
    host.stop(h)
  end)

  it("fire meanwhile, and neither before nor after, as Prometheus reckons", function()
    assert.is_true(#tests >= 15)
    local text = ("rule_files: [%s/%s]\nevaluation_interval: 1m\ntests:\n%s"):format(proc.root, RULES,
      table.concat(tests))
    local exit, out, err = proc.run { promtool(), "test", "rules", fixture.file("test.yml", text) }
    assert.equal(0, exit, text .. out .. err)
  end)

  it("have been provoked all of them, and each has a section", function()
    local sections, list = alerts()
    local titles = {}
    for title in read(PAGE):gmatch "\n## ([^\n]+)" do titles[slug(title)] = true end
    for _, alert in ipairs(list) do
      assert.is_true(titles[sections[alert]], alert .. " names a section that is not there")
      assert.is_truthy(read(PAGE):find("**Alert** " .. alert .. ",", 1, true), alert)
      assert.is_true(provoked[alert], alert .. " is not provoked")
    end
    assert.is_true(#list >= 15)
  end)

  it("are rules that Prometheus reads, as are the panels of the dashboard", function()
    local tool = promtool()
    local exit, out, err = proc.run { tool, "check", "rules", RULES }
    assert.equal(0, exit, out .. err)
    local list = {}
    for _, panel in ipairs(nightshift.decode(read(BOARD)).panels) do
      for _, target in ipairs(panel.targets) do
        local expr = target.expr:gsub("%$__rate_interval", "5m"):gsub("%$queue", ".*")
        list[#list + 1] = ("  - record: panel:%d\n    expr: '%s'\n"):format(#list, expr:gsub("'", "''"))
      end
    end
    local path = fixture.file("panels.yml", "groups:\n- name: panels\n  rules:\n" .. table.concat(list))
    exit, out, err = proc.run { tool, "check", "rules", path }
    assert.equal(0, exit, out .. err)
    assert.is_true(#list > 12)
  end)

  it("and panels ask for metrics that there are, with labels that these have", function()
    h = launch(url)
    provoke("fails", 1, "nightshift_jobs_dead_total")
    assert(q:push "unknown")
    assert(q:limit { running = 9, backlog = 100 })
    local at = scrape_when(function(all)
      return figure(all, "nightshift_jobs_unserved") and figure(all, "nightshift_queue_full")
    end)
    host.stop(h)
    local names = {}
    for series in pairs(at) do names[series:match "^[^{]+"] = series end
    for _, path in ipairs { RULES, BOARD } do
      for metric in read(path):gmatch "nightshift_[%l_]+" do assert.is_truthy(names[metric], metric) end
    end
  end)

  it("get an exposition that Prometheus reads", function()
    h = launch(url)
    provoke("fails", 1, "nightshift_jobs_dead_total")
    local text = http.request(("http://127.0.0.1:%d/metrics"):format(port))
    local exit, out, err = proc.run { "sh", "-c", '"$1" check metrics < "$2"', "sh", promtool(),
      fixture.file("metrics", text) }
    assert.equal(0, exit, out .. err)
    host.stop(h)
  end)
end)
