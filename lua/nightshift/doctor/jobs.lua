--- Checks of what goes on. Of jobs, hosts and holders: handlers, scripts, lost jobs, adopted tables,
-- schedules. Of the server's sessions: long transactions, waits, deadlocks. A check is a function of
-- this table by its name; nightshift.doctor has the form of its results.

local core = require "nightshift.core"
local doctor = require "nightshift.doctor"
local hosts = require "nightshift.hosts"
local sources = require "nightshift.source.admin"
local units = require "nightshift.units"

local ask, need, number, seconds = doctor.ask, doctor.need, doctor.number, doctor.seconds
local hidden, lacking = doctor.hidden, doctor.lacking
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

-- --------------------------------------------------- sessions that wait, or keep others waiting

local SHAPE = 100 -- characters of a statement that are shown

--- The words of a statement without its values: up to its first text or comment, numbers as "?".
local function shape(text)
  local plain = text:gsub("%s+", " ")
  local words = plain:match "^[^'\"/#]*":gsub("%-%- .*", "")
  local shown = words:gsub("%f[%w]%d[%w.]*", "?"):sub(1, SHAPE):gsub(" $", "")
  return #words == #plain and #words <= SHAPE and shown or shown .. " …"
end

local known -- statements of ours by their first words

--- The name of a statement of ours, or the words of another one; nil for none.
local function named(text)
  if not text or text == "" then return nil end
  if not known then
    known = {}
    for _, name in ipairs(core.statements()) do known[core.sql(name):gsub("%s+", " "):sub(1, SHAPE)] = name end
  end
  return known[text:gsub("%s+", " "):sub(1, SHAPE)] or shape(text)
end

--- A session in words, and how to end it.
local function session(row)
  local at = named(row.statement)
  return ("session %d of %s@%s"):format(row.thread, row.user or "?", (row.host or "?"):gsub(":%d+$", "")),
    at and ": " .. at or row.command and " (" .. row.command .. ")" or "", ("KILL %d"):format(row.thread)
end

local OLD = 60 -- seconds of an open transaction that are worth a word
local LONG_HISTORY = 1000000 -- changes that wait for purge

function checks.transactions(seen)
  local history = number(seen.status.innodb_history_list_length)
  local rows = ask(seen, "doctor_transactions", OLD)
  local waiting = ("%d changes wait for purge"):format(history)
  if not rows then
    local status, says, fix = lacking(seen, "PROCESS", waiting)
    return history > LONG_HISTORY and "warn" or status, says, fix, history
  end
  local oldest = rows[1]
  if not oldest and history > LONG_HISTORY then
    return "warn", waiting .. ", and no old transaction keeps them: purge is behind",
      "SET GLOBAL innodb_purge_threads=8, and wait; large deletes in smaller parts", history
  elseif not oldest then
    return "ok", ("none is older than %d s; %s"):format(OLD, waiting), nil, history
  end
  local who, at, kill = session(oldest)
  return "warn", ("%s has had a transaction open for %d s%s; deleted rows of the whole server pile up, %s"):format(
    who, oldest.age, at, waiting), ("end it, or %s; idle_transaction_timeout=60 ends such ones"):format(kill), history
end

--- "; hosts here have run again for settle_lock (3), COMMIT (1)": conflicts of live hosts by
-- statement, the most frequent first; "": there were none.
---@param at integer the place of the number in a host's list
local function of_hosts(seen, at)
  local sums, names, texts = {}, {}, {}
  for _, h in ipairs(doctor.holders(seen)) do
    for _, conflict in ipairs(h.lives and h.conflicts and core.decode(h.conflicts) or {}) do
      local name, n = conflict[1], conflict[at]
      if n > 0 and not sums[name] then names[#names + 1] = name end
      sums[name] = (sums[name] or 0) + n
    end
  end
  table.sort(names, function(a, b) return sums[a] > sums[b] or sums[a] == sums[b] and a < b end)
  for i, name in ipairs(names) do texts[i] = ("%s (%d)"):format(name, sums[name]) end
  return #texts > 0 and "; hosts here have run again for " .. table.concat(texts, ", ") or ""
end

local WAITS = 1 -- seconds of a wait for a row that are worth a word

function checks.waits(seen)
  local status = seen.status
  local past = ("%s waits for rows since the server's start, %s s at most"):format(status.innodb_row_lock_waits or "?",
    units.fixed(number(status.innodb_row_lock_time_max) / 1000, 1)) .. of_hosts(seen, 3)
  local rows = ask(seen, "doctor_waits", WAITS)
  if not rows then return lacking(seen, "PROCESS", past) end
  local first = rows[1]
  if not first then return "ok", ("no session waits for a row now; %s"):format(past), nil, 0 end
  local texts = {}
  for i, row in ipairs(rows) do
    local who, at = session(row)
    texts[i] = ("session %d has waited for %d s for a row of %s (%s), which %s holds%s"):format(row.waiting, row.waited,
      row.tab or "?", named(row.waits) or "?", who, at)
  end
  return "warn", table.concat(texts, "; "), ("end that transaction, or %s"):format(select(3, session(first))),
    first.waited
end

--- The two statements of the latest deadlock in the engine's report, and its time; nil: none.
local function latest_deadlock(report)
  local part = report:match "LATEST DETECTED DEADLOCK\n%-+\n(.-)\n%-%-%-%-%-%-%-%-%-%-%-%-\n"
  local at = part and part:match "^%d+%-%d+%-%d+ %d+:%d+:%d+"
  if not at then return nil end
  local statements = {}
  for text in part:gmatch "MariaDB thread id %d+[^\n]*\n(.-)\n%*%*%*" do
    statements[#statements + 1] = named(text) or "?"
  end
  return at, statements
end

local RECENT = 3600 -- seconds
local MANY = 10 -- deadlocks a minute

function checks.deadlocks(seen)
  local n, up = number(seen.status.innodb_deadlocks), math.max(number(seen.status.uptime), 60)
  local found = ("%d since the server's start%s"):format(n, of_hosts(seen, 2))
  if n == 0 then return "ok", "none " .. found:match "since.*", nil, 0 end
  local rows = ask(seen, "doctor_innodb")
  if not rows then return lacking(seen, "PROCESS", found) end
  local at, statements = latest_deadlock(rows[1].Status)
  local ago = at and number(need(seen, "doctor_ago", at).ago)
  if not at or ago > RECENT then return "ok", found .. ", none within the hour", nil, n end
  found = ("%s, the last one %s ago: %s"):format(found, units.span(ago), table.concat(statements, " against "))
  return n * 60 / up > MANY and "warn" or "note", found,
    "Nightshift runs its own statements again; transactions of other programs should lock rows in one order", n
end

return checks
