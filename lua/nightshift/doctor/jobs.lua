--- Checks of jobs, and of hosts and holders: handlers, holders, scripts, lost jobs, adopted
-- tables, schedules. A check is a function of this table by its name; nightshift.doctor has the
-- form of its results.

local core = require "nightshift.core"
local doctor = require "nightshift.doctor"
local hosts = require "nightshift.hosts"
local sources = require "nightshift.source.admin"
local units = require "nightshift.units"

local ask, seconds, hidden = doctor.ask, doctor.seconds, doctor.hidden
local versions = hosts.versions

local checks = {}

--- "3 jobs", "1 job", "more than 1000 jobs"; the statement counts to 1001.
local function jobs_of(rows)
  local n = rows and rows[1] and rows[1].n or 0
  return n > 1000 and "more than 1000 jobs" or ("%d job%s"):format(n, n == 1 and "" or "s"), n
end

function checks.handlers(seen)
  local names, lives, code = hosts.names(seen.handle)
  if not names and code then return hidden() end
  local rows = lives and hosts.unserved(seen.handle)
  if rows == nil then return hidden() end
  if not rows then
    local text, n = jobs_of(ask(seen, "doctor_ready_any"))
    if n == 0 then return "ok", "no host lives, and no job is ready", nil, 0 end
    return "note", ("no host lives; %s ready"):format(text), "nightshift work FILE, or a program that claims", n
  elseif #rows == 0 then
    return "ok", "no ready job waits for a handler that no live host has", nil, 0
  end
  local texts, n = {}, 0
  for i, row in ipairs(rows) do
    texts[i] = hosts.unserved_text(row)
    n = n + row.n
  end
  return "warn", "no live host has a handler for " .. table.concat(texts, ", "),
    "run a host with such a handler, or cancel them; they stay ready", n
end

--- Adds names, and all queues, that are paused: to texts, and to arguments for resume.
local function add_names(rows, texts, ends)
  for _, row in ipairs(rows) do
    texts[#texts + 1] = row.name == "" and "every queue" or ("jobs named '%s'"):format(row.name)
    ends[#ends + 1] = row.name == "" and "--all" or "--name " .. doctor.word(row.name)
  end
end

--- The same for queues. Gives how many ready jobs they hold.
local function add_queues(seen, queues, texts, ends)
  local sum = 0
  for _, queue in ipairs(queues) do
    local text, n = "no job", 0
    if queue.held == 1 then text, n = jobs_of(ask(seen, "doctor_ready", queue.id)) end
    sum = sum + n
    texts[#texts + 1] = ("queue '%s' (%s ready)"):format(queue.name, text)
    ends[#ends + 1] = doctor.word(queue.name)
  end
  return sum
end

function checks.paused(seen)
  local rows, queues = ask(seen, "report_paused_names"), ask(seen, "doctor_paused_queues")
  if not rows or not queues then return hidden() end
  local texts, ends = {}, {}
  local held = add_queues(seen, queues, texts, ends)
  add_names(rows, texts, ends) -- behind the queues: --name takes the words after it
  if #texts == 0 then return "ok", "no queue is paused, nor any name of a job", nil, 0 end
  return (held > 0 or #rows > 0) and "warn" or "note", "paused: " .. table.concat(texts, ", "),
    "nightshift resume " .. table.concat(ends, " "), held
end

-- ------------------------------------------------------------------ schedules

local SHOWN = 5

--- The fault of a schedule, and the fix.
local function trouble_of(row, lives)
  local name = row.name
  if row.error then
    return ("'%s' has failed: %s"):format(name, row.error),
      ("mend what it says, then nightshift schedules resume %s"):format(name)
  elseif row.late then
    local zoned = row.zone ~= "UTC" and (", of the zone '%s'"):format(row.zone or "?") or ""
    return ("'%s'%s is late by %s"):format(name, zoned, units.span(row.late / 1000000)),
      row.lacked and "install tzdata on " .. row.lacked or not lives and "start a host: nightshift work"
      or "look for schedule.error and schedule.no_zone in the logs of the hosts"
  elseif row.lacked then
    return ("%s lacks the zone '%s' of '%s', which other hosts push"):format(row.lacked, row.zone or "?", name),
      "install tzdata on " .. row.lacked
  end
  return ("no live host has the handler of '%s'"):format(name),
    ("start a host with its script, or nightshift schedules remove %s"):format(name)
end

function checks.schedules(seen)
  local names, lives = hosts.names(seen.handle)
  local rows = ask(seen, "doctor_schedules", names and core.encode(core.array(names)))
  if not rows then return hidden() end
  if #rows == 0 then
    return "ok", "no schedule has failed, is late, or is without a host that runs its jobs", nil, 0
  end
  local found, advice, known = {}, {}, {}
  for i = 1, math.min(#rows, SHOWN) do
    local text, what = trouble_of(rows[i], lives == true)
    found[i] = text
    if not known[what] then advice[#advice + 1] = what end
    known[what] = true
  end
  if #rows > SHOWN then found[#found + 1] = ("and %d more"):format(#rows - SHOWN) end
  return "warn", table.concat(found, "; "), table.concat(advice, "; "), #rows
end

-- --------------------------------------------------------------------- holders

local SILENT = 30 * 1000000 -- µs without a beat after which a host is dead

function checks.holders(seen)
  local rows, seen_them = doctor.holders(seen)
  local orphans = ask(seen, "doctor_orphans")
  if not seen_them then return hidden() end
  local living, stale, held = 0, {}, 0
  for _, h in ipairs(rows) do
    local silent = h.kind == "host" and h.silent > SILENT
    if h.leases > 0 and (not h.lives or silent) then
      stale[#stale + 1] = ("%s %d (pid %d on %s, last seen %s ago) holds %d batches"):format(h.kind, h.id, h.pid,
        h.host, seconds(h.silent), h.leases)
      held = held + h.leases
    elseif h.lives then
      living = living + 1
    end
  end
  local lost = orphans and orphans[1] and orphans[1].n or 0
  if lost > 0 then stale[#stale + 1] = ("%d batches are held by no known holder"):format(lost) end
  if #stale == 0 then return "ok", ("%d hold claims or may, none of them dead"):format(living), nil, 0 end
  return "warn", "running jobs of the dead: " .. table.concat(stale, "; "),
    "nightshift rescue; a living host does it by itself within seconds", held + lost
end

--- Holders that live by their named lock, where locks serve.
local function living(seen, rows)
  local there = {}
  for _, row in ipairs(rows) do
    if row.gone ~= 1 or doctor.no_locks(seen) then there[#there + 1] = row end
  end
  return there
end

function checks.scripts(seen)
  local rows = ask(seen, "doctor_scripts")
  if not rows then return hidden() end
  local failed, hashes, known = {}, {}, {}
  local alive = living(seen, rows)
  for _, row in ipairs(alive) do
    if row.load_error then failed[#failed + 1] = versions.failure(row, units.seconds(row.ago)) end
    if not known[row.scripts] then hashes[#hashes + 1] = row.scripts end
    known[row.scripts] = true
  end
  if #failed > 0 then
    return "fail", table.concat(failed, "; "), "mend the file, then nightshift reload on that machine"
  end
  local differing = versions.differ(alive)
  if #differing > 0 then
    return "warn", "hosts run different versions of " .. table.concat(differing, "; "),
      "where no deploy is under way: bring the files there, then nightshift reload on each machine"
  end
  if #alive == 0 then return "ok", "no host lives" end
  return "ok", ("%d host%s, of scripts %s"):format(#alive, #alive > 1 and "s" or "", table.concat(hashes, ", "))
end

local LOOK_AGAIN = 0.5 -- s: a moving job is in its place by then

function checks.lost(seen)
  local round, message, code = seen.handle:mend(false)
  if round and round.seen > 0 then
    core.sleep(LOOK_AGAIN)
    round, message, code = seen.handle:mend(false)
  end
  if not round and code == "DENIED" then return hidden() end
  if not round then return "note", ("not looked at: %s (%s)"):format(message, code), "run it again" end
  local rows = ask(seen, "doctor_mended")
  local past = rows and rows[1] and rows[1].n or 0
  if round.twice == 0 then return "ok", ("every live job is somewhere; %d mended so far"):format(past), nil, 0 end
  return "fail", ("%d jobs or rows are in no place, or in a wrong one"):format(round.twice),
    "a living host mends them within minutes, nightshift rescue at once; please report it", round.twice
end

function checks.adopted(seen)
  if not ask(seen, "source_list") then return hidden() end
  local rows, found = sources.list(seen.handle) or {}, {}
  for _, row in ipairs(rows) do
    for _, trouble in ipairs(sources.troubles(row)) do found[#found + 1] = trouble end
  end
  if #found == 0 then return "ok", ("no row of %d adopted tables waits for a host"):format(#rows) end
  return "warn", table.concat(found, "; "), "nightshift work --adopt with its mapping writes what rows are owed; one "
    .. "that the server refuses is tried each minute: mend what it says"
end

return checks
