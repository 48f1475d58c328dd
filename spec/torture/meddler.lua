--- The verbs from outside, one at a time: cancel, retry, run-now, pause and
-- resume; and a stranger's transaction that holds rows of ours for a while.
-- usage: meddler.lua URL SEED FOLDER; ends when the file `stop` is there. Its
-- lines in `verbs`, a second one after each verb:
--
--   cancel  TIME ID intend|ok|CODE
--   retry   TIME ID RUN OUTCOME intend|ok|CODE    of the end that is undone
--   run_now TIME ID ok|CODE
--   pause   TIME QUEUE ok|CODE

local nightshift = require "nightshift"
local nst = require "nst"
local journal = require "spec.torture.journal"

local url, seed, folder = table.unpack(arg)
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
