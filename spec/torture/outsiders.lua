--- Programs beside hosts, claimers and pushers: outsiders.lua ROLE ARGUMENT…
--
-- Those that change things write what they do into journals of the folder and end when
-- the file `stop` is there, the signaller with `quiet`.

local nightshift = require "nightshift"
local nst = require "nst"
local journal = require "spec.torture.journal"

local roles = {}

-- The verbs from outside, one at a time: cancel, retry, run-now, pause and
-- resume; and a stranger's transaction that holds rows of ours for a while. Its
-- lines in `verbs`, a second one after each verb:
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
