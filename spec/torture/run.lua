--- make torture SECONDS=120 [SEED=n] [FAULTS="worker server …"]
--
-- Several hosts, programs that claim, programs that push, and a meddler, on a server of their
-- own. All are killed, frozen and restarted at random for SECONDS. Then the faults stop, the
-- jobs drain, and the audit says whether every promise held. All choices follow from SEED. Exit
-- status 1 when anything was found; journals, logs and the server's data are kept then.
--
-- FAULTS limits the faults to groups of cast.lua.

local nst = require "nst"
local nightshift = require "nightshift"
local audit = require "spec.torture.audit"
local cast_of = require "spec.torture.cast"
local checks = require "spec.torture.checks"
local db = require "spec.support.db"
local journal = require "spec.support.proc".journal
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy
local torture_rows = checks.rows
local torture_ticks = checks.ticks

local seconds = assert(tonumber(arg[1]), "usage: run.lua SECONDS SEED FAULTS HOSTS WORKERS")
local seed = math.tointeger(tonumber(arg[2])) or os.time() % 100000
local groups = arg[3] ~= "" and arg[3] or "all"
local hosts, workers = tonumber(arg[4]) or 3, tonumber(arg[5]) or 4

-- Longest time for the rest once the faults have stopped. It covers a grace after a restart of
-- the server, a host that was cut off, some backoffs, some polls.
local DRAIN_LIMIT = proc.limit(150)

math.randomseed(seed)
local folder = ("%s/torture/%d"):format(proc.build, seed)
os.execute(("rm -rf '%s' && mkdir -p '%s'"):format(folder, folder))

local function say(format, ...)
  io.write(format:format(...), "\n")
  io.flush()
end

local begun = nst.clock()
-- In memory the server maps its log, which has gaps while sessions still fill them. It waits for
-- these only where commits are to be durable. Else kill -9 takes back commits that were answered.
local server = db.server "innodb-flush-log-at-trx-commit=1\n"
local _, database = server:fresh()
server:sql(("CREATE USER torture@localhost; GRANT ALL ON %s.* TO torture@localhost"):format(database))
local url = server:url(database, "torture")
do
  local first <close> = assert(nightshift.open(url))
  audit.prepare(first)
  torture_rows.prepare(first, folder)
  torture_ticks.prepare(first)
  checks.deaths.prepare(first)
  checks.limited.prepare(first)
end

local cast = cast_of {
  server = server, database = database, url = url, folder = folder, seed = seed, workers = workers, groups = groups,
  way = proxy.start(server, "tcp"),
  mark = ("%d-%d"):format(seed, (nst.ids())),
}

-- Things to be done at a moment; those that undo a fault are done at the end in
-- any case.
local due = {}
function cast.later(_, wait, fn, undoes) table.insert(due, { at = nst.clock() + wait, fn = fn, undoes = undoes }) end

local function run_due(over)
  for i = #due, 1, -1 do
    if due[i].at <= nst.clock() or over and due[i].undoes then table.remove(due, i).fn() end
  end
end

-- As administrator: the monkey cuts the sessions of the rest.
local function open() return assert(nightshift.open(server:url(database))) end

local function counts()
  local ok, rows = pcall(function()
    local handle <close> = open()
    return assert(handle:execute [[SELECT (SELECT COUNT(*) FROM nightshift_finished) AS finished,
      (SELECT COUNT(*) FROM nightshift_job) AS live, (SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0) AS ready,
      (SELECT COUNT(*) FROM nightshift_scheduled) AS scheduled, (SELECT COUNT(*) FROM nightshift_edge) AS edges,
      (SELECT COUNT(*) FROM nightshift_lease) AS leases, (SELECT COUNT(*) FROM nightshift_notice) AS notices]])
  end)
  return ok and rows[1] or nil
end

local function progress(what)
  for _, member in ipairs(cast:ready_hosts()) do member.process:signal "USR1" end
  local c = counts()
  if not c then return say("%5.0f s  %s: the server does not answer", nst.clock() - begun, what) end
  say("%5.0f s  %s: %d finished, %d live (%d ready, %d scheduled), %d leases; %d faults", nst.clock() - begun, what,
    c.finished, c.live, c.ready, c.scheduled, c.leases, cast.count or 0)
end

-- One consistent look at which job waits for which; a server that does not answer now
-- is asked again.
local function look_at_waiting()
  local ok, handle = pcall(open)
  if not ok then return end
  local place <close> = handle
  pcall(audit.waiting, place, function(...) cast:found(...) end)
  pcall(checks.old_tree.look, place, function(...) cast:found(...) end)
  pcall(checks.limited.look, place, function(...) cast:found(...) end)
end

local LATE <const> = 0.5 -- seconds that a sleep may last longer before it is a fault of the machine

local function rest(pause)
  local before = nst.clock()
  nst.sleep(pause)
  if nst.clock() > before + pause + LATE then cast.note("fault", "stalled", "machine") end
end

local function torment()
  local strike = cast:monkey(groups)
  local stop, next_say, next_fault = begun + seconds, begun + 10, begun + 1
  while nst.clock() < stop do
    rest(0.05)
    run_due()
    cast:tend()
    if nst.clock() > next_fault then
      strike()
      next_fault = nst.clock() + math.random()
    end
    if nst.clock() > next_say then
      progress "torture"
      look_at_waiting()
      next_say = next_say + 10
    end
  end
end

local function resume()
  local handle <close> = open()
  for _, name in ipairs { "a", "b", "c" } do handle:queue(name):resume() end
  torture_ticks.finish(handle)
end

local function rows_left()
  local ok, n = pcall(function()
    local handle <close> = open()
    return torture_rows.left(handle)
  end)
  return not ok or n > 0
end

local function drained()
  local c = counts()
  return c and c.live + c.ready + c.scheduled + c.edges + c.leases + c.notices == 0 and not rows_left()
end

-- The hosts finish what is left.
local function drain()
  local stop, next_say = nst.clock() + DRAIN_LIMIT, nst.clock() + 10
  while not drained() and nst.clock() < stop do
    rest(0.2)
    cast:tend()
    if nst.clock() > next_say then
      progress "drain"
      look_at_waiting()
      next_say = next_say + 10
    end
  end
end

-- All but the hosts and the members they wait for leave.
local function calm_down()
  run_due(true)
  cast.over = true
  assert(io.open(folder .. "/stop", "w")):close()
  for _, kind in ipairs { "pusher", "meddler", "owner", "pruner", "claimer" } do cast:dismiss(kind, proc.limit(30)) end
  resume()
  drain()
  progress "drained"
  checks.places.check(cast, 25)
  drain()
  cast.leaving = true
  assert(io.open(folder .. "/quiet", "w")):close()
  cast:dismiss("signaller", proc.limit(30))
  for _, member in ipairs(cast:all "host") do
    member.expected, member.asked = 0, nst.clock()
    member.process:signal "TERM"
  end
  cast:dismiss("host", proc.limit(60))
end

local function look_around()
  for _, stray in ipairs(cast:strays()) do cast:found("orphan", "process %s", stray) end
  for file in io.popen(("ls -A '%s/tmp'"):format(folder)):lines() do
    cast:found("left over", "temporary file %s", file)
  end
  local sessions = server:sql "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'torture'"
  if sessions ~= "0" then cast:found("left over", "%s sessions in the server", sessions) end
end

local function sums(tally)
  local list = {}
  for name, n in pairs(tally) do list[#list + 1] = ("%s %s"):format(name, n) end
  table.sort(list)
  return table.concat(list, ", ")
end

local function report(result)
  local names = {}
  for name in pairs(result.counts) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do say("  %8d  %s", result.counts[name], name) end
  if cast.kills then say("  %8d  KILL QUERY", cast.kills) end
  if cast.reloads then say("  %8d  HUP", cast.reloads) end
  say("hosts, by their last dumps: %s", sums(cast.tally))
  local tally = {}
  for words in journal.lines(folder, "counters") do
    for i = 3, #words do
      local name, n = words[i]:match "^(.*)=(%S+)$"
      tally[name] = (tally[name] or 0) + tonumber(n)
    end
  end
  say("programs that ended in their own time: %s", sums(tally))
end

-- Text lines, a few of each kind.
local function tell(findings)
  local shown = {}
  for _, finding in ipairs(findings) do
    shown[finding.kind] = (shown[finding.kind] or 0) + 1
    if shown[finding.kind] <= 10 then say("FOUND %s: %s", finding.kind, finding.text) end
  end
  for kind, n in pairs(shown) do
    if n > 10 then say("FOUND %s: %d in all", kind, n) end
  end
end

local function keep()
  server:stop()
  os.execute(("cp -a '%s' '%s/server'"):format(server.folder, folder))
  say("torture: kept in %s: journals, logs, and the server's data; look at the tables with", folder)
  say("  mariadbd --no-defaults --datadir=%s/server/data --socket=/tmp/torture.sock --skip-networking &", folder)
  say("  mariadb -S /tmp/torture.sock %s", database)
end

say("torture: seed %d, %g s, faults: %s; %d hosts of %d workers; journals in %s", seed, seconds, groups, hosts, workers,
  folder)
for kind, n in pairs { host = hosts, claimer = 4, pusher = 2, meddler = 1, owner = 1, signaller = 1, pruner = 1 } do
  for place = 1, n do cast:start(kind, place) end
end
torment()
calm_down()
look_around()
local last = open()
local result = audit.run(last, folder)
result.counts["rows of an adopted table"] = torture_rows.check(last, function(...) cast:found(...) end)
result.counts["ticks of a schedule"] = torture_ticks.check(last, function(...) cast:found(...) end)
result.counts["jobs of limited queues"], result.counts["runs with a place"] =
  checks.limited.check(last, folder, function(...) cast:found(...) end)
last:close()
table.move(cast.findings, 1, #cast.findings, #result.findings + 1, result.findings)
report(result)
tell(result.findings)
local good = #result.findings == 0
if not good then keep() end
server:remove()
proc.clean()
say("torture: seed %d: %s", seed, good and "nothing found" or #result.findings .. " findings")
os.exit(good and 0 or 1, true)
