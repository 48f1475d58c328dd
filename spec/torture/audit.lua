--- The audit after a torture: does the history in the database agree with the programs'
-- journals, written while everything was breaking? Reads the journals of a folder and the
-- tables, and gives a list of findings; none means that every promise held. It does not judge
-- facts that it cannot know: a push without an answer may have happened or not, but whole.
--
--     local audit = require "spec.torture.audit"
--     local report = audit.run(db, folder)
--     report.findings      -- {{kind =, text =}, …}
--     report.counts        -- what was looked at

local checks = require "spec.torture.checks"
local journal = require "spec.support.proc".journal
local torture_rows = checks.rows
local torture_ticks = checks.ticks

local audit = {}

-- ------------------------------------------------------------------ reading

local function slot(t, key)
  local value = t[key]
  if not value then
    value = {}
    t[key] = value
  end
  return value
end

--- `pushes` as tag -> {n =, how =, answer =, ids =}.
local function read_pushes(folder)
  local pushes = {}
  for w in journal.lines(folder, "pushes") do
    local kind, tag = w[1], w[3]
    if kind == "intend" then
      pushes[tag] = { how = w[4], n = tonumber(w[5]) }
    else
      pushes[tag].answer = kind
      if kind == "acked" then
        pushes[tag].ids = {}
        for id in w[4]:gmatch "%d+" do table.insert(pushes[tag].ids, math.tointeger(id)) end
      end
    end
  end
  return pushes
end

--- `runs` as id -> {[run] = what happened in it}.
local function read_runs(folder, bad)
  local jobs, children, batches = {}, {}, {}
  for w in journal.lines(folder, "runs") do
    local id, number = math.tointeger(w[3]), math.tointeger(w[4])
    local run = slot(slot(jobs, id), number)
    if w[1] == "start" then
      run.starts = (run.starts or 0) + 1
      run.at, run.pid, run.who, run.last, run.plan = w[2], w[5], w[6], tonumber(w[7]), w[8]
    elseif w[1] == "finish" then
      run.finishes = (run.finishes or 0) + 1
      run.verdict, run.finished_at = w[6], w[2]
    elseif w[1] == "spawn" then
      table.insert(slot(run, "children"), math.tointeger(w[5]))
      children[math.tointeger(w[5])] = { parent = id, run = number, tag = w[6] }
    elseif w[1] == "member" then
      local batch = slot(batches, w[5])
      batch.n = tonumber(w[6])
      table.insert(batch, { id = id, run = number })
      run.batch = batch.n > 1 and batch or nil
    elseif w[1] == "lease" then
      run.lease = true
    elseif w[1] == "logged" then
      run.logged = tonumber(w[5])
    elseif w[1] == "answer" then
      run.answer = w[6]
    elseif w[1] == "bad" then
      bad(id, number, w[5])
    end
  end
  return jobs, children
end

--- `verbs` as id -> {cancels =, retries = {{run =, outcome =, how =}, …}, signals =, prune =};
-- prune: what its last one said.
local function read_verbs(folder)
  local verbs = {}
  for w in journal.lines(folder, "verbs") do
    local id = math.tointeger(w[3])
    if w[1] == "cancel" then
      table.insert(slot(slot(verbs, id), "cancels"), { at = w[2], how = w[4] })
    elseif w[1] == "retry" then
      table.insert(slot(slot(verbs, id), "retries"),
        { at = w[2], run = math.tointeger(w[4]), outcome = w[5], how = w[6] })
    elseif w[1] == "signal" then
      table.insert(slot(slot(verbs, id), "signals"), { at = w[2], how = w[5] })
    elseif w[1] == "prune" then
      slot(verbs, id).prune = w[4]
    end
  end
  return verbs
end

--- `faults` as what -> {{at =, to =}, …}: a process id, the name of a program,
-- or "server".
local function read_faults(folder)
  local faults = {}
  for w in journal.lines(folder, "faults") do
    for i = 4, #w do table.insert(slot(faults, w[i]), { at = w[2], how = w[3] }) end
  end
  return faults
end

local function each(db, sql, take)
  local last = 0
  repeat
    local rows = assert(db:execute(sql, last))
    for _, row in ipairs(rows) do take(row) end
    last = #rows > 0 and rows[#rows].id
  until not last
end

local function read_history(db)
  local history, attempts = {}, {}
  each(db, [[SELECT id, outcome, reason, run, parent, JSON_VALUE(payload, '$.tag') AS tag,
    CAST(JSON_VALUE(payload, '$.after') AS SIGNED) AS after
    FROM nightshift_finished WHERE id > ? AND name NOT IN (']] .. checks.old_tree.NAME .. "', '" .. torture_rows.NAME
    .. "', '" .. torture_ticks.NAME .. "', '" .. checks.deaths.NAME .. "', '" .. checks.limited.NAME
    .. "', 'latest', 'erased') ORDER BY id LIMIT 5000",
    function(row) history[row.id] = row end)
  local live = {}
  each(db, "SELECT id FROM nightshift_job WHERE id > ? ORDER BY id LIMIT 5000", function(row) live[row.id] = true end)
  each(db, [[SELECT job_id AS id, GROUP_CONCAT(run, ':', kind) AS list FROM nightshift_attempt
    WHERE job_id > ? GROUP BY job_id ORDER BY job_id LIMIT 5000]], function(row)
    if not history[row.id] and not live[row.id] then return end -- of a row
    for run, kind in row.list:gmatch "(%d+):(%a+)" do slot(attempts, row.id)[math.tointeger(run)] = kind end
  end)
  return history, attempts, live
end

-- -------------------------------------------------------------------- tools

local Audit = {}
Audit.__index = Audit

function Audit:found(kind, format, ...)
  table.insert(self.findings, { kind = kind, text = format:format(...) })
end

function Audit:count(name, n) self.counts[name] = (self.counts[name] or 0) + (n or 1) end

--- The ends that were accepted for a job: run -> outcome. A retry takes the
-- row away, so the end it undid is known from the journal.
function Audit:ends(id)
  local ends = {}
  for _, retry in ipairs((self.verbs[id] or {}).retries or {}) do ends[retry.run] = retry.outcome end
  local row = self.history[id]
  if row then ends[row.run] = row.outcome end
  return ends
end

-- Longest from a fault to a start of a claim that was lost by it. A host that was stopped has
-- sent jobs ahead, a program works on a list.
local LATE = 60

-- Longest pause between two tries to connect, seconds: so long is the end of a fault felt.
local RECONNECT <const> = 3
local FELT <const> = { ["server-back"] = RECONNECT, ["network-thaw"] = RECONNECT }

--- Was there a fault that could touch `to` between a run's start and the next?
-- The next may have come first: who lost the claim did not know yet.
function Audit:fault(to, from, next_at)
  if next_at < from then from, next_at = next_at - LATE, from end
  for _, fault in ipairs(self.faults[to] or {}) do
    if fault.at >= from - 1 - (FELT[fault.how] or 0) and fault.at <= next_at then return true end
  end
end

-- ------------------------------------------------------------------- pushes

function Audit:check_push(tag, push, there)
  local n = 0
  for i = 1, push.n do
    local ids = there[tag .. "." .. i] or {}
    if #ids > 1 then self:found("doubled", "push %s item %d: jobs %s", tag, i, table.concat(ids, ", ")) end
    if #ids > 0 then n = n + 1 end
    local id = push.ids and push.ids[i]
    if id and self.live[id] then
      n = n + 1
      self:found("unfinished", "push %s item %d: job %d has not ended", tag, i, id)
    elseif id and ids[1] ~= id then
      self:found("lost", "push %s item %d was acknowledged as job %d; the history has %s", tag, i, id, ids[1] or "none")
    end
  end
  if n > 0 and (push.answer == "refused" or push.answer == "rolled") then
    self:found("ghost", "push %s was %s, yet %d of %d jobs exist", tag, push.answer, n, push.n)
  elseif n > 0 and n < push.n then
    self:found("half", "push %s (%s): %d of %d jobs exist", tag, push.answer or "no answer", n, push.n)
  end
  local row = self.notes[tag] and 1 or 0
  if push.how == "transaction" or push.how == "slow" or push.how == "rolled" then
    if row ~= (n > 0 and 1 or 0) then
      self:found("half", "transaction %s: %d rows of its own and %d jobs", tag, row, n)
    end
  end
  self:count("pushes " .. (push.answer or "unanswered"))
end

function Audit:check_pushes()
  local there = {}
  for id, row in pairs(self.history) do
    if row.parent == nil and not (row.tag or ""):find "^tree" then
      table.insert(slot(there, row.tag or "?"), id)
      if not self.pushes[(row.tag or "?"):match "^(.*)%.%d+$"] then
        self:found("unknown", "job %d has tag %s, which nobody pushed", id, row.tag or "none")
      end
    end
  end
  for tag, push in pairs(self.pushes) do
    if push.how ~= "tree" then self:check_push(tag, push, there) end
  end
end

-- -------------------------------------------------------------------- trees

-- Answers of a prune of a tree that has gone.
local GONE = { ok = true, NOT_FOUND = true }

--- A tree that was pushed whole is there whole, or pruned from its leaves up.
function Audit:check_tree(tag, push, there)
  local n, root = 0, push.ids and push.ids[1]
  for i = 1, push.n do
    local ids = there[tag .. "." .. i] or {}
    if #ids > 1 then self:found("doubled", "tree %s item %d: jobs %s", tag, i, table.concat(ids, ", ")) end
    if #ids > 0 then n = n + 1 end
  end
  local prune = root and (self.verbs[root] or {}).prune
  if GONE[prune] then
    if n > 0 then self:found("half pruned", "tree %s was pruned, and %d of its jobs are there", tag, n) end
  elseif prune then
    if n > 0 and not self.history[root] then
      self:found("half pruned", "%d jobs of tree %s are there, and its top has gone", n, tag)
    end
  elseif push.answer == "acked" and n < push.n then
    self:found("lost", "tree %s was acknowledged; %d of its %d jobs are there", tag, n, push.n)
  elseif push.answer == "refused" and n > 0 then
    self:found("ghost", "tree %s was refused, and %d of its jobs are there", tag, n)
  elseif n > 0 and n < push.n then
    self:found("half", "tree %s: %d of %d jobs exist", tag, n, push.n)
  end
  self:count("trees " .. (prune and "pruned" or push.answer or "unanswered"))
end

function Audit:check_trees()
  local there = {}
  for id, row in pairs(self.history) do
    if row.tag and row.tag:find "^tree" then table.insert(slot(there, row.tag), id) end
  end
  for tag, push in pairs(self.pushes) do
    if push.how == "tree" then self:check_tree(tag, push, there) end
  end
end

-- Jobs of trees: who their parents are; of those that are pruned, each had said ack.
function Audit:learn_trees()
  self.pruned = {}
  for tag, push in pairs(self.pushes) do
    local root = push.how == "tree" and push.ids and push.ids[1]
    for i, id in ipairs(root and push.ids or {}) do
      if i > 1 then self.children[id] = { parent = root, run = 0, tag = ("%s.%d"):format(tag, i) } end
      self.pruned[id] = (self.verbs[root] or {}).prune and not self.history[id] or nil
    end
  end
end

function Audit:check_pruned(id)
  for _, run in pairs(self.runs[id] or {}) do
    if run.verdict == "ack" then return self:count "pruned" end
  end
  self:found("pruned", "job %d was pruned, and no run of it said ack", id)
end

-- --------------------------------------------------------------------- ends

local ENDING = { failed = "fail", discarded = "discard", ["poll deadline"] = "again" }

--- Was its worker frozen within a minute? Then the run timed out, though the handler had said ack.
function Audit:was_frozen(run)
  for _, fault in ipairs(self.faults[run.pid] or {}) do
    if fault.how == "worker-STOP" and fault.at >= run.at and fault.at <= run.at + 60 then return true end
  end
end

--- Does how the job ended agree with what its last run wrote?
function Audit:check_end(id, row)
  local run = (self.runs[id] or {})[row.run] or {}
  self:count(row.outcome)
  if row.outcome == "done" and run.verdict ~= "ack" then
    self:found("effect", "job %d is done with run %d, which %s", id, row.run,
      run.verdict and "said " .. run.verdict or run.starts and "never finished" or "never started")
  elseif row.outcome == "dead" then
    local said = ENDING[row.reason]
    if said and run.verdict and run.verdict ~= said and not self:was_frozen(run) then
      self:found("effect", "job %d is dead (%s) with run %d, which said %s", id, row.reason, row.run, run.verdict)
    elseif row.reason == "child failed" then
      self:check_child_failed(id, row)
    elseif not run.starts and row.reason ~= "poison" then
      self:found("effect", "job %d is dead (%s) with run %d, which never started", id, row.reason, row.run)
    end
  elseif row.outcome == "cancelled" then
    self:check_cancelled(id, row)
  end
  for number, later in pairs(self.runs[id] or {}) do
    if number > row.run and later.starts then
      self:found("after", "job %d ended with run %d, and run %d started", id, row.run, number)
    end
  end
end

--- Did a job ever end otherwise than done?
function Audit:has_failed(id)
  for _, outcome in pairs(id and self:ends(id) or {}) do
    if outcome ~= "done" then return true end
  end
end

--- Dead for the sake of a child: it waited, and one of its children did fail.
function Audit:check_child_failed(id, row)
  local before = (self.runs[id] or {})[row.run - 1] or {}
  for child, born in pairs(self.children) do
    if born.parent == id and self:has_failed(child) and before.verdict == "wait" then return end
  end
  self:found("effect", "job %d is dead (child failed) with run %d, and no child of it has failed", id, row.run)
end

function Audit:check_cancelled(id, row)
  local verbs = self.verbs[id] or {}
  if verbs.cancels or self:has_failed(row.parent) or self:has_failed(row.after) then return end
  self:found("cancelled", "job %d is cancelled, and nobody asked", id)
end

--- No job runs before what it waits for has ended: who was done was so before. Who is
-- tried again waits for no job, and has not been done for the first time.
function Audit:check_order(id, row)
  local target = row.after and self.history[row.after]
  local runs = target and self.runs[row.after]
  local last = runs and runs[target.run]
  local retried = (self.verbs[row.after] or {}).retries or (self.verbs[id] or {}).retries
  if not (last and last.finished_at) or target.outcome ~= "done" or retried then return end
  self:count "waited for another"
  for number, run in pairs(self.runs[id] or {}) do
    if run.starts and run.at < last.finished_at then
      self:found("order", "run %d of job %d started before the end of job %d, which it waits for", number, id,
        row.after)
    end
  end
end

--- A cancel that was acknowledged holds, unless it was retried.
function Audit:check_verbs(id, verbs)
  local row = self.history[id]
  local accepted
  for _, cancel in ipairs(verbs.cancels or {}) do
    if cancel.how == "ok" then accepted = cancel.at end
  end
  for _, retry in ipairs(verbs.retries or {}) do
    if accepted and retry.at >= accepted - 1 and retry.how ~= "intend" then accepted = nil end
    if retry.how == "ok" and row and row.run <= retry.run then
      self:found("verb", "the retry of job %d at run %d was acknowledged, and it ended with run %d", id, retry.run,
        row.run)
    end
  end
  if accepted and row and row.outcome ~= "cancelled" then
    self:found("verb", "the cancel of job %d was acknowledged, and it is %s", id, row.outcome)
  end
end

-- --------------------------------------------------------------------- runs

local function sorted(runs)
  local numbers = {}
  for number in pairs(runs) do numbers[#numbers + 1] = number end
  table.sort(numbers)
  return numbers
end

--- Was the `again` of a run accepted? The next run's state tells: true, false,
-- or nil when there was none, or a retry in between.
function Audit:again_taken(id, number, ends)
  local nearest
  for later, run in pairs(self.runs[id]) do
    if later > number and run.starts and (not nearest or later < nearest) then nearest = later end
  end
  for ended in pairs(ends) do
    if ended >= number and (not nearest or ended < nearest) then return nil end
  end
  return nearest and self.runs[id][nearest].last == number
end

--- Children exist exactly when the verdict that carried them was accepted.
function Audit:check_children(id, number, run, ends)
  local n = 0
  for _, child in ipairs(run.children or {}) do
    if self.history[child] or self.live[child] then n = n + 1 end
  end
  local taken
  if run.verdict == "ack" then taken = ends[number] == "done"
  elseif run.verdict == "again" or run.verdict == "wait" then taken = self:again_taken(id, number, ends)
  else taken = false end
  local all = #(run.children or {})
  if (taken == true and n < all) or (taken == false and n > 0) or (taken == nil and n > 0 and n < all) then
    self:found("children", "run %d of job %d said %s, which was %s; %d of its %d children exist", number, id,
      run.verdict or "nothing", taken and "accepted" or taken == false and "not accepted" or "perhaps accepted", n, all)
  end
end

-- Plans that end the worker.
local FATAL = { crash = true, slot_crash = true, wait_crash = true, exit = true }

--- Why did the job run again after this run? nil: not known.
function Audit:reason(id, number, run, ends, next_at)
  local kind = (self.attempts[id] or {})[number]
  if ends[number] then return "ended" end
  if kind == "failed" and run.verdict == "fail" then return "failed" end
  if kind == "failed" and not run.verdict and run.plan == "hang" then return "timeout" end
  if kind == "failed" and not run.verdict and self:fault("machine", run.at, next_at) then return "machine stalled" end
  if kind == "failed" and run.plan == "slot_crash" and not run.verdict and self:connects_late(id, number, run) then
    return "could not connect within its time"
  end
  if kind == "crashed" and FATAL[run.plan] then return "crashed as planned" end
  if kind == "crashed" and self:dies_in_batch(run) then return "crashed with its batch" end
  if run.verdict == "release" then return "released" end
  -- it came back, and then ended before it ran again, or ran with what this run had kept
  local back = ends[number + 1] or self:again_taken(id, number, ends)
  if run.verdict == "again" and back then return "again" end
  if run.verdict == "wait" and back then return "waited" end
  if run.who:match "^program" and FATAL[run.plan] then return "program ended as planned" end
  if run.lease then return "its lease ran out" end
  if self:fault(run.pid, run.at, next_at) then return "fault of its worker" end
  if self:fault(run.who, run.at, next_at) then return "fault of its host" end
  if self:fault("server", run.at, next_at) then return "fault of the server" end
  local refused = run.answer == "BUSY" or run.answer == "GONE"
  if refused and self:fault("statements", run.at, next_at) then return "its verdict was cut" end
end

--- Was it ended by its timeout in job:db, while all programs connected anew behind a fault?
function Audit:connects_late(id, number, run)
  if not self:written(id, number):find("job:db: cannot connect", 1, true) then return false end
  return self:fault("statements", run.at - 10, run.at) or self:fault("server", run.at - 10, run.at)
end

--- Did another job of its batch end the worker?
function Audit:dies_in_batch(run)
  for _, member in ipairs(run.batch or {}) do
    if FATAL[self.runs[member.id][member.run].plan] then return true end
  end
end

--- A job that has failed or crashed before runs alone.
function Audit:check_batch(id, number, run)
  self:count "runs in a batch"
  if (self.verbs[id] or {}).retries then return end -- it has fresh budgets
  for earlier, kind in pairs(self.attempts[id] or {}) do
    if earlier < number and kind ~= "lost" then
      self:found("batch", "run %d of job %d is one of %d in a batch, and run %d has %s", number, id, run.batch.n,
        earlier, kind)
    end
  end
end

--- How an attempt is written down, as the end of a sentence.
function Audit:written(id, number)
  local kind = (self.attempts[id] or {})[number]
  if not kind then return "" end
  local rows = assert(self.db:execute("SELECT error FROM nightshift_attempt WHERE job_id = ? AND run = ?", id, number))
  return (": written down as %s, %s"):format(kind, rows[1] and rows[1].error or "without an error")
end

function Audit:check_run(id, number, run, ends, next_at)
  self:count "executions"
  if run.batch then self:check_batch(id, number, run) end
  if run.starts > 1 then self:found("twice", "run %d of job %d started %d times", number, id, run.starts) end
  if (run.finishes or 0) > 1 then
    self:found("twice", "run %d of job %d finished %d times", number, id, run.finishes)
  end
  if run.verdict == "ack" and (self.attempts[id] or {})[number] == "failed" and
    not self:fault(run.pid, run.at, next_at) and not self:fault(run.who, run.at, next_at) then
    self:found("effect", "run %d of job %d said ack, and is written down as failed", number, id)
  end
  if run.answer == "ok" and run.verdict == "ack" and ends[number] ~= "done" then
    self:found("lost ack", "the ack of run %d of job %d was answered with true, and it is %s", number, id,
      ends[number] or "not its end")
  end
  local why = self:reason(id, number, run, ends, next_at)
  if why == nil then
    self:found("unexplained", "run %d of job %d (%s, planned %s, said %s) was not the end, and no fault explains it%s",
      number, id, run.who, run.plan, run.verdict or "nothing", self:written(id, number))
  elseif why ~= "ended" then
    self:count("again: " .. why)
  end
end

function Audit:check_runs()
  for id, runs in pairs(self.runs) do
    local ends = self:ends(id)
    if self.pruned[id] then goto continue end
    if not self.history[id] and not self.live[id] then
      self:found("lost", "job %d ran and is not in the history", id)
    end
    local numbers = sorted(runs)
    for i, number in ipairs(numbers) do
      local run = runs[number]
      local following = runs[numbers[i + 1]]
      if run.starts then self:check_run(id, number, run, ends, following and following.at or math.huge) end
      if run.children then self:check_children(id, number, run, ends) end
      if run.logged and ends[number] == "done" and run.who:find "^host" then
        slot(self.told, run.who)[id] = (self.told[run.who][id] or 0) + run.logged
      end
    end
    ::continue::
  end
end

-- -------------------------------------------------------------- the rest

function Audit:check_effects(db)
  local all = assert(db:execute "SELECT job_id, run, COUNT(*) AS n FROM torture_effect GROUP BY job_id, run")
  for _, row in ipairs(all) do
    self:count "acks with a row"
    if row.n > 1 then
      self:found("double effect", "run %d of job %d wrote its row %d times", row.run, row.job_id, row.n)
    elseif self:ends(row.job_id)[row.run] ~= "done" and not self.pruned[row.job_id] then
      self:found("double effect", "run %d of job %d wrote its row, and its ack was not accepted", row.run, row.job_id)
    end
  end
end

function Audit:check_born()
  for id, row in pairs(self.history) do
    local child = self.children[id]
    if row.parent and not (child and child.parent == row.parent) then
      self:found("unknown", "job %d is a child of %d, which never spawned it", id, row.parent)
    end
  end
end

--- Exactly one job was pushed for each end that was a death, ends among them that a retry took
-- away.
function Audit:check_deaths(db)
  if not checks.deaths.declared(db) then return end
  local died = {}
  local function learn(id)
    for number, outcome in pairs(self:ends(id)) do
      if outcome == "dead" then died[id .. ":" .. number] = true end
    end
  end
  for id in pairs(self.history) do learn(id) end
  for id in pairs(self.verbs) do learn(id) end
  self:count("deaths with a job", checks.deaths.check(db, died, function(kind, text) self:found(kind, "%s", text) end))
end

--- Who was signalled has ended; see check_push for more.
function Audit:check_signals()
  for id, verbs in pairs(self.verbs) do
    for _, signal in ipairs(verbs.signals or {}) do
      self:count("signals " .. signal.how)
      if self.live[id] then self:found("stuck", "job %d was signalled (%s) and has not ended", id, signal.how) end
    end
  end
end

local PERIOD = 2000000 -- µs: of the keys that begin with "held"
local SLACK = 1000000 -- between the instant of a push and the one at which its key was free

--- Of jobs pushed under a key with a period none was pushed within that of one that was done. A
-- retry begins a period anew.
function Audit:check_periods(db)
  local rows = assert(db:execute [[SELECT queue_id, ukey, id, outcome = 'done' AS done, since, created
    FROM nightshift_finished WHERE ukey LIKE 'held %' ORDER BY queue_id, ukey, created]])
  local last = {}
  for _, row in ipairs(rows) do
    local of = row.queue_id .. row.ukey
    local before = last[of]
    if before and row.since == 0 and row.created < before.created + PERIOD - SLACK then
      self:found("unique", "job %d was pushed within the period of job %d, which is done", row.id, before.id)
    end
    if row.done == 1 and row.since == 0 then last[of] = row end
    self:count "pushes under a key with a period"
  end
end

--- Jobs that were replaced before they began, or were followed: each id that a push gave has ended.
function Audit:check_replaced(db, folder)
  local ended, pushes = {}, 0
  for _, row in ipairs(assert(db:execute "SELECT id FROM nightshift_finished WHERE name = 'latest'")) do
    ended[row.id] = true
  end
  for w in journal.lines(folder, "latest") do
    pushes = pushes + 1
    if not ended[math.tointeger(w[3])] then self:found("lost", "job %s, which replaces others, has not ended", w[3]) end
  end
  if pushes > 0 then self:count("pushes that replace", pushes) end
end

-- Answers of a delete that has certainly not deleted.
local KEPT = { STATE = true, nothing = true }

--- A job whose delete was answered is gone with all its rows. One whose delete was refused has
--- ended; one without an answer is whole or gone.
function Audit:check_erased(db, folder)
  local said, there = {}, {}
  for w in journal.lines(folder, "erased") do said[math.tointeger(w[3])] = w[1] == "acked" and "nothing" or w[4] end
  for _, row in ipairs(assert(db:execute [[SELECT id, 'history' AS what FROM nightshift_finished WHERE name = 'erased'
      UNION ALL SELECT job_id, 'a tag' FROM nightshift_tag WHERE tag = 'erased'
      UNION ALL SELECT a.job_id, 'an attempt' FROM nightshift_attempt a]])) do
    if said[row.id] == "ok" then self:found("erased", "job %d was deleted, and has %s", row.id, row.what) end
    if row.what == "history" then there[row.id] = true end
  end
  for id, how in pairs(said) do
    if KEPT[how] and not there[id] then self:found("lost", "job %d is not in the history; its delete: %s", id, how) end
    self:count("deletes " .. how)
  end
end

local EMPTY = { "job", "scheduled", "backlog", "edge", "met", "lease", "expiry", "running", "unique_key", "notice" }

--- Tables that are empty when all is done, and holders that were not missed.
function Audit:check_leftovers(db)
  local tables = {}
  for _, row in ipairs(assert(db:execute [[SELECT table_name AS name FROM information_schema.tables
    WHERE table_schema = DATABASE()]])) do tables[row.name] = true end
  for _, name in ipairs(EMPTY) do
    local full = "nightshift_" .. name
    local some = name == "unique_key" and " WHERE until IS NULL" or "" -- the others are of jobs that are done
    local n = tables[full] and assert(db:execute("SELECT COUNT(*) AS n FROM " .. full .. some))[1].n
    if n and n > 0 then self:found("left over", "%d rows in nightshift_%s", n, name) end
  end
  for _, held in ipairs(assert(db:slots())) do -- rows of owners that are gone may stay
    self:found("left over", "slot %d of '%s' is held", held.slot, held.name)
  end
  for what, text in pairs {
    ["rows in nightshift_child without their child"] = "nightshift_child t LEFT JOIN nightshift_finished f USING (id)",
    ["signals without their job"] = "nightshift_signal t LEFT JOIN nightshift_finished f ON f.id = t.job_id",
    ["attempts without their job"] = "nightshift_attempt t LEFT JOIN nightshift_finished f ON f.id = t.job_id",
  } do
    local left = assert(db:execute("SELECT COUNT(*) AS n FROM " .. text .. " WHERE f.id IS NULL"))[1].n
    if left > 0 then self:found("left over", "%d %s", left, what) end
  end
  local n = assert(db:execute "SELECT COUNT(*) AS n FROM nightshift_ready WHERE job_id > 0")[1].n
  if n > 0 then self:found("left over", "%d rows in nightshift_ready", n) end
  for _, row in ipairs(assert(db:execute "SELECT id, kind, pid FROM nightshift_holder WHERE dead IS NULL")) do
    self:found("left over", "holder %d (%s, process %d) is gone and not marked dead", row.id, row.kind, row.pid)
  end
end

--- Audits a database and the journals of a folder.
-- @tparam Database db
-- @tparam string folder
-- @treturn table {findings =, counts =}
function audit.run(db, folder)
  local self = setmetatable({ db = db, findings = {}, counts = {}, told = {} }, Audit)
  local function found(kind, text) self:found(kind, "%s", text) end
  self.pushes, self.verbs, self.faults = read_pushes(folder), read_verbs(folder), read_faults(folder)
  self.runs, self.children = read_runs(folder, function(id, number, text)
    self:found("state", "run %d of job %d: %s", number, id, text)
  end)
  self.history, self.attempts, self.live = read_history(db)
  self.notes = {}
  for _, row in ipairs(assert(db:execute "SELECT tag FROM torture_note")) do self.notes[row.tag] = true end
  self:learn_trees()
  self:check_pushes()
  self:check_periods(db)
  self:check_replaced(db, folder)
  self:check_erased(db, folder)
  self:check_trees()
  for id in pairs(self.pruned) do self:check_pruned(id) end
  for id, row in pairs(self.history) do
    self:check_end(id, row)
    self:check_order(id, row)
  end
  for id, verbs in pairs(self.verbs) do self:check_verbs(id, verbs) end
  self:check_runs()
  checks.logs.check(folder, self.told, self.faults, found)
  checks.logs.mended(folder, found)
  self:check_signals()
  self:check_effects(db)
  self:check_born()
  self:check_deaths(db)
  self:check_leftovers(db)
  checks.old_tree.finish(db, found)
  return { findings = self.findings, counts = self.counts }
end

--- At any moment: who waits has as many edges as it says, to jobs that live or
-- that are written down as ended. One consistent look; `found` gets a kind and a text.
function audit.waiting(db, found)
  local rows = db:execute [[SELECT j.id, j.unmet, j.paused IS NOT NULL AS held, COUNT(e.on_id) AS edges,
      SUM(e.on_id IS NOT NULL AND t.id IS NULL AND m.on_id IS NULL) AS gone
    FROM nightshift_job j
    LEFT JOIN (SELECT on_id, job_id FROM nightshift_edge) e ON e.job_id = j.id
    LEFT JOIN nightshift_job t ON t.id = e.on_id
    LEFT JOIN nightshift_met m ON m.on_id = e.on_id
    GROUP BY j.id, j.unmet, j.paused
    HAVING unmet <> edges + held OR gone > 0 LIMIT 20]]
  for _, row in ipairs(rows or {}) do
    found("waiting", ("job %d waits for %d jobs and has %d edges, %d of them to jobs that are gone"):format(row.id,
      row.unmet, row.edges, row.gone))
  end
end

--- The tables of the programs' own rows.
function audit.prepare(db)
  assert(db:execute "CREATE TABLE torture_note (tag VARCHAR(100) NOT NULL PRIMARY KEY)")
  assert(db:execute "CREATE TABLE torture_still (id INT NOT NULL PRIMARY KEY)") -- no writer, so its lock is had at once
  assert(db:execute "CREATE TABLE torture_effect (job_id BIGINT NOT NULL, run INT NOT NULL, KEY (job_id, run))")
  assert(db:execute [[CREATE PROCEDURE torture_dirt()
    BEGIN START TRANSACTION; SET @dirt = 1; DO GET_LOCK('dirt', 0); END]])
end

return audit
