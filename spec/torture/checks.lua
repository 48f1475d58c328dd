--- The checks beside the journals. They are of large old trees, the places of workers, the logs of
-- hosts, the ticks of a schedule, jobs pushed for dead ones. The audit and run.lua call them.

local nst = require "nst"
local journal = require "spec.support.proc".journal
local proc = require "spec.support.proc"

-- ---------------------------------------------------------------- old trees

-- Large trees that ended long ago, as ballast for prunes: hosts delete them beside all else.
-- Their jobs are not run, so the audit leaves them out (`NAME`) but for one thing. Nothing of a
-- tree goes before what is below it, and in the end all has gone.
local old_tree = {}

--- The name of their jobs.
old_tree.NAME = "ballast"

local CHILDREN <const> = 20000
local FIRST <const> = 1 << 40 -- above all other ids

local planted = 0

--- Plants one, all of it done two days ago. When the server does not take it: none.
function old_tree.plant(cast)
  local root = FIRST + planted * (CHILDREN + 1)
  planted = planted + 1
  pcall(cast.server.sql, cast.server, ([[BEGIN;
    INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls, crashes,
      lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
    SELECT %d + seq, (SELECT MIN(id) FROM nightshift_queue), '%s', '1', 100, 'done', 1, 0, 0, 0, 0, 1, 1, 1, 1, 1,
      (UNIX_TIMESTAMP() - 2 * 86400) * 1000000, IF(seq = 0, NULL, %d), IF(seq = 0, NULL, %d), 'cancel', 1
    FROM seq_0_to_%d;
    INSERT INTO nightshift_child SELECT %d, seq, %d + seq FROM seq_1_to_%d;
    COMMIT]]):format(root, old_tree.NAME, root, root, CHILDREN, root, root, CHILDREN), cast.database)
end

--- Of each one that is there, the top is; `found` gets a kind and a text.
function old_tree.look(db, found)
  local rows = db:execute([[SELECT c.root AS id, COUNT(*) AS n FROM nightshift_finished c
    LEFT JOIN nightshift_finished p ON p.id = c.root
    WHERE c.name = ? AND c.root IS NOT NULL AND p.id IS NULL GROUP BY c.root]], old_tree.NAME)
  for _, row in ipairs(rows or {}) do
    found("half pruned", ("%d jobs of tree %d are there, and its top has gone"):format(row.n, row.id))
  end
end

--- In the end: prunes what is left of them, and looks that nothing is.
function old_tree.finish(db, found)
  local n, message = db:prune { done = "1d" }
  if not n then found("prune", "a prune of old trees said: " .. message) end
  n = assert(db:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE name = ?", old_tree.NAME))[1].n
  if n > 0 then found("left over", n .. " jobs of old trees") end
  n = assert(db:execute("SELECT COUNT(*) AS n FROM nightshift_child WHERE parent >= ?", FIRST))[1].n
  if n > 0 then found("left over", n .. " rows in nightshift_child of old trees") end
end

-- ------------------------------------------------------------------- places

-- Has every host the places of all its workers, after all that it went through? Jobs that last
-- until they are told are pushed, more than hosts claim ahead. Each host has to run as many of
-- them at once as it has workers.
local places = {}

local AHEAD <const> = 70 -- jobs per worker: more than one is ever sent

-- Jobs that are held, by the name of the host.
local function held(folder)
  local by = {}
  for w in journal.lines(folder, "runs") do
    if w[1] == "holds" then by[w[5]] = (by[w[5]] or 0) + 1 end
  end
  return by
end

-- A host that has fewer, or more; nil: none. Those that were told to end do not count, but
-- who takes their places does.
local function wrong(cast)
  local by = held(cast.folder)
  for _, host in ipairs(cast:all "host") do
    if not host.expected and by[host.name] ~= cast.workers then return host, by[host.name] or 0 end
  end
end

--- Looks for `seconds` at most; calls cast:found for who has less, or more.
-- @tparam Cast cast only hosts work any more, and nothing breaks
function places.check(cast, seconds)
  local stop = nst.clock() + proc.limit(seconds)
  local n = AHEAD * #cast:all "host" * cast.workers
  while not cast:push_burst("place", n, "a") and nst.clock() < stop do nst.sleep(0.2) end -- all may take these
  local short, runs
  repeat
    nst.sleep(0.2)
    cast:tend()
    short, runs = wrong(cast)
  until not short or nst.clock() > stop
  if short then
    cast:found("places", "%s runs %d jobs at once, and has %d workers", short.name, runs, cast.workers)
  end
  assert(io.open(cast.folder .. "/go", "w")):close()
end

-- --------------------------------------------------------------------- logs

-- What hosts have logged, as files NAME.err in the folder of a torture. Did one of them find
-- a live job that was nowhere, and mend it? And are all lines of job:log there, but for those
-- that the log says it dropped? Only hosts that came to their
-- end are judged, and only runs with an accepted end: those their host has heard to the end.
local logs = {}

local LAST <const> = 10 -- seconds before a host's end in which its log was always read

-- Lines of job:log by job, and how many of all kinds were dropped; what is no whole line.
local function read(path)
  local seen, dropped, broken = {}, 0, nil
  for line in io.lines(path) do
    local id = line:match "event=job.log id=(%d+)"
    if id then seen[math.tointeger(id)] = (seen[math.tointeger(id)] or 0) + 1 end
    dropped = dropped + (line:match "event=log.dropped lines=(%d+)" or 0)
    if not line:find "^ts=%S+ level=%l+ event=%l+" then broken = line:sub(1, 100) end
  end
  return seen, dropped, broken
end

-- Was it killed, or near its end stopped, or its log not read? One that is stopped while it writes
-- its last lines does not wait for their reader longer. nil: it has not ended, or well.
local function judged(faults)
  local ended, unread
  for _, fault in ipairs(faults or {}) do
    if fault.how == "well" then ended = fault.at end
    if fault.how == "host-STOP" then unread = math.huge end
    if fault.how:find "^reader" or fault.how == "host-CONT" then unread = fault.at end
  end
  return ended and (not unread or unread < ended - LAST)
end

--- Jobs that were mended had been lost.
function logs.mended(folder, found)
  for line in io.popen(("grep -hs 'event=job.mended' '%s'/host*.err"):format(folder)):lines() do
    found("nowhere", "mended: job " .. (line:match "id=(%d+)" or line))
  end
end

--- @tparam string folder
-- @tparam table told host -> {[job] = lines that its accepted runs gave to job:log}
-- @tparam table faults member -> {{at =, how =}, …}
-- @tparam function found gets a kind and a text
function logs.check(folder, told, faults, found)
  for host, jobs in pairs(told) do
    if judged(faults[host]) then
      local seen, dropped, broken = read(("%s/%s.err"):format(folder, host))
      local missing = 0
      for id, n in pairs(jobs) do missing = missing + math.max(0, n - (seen[id] or 0)) end
      if missing > dropped then
        found("log", ("%s: %d lines of its jobs are not in its log, which says that it dropped %d"):format(host,
          missing, dropped))
      end
      if broken then found("log", ("%s: not a line: %s"):format(host, broken)) end
    end
  end
end

-- ------------------------------------------------------------ an adopted table

-- An adopted table in a torture: its rows are worked off by hosts while programs add, take, lock
-- and delete some. In the end rows, jobs and the history have to agree, and nothing is owed.
local rows = {}

--- The name of the jobs.
rows.NAME = "row"

local TABLE <const> = [[CREATE TABLE torture_row (
  id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  status ENUM('open','processing','complete','failed') NOT NULL DEFAULT 'open',
  claimed_by VARCHAR(40) NULL, claimed_at DATETIME(3) NULL, completed_at DATETIME(3) NULL,
  retry_after DATETIME(3) NULL, failures TINYINT UNSIGNED NOT NULL DEFAULT 0, added VARCHAR(40) NOT NULL,
  KEY (status, id))]]

local MAPPING <const> = [[return { table = "torture_row", name = "row",
  status = { column = "status", open = "open", processing = "processing", done = "complete", failed = "failed" },
  claimed_by = "claimed_by", claimed_at = "claimed_at", completed_at = "completed_at", retry_after = "retry_after",
  attempts = "failures", max_attempts = 4, overdue = "8s", backoff = 0.2, max_crashes = 100, timeout = 30 }]]

--- Makes the table, and the file of its mapping, which hosts adopt.
function rows.prepare(db, folder)
  assert(db:execute(TABLE))
  local file <close> = assert(io.open(folder .. "/rows.lua", "w"))
  assert(file:write(MAPPING))
end

--- What the handler does with a row follows from `pick`, a number below 100.
function rows.run(job, pick)
  if pick < 8 then return job:fail("no", { retry_in = 0.1 }) end
  if pick < 12 then return job:again(0.1) end
  if pick < 14 then return job:discard "never" end
  if pick < 15 then os.exit(9, false) end
  if pick < 16 then os.execute "kill -9 $PPID" end
  return pick
end

--- The verbs of a program beside the hosts, by name; each may fail, and no more is known then.
-- `who`: what its rows are claimed by.
rows.verbs = {
  add = function(db, who)
    db:execute("INSERT INTO torture_row (added) SELECT ? FROM seq_1_to_" .. math.random(20), who)
  end,
  take = function(db, who, sleep)
    db:execute([[UPDATE torture_row SET status = 'processing', claimed_by = ?, claimed_at = NOW(3)
      WHERE status = 'open' AND failures < 4 AND claimed_by IS NULL ORDER BY id LIMIT 3]], who)
    sleep(math.random() * 0.3)
    db:execute([[UPDATE torture_row SET status = 'complete', completed_at = NOW(3)
      WHERE status = 'processing' AND claimed_by = ?]], who)
  end,
  lock = function(db, _, sleep)
    pcall(db.transaction, db, function(tx)
      tx:execute "SELECT id FROM torture_row WHERE status = 'processing' ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED"
      sleep(math.random())
      error "no"
    end)
  end,
  delete = function(db)
    db:execute "DELETE FROM torture_row WHERE status IN ('open', 'processing') ORDER BY RAND() LIMIT 1"
  end,
}
rows.NAMES = { "add", "add", "add", "take", "lock", "delete" }

--- Are there rows that hosts have to do, or write?
function rows.left(db)
  return assert(db:execute [[SELECT (SELECT COUNT(*) FROM torture_row
    WHERE status = 'processing' OR status = 'open' AND failures < 4)
    + (SELECT COUNT(*) FROM nightshift_owed) AS n]])[1].n
end

local CHECKS <const> = {
  { "row undone", "SELECT id, status AS what FROM torture_row WHERE status IN ('open', 'processing')" },
  { "row owed", "SELECT row_id AS id, COALESCE(outcome, 'lives') AS what FROM nightshift_owed" },
  { "row kept", "SELECT job_id AS id, ukey AS what FROM nightshift_unique_key WHERE ukey LIKE 'row:%'" },
  { "row done twice", [[SELECT MIN(id) AS id, COUNT(*) AS what FROM nightshift_finished
    WHERE name = 'row' AND outcome = 'done' GROUP BY ukey HAVING COUNT(*) > 1]] },
  { "row without its job", [[SELECT t.id, t.claimed_by AS what FROM torture_row t
    LEFT JOIN nightshift_finished f ON f.id = SUBSTRING(t.claimed_by, 4) AND f.outcome = 'done'
    WHERE t.status = 'complete' AND t.claimed_by LIKE 'ns:%' AND f.id IS NULL]] },
  { "job without its row", [[SELECT f.id, t.status AS what FROM nightshift_finished f
    JOIN torture_row t ON t.id = SUBSTRING_INDEX(f.ukey, ':', -1)
    WHERE f.name = 'row' AND f.outcome = 'done'
    AND NOT (t.status = 'complete' AND t.claimed_by = CONCAT('ns:', f.id))]] },
  { "row failed without a job", [[SELECT t.id, t.failures AS what FROM torture_row t WHERE t.status = 'failed'
    AND t.failures < 4 AND NOT EXISTS (SELECT 1 FROM nightshift_finished f WHERE f.name = 'row'
      AND f.outcome = 'dead' AND SUBSTRING_INDEX(f.ukey, ':', -1) = t.id)]] },
}

--- When all is over; `found` gets a kind and a text. How many rows there were.
function rows.check(db, found)
  for _, check in ipairs(CHECKS) do
    for _, row in ipairs(assert(db:execute(check[2] .. " LIMIT 20"))) do
      found(check[1], ("%d: %s"):format(row.id, row.what))
    end
  end
  return assert(db:execute "SELECT COUNT(*) AS n FROM torture_row")[1].n
end

-- -------------------------------------------------------------------- ticks

-- A schedule in a torture: a tick a second, each of them made up for when it was missed. Hosts
-- push its jobs while they are killed and the server restarts. In the end there are as many jobs
-- as ticks.
local ticks = {}

--- The name of the schedule, and of its jobs.
ticks.NAME = "tick"

local first -- seconds since 1970: its first tick

--- Adds the schedule.
function ticks.prepare(db)
  first = assert(db:schedule { name = ticks.NAME, cron = "* * * * * *", missed = "all",
    push = { ticks.NAME, nil, { queue = "ticks", max_crashes = 100 } } })
end

--- Ends its ticks, so that the rest of its jobs can be worked off. A frozen host may hold the row.
function ticks.finish(db)
  local ok, message
  for _ = 1, 20 do
    ok, message = db:schedule_pause(ticks.NAME)
    if ok then return end
    nst.sleep(1)
  end
  error(message)
end

--- When all is over; `found` gets a kind and a text. How many ticks there were.
function ticks.check(db, found)
  local row = assert(db:schedules())[1]
  if row.error then found("schedule", "it has failed: " .. row.error) end
  local n = assert(db:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE name = ?", ticks.NAME))[1].n
  local want = row.last and math.tointeger(row.last - first) + 1 or 0
  if n ~= want then found("schedule", ("%d ticks have %d jobs"):format(want, n)) end
  return want
end

-- ------------------------------------------------------------------- deaths

-- A job is pushed for each death of a job of the torture, in the commit that writes it. Deaths
-- come from workers and claimers that are killed, from rescues, deadlines and failed children.
local deaths = {}

--- The name of these jobs, and their queue: no program claims from it, only a host.
deaths.NAME, deaths.QUEUE = "death", "deaths"

--- Declares them as a host would, before the first claimer works.
function deaths.prepare(db)
  assert(db._handle:queue_id(deaths.QUEUE, true))
  for _, name in ipairs { "work", "bulk" } do
    assert(db:execute("INSERT INTO nightshift_on_dead (name, on_dead, queue) VALUES (?, ?, ?)", name, deaths.NAME,
      deaths.QUEUE))
  end
end

--- Were they declared?
function deaths.declared(db)
  return #assert(db:execute("SELECT name FROM nightshift_on_dead WHERE on_dead = ?", deaths.NAME)) > 0
end

--- Each death has one job, and each job a death. How many deaths there were.
-- @tparam Database db
-- @tparam table died "ID:RUN" -> true
-- @tparam function found gets a kind and a text
function deaths.check(db, died, found)
  local pushed, n = {}, 0
  for _, row in ipairs(assert(db:execute([[SELECT CONCAT(JSON_VALUE(payload, '$.id'), ':', JSON_VALUE(payload, '$.run'))
      AS death, COUNT(*) AS n FROM nightshift_finished WHERE name = ? GROUP BY death]], deaths.NAME))) do
    pushed[row.death] = row.n
    if not died[row.death] then found("death", ("a job was pushed for %s, which did not die"):format(row.death)) end
  end
  for death in pairs(died) do
    n = n + 1
    if pushed[death] ~= 1 then found("death", ("%d jobs were pushed for %s"):format(pushed[death] or 0, death)) end
  end
  return n
end

-- ------------------------------------------------------------------- limits

-- Jobs of queues with limits: places in all and of groups, which change while jobs run; groups in
-- order; a bound of waiting jobs. They fail, poll, stop their group and end their worker. A run whose
-- verdict was accepted had its place from its start to its end, whatever happened to other runs. So
-- no more of these overlap than may, and in order one ends before the next begins.
--
-- Lines in `limited`, of pushers:
--
--   pushed  TIME ID QUEUE GROUP N          acknowledged; N grows with each push to a group of a queue
--
-- and of handlers:
--
--   start   TIME ID RUN
--   finish  TIME ID RUN VERDICT            just before the verdict is given
local limited = {}

--- The name of the jobs.
limited.NAME = "limited"

local PLACES <const>, OF_GROUP <const>, BOUND <const> = 6, 2, 40 -- the most that is ever set
local QUEUES <const> = { "limited", "ordered" }

local function choose_limit(queue)
  if queue == "ordered" then return { running = math.random(2, PLACES), group = { ordered = true } } end
  return { running = math.random(2, PLACES), backlog = BOUND,
    group = { running = math.random(OF_GROUP), fair = math.random(2) == 1 or nil } }
end

--- Sets the limits.
function limited.prepare(db)
  for _, queue in ipairs(QUEUES) do assert(db:queue(queue):limit(choose_limit(queue))) end
end

--- What a pusher does: some jobs, and now and then a cancel or another limit. Groups in order are
-- those of one pusher, so it knows their order. Gives the code of a failure.
-- @tparam Database db
-- @tparam string who the pusher
-- @tparam integer n grows from call to call
-- @tparam function note of journal.writer
function limited.push(db, who, n, note)
  local queue = QUEUES[math.random(2)]
  if math.random(30) == 1 then return (select(3, db:queue(queue):limit(choose_limit(queue)))) end
  local group = queue == "ordered" and ("%s-%d"):format(who, math.random(2)) or "g" .. math.random(4)
  for i = 1, math.random(10) do
    local id, _, code = db:queue(queue):push(limited.NAME, { n = n },
      { group = group, backoff = 0.1, max_attempts = 3, max_crashes = 100, timeout = 30 })
    if not id then return code end
    note("pushed", id, queue, group, n + i / 100)
    if math.random(15) == 1 then db:cancel(id) end
  end
end

--- The handler. What it does with a job follows from `pick`, a number below 100. In a worker some end
-- their process.
function limited.run(job, pick, folder, in_worker)
  local note = journal.writer(folder, "limited")
  note("start", job.id, job.run)
  nst.sleep(pick / 5000)
  if pick < 2 and in_worker then os.exit(9, false) end
  if pick < 3 and in_worker then os.execute "kill -9 $PPID" end
  note("finish", job.id, job.run, pick < 10 and "fail" or pick < 16 and "again" or "ack")
  if pick < 10 then return job:fail("no", { retry_in = 0.1 }) end
  if pick < 13 then return job:again(0.05) end
  if pick < 16 then return job:again { retry_after = 0.3, stop = "group" } end
  return job:ack()
end

local WAITING <const> = [[SELECT COUNT(*) AS n FROM (SELECT queue_id, job_id FROM nightshift_ready WHERE job_id > 0
  UNION SELECT queue_id, job_id FROM nightshift_backlog) w JOIN nightshift_queue q ON q.id = w.queue_id
  WHERE q.name = ?]]

--- At any moment: no more jobs wait than may, but for those that came back, and for pushes that have
-- counted at the same time.
function limited.look(db, found)
  local counted = db:execute(WAITING, QUEUES[1])
  local n = counted and counted[1].n or 0
  if n > 2 * BOUND then found("bound", ("%d jobs wait, where %d may"):format(n, BOUND)) end
end

--- What was written down: id -> {queue =, group =, n =, runs = {[run] = {from =, to =}}}.
local function read_limited(folder)
  local jobs = {}
  local function run_of(w)
    local job = jobs[math.tointeger(w[3])] or { runs = {} }
    jobs[math.tointeger(w[3])] = job
    local run = job.runs[math.tointeger(w[4])] or {}
    job.runs[math.tointeger(w[4])] = run
    return run
  end
  for w in journal.lines(folder, "limited") do
    if w[1] == "start" then
      run_of(w).from = w[2]
    elseif w[1] == "finish" then
      run_of(w).to = w[2]
    else
      local id = math.tointeger(w[3])
      jobs[id] = jobs[id] or { runs = {} }
      jobs[id].queue, jobs[id].group, jobs[id].n = w[4], w[5], tonumber(w[6])
    end
  end
  return jobs
end

--- Marks the runs whose verdicts were accepted, and the ends of jobs.
local function read_ends(db, jobs, found)
  for _, row in ipairs(assert(db:execute("SELECT id, outcome, run FROM nightshift_finished WHERE name = ?",
      limited.NAME))) do
    local job = jobs[row.id]
    if job then
      local run = job.runs[row.run]
      job.outcome = row.outcome
      if run and row.outcome == "done" then
        run.accepted = true
        job.ended = run.to
      end
      if row.outcome == "done" and not (run and run.to) then
        found("effect", ("job %d is done with run %d, which did not finish"):format(row.id, row.run))
      end
    end
  end
  for _, row in ipairs(assert(db:execute([[SELECT a.job_id AS id, a.run FROM nightshift_attempt a
      JOIN nightshift_finished f ON f.id = a.job_id WHERE f.name = ? AND a.kind = 'failed']], limited.NAME))) do
    local run = jobs[row.id] and jobs[row.id].runs[row.run]
    if run and run.to then run.accepted = true end
  end
end

--- Do more runs of a key overlap than may? `key` gives the key of a job; nil: it has none.
local function check_places(jobs, most, what, key, found)
  local events, now = {}, {}
  for id, job in pairs(jobs) do
    local of = key(job)
    for number, run in pairs(of and job.runs or {}) do
      if run.accepted and run.from then
        events[#events + 1] = { at = run.from, step = 1, of = of, id = id, run = number }
        events[#events + 1] = { at = run.to, step = -1, of = of }
      end
    end
  end
  table.sort(events, function(a, b)
    if a.at ~= b.at then return a.at < b.at end
    return a.step < b.step
  end)
  for _, event in ipairs(events) do
    now[event.of] = (now[event.of] or 0) + event.step
    if now[event.of] > most(event.of) then
      found("place", ("run %d of job %d is number %d at once of %s %s"):format(event.run, event.id, now[event.of],
        what, event.of))
    end
  end
  return #events // 2
end

--- In an ordered group no job starts before the ones pushed before it have ended.
local function check_limited_order(jobs, found)
  local groups, n = {}, 0
  for id, job in pairs(jobs) do
    if job.queue == "ordered" then
      groups[job.group] = groups[job.group] or {}
      table.insert(groups[job.group], { id = id, n = job.n, job = job })
    end
  end
  for name, list in pairs(groups) do
    table.sort(list, function(a, b) return a.n < b.n end)
    local ended, by = 0, nil
    for _, item in ipairs(list) do
      for number, run in pairs(item.job.runs) do
        if run.from and run.from < ended then
          found("order", ("run %d of job %d began before job %d had ended, in group %s"):format(number, item.id, by,
            name))
        end
      end
      if (item.job.ended or 0) > ended then ended, by = item.job.ended, item.id end
      n = n + 1
    end
  end
  return n
end

--- Nothing is left when the limits end; places that dead holders have left go with claims.
local function check_nothing_left(db, found)
  for _, queue in ipairs(QUEUES) do
    for _ = 1, 50 do db:queue(queue):claim() end
    local grants = assert(db:execute([[SELECT COUNT(*) AS n FROM nightshift_grant
      WHERE queue_id = (SELECT id FROM nightshift_queue WHERE name = ?)]], queue))[1].n
    if grants > 0 then found("left over", ("%d places of queue %s"):format(grants, queue)) end
    assert(db:queue(queue):limit(nil))
  end
  for _, name in ipairs { "limit", "group", "backlog", "grant" } do
    local n = assert(db:execute("SELECT COUNT(*) AS n FROM nightshift_" .. name))[1].n
    if n > 0 then found("left over", ("%d rows in nightshift_%s"):format(n, name)) end
  end
end

--- When all is over; `found` gets a kind and a text. How many jobs there were, and runs with a place.
function limited.check(db, folder, found)
  local jobs, n = read_limited(folder), 0
  read_ends(db, jobs, found)
  for id, job in pairs(jobs) do
    if job.queue then
      n = n + 1
      if not job.outcome then found("lost", ("job %d of queue %s is not in the history"):format(id, job.queue)) end
    end
  end
  local runs = check_places(jobs, function() return PLACES end, "queue", function(job) return job.queue end, found)
  check_places(jobs, function(of) return of:find "^g" and OF_GROUP or 1 end, "group",
    function(job) return job.group end, found)
  check_limited_order(jobs, found)
  check_nothing_left(db, found)
  return n, runs
end

return { deaths = deaths, limited = limited, logs = logs, old_tree = old_tree, places = places, rows = rows,
  ticks = ticks }
