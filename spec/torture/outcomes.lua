--- The work of a job when it runs, and the lines it leaves in `runs`. Shared by the handlers
-- (jobs.lua) and the embedded claimers (claimer.lua). All of it follows from the seed, the
-- job's tag and its run, nothing else.
--
--   start  TIME ID RUN PID WHO LAST OUTCOME   LAST: the last run that said again; 0: none
--   spawn  TIME ID RUN CHILD TAG AFTER        AFTER: a job that the child waits for; 0: none
--   finish TIME ID RUN PID VERDICT            just before the verdict is given
--   asks   TIME ID RUN                        it will wait for a signal, which signaller.lua sends
--   member TIME ID RUN KEY N                  it is one of N jobs of a batch; KEY: the batch's first
--   logged TIME ID RUN N                      N lines have been given to job:log
--   holds  TIME ID RUN WHO                    it lasts until checks.lua has counted
--   bad    TIME ID RUN text                   something the job saw and must not see
--
-- Pushes of handlers are in `pushes`, in the form of pusher.lua.

local nst = require "nst"
local journal = require "spec.support.proc".journal
local checks = require "spec.torture.checks"
local torture_rows, deaths, limited = checks.rows, checks.deaths, checks.limited

local outcomes = {}

local FOLDER = assert(os.getenv "TORTURE_FOLDER")
local SEED = assert(os.getenv "TORTURE_SEED")
local WHO = assert(os.getenv "TORTURE_WHO")
local SANITIZED = os.getenv "SAN" -- then a SIGSEGV is a report

-- Outcomes and their weights.
local MENU = {
  { "ack", 56 }, { "raise", 8 }, { "again", 9 }, { "spawn", 8 }, { "spawn_again", 3 }, { "spawn_raise", 2 },
  { "discard", 2 }, { "release", 2 }, { "long", 5 }, { "crash", 2 }, { "exit", 1 }, { "hang", 1 }, { "big", 1 },
  { "slot", 7 }, { "slot_crash", 1 }, { "wait", 8 }, { "wait_crash", 1 }, { "signal", 5 }, { "leak", 3 },
  { "dirty", 6 }, { "clean", 6 }, { "keeps", 2 },
}

-- What a job of a kind does, of many that are pushed at once (Cast:push_burst); other kinds choose.
local KINDS = { quick = { "ack", "ack", "ack", "spawn" }, leaf = { "ack" }, long = { "longer" }, logs = { "logs" },
  place = { "place" }, bulk = { "ack", "ack", "ack", "ack", "ack", "ack", "ack", "ack", "raise", "again", "discard",
    "release", "spawn", "ack", "ack", "ack", "ack", "ack", "ack", "crash" } }

local total = 0
for _, item in ipairs(MENU) do total = total + item[2] end

-- FNV-1a, so that neighbours differ.
local function hash(text)
  local h = 0xcbf29ce484222325
  for i = 1, #text do h = (h ~ text:byte(i)) * 0x100000001b3 end
  return h
end

--- A number from 0 to n - 1 that follows from the seed and the words.
function outcomes.pick(n, ...)
  local h = hash(table.concat({ SEED, ... }, "/"))
  return ((h ~ (h >> 29)) & 0x7fffffffffffffff) % n
end

local function plan(job)
  local kind = KINDS[job.payload.kind]
  if kind then return kind[outcomes.pick(#kind, job.payload.tag, job.run) + 1] end
  local at = outcomes.pick(total, job.payload.tag, job.run)
  for _, item in ipairs(MENU) do
    at = at - item[2]
    if at < 0 then return item[1] end
  end
end

local writer, owner, pid

-- Opened in the process that runs the job, not in the one that loads scripts.
local function note(...)
  local now = nst.ids()
  if owner ~= now then writer, owner, pid = journal.writer(FOLDER, "runs"), now, now end
  writer(...)
end

--- This process.
function outcomes.pid() return pid end

-- Polls are counted anew by a retry, which keeps the state.
local function check(job)
  local state = job.state or { polls = 0, last = 0 }
  if job.polls == 0 then state.polls = 0 end
  if state.polls ~= job.polls then
    note("bad", job.id, job.run, ("state-of-poll-%s-but-the-job-is-at-%s"):format(state.polls, job.polls))
  end
  return state
end

local function finish(job, verdict) note("finish", job.id, job.run, pid, verdict) end

-- Some children wait for the one before them. Returns how many there are.
local function spawn(job)
  local tag, before, spawned = job.payload.tag, nil, 0
  for i = 1, select(2, tag:gsub("%.c", "")) < 2 and 1 + job.id % 3 or 0 do
    local name = ("%s.c%d-%d"):format(tag, job.run, i)
    local after = before and outcomes.pick(2, name, "after") == 0 and before or nil
    local options = { backoff = 0.2, max_attempts = 3, timeout = 3, queue = i == 3 and "c" or nil,
      after = after and { after }, on_fail = outcomes.pick(2, name, "on_fail") == 0 and "run" or nil }
    local id = job:spawn(job.name, { tag = name, after = after, kind = job.payload.kind }, options)
    if id then note("spawn", job.id, job.run, id, name, after or 0) end
    before = id
    spawned = spawned + (id and 1 or 0)
  end
  return spawned
end

local function again(job, state)
  finish(job, "again")
  return job:again(outcomes.pick(400, job.payload.tag, job.run, "delay") / 1000,
    { polls = state.polls + 1, last = job.run })
end

local run = {}

function run.ack(job)
  finish(job, "ack")
  return { run = job.run }
end

function run.raise(job)
  finish(job, "fail")
  error "as planned"
end

run.again = again

function run.spawn(job)
  spawn(job)
  return run.ack(job)
end

function run.spawn_again(job, state)
  spawn(job)
  return again(job, state)
end

function run.spawn_raise(job)
  spawn(job)
  return run.raise(job)
end

-- What a job sees of its children when they let it go on: all have ended.
-- Claimers and hosts may be cut off from the server just then.
local function look(job)
  local ok, live = pcall(function()
    local n = 0
    for _, child in ipairs(job.results) do n = n + (not child.after and not child.outcome and 1 or 0) end
    return n
  end)
  if ok and live > 0 then note("bad", job.id, job.run, ("runs-on-while-%d-children-live"):format(live)) end
end

function run.wait(job, state)
  if job.phase >= 2 or spawn(job) == 0 and #job.results == #job.after then return run.ack(job) end
  finish(job, "wait")
  return job:wait { on_fail = outcomes.pick(3, job.payload.tag, job.run, "wait") == 0 and "fail" or "continue",
    state = { polls = state.polls, last = job.run, waits = true } }
end

function run.wait_crash(job)
  if job.phase < 2 then spawn(job) end
  return run.crash(job)
end

function run.discard(job)
  finish(job, "discard")
  return job:discard "as planned"
end

function run.release(job)
  finish(job, "release")
  return job:release()
end

-- A signal that came is the number of a run that asked for one.
function run.signal(job, state)
  local signal = job.signal
  if signal ~= nil and not (math.type(signal) == "integer" and signal < job.run) then
    note("bad", job.id, job.run, "signal-that-nobody-sent")
  end
  note("asks", job.id, job.run)
  finish(job, "wait")
  return job:wait { signal = "go", state = { polls = state.polls, last = job.run } }
end

local function last(job, most)
  local rest = outcomes.pick(most, job.payload.tag, job.run, "long") / 1000
  while rest > 0 and not job:cancelled() do
    job:progress(0.5, "long")
    nst.sleep(math.min(rest, 0.25))
    rest = rest - 0.25
  end
  return run.ack(job)
end

function run.long(job) return last(job, 1500) end
function run.longer(job) return last(job, 6000) end

local LINES <const> = 20

function run.logs(job)
  for _ = 1, LINES do job:log(("x"):rep(1500)) end
  note("logged", job.id, job.run, LINES)
  return run.ack(job)
end

function run.crash(job)
  local signal = (SANITIZED or outcomes.pick(2, job.payload.tag, job.run, "signal") == 0) and "KILL" or "SEGV"
  os.execute(("kill -%s %d"):format(signal, pid))
  nst.sleep(5)
end

function run.exit() os.exit(3) end

function run.hang(job)
  if outcomes.pick(2, job.payload.tag, job.run, "hang") == 0 then
    nst.sleep(60)
  else
    os.execute "sleep 60"
  end
end

function run.big(job)
  finish(job, "ack")
  return { text = ("x"):rep(100000) }
end

local function told()
  local file = io.open(FOLDER .. "/go")
  return file and file:close()
end

function run.place(job)
  if not told() then note("holds", job.id, job.run, WHO) end
  while not told() and not job:cancelled() do nst.sleep(0.05) end
  return run.ack(job)
end

local kept = {}

-- As C code that leaks does, up to a bound.
function run.leak(job)
  kept[#kept % 3 + 1] = ("x"):rep(4 << 20)
  return run.ack(job)
end

-- What a semaphore may say when everything breaks.
local EXPECTED = { BUSY = true, STALE = true, GONE = true }

-- In a slot of a semaphore. Claimers that are programs of their own have no
-- job:db().
local function in_slot(job, inside)
  local opened, db = pcall(job.db, job)
  if not opened and job:cancelled() then error(db, 0) end -- it is being stopped, by its timeout
  if not opened then return run.ack(job) end
  local ok, message, code = db:semaphore("torture", 3, { timeout = 1 })(function()
    inside(job)
    return true
  end)
  if not ok and not EXPECTED[code] then note("bad", job.id, job.run, "slot-" .. message:gsub("%s", "-")) end
  return run.ack(job)
end

function run.slot(job)
  return in_slot(job, function() nst.sleep(outcomes.pick(20, job.payload.tag, job.run, "inside") / 1000) end)
end

function run.slot_crash(job) return in_slot(job, run.crash) end

-- ------------------------------------------------- what is left on job:db()

-- Ways to leave the session of job:db() other than it was.
local DIRT = { "SET @dirt = 1", "SELECT 1 INTO @dirt", "USE information_schema", "SELECT GET_LOCK('dirt', 0)",
  "SET SESSION sql_mode = 'ANSI', time_zone = '+05:00'", "SET NAMES latin1", "LOCK TABLES torture_still READ",
  "CREATE TEMPORARY TABLE dirt SELECT 1 AS a", "SET TRANSACTION READ ONLY", "SET ROLE NONE", "CALL torture_dirt()",
  "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY" }

local LOOK <const> = [[SELECT CONCAT_WS(' ', DATABASE() = ?, @dirt IS NULL, @@sql_mode LIKE 'STRICT%', @@time_zone,
  @@character_set_client, @@tx_isolation, @@tx_read_only, @@autocommit, IS_USED_LOCK('dirt') <=> CONNECTION_ID(),
  CURRENT_ROLE() IS NULL) AS seen]]
local CLEAN <const> = "1 1 1 +00:00 utf8mb4 READ-COMMITTED OFF ON 0 1"

-- The handle; nil where there is none: in programs that claim, or while the server is away.
local function handle_of(job)
  local opened, db = pcall(job.db, job)
  if not opened and job:cancelled() then error(db, 0) end
  return opened and db or nil
end

-- A push of a handler's, in the journal of pushes like those of programs.
local function push(job, queue, in_doubt)
  local write = journal.writer(FOLDER, "pushes")
  local tag = ("h%d-%d"):format(job.id, job.run)
  write("intend", tag, "handler", 1)
  local id, _, code = queue:push("work", { tag = tag .. ".1", kind = "leaf" }, { backoff = 0.2 })
  if id and in_doubt then
    write("rolled", tag)
  elseif id then
    write("acked", tag, id)
  else
    write(code == "GONE" and "doubt" or "refused", tag, code)
  end
  return id
end

-- It sees a session without dirt, and what it pushes is there whatever other sessions have kept.
function run.clean(job)
  local db = handle_of(job)
  if not db then return run.ack(job) end
  local name = os.getenv "TORTURE_DATABASE"
  local rows = db:execute(LOOK, name)
  if rows and rows[1].seen ~= CLEAN then
    note("bad", job.id, job.run, "session-" .. tostring(rows[1].seen):gsub("%s", "_"))
  end
  if db:execute "SELECT 1 FROM dirt" then note("bad", job.id, job.run, "temporary-table") end
  push(job, db:queue "a")
  return run.ack(job)
end

function run.dirty(job)
  local db = handle_of(job)
  if db then db:execute(DIRT[outcomes.pick(#DIRT, job.payload.tag, job.run, "dirt") + 1]) end
  return run.ack(job)
end

-- A coroutine stays inside db:transaction: the attempt fails, and nothing of it is there.
function run.keeps(job)
  local db = handle_of(job)
  if not db then return run.ack(job) end
  outcomes.kept = coroutine.create(function()
    return db:transaction(function(tx)
      push(job, tx:queue "b", true)
      coroutine.yield "inside"
    end)
  end)
  local _, inside = coroutine.resume(outcomes.kept)
  if inside ~= "inside" then return run.ack(job) end -- the transaction could not be begun
  finish(job, "fail")
  return true
end

--- Runs a job.
-- @tparam Job job with a payload {tag =}
-- @tparam[opt] table instead outcomes of the caller's own, by name
-- @return what a handler returns
function outcomes.run(job, instead)
  local what = plan(job)
  pid = nst.ids()
  local state = job.state or {}
  note("start", job.id, job.run, pid, WHO, state.last or 0, what)
  if state.waits and state.last == job.run - 1 then look(job) end
  return ((instead or {})[what] or run[what])(job, check(job))
end

outcomes.note, outcomes.finish = note, finish

-- The jobs of a batch, one after the other. Errors as planned are verdicts of theirs.
local function run_batch(jobs)
  local key, results = ("%d:%d"):format(jobs[1].id, jobs[1].run), {}
  for _, job in ipairs(jobs) do note("member", job.id, job.run, key, #jobs) end
  for i, job in ipairs(jobs) do
    local ok, result = pcall(outcomes.run, job)
    if not ok then
      if not tostring(result):find "as planned" then error(result, 0) end
      job:fail(result)
    end
    results[i] = ok and type(result) == "table" and result or nil
  end
  return results
end

--- A job of a queue with limits.
function outcomes.limited(job, in_worker)
  return limited.run(job, outcomes.pick(100, tostring(job.id), job.run), FOLDER, in_worker)
end

-- Hosts have this file as their handlers.
if (...):find "%.lua$" then
  return {
    work = { run = function(job) return outcomes.run(job) end, on_dead = deaths.NAME, on_dead_queue = deaths.QUEUE },
    bulk = { batch = 10, within = 0.2, run = run_batch, on_dead = deaths.NAME, on_dead_queue = deaths.QUEUE },
    [deaths.NAME] = function() return true end,
    row = function(job) return torture_rows.run(job, outcomes.pick(100, tostring(job.row), job.run)) end,
    tick = function() return true end,
    [limited.NAME] = function(job) return outcomes.limited(job, true) end,
    latest = function() return true end,
    erased = function() return true end,
  }
end

return outcomes
