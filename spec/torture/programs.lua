--- The programs of a torture beside its hosts: programs.lua ROLE ARGUMENT…
--
-- They write their actions into journals of the folder and end when the file `stop` is there,
-- the signaller with `quiet`.

local nightshift = require "nightshift"
local nst = require "nst"
local journal = require "spec.support.proc".journal

local roles = {}

-- An embedded claimer: a plain Lua program that claims by itself, one job or many. It acks now
-- and then in a transaction with a row of its own, and dies as its jobs tell it. It has the
-- environment of outcomes.lua.
--
--   lease  TIME ID RUN SECONDS                in `runs`: a claim that runs out
--   answer TIME ID RUN VERDICT ok|CODE        what the verb said
function roles.claimer(url, seed)
  local outcomes = require "spec.torture.outcomes"

  local folder = os.getenv "TORTURE_FOLDER"
  math.randomseed(tonumber(seed))

  local db

  local function open()
    while not (db and db:is_open()) do
      db = nightshift.open(url)
      if not db then nst.sleep(0.2) end
    end
  end

  local function answer(job, verdict, ok, code)
    outcomes.note("answer", job.id, job.run, verdict, ok and "ok" or code or "NONE")
  end

  -- BUSY and GONE: the same again.
  local function insist(fn)
    local tries = 0
    local ok, message, code
    repeat
      tries = tries + 1
      ok, message, code = fn()
    until ok or tries == 20 or code ~= "BUSY" and code ~= "GONE"
    return ok, message, code
  end

  -- The ack and a row of ours in one commit. A verb that is refused raises, so
  -- that the row is not written either.
  local function ack_with_row(job, result)
    local code
    local ran, ok, _, why = pcall(db.transaction, db, function(tx)
      local wrote, _, refused = tx:execute("INSERT INTO torture_effect (job_id, run) VALUES (?, ?)", job.id, job.run)
      if wrote then wrote, _, refused = job:ack(result) end
      code = refused
      if not wrote then error "refused" end
      if math.random(4) == 1 then nst.sleep(math.random() * 0.5) end
      return true
    end)
    return ran and ok, code or why
  end

  -- The verbs tell what came of them.
  local function listen(job)
    local methods = getmetatable(job).methods
    for _, verb in ipairs { "again", "discard", "release", "fail", "wait" } do
      job[verb] = function(self, ...)
        local given = table.pack(...)
        local ok, _, code = insist(function() return methods[verb](self, table.unpack(given, 1, given.n)) end)
        self.answered = true
        answer(self, verb, ok, code)
      end
    end
  end

  local function ack(job, result)
    if math.random(3) == 1 then
      answer(job, "ack", ack_with_row(job, result))
    else
      local ok, _, code = insist(function() return job:ack(result) end)
      answer(job, "ack", ok, code)
    end
  end

  local INSTEAD = {
    exit = function() os.exit(3, false) end,
    hang = function(job)
      nst.sleep(2)
      outcomes.finish(job, "ack")
    end,
  }

  -- A program that dies is a dead holder: only where those are asked for.
  local faults = os.getenv "TORTURE_FAULTS"
  if not (faults == "all" or faults:find "host") then
    INSTEAD.crash, INSTEAD.wait_crash, INSTEAD.exit = INSTEAD.hang, INSTEAD.hang, INSTEAD.hang
  end

  local function work(job)
    if job.name == "limited" then return (insist(function() return outcomes.limited(job) end)) end
    listen(job)
    local ok, result = pcall(outcomes.run, job, INSTEAD)
    if job.answered then return end
    if ok then ack(job, result) else job:fail(result) end
  end

  -- Some claims run out: with many jobs, or one that takes long, before its end.
  local function claim(q)
    local options = { wait = 0.5, lease = math.random(5) == 1 and math.random(2) or nil }
    local jobs, job, message
    if math.random(2) == 1 then
      job, message = q:claim(options)
      jobs = { job }
    else
      jobs, message = q:claim_many(math.random(20), options)
    end
    for _, claimed in ipairs(options.lease and jobs or {}) do
      if claimed.name ~= "limited" then outcomes.note("lease", claimed.id, claimed.run, options.lease) end
    end
    return jobs or {}, message
  end

  local function stopping()
    local file = io.open(folder .. "/stop")
    return file and file:close()
  end

  local queues = { "a", "b", "c", "limited", "ordered" }
  while not stopping() do
    open()
    local jobs, message = claim(assert(db:queue(queues[math.random(#queues)])))
    if message then nst.sleep(0.1) end
    for i, job in ipairs(jobs) do
      work(job)
      if i > 1 and math.random(30) == 1 then break end -- the rest goes back with the handle
    end
    if math.random(40) == 1 then db:close() end
    if math.random(40) == 1 then
      db, jobs = nil, nil -- luacheck: ignore 311
      collectgarbage()
    end
  end
  open()
  local count = journal.writer(folder, "counters")
  local words = {}
  for name, value in pairs(db:stats() and db:stats().counters or {}) do words[#words + 1] = name .. "=" .. value end
  count("claimer", table.unpack(words))
  db:close()
end

-- A pusher: single pushes, bulk, in transactions (some left open for a while,
-- some rolled back), and from SQL. Its lines in `pushes`:
--
--   intend  TIME TAG HOW N       before anything is sent; jobs are tagged TAG.1 … TAG.N
--   acked   TIME TAG IDS         durable from here on
--   refused TIME TAG CODE        nothing of it may be there
--   rolled  TIME TAG             nor of this
--   doubt   TIME TAG CODE        all or nothing
function roles.pusher(url, seed, folder, name)
  math.randomseed(tonumber(seed))
  local note = journal.writer(folder, "pushes")
  local queues = { "a", "b", "c" }
  local db, number = nil, 0

  local function some(n, p) return math.random() < p and math.random() * n or nil end

  --- No key, one for as long as its job lives, or one with a period of 2 s.
  local function unique()
    local at = math.random()
    if at < 0.1 then return "key " .. math.random(30) end
    if at < 0.15 then return { key = "held " .. math.random(5), period = 2 } end
  end

  local function options()
    return {
      delay = some(2, 0.2), priority = math.random() < 0.3 and math.random(80, 130) or nil,
      unique = unique(),
      backoff = 0.2, max_attempts = math.random(2, 4), timeout = 3, max_polls = math.random(6), max_crashes = 3,
    }
  end

  local function item(tag, i) return { "work", { tag = tag .. "." .. i }, options() } end

  -- The last job that certainly exists, which other jobs are made to wait for.
  local known

  local function after(tag)
    local _, payload, opts = table.unpack(item(tag, 1))
    payload.after, opts.after, opts.on_fail = known, known and { known }, some(1, 0.5) and "run" or nil
    local id, _, code = db:queue(queues[math.random(3)]):push("work", payload, opts)
    return id and { id }, code
  end

  --- Pushes, and repeats by their ids what may have been written: for a while, and not always.
  local function repeated(push, items)
    local ids, code, given = push(items)
    for _ = 1, math.random(0, 40) do
      if code ~= "GONE" or not given then break end
      nst.sleep(0.1)
      for i, job in ipairs(items) do job[3].id = given[i] end
      ids, code = push(items)
    end
    return ids, code
  end

  local function one(tag)
    local queue = queues[math.random(3)]
    return repeated(function(items)
      local id, _, code, given = db:queue(queue):push(table.unpack(items[1]))
      return id and { id }, code, given and { given }
    end, { item(tag, 1) })
  end

  local function bulk(tag, n)
    local items, queue = {}, queues[math.random(3)]
    for i = 1, n do items[i] = item(tag, i) end
    return repeated(function(list)
      local ids, _, code, given = db:queue(queue):push_many(list)
      return ids, code, given
    end, items)
  end

  -- A row of ours and n jobs in one commit.
  local function transaction(tag, n, how)
    local ids, code = {}, nil
    local ran, ok, _, why = pcall(db.transaction, db, function(tx)
      local wrote, _, refused = tx:execute("INSERT INTO torture_note (tag) VALUES (?)", tag)
      for i = 1, n do
        if wrote then wrote, _, refused = tx:queue(queues[math.random(3)]):push(table.unpack(item(tag, i))) end
        ids[i], code = wrote, refused
      end
      if not wrote then error "refused" end
      if how == "slow" or how == "rolled" and math.random(2) == 1 then nst.sleep(math.random() * 2) end
      if how == "rolled" then error "rolled back" end
      return true
    end)
    if how == "rolled" and not code then return nil, "ROLLED" end
    return ran and ok and ids, code or why
  end

  -- In a transaction: by itself the call is several.
  local function sql_after(tag)
    local payload = assert(nightshift.encode { tag = tag .. ".1", after = known })
    local id, code
    local ran, ok, _, why = pcall(db.transaction, db, function(tx)
      local opts = options()
      opts.max_polls, opts.after, opts.on_fail = nil, known and { known }, some(1, 0.5) and "run" or nil
      local called, _, refused = tx:execute("CALL nightshift_push(?, ?, ?, ?)", queues[math.random(3)], "work", payload,
        (assert(nightshift.encode(opts))))
      local rows = called and tx:execute "SELECT @nightshift_id AS id"
      id, code = rows and rows[1].id, refused
      if not id then error "refused" end
      return true
    end)
    return ran and ok and { id }, code or why
  end

  -- One statement of its own, committed by itself.
  local function sql(tag)
    local payload = assert(nightshift.encode { tag = tag .. ".1" })
    local _, opts = nil, options()
    opts.max_polls = nil
    local ok, _, code = db:execute("CALL nightshift_push(?, ?, ?, ?)", queues[math.random(3)], "work", payload,
      assert(nightshift.encode(opts)))
    if not ok then return nil, code == "BUSY" and "GONE" or code end -- cut behind its last row, it is there
    local rows = db:execute "SELECT @nightshift_id AS id"
    db:execute "CALL nightshift_ring()"
    local id = rows and rows[1].id
    return id and { id }, not id and "GONE" or nil -- it is there, under an id that was not read
  end

  local note_latest = journal.writer(folder, "latest")

  -- In the place of the last that has not begun, or behind the one that runs.
  local function latest()
    local id, _, code = db:queue("ticks"):push("latest", number,
      { unique = { key = "latest " .. math.random(2), on_conflict = "replace" }, delay = some(2, 0.3), backoff = 0.2,
        max_crashes = 100 })
    if id then note_latest("acked", id) end
    return code
  end

  local note_erased = journal.writer(folder, "erased")

  -- A job that is deleted while it waits, or when it has ended; a claim that comes first keeps it.
  local function erased()
    local id, _, code = db:queue("ticks"):push("erased", number,
      { delay = some(1, 0.5), backoff = 0.2, tags = { "erased" }, max_crashes = 100 })
    if not id then return code end
    note_erased("acked", id)
    nst.sleep(math.random() * 0.5)
    note_erased("delete", id, "intend")
    local ok
    ok, _, code = db:delete(id)
    note_erased("delete", id, ok and "ok" or code or "NONE")
    return code
  end

  local limits, note_limited = require("spec.torture.checks").limited, journal.writer(folder, "limited")

  local function limited()
    number = number + 1
    return limits.push(db, name, number, note_limited)
  end

  local HOW = {
    { "one", 10, function(tag) return one(tag) end }, { "bulk", 2, bulk }, { "transaction", 3, transaction },
    { "slow", 1, transaction }, { "rolled", 1, transaction }, { "sql", 2, sql },
    { "after", 4, after }, { "sql_after", 2, sql_after },
  }

  local function choose()
    local at = math.random(25)
    for _, how in ipairs(HOW) do
      at = at - how[2]
      if at <= 0 then return how end
    end
  end

  local DOUBT = { GONE = true }

  local function push()
    local how = choose()
    local n = how[1] == "bulk" and math.random(2, 30) or how[3] == transaction and math.random(3) or 1
    number = number + 1
    local tag = ("%s.%d"):format(name, number)
    note("intend", tag, how[1], n)
    local ids, code = how[3](tag, n, how[1])
    if ids then
      known = ids[#ids]
      note("acked", tag, table.concat(ids, ","))
    elseif code == "ROLLED" then note("rolled", tag)
    else note(DOUBT[code] and "doubt" or "refused", tag, code or "NONE") end
    return code
  end

  local function stopping()
    local file = io.open(folder .. "/stop")
    return file and file:close()
  end

  while not stopping() do
    if not db then
      db = nightshift.open(url)
      if not db then nst.sleep(0.2) end
    elseif (math.random(15) == 1 and latest or math.random(15) == 1 and erased or math.random(3) == 1 and limited
        or push)() == "GONE" then
      nst.sleep(0.1)
    else
      nst.sleep(math.random() * 0.1)
    end
  end
  local words = {}
  local stats = db and db:stats()
  for key, value in pairs(stats and stats.counters or {}) do words[#words + 1] = key .. "=" .. value end
  journal.writer(folder, "counters")("pusher", table.unpack(words))
end

-- The verbs from outside, one at a time: cancel, retry, run-now, pause and resume. And a
-- stranger's transaction that holds rows of ours for a while. Its lines in `verbs`, a second
-- one after each verb:
--
--   cancel  TIME ID intend|ok|CODE
--   retry   TIME ID RUN OUTCOME intend|ok|CODE    of the end that is undone
--   run_now TIME ID ok|CODE
--   pause   TIME QUEUE ok|CODE
function roles.meddler(url, seed, folder)
  math.randomseed(tonumber(seed))
  local note = journal.writer(folder, "verbs")
  local queues = { "a", "b", "c" }
  local db
  local ids = {} -- the last that were acknowledged

  local pushes

  local function learn()
    pushes = pushes or io.open(folder .. "/pushes", "rb")
    for line in pushes and pushes:lines() or function() end do
      local tag, list = line:match "^acked %S+ (%S+) (%S+)$"
      if tag and tag:find "^tree" then list = nil end -- the pruner's
      for id in (list or ""):gmatch "%d+" do
        if #ids >= 500 then ids[math.random(500)] = math.tointeger(id) else ids[#ids + 1] = math.tointeger(id) end
      end
    end
  end

  local function any() return ids[math.random(#ids)] end

  local function result(ok, code) return ok and "ok" or code or "NONE" end

  local verbs = {}

  function verbs.cancel()
    local id = ids[#ids - math.random(0, math.min(10, #ids - 1))]
    note("cancel", id, "intend")
    local ok, _, code = db:cancel(id)
    note("cancel", id, result(ok, code))
  end

  function verbs.retry()
    local id = any()
    local info = db:job(id)
    if not info or not info.finished_at then return end
    note("retry", id, info.run, info.state, "intend")
    local ok, _, code = db:retry(id)
    note("retry", id, info.run, info.state, result(ok, code))
  end

  function verbs.run_now()
    local id = any()
    local ok, _, code = db:run_now(id)
    note("run_now", id, result(ok, code))
  end

  function verbs.pause()
    local q = assert(db:queue(queues[math.random(3)]))
    local ok, _, code = q:pause()
    note("pause", q.name, result(ok, code))
    nst.sleep(math.random() * 1.5)
    repeat
      ok, _, code = q:resume()
      if not ok then nst.sleep(0.1) end
    until ok or code == "NOT_FOUND"
  end

  -- A stranger's transaction; its rows are skipped, never waited for.
  function verbs.hold()
    pcall(db.transaction, db, function(tx)
      tx:execute("SELECT id FROM nightshift_job ORDER BY id DESC LIMIT 5 FOR UPDATE SKIP LOCKED")
      tx:execute("SELECT job_id FROM nightshift_ready WHERE job_id > 0 LIMIT 5 FOR UPDATE SKIP LOCKED")
      nst.sleep(math.random() * 2)
      error "no"
    end)
  end

  local NAMES = { "cancel", "cancel", "cancel", "retry", "retry", "run_now", "run_now", "pause", "hold" }

  local function stopping()
    local file = io.open(folder .. "/stop")
    return file and file:close()
  end

  while not stopping() do
    db = db or nightshift.open(url)
    learn()
    if db and #ids > 0 then verbs[NAMES[math.random(#NAMES)]]() end
    nst.sleep(math.random() * 0.1)
  end
end

-- Prunes while everything runs: trees of its own as soon as they have ended, and what is
-- old (checks.lua plants it). Its lines in `pushes` are those of a pusher, with `tree` for
-- how, and in `verbs`:
--
--   prune  TIME ROOT intend|ok|CODE     of the whole tree; 0: of what is old
function roles.pruner(url, seed, folder, name)
  math.randomseed(tonumber(seed))
  local pushes, verbs = journal.writer(folder, "pushes"), journal.writer(folder, "verbs")
  local CHILDREN <const> = 1000 -- most of a tree
  local db, number = nil, 0

  local function stopping()
    local file = io.open(folder .. "/stop")
    return file and file:close()
  end

  local function node(tag, i)
    return { name = "work", queue = "b", payload = { tag = ("%s.%d"):format(tag, i), kind = "leaf" }, backoff = 0.2,
      timeout = 30, max_attempts = 50, max_crashes = 50, on_fail = "run" }
  end

  -- A tree's ids, its root first; nil when it may not be there.
  local function push()
    number = number + 1
    local tag, n = ("tree.%s.%d"):format(name, number), math.random(CHILDREN)
    local root = node(tag, 1)
    root.children = {}
    for i = 1, n do root.children[i] = node(tag, i + 1) end
    pushes("intend", tag, "tree", n + 1)
    local id, ids, code = db:flow(root)
    if not id then
      pushes(code == "GONE" and "doubt" or "refused", tag, code or "NONE")
      return nil
    end
    local list = { id }
    for i, child in ipairs(ids.children) do list[i + 1] = child.id end
    pushes("acked", tag, table.concat(list, ","))
    return id
  end

  -- GONE and BUSY are no answers: the same again, over what is left.
  local function prune(id, options)
    verbs("prune", id, "intend")
    local n, code, _
    repeat
      n, _, code = db:prune(options)
      local later = code == "GONE" or code == "BUSY"
      if later then nst.sleep(0.1) end
    until not later
    verbs("prune", id, n and "ok" or code or "NONE")
  end

  local function ended(id)
    local job
    while not (job and job.finished_at) and not stopping() do
      nst.sleep(0.1)
      job = db:job(id)
    end
    return job and job.finished_at
  end

  while not stopping() do
    db = db or nightshift.open(url)
    local id = db and push()
    if id and ended(id) then
      prune(id, { tree = id })
      prune(0, { done = "1d" })
    else
      nst.sleep(0.2)
    end
  end
end

-- Signals the jobs that ask for it, also before they wait, until it has an answer. A line
-- in `verbs` each:
--
--   signal  TIME ID RUN ok|CODE
function roles.signaller(url, folder)
  local note = journal.writer(folder, "verbs")
  local db
  local told = {} -- "ID RUN" of those that have an answer
  local runs

  for w in journal.lines(folder, "verbs") do
    if w[1] == "signal" then told[w[3] .. " " .. w[4]] = true end
  end

  -- The same again until the server has said something.
  local function signal(id, run)
    local ok, code, _
    repeat
      db = db or nightshift.open(url)
      if db then ok, _, code = db:signal(id, run, "go") end
      local later = not db or code == "GONE" or code == "BUSY"
      if later then nst.sleep(0.1) end
    until not later
    note("signal", id, run, ok and "ok" or code or "NONE")
  end

  local function look()
    runs = runs or io.open(folder .. "/runs", "rb")
    for line in runs and runs:lines() or function() end do
      local id, run = line:match "^asks %S+ (%d+) (%d+)$"
      if id and not told[id .. " " .. run] then
        told[id .. " " .. run] = true
        signal(math.tointeger(id), math.tointeger(run))
      end
    end
  end

  local function stopping()
    local file = io.open(folder .. "/quiet")
    return file and file:close()
  end

  while not stopping() do
    look()
    nst.sleep(0.05)
  end
end

-- Beside the hosts: adds rows to the adopted table, takes, locks and deletes some.
function roles.owner(url, seed, folder, name)
  math.randomseed(tonumber(seed))
  local rows = require("spec.torture.checks").rows
  local db

  local function stopping()
    local file = io.open(folder .. "/stop")
    return file and file:close()
  end

  while not stopping() do
    db = db and db:is_open() and db or nightshift.open(url)
    if db then rows.verbs[rows.NAMES[math.random(#rows.NAMES)]](db, name, nst.sleep) end
    nst.sleep(math.random() * 0.2)
  end
end

-- Reads a host's log as a serial console does: 100 KB a second. Writes to its standard
-- output what it has read, line by line, and ends with the log.
function roles.reader(pipe)
  local RATE <const> = 100 * 1024 -- bytes a second
  local STEP <const> = 0.1 -- seconds between two looks

  local n = 0
  for line in assert(io.open(pipe)):lines "L" do
    io.stdout:write(line)
    io.stdout:flush()
    n = n + #line
    if n > RATE * STEP then
      n = 0
      nst.sleep(STEP)
    end
  end
end

roles[arg[1]](table.unpack(arg, 2))
