--- Why a job is not running: one sentence, and the facts behind it.
--
-- The facts are collected from the most telling on: how the job ended, its holder, the pause
-- that holds it. Then the job that it waits for, when it is due, and at last which hosts could
-- run it. A job that waits for another leads on to that one, up to DEPTH steps, for the cause
-- is often there. Each fact is a table with its `kind` and `says`, its part of the sentence.
-- Everything is read without locks, in several statements; a job that moves on meanwhile is
-- looked at again. The statements are in sql/query/report.sql.

local core = require "nightshift.core"
local hosts = require "nightshift.hosts"
local limits = require "nightshift.limit"
local units = require "nightshift.units"

local why = {}

local DEPTH = 5 -- jobs that wait for each other, until the sentence ends
local SHOWN = 3 -- jobs waited for that are looked at
local CHILDREN = 10000 -- looked at for the first that lives
local COUNTED = 100000 -- children
local EDGES = 20000 -- looked at to either side of the job
local SLOTS = 100 -- of a lock: so many holders are named
local CAME = 5 -- names of signals that are told
local AHEAD = 1000 -- rows of the queue that are counted
local SILENT = 30000000 -- µs; a host beats every 10 s
local WAITS_LONG = 1500000 -- µs; a job shows itself when it has run for a second
local NO_HANDLER = 600000000 -- µs that a job lives without one
local FOR_EVER = 86400000000 * 365 * 50 -- µs; a wait without a deadline is a century
local LOST_TOGETHER = 2 -- losses, then a job is claimed alone
local TRIES = 5 -- while the job moves on

-- The value of a function when the job has moved on since its row was read.
local MOVED = {}

--- The rows of a statement of ours; trouble ends the whole question.
local function ask(handle, statement, ...)
  local rows, message, code = handle:execute("@report_why_" .. statement, ...)
  if not rows then error { message = message, code = code } end
  return rows
end

local function seconds(us) return units.words(math.max(0, us) / 1000000) end

local function count(n, noun) return ("%d %s%s"):format(n, noun, n == 1 and "" or "s") end

local function first_line(text, default)
  local line = text and text:match "[^\n]+" or default
  if line and utf8.len(line) and utf8.len(line) > 200 then line = line:sub(1, utf8.offset(line, 200) - 1) .. "…" end
  return line
end

local function place(holder) return ("%s (pid %d)"):format(holder.host, holder.pid) end

--- A few of a list, and how many more.
local function some(list, max)
  if #list <= max then return table.concat(list, ", ") end
  return ("%s and %d more"):format(table.concat(list, ", ", 1, max), #list - max)
end

local function with_error(says, text)
  local line = first_line(text)
  return line and ("%s: %s"):format(says, line) or says
end

-- ------------------------------------------------------------------- ended

local function finished(handle, id)
  local row = ask(handle, "finished", id)[1]
  if not row then return nil end
  local says = ("ended %s ago: %s"):format(seconds(row.now - row.finished_at), row.outcome)
  if row.outcome == "cancelled" and row.reason ~= "dependency" then
    if row.reason ~= row.outcome then says = with_error(says, row.reason) end -- the words of a person or program
  elseif row.reason then
    says = ("%s (%s)"):format(says, row.reason)
  end
  return {
    kind = "finished", id = row.id, name = row.name, queue = row.queue, outcome = row.outcome, reason = row.reason,
    error = row.error, finished_at = row.finished_at, says = with_error(says, row.error),
  }
end

-- ----------------------------------------------------------------- running

--- Is a holder's session gone, or has its host been silent too long?
local function is_gone(handle, holder)
  if holder.kind == "host" and holder.silent > SILENT then return true end
  return holder.free == 1 and ask(handle, "locks")[1].serve == 1
end

local function progress_of(claim)
  local says = ""
  if claim.progress then says = (", %d%% done"):format(claim.progress * 100 // 1) end
  if claim.status and claim.status ~= "" then says = ("%s: %s"):format(says, first_line(claim.status)) end
  return says
end

local function named(brief)
  return brief.name and ("#%d '%s'"):format(brief.id, brief.name) or ("#%d"):format(brief.id)
end

--- A job that has waited for a slot for a second shows it: see lock.lua.
local function limited(handle, fact, claim)
  local what, lock = (claim.status or ""):match "^waits for the (%a+) '(.*)'$"
  if what ~= "lock" and what ~= "semaphore" then return false end
  local holders = {}
  fact.kind, fact.lock, fact.held_by = "limit", lock, {}
  for i, slot in ipairs(ask(handle, "slots", lock, SLOTS)) do
    fact.held_by[i] = { id = slot.id, name = slot.name, host = slot.host, pid = slot.pid, since = slot.since }
    holders[i] = slot.id and named(slot) or place(slot)
  end
  fact.says = ("has been running for %s on %s, and waits for the %s '%s'"):format(
    seconds(claim.now - fact.since), place(claim), what, lock)
  if #holders > 0 then fact.says = ("%s, held by %s"):format(fact.says, some(holders, 3)) end
  return true
end

--- A handler that has ended with a verdict that the database does not take. Only its host knows
-- that, so all other jobs are said to run. The second value is true when the host has such
-- verdicts: then it cannot show which jobs run, either.
local function unsettled(handle, row, fact, claim)
  local found, message, code = hosts.owed(handle, claim.holder)
  if not found then error { message = message, code = code } end
  local told = found[claim.holder]
  local verdict = told and told.by_job[row.id]
  if not verdict or verdict.run ~= row.run then return false, told ~= nil end
  fact.kind, fact.progress, fact.status = "unsettled", nil, nil
  fact.waited, fact.server = verdict.waited, told.server
  fact.says = ("has run for %s on %s, and its verdict has waited for %s, for the database does not take it%s"):format(
    seconds(claim.now - fact.since - verdict.waited), place(claim), seconds(verdict.waited),
    told.server and ": " .. first_line(told.server) or "")
  return true
end

local function running(handle, row)
  local claim = ask(handle, "claim", row.id, row.lease)[1]
  if not claim then return MOVED end
  local since = claim.started or claim.claimed
  local fact = {
    kind = "running", since = since, holder = claim.holder, host = claim.host, pid = claim.pid,
    progress = claim.progress, status = claim.status,
  }
  local took = seconds(claim.now - claim.claimed)
  local lives = claim.host and not claim.dead and not is_gone(handle, claim)
  local owed, mute = false, false
  if lives then owed, mute = unsettled(handle, row, fact, claim) end
  if owed then return fact end
  local waits = claim.workers and not claim.started and not mute and claim.now - claim.claimed > WAITS_LONG
  if not lives then
    fact.kind = "lost"
    fact.says = ("was taken %s ago by %s, which is gone; whatever host lives gives it back, and so does "
      .. "nightshift rescue"):format(took, claim.host and place(claim) or "somebody")
  elseif waits and claim.shown >= math.max(1, claim.workers) then
    fact.kind, fact.workers = "busy", claim.workers
    fact.says = ("was taken %s ago by %s, and waits there for one of its %s, which are all busy"):format(
      took, place(claim), count(claim.workers, "worker"))
  elseif waits then
    fact.kind, fact.workers = "batch", claim.workers -- a job that runs is shown within a second
    fact.says = ("was taken %s ago by %s, and waits there for more jobs of its batch"):format(took, place(claim))
  elseif not limited(handle, fact, claim) then
    fact.says = ("has been running for %s on %s%s"):format(seconds(claim.now - since), place(claim), progress_of(claim))
  end
  if row.paused then fact.by, fact.says = row.paused, fact.says .. "; it is paused when it comes back" end
  return fact
end

-- ----------------------------------------------------------------- waiting

local look

-- Which of several facts to follow: the least likely to move by itself.
local WEIGHT = { paused = 5, waits = 5, waits_children = 5, waits_signal = 5, no_handler = 4, no_host = 4, lost = 4,
  queue_paused = 4, all_paused = 4, name_paused = 4, quiet = 3, scheduled = 2, retry = 2, poll = 2, limited = 2,
  busy = 1, limit = 1, finished = -1 }

--- Adds to `fact` the jobs of `ids` that it waits for, and the one to follow.
local function follow(handle, fact, ids, depth, seen)
  fact.on = {}
  for i = 1, math.min(#ids, SHOWN) do
    if not seen[ids[i]] then
      local other = look(handle, ids[i], depth, seen)
      local brief = { id = ids[i] }
      if other then
        brief.name, brief.kind = other.name, other.kind
        brief.state = other.outcome or other.state
        if not fact.cause or (WEIGHT[other.kind] or 0) > (WEIGHT[fact.cause.kind] or 0) then fact.cause = other end
      end
      fact.on[#fact.on + 1] = brief
    end
  end
end

--- "#12 'fetch' and 3 more"; the job that is followed comes first.
local function names_of(fact, n)
  local first = fact.cause or fact.on[1]
  if not first then return count(n, "other job") end
  if n <= 1 then return named(first) end
  return ("%s and %d more"):format(named(first), n - 1)
end

-- The job's wait is over, but it was not told yet: its row was locked.
local TOLD = ": all over; the next host that looks around lets it go on"

local function others_of(row) return math.max(0, row.unmet - (row.paused and 1 or 0)) end

local function ids_of(rows)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  return ids
end

--- Ids of jobs it waits for, as far as they are found among the edges.
local function targets_of(handle, row, limit)
  local id = row.id
  return ids_of(ask(handle, "targets", row.parent or core.null, id, id, EDGES, id, limit, id, EDGES, id, limit, limit))
end

local function waits_children(handle, row, depth, seen)
  local left = others_of(row)
  local total = ask(handle, "children_count", row.id, COUNTED)[1].n
  local fact = { kind = "waits_children", left = left, total = total, done = math.max(0, total - left),
    on_fail = row.waits }
  local ids = {}
  if depth < DEPTH then
    ids = ids_of(ask(handle, "children", row.id, CHILDREN, SHOWN))
    if #ids == 0 and total > CHILDREN then ids = targets_of(handle, row, SHOWN) end
  end
  follow(handle, fact, ids, depth + 1, seen)
  if #ids == 0 and depth < DEPTH and total <= CHILDREN then
    fact.says = "waits for its children" .. TOLD
  elseif total < COUNTED then
    fact.says = ("waits for its children: %d of %d have ended"):format(fact.done, total)
  else
    fact.done, fact.total = nil, nil
    fact.says = ("waits for %d of its children"):format(left)
  end
  return fact
end

local function waits(handle, row, depth, seen)
  local left = others_of(row)
  local fact, ids = { kind = "waits", left = left }, {}
  if depth < DEPTH then ids = targets_of(handle, row, math.min(left, SHOWN)) end
  follow(handle, fact, ids, depth + 1, seen)
  fact.says = "waits for " .. names_of(fact, left)
  if fact.cause and fact.cause.kind == "finished" and #ids == left then
    fact.says, fact.cause = fact.says .. TOLD, nil
  end
  return fact
end

local function paused(handle, row)
  local fact = { kind = "paused", by = row.paused, left = others_of(row) }
  fact.says = "is paused"
  if row.paused ~= row.id then
    local by = ask(handle, "job", row.paused)[1]
    fact.says = ("is paused with %s, above it"):format(named { id = row.paused, name = by and by.name })
  end
  if fact.left > 0 then
    fact.says = ("%s, and waits for %s besides"):format(fact.says, count(fact.left, "other job"))
  end
  return fact
end

-- --------------------------------------------------------------- scheduled

local function later(row) return seconds(row.due - row.now) end

local function waits_signal(handle, row)
  local fact = { kind = "waits_signal", signal = row.awaits }
  fact.says = ("waits for the signal '%s'"):format(row.awaits)
  if row.due - row.now < FOR_EVER then
    fact.deadline = row.due
    fact.says = ("%s, for %s at most"):format(fact.says, later(row))
  end
  local came = {}
  for i, sent in ipairs(ask(handle, "signals", row.id, CAME)) do came[i] = sent.name end
  if #came > 0 then
    fact.came = came
    fact.says = ("%s; '%s' has come, for which it does not wait"):format(fact.says, table.concat(came, "', '"))
  end
  return fact
end

--- Which of its budgets the last run has spent, and how much of that is gone.
local function spent(row, attempt)
  if attempt.kind == "failed" then
    return ("attempt %d of %d, after it failed"):format(row.attempts + 1, row.max_attempts)
  end
  local how = attempt.kind == "lost" and "was lost with its holder" or "crashed"
  if row.crashes == 0 then return "after it " .. how end
  return ("after it %s, %d of %d crashes"):format(how, row.crashes, row.max_crashes)
end

local function retry(row, attempt)
  return {
    kind = "retry", due = row.due, attempt = row.attempts + 1, max_attempts = row.max_attempts, error = attempt.error,
    crashes = row.crashes, max_crashes = row.max_crashes,
    says = with_error(("is to be tried again in %s, %s"):format(later(row), spent(row, attempt)), attempt.error),
  }
end

local MANY = 1000000000 -- polls that are no limit: background gives them to a job with a deadline

local function poll(row)
  local says = ("is to be polled again in %s, having said \"not yet\" %s"):format(later(row), count(row.polls, "time"))
  if row.max_polls and row.max_polls < MANY then says = ("%s of at most %d"):format(says, row.max_polls) end
  if row.deadline then says = ("%s; its deadline is in %s"):format(says, seconds(row.deadline - row.now)) end
  return { kind = "poll", due = row.due, polls = row.polls, max_polls = row.max_polls, deadline = row.deadline,
    says = says }
end

local no_handler

--- The pause that holds jobs of its queue or name, if there is one, and its words.
local function switched_off(row)
  if row.all_paused ~= 0 then return "all_paused", "every queue is paused" end
  if row.queue_paused ~= 0 then return "queue_paused", ("its queue '%s' is paused"):format(row.queue) end
  if row.name_paused ~= 0 then return "name_paused", ("jobs named '%s' are paused"):format(row.name) end
end

local function scheduled(handle, row)
  if row.missed > 0 then return no_handler(handle, row) end
  local attempt = ask(handle, "attempt", row.id)[1]
  local just_failed = attempt and (attempt.run == row.run - 1 or row.polls == 0)
  local fact
  if row.awaits and not (attempt and attempt.run == row.run - 1) then
    fact = waits_signal(handle, row)
  elseif just_failed then
    fact = retry(row, attempt)
  elseif row.polls > 0 then
    fact = poll(row)
  else
    fact = { kind = "scheduled", due = row.due, says = ("is scheduled, due in %s"):format(later(row)) }
  end
  local by, held = switched_off(row)
  if by then
    fact[by] = true
    fact.says = ("%s, and %s"):format(fact.says, held)
  end
  return fact
end

-- ------------------------------------------------------------------- ready

local function has(list, name)
  for _, item in ipairs(list) do
    if item == name then return true end
  end
  return false
end

--- Sorts a host by its use for the job.
local function add_host(found, h, row)
  h.queues = h.queues and core.decode(h.queues)
  h.handlers = core.decode(h.handlers)
  table.insert(found.all, h)
  if h.queues and not has(h.queues, row.queue) then return end
  table.insert(found.serve, h)
  -- a null: there are more than it has told
  if not has(h.handlers, row.name) and not has(h.handlers, core.null) then return end
  table.insert(found.know, h)
  if h.workers > 0 then table.insert(found.take, h) end
end

--- The use of live hosts for this job, and the number of programs.
local function hosts_for(handle, row)
  local found = { all = {}, serve = {}, know = {}, take = {}, programs = 0, mute = 0 }
  for _, h in ipairs(ask(handle, "hosts")) do
    if not is_gone(handle, h) then -- the next look will mark the rest dead
      if h.kind ~= "host" then
        found.programs = found.programs + 1
      elseif h.handlers then
        add_host(found, h, row)
      else
        found.mute = found.mute + 1 -- it has just started, or may not write it
      end
    end
  end
  return found
end

--- Names of handlers that the hosts know, each once.
local function known_by(rows)
  local names, seen = {}, {}
  for _, h in ipairs(rows) do
    for _, name in ipairs(h.handlers) do
      if name ~= core.null and not seen[name] then
        seen[name] = true
        names[#names + 1] = name
      end
    end
  end
  table.sort(names)
  return names
end

function no_handler(handle, row)
  local found = hosts_for(handle, row)
  local names = known_by(found.serve)
  local fact = { kind = "no_handler", handler = row.name, known = names, missed = row.missed > 0 and row.missed or nil }
  local known = #names > 0 and some(names, 10) or "none"
  if row.missed == 0 then
    fact.says = ("is ready, but no live host that serves '%s' has a handler '%s'; known: %s"):format(
      row.queue, row.name, known)
    return fact
  end
  fact.due, fact.dead_at = row.due, row.missing_since + NO_HANDLER
  fact.says = ("is to be tried again in %s, for the hosts that took it had no handler '%s' (known now: %s); "
    .. "it is dead in %s if none has"):format(later(row), row.name, known, seconds(fact.dead_at - row.now))
  return fact
end

--- Adds that no host could run the job of `fact` when it is due.
local function add_unserved(fact, handle, row)
  if fact.kind == "no_handler" then return fact end
  local found = hosts_for(handle, row)
  if #found.serve > 0 and #found.know == 0 and found.mute == 0 then
    fact.handler = row.name
    fact.says = ("%s; no live host that serves '%s' has a handler '%s' now"):format(fact.says, row.queue, row.name)
  end
  return fact
end

local function serves_what(h)
  return ("%s serves %s"):format(place(h), h.queues and some(h.queues, 5) or "every queue")
end

local function no_host(row, found)
  local fact = { kind = "no_host", queue = row.queue, hosts = #found.all + found.mute, programs = found.programs }
  local served = {}
  for i, h in ipairs(found.all) do served[i] = serves_what(h) end
  if #served == 0 and found.mute > 0 then
    fact.says = ("is ready; %s, and did not tell what for"):format(found.mute == 1 and "a host is there" or
      ("%d hosts are there"):format(found.mute))
  elseif #served == 0 then
    fact.says = "is ready, but there is no live host"
  else
    fact.says = ("is ready, but no live host serves its queue '%s'; %s"):format(row.queue, some(served, 3))
  end
  if found.programs > 0 then
    fact.says = ("%s; %s, and may"):format(fact.says, found.programs == 1 and "one program claims jobs by itself"
      or ("%d programs claim jobs by themselves"):format(found.programs))
  end
  return fact
end

--- How many jobs come before it in its queue, and whether there are even more. nil: it is not
-- among them, so it is being claimed, or promoted.
local function ahead_of(handle, row)
  local rows, live = ask(handle, "ahead", row.queue_id, AHEAD + 1), 0
  for _, r in ipairs(rows) do
    if r.live == 1 and r.id == row.id then return live, false end
    live = live + r.live
  end
  if #rows > AHEAD then return live, true end
end

--- A host's workers that take jobs of a queue, and how many of them are busy. A queue's jobs
-- beyond its reserved workers are with the other workers.
local function workers_for(handle, h, queue)
  if not h.reserves then return h.workers, ask(handle, "busy", h.id, h.workers)[1].n end
  local held, open, others, own, mine = {}, h.workers, 0, 0, 0
  for _, row in ipairs(ask(handle, "held", h.id)) do held[row.queue] = row.n end
  for _, reserve in ipairs(core.decode(h.reserves)) do
    local name, n = reserve[1], reserve[2]
    local has_n = held[name] or 0
    held[name], open = math.max(0, has_n - n), open - n
    if name == queue then own, mine = n, math.min(has_n, n) end
  end
  for _, n in pairs(held) do others = others + n end
  return open + own, math.min(others, open) + mine
end

local function capacity(handle, rows, queue)
  local workers, held = 0, 0
  for _, h in ipairs(rows) do
    local n, busy = workers_for(handle, h, queue)
    workers, held = workers + n, held + busy
  end
  return workers, held
end

--- How its queue's limit holds the job back; nil: it does not.
local function held_by_limit(handle, row, depth, seen)
  local fact = limits.why(handle, row.id)
  if fact and fact.before and depth < DEPTH then follow(handle, fact, { fact.before }, depth + 1, seen) end
  return fact
end

local function ready(handle, row, depth, seen)
  local by, switch = switched_off(row)
  if by then return { kind = by, says = "is ready, but " .. switch } end
  local held_back = held_by_limit(handle, row, depth, seen)
  if held_back then return held_back end
  local found = hosts_for(handle, row)
  if #found.serve == 0 then return no_host(row, found) end
  if #found.know == 0 then return no_handler(handle, row) end
  if #found.take == 0 then
    local places = {}
    for i, h in ipairs(found.know) do places[i] = place(h) end
    return { kind = "quiet", hosts = #places,
      says = "is ready, but the hosts for it take no jobs now, being quiet or about to end: " .. some(places, 3) }
  end
  local ahead, more = ahead_of(handle, row)
  local workers, held = capacity(handle, found.take, row.queue)
  local fact = { kind = held >= workers and "busy" or "ready", workers = workers, free = workers - held,
    ahead = ahead, ahead_at_least = more or nil, alone = row.lost >= LOST_TOGETHER or nil }
  local line = not ahead and "" or ahead == 0 and "it comes next"
    or ("%s%s come%s before it"):format(more and "at least " or "", count(ahead, "job"), ahead == 1 and "s" or "")
  if fact.kind == "busy" then
    fact.says = ("is ready, but %s for it %s busy%s"):format(workers == 1 and "the only worker" or
      ("all %d workers"):format(workers), workers == 1 and "is" or "are", line ~= "" and "; " .. line or "")
  else
    fact.says = ("is ready, and %s"):format(line ~= "" and line or "is about to start")
  end
  if fact.alone then fact.says = fact.says .. "; it is claimed alone, for its holders have died with it" end
  return fact
end

-- ---------------------------------------------------------------- the whole

local function examine(handle, row, depth, seen)
  if row.lease then return running(handle, row) end
  if row.paused then return paused(handle, row) end
  if row.unmet > 0 and row.waits then return waits_children(handle, row, depth, seen) end
  if row.unmet > 0 then return waits(handle, row, depth, seen) end
  if row.due > row.now then return add_unserved(scheduled(handle, row), handle, row) end
  return ready(handle, row, depth, seen)
end

--- Adds that it is too late for the job: the next claim ends it.
local function add_deadline(fact, row)
  if not row.deadline or row.deadline > row.now or row.polls > 0 or row.phase > 0 or row.max_polls then return end
  fact.deadline = row.deadline
  fact.says = ("%s, but will not be started, for its deadline passed %s ago"):format(fact.says,
    seconds(row.now - row.deadline))
end

--- The facts about a job; nil when it is unknown.
function look(handle, id, depth, seen)
  seen[id] = true
  for _ = 1, TRIES do
    local row = ask(handle, "job", id)[1]
    local fact
    if row then
      fact = examine(handle, row, depth, seen)
    else
      fact = finished(handle, id)
      if not fact and #ask(handle, "job", id) > 0 then fact = MOVED end -- retried meanwhile
    end
    if fact ~= MOVED then
      if row then
        fact.id, fact.name, fact.queue, fact.state = row.id, row.name, row.queue, row.state
        if not row.lease then add_deadline(fact, row) end
      end
      return fact
    end
  end
  return { kind = "ready", id = id, says = "is being claimed or given back at this moment" }
end

local function sentence(fact)
  local says = ("%s %s"):format(named(fact), fact.says)
  fact.says = nil
  units.row(fact)
  if fact.held_by then units.rows(fact.held_by) end
  if fact.cause then return says .. "; " .. sentence(fact.cause) end
  return says
end

local function answer(handle, id)
  local fact = look(handle, id, 1, {})
  if not fact then
    return { message = ("there is no job %d, live or in the history"):format(id), code = "NOT_FOUND" }
  end
  return { text = sentence(fact), fact = fact }
end

--- One sentence about a job, and the facts.
---@param handle userdata core handle
---@param id integer
---@return string|nil
---@return nightshift.Why|string
---@return string? code
function why.of(handle, id)
  local ok, got = pcall(answer, handle, id)
  if not ok and type(got) ~= "table" then error(got, 0) end
  if got.text then return got.text, got.fact end
  return nil, got.message, got.code
end

return why
