-- The alerts of doc/monitoring/alerts.yml: each is provoked, and cleared as its section of
-- doc/runbook.md says. A host's /metrics are read before, meanwhile and after; Prometheus's own
-- promtool reckons from these figures, two hours of each, when the alert fires.

local db = require "spec.support.db"
local host = require "spec.support.host"
local http = require "socket.http"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local socket = require "socket"

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

  local SCRIPT = [[
  local core = require "nightshift.core"
  return {
    fine = function() end,
    fails = { max_attempts = 1, run = function(job) error("no route", 0) end },
    crashes = function(job) io.popen("kill -9 $PPID"):close() core.sleep(10) end,
    hangs = { timeout = 0.2, max_attempts = 1, run = function() core.sleep(30) end },
    waits = function() print "holds" while not io.open %q do core.sleep(0.02) end end,
  }]]

  local go

  local function start(address, more)
    port, go = free_port(), fixture.dir() .. "/go"
    local args = { "--http", "127.0.0.1:" .. port, table.unpack(more or {}) }
    return host.start(address, SCRIPT:format(go), args)
  end

  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    q = handle:queue "q"
  end)
  after_each(function() handle:close() end)

  --- The samples of /metrics by their series, with `up`, as Prometheus takes them. Figures of the
  -- database are at most so many seconds old.
  local function scrape()
    local at = { ['up{instance="a",job="nightshift"}'] = 1 }
    local text, status = http.request(("http://127.0.0.1:%d/metrics"):format(port))
    if status ~= 200 then return { ['up{instance="a",job="nightshift"}'] = 0 } end
    for line in text:gmatch "[^\n]+" do
      local metric, labels, value = line:match "^([%w_]+){(.*)} (%S+)$"
      if not metric then metric, value = line:match "^([%w_]+) (%S+)$" end
      if metric then
        labels = labels and labels .. "," or ""
        labels = ("," .. labels):gsub(",job=", ",exported_job="):sub(2) -- Prometheus has a label of that name itself
        at[("%s{%sinstance=\"a\",job=\"nightshift\"}"):format(metric, labels)] = tonumber(value)
      end
    end
    return at
  end

  --- Waits until /metrics say so.
  local function scrape_when(check)
    local at
    eventually(function()
      at = scrape()
      return check(at)
    end, 60)
    return at
  end

  local function value(at, start_of, also)
    for series, number in pairs(at) do
      if series:find(start_of, 1, true) == 1 and (not also or series:find(also, 1, true)) then return number end
    end
  end

  --- The text of a rule.
  local function rule(alert) return assert((read(RULES) .. "\n\n"):match("alert: " .. alert .. "\n(.-)\n\n")) end

  --- The samples that a rule reads, two hours of each phase, for promtool.
  local function input(alert, phases)
    local wanted, list = rule(alert), {}
    local series = {}
    for _, at in ipairs(phases) do for key in pairs(at) do series[key] = true end end
    for key in pairs(series) do
      if wanted:find(key:match "^[%w_]+", 1, true) then
        local values, quoted = {}, key:gsub("'", "''")
        for i, at in ipairs(phases) do values[i] = at[key] and ("%.6f+0x119"):format(at[key]) or "_x120" end
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
    local change = rule(alert):find("increase", 1, true) and 128 or 239
    local asked = {}
    for minute, firing in pairs { [8] = 0, [119] = 0, [change] = 1, [359] = 0 } do
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
    h = start(url)
    local before = scrape()
    h:signal "KILL"
    h:wait()
    local meanwhile = scrape()
    h = host.start(url, SCRIPT:format(go), { "--http", "127.0.0.1:" .. port })
    check("NightshiftHostAway", before, meanwhile, scrape())
    host.stop(h)
  end)

  it("tell of a database that is away, and of results that it does not take", function()
    local server = db.server ""
    finally(function() server:remove() end)
    local there = server:fresh()
    h = start(there)
    local other <close> = assert(nightshift.open(there))
    local before = scrape_when(function(at) return value(at, "nightshift_database_up") == 1 end)
    assert(other:queue "q":push "waits")
    h:wait_line "^holds"
    local locker <close> = assert(nightshift.open(there))
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    assert(io.open(go, "w")):close()
    local meanwhile = scrape_when(function(at)
      return value(at, "nightshift_verdicts_waiting") == 1 and value(at, "nightshift_ready") == 0
    end)
    local _, out = proc.nightshift({ "status" }, there)
    assert.matches("the database does not take 1 verdict", out)
    assert(locker:execute "UNLOCK TABLES")
    local after = scrape_when(function(at)
      return value(at, "nightshift_verdicts_waiting") == 0 and value(at, "nightshift_ready") == 1
    end)
    check("NightshiftVerdictsWait", before, meanwhile, after)
    check("NightshiftNotReady", before, meanwhile, after)
    server:stop()
    meanwhile = scrape_when(function(at) return value(at, "nightshift_database_up") == 0 end)
    assert.equal(69, (proc.nightshift({ "doctor" }, there)))
    server:start()
    after = scrape_when(function(at)
      return value(at, "nightshift_database_up") == 1 and value(at, "nightshift_ready") == 1
    end)
    check("NightshiftDatabaseAway", before, meanwhile, after)
    host.stop(h)
  end)

  it("tell of a queue that is late, and of workers that are all busy", function()
    h = start(url, { "--workers", "1" })
    local before = scrape_when(function(at) return value(at, "nightshift_workers{", 'state="idle"') == 1 end)
    assert(q:push "waits")
    h:wait_line "^holds"
    assert(q:push "waits")
    eventually(function() return q:stats().ready == 1 end)
    db.sql("UPDATE nightshift_ready SET ready_at = ready_at - 4e8 WHERE ready_at < (UNIX_TIMESTAMP() + 60) * 1e6", name)
    local meanwhile = scrape_when(function(at)
      return (value(at, "nightshift_queue_oldest_ready_age_seconds") or 0) > 300
        and value(at, "nightshift_workers{", 'state="busy"') == 1
    end)
    status_says "q +%d"
    local holder = handle:stats().holders[1].id
    assert.equal(0, (proc.nightshift({ "tune", "--host", tostring(holder), "--workers", "3" }, url)))
    local after = scrape_when(function(at)
      return value(at, "nightshift_queue_oldest_ready_age_seconds") == 0
        and value(at, "nightshift_workers{", 'state="busy"') == 2 and value(at, "nightshift_workers_wanted") == 3
    end)
    check("NightshiftQueueLate", before, meanwhile, after)
    check("NightshiftWorkersBusy", before, meanwhile, after)
    assert(io.open(go, "w")):close()
    host.stop(h)
  end)

  it("tell of a queue that is paused", function()
    h = start(url)
    assert(q:push "fine")
    local function state(n, paused)
      return scrape_when(function(at)
        return value(at, "nightshift_jobs{", 'state="ready"') == n and value(at, "nightshift_queue_paused") == paused
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
    h = start(url)
    assert(q:pause())
    assert(q:limit { backlog = 1 })
    local function full(n) return scrape_when(function(at) return value(at, "nightshift_queue_full{") == n end) end
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
    h = start(url)
    local before = {} -- a look at names is used for ten seconds
    assert(q:push "fin")
    local meanwhile = scrape_when(function(at) return value(at, "nightshift_jobs_unserved") == 1 end)
    status_says "handler for 'fin'"
    local job = handle:jobs { name = "fin" }[1]
    assert.equal(0, (proc.nightshift({ "cancel", tostring(job.id) }, url)))
    local after = scrape_when(function(at) return (value(at, "nightshift_jobs_unserved") or 0) == 0 end)
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
    return scrape_when(function(at) return (value(at, counter, also) or 0) >= (wanted or n) end)
  end

  it("tell of runs that fail, and of jobs that die of it", function()
    h = start(url)
    provoke("fails", 1, "nightshift_jobs_dead_total")
    local before = scrape()
    local meanwhile = provoke("fails", 25, "nightshift_jobs_dead_total", nil, 26)
    eventually(function() return q:stats().dead == 26 end)
    local _, out = proc.nightshift({ "errors" }, url)
    assert.matches("26 .*no route", out)
    host.stop(h)
    h = host.start(url, "return { fails = function() end }", { "--http", "127.0.0.1:" .. port })
    assert.equal(0, (proc.nightshift({ "retry", "--state", "dead", "--name", "fails", "--yes" }, url)))
    local after = scrape_when(function(at)
      return value(at, "nightshift_jobs_finished_total{", 'exported_job="fails",outcome="done"') == 26
    end)
    check("NightshiftJobsDie", before, meanwhile, after)
    check("NightshiftJobsFail", before, meanwhile, after)
    host.stop(h)
  end)

  it("tell of workers that crash", function()
    h = start(url)
    local crashed = 'exported_job="crashes",outcome="crashed"'
    provoke("crashes", 1, "nightshift_jobs_finished_total{", crashed)
    local before = scrape()
    local n = value(before, "nightshift_jobs_finished_total{", crashed) + 5
    local meanwhile = provoke("crashes", 5, "nightshift_jobs_finished_total{", crashed, n)
    h:wait_line "event=job.crashed .*Killed"
    assert.equal(0, (proc.nightshift({ "pause", "--name", "crashes" }, url)))
    check("NightshiftWorkersCrash", before, meanwhile, meanwhile)
    host.stop(h)
  end)

  it("tell of jobs that time out", function()
    h = start(url)
    local before = scrape()
    local meanwhile = provoke("hangs", 5, "nightshift_job_timeouts_total")
    h:wait_line "event=job.timeout"
    check("NightshiftJobsTimeOut", before, meanwhile, meanwhile)
    host.stop(h)
  end)

  it("tell of claims that are lost, of programs that die, and of jobs that were nowhere", function()
    h = start(url)
    local before = scrape()
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
      meanwhile = scrape_when(function(at) return value(at, "nightshift_rescued_holders_total") >= i end)
      eventually(function() return handle:queue "theirs":stats().ready == 1 end)
      assert(handle:cancel(handle:jobs { queue = "theirs" }[1].id))
    end
    check("NightshiftHoldersDie", before, meanwhile, meanwhile)

    assert(q:push "waits")
    h:wait_line "^holds"
    db.sql("UPDATE nightshift_holder SET dead = 1 WHERE kind = 'host'", name)
    meanwhile = scrape_when(function(at) return value(at, "nightshift_leases_lost_total") >= 1 end)
    h:wait_line "event=holder.lost"
    check("NightshiftClaimsLost", before, meanwhile, meanwhile)
    assert(io.open(go, "w")):close()

    host.stop(h)
    assert(q:push "fine")
    db.sql("INSERT INTO nightshift_meta VALUES ('mend_every', '200000')", name)
    db.sql("DELETE FROM nightshift_ready WHERE ready_at < (UNIX_TIMESTAMP() + 60) * 1e6", name)
    h = start(url)
    meanwhile = scrape_when(function(at) return value(at, "nightshift_mended_jobs_total") >= 1 end)
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
    h = start(url)
    provoke("fails", 1, "nightshift_jobs_dead_total")
    assert(q:push "unknown")
    assert(q:limit { running = 9, backlog = 100 })
    local at = scrape_when(function(all)
      return value(all, "nightshift_jobs_unserved") and value(all, "nightshift_queue_full")
    end)
    host.stop(h)
    local names = {}
    for series in pairs(at) do names[series:match "^[^{]+"] = series end
    for _, path in ipairs { RULES, BOARD } do
      for metric in read(path):gmatch "nightshift_[%l_]+" do assert.is_truthy(names[metric], metric) end
    end
  end)

  it("get an exposition that Prometheus reads", function()
    h = start(url)
    provoke("fails", 1, "nightshift_jobs_dead_total")
    local text = http.request(("http://127.0.0.1:%d/metrics"):format(port))
    local exit, out, err = proc.run { "sh", "-c", '"$1" check metrics < "$2"', "sh", promtool(),
      fixture.file("metrics", text) }
    assert.equal(0, exit, out .. err)
    host.stop(h)
  end)
end)
