--- Who takes part in a storm of KILL QUERY (`spec/core/cut_spec.lua`). usage: storm.lua ROLE URL FOLDER NUMBER;
-- each ends when the file `stop` is there, the killer when it has killed NUMBER times. Lines:
--
--   pushes  pushed  TIME IDS                  the answer was yes
--   runs    claimed TIME ID RUN | ended TIME ID VERDICT
--   codes   CODE TIME VERB MESSAGE            what was answered instead

local nightshift = require "nightshift"
local nst = require "nst"
local journal = require "spec.torture.journal"

local role, url, folder, number = table.unpack(arg)
math.randomseed(tonumber(number))
local codes, runs = journal.writer(folder, "codes"), journal.writer(folder, "runs")
local pushes = journal.writer(folder, "pushes")
local db

local function stopping()
  local file = io.open(folder .. "/stop")
  return file and file:close()
end

local function told(verb, ok, message, code)
  if not ok and code then codes(code, verb, (message:gsub("%s", "-"))) end
  return ok, message, code
end

-- Until it is known what became of it; STALE and the like are the end of it.
local function insist(verb, fn)
  local ok, _, code
  repeat ok, _, code = told(verb, fn()) until ok or (code ~= "GONE" and code ~= "BUSY")
  return ok, code
end

local roles = {}

local OPTIONS = { max_polls = 5, backoff = 0.05, max_attempts = 5 }

function roles.push()
  local q = db:queue "q"
  while not stopping() do
    local n = math.random(20)
    local items = {}
    for i = 1, n do items[i] = { "work", i, { delay = i % 7 == 0 and 0.05 or nil, backoff = OPTIONS.backoff } } end
    local ids
    if n == 1 then
      ids = { (told("push", q:push("work", 1, OPTIONS))) }
    else
      ids = told("push_many", q:push_many(items)) or {}
    end
    if #ids > 0 then pushes("pushed", table.concat(ids, ",")) end
    nst.sleep(math.random() * 0.02)
  end
end

-- What becomes of a run.
local function settle(job)
  local what = job.phase == 0 and (job.id * 31 + job.run) % 10 or 9
  if job.run > 3 or what > 3 then
    return "ack", function() return job:ack() end
  elseif what == 0 then
    return "again", function() return job:again(0.02) end
  elseif what == 1 then
    return "fail", function() return job:fail("as planned", { retry_in = 0.02 }) end
  elseif what == 2 and job.payload ~= 0 then
    for _ = 1, 3 do
      if not job:spawn("work", 0) then return "release", function() return job:release() end end
    end
    return "ack", function() return job:ack() end
  end
  return "wait", function() return job:wait { signal = "go" } end
end

local function send(id)
  return insist("signal", function() return db:signal(id, 1, "go") end)
end

function roles.claim()
  local q = db:queue "q"
  repeat
    local jobs = told("claim", q:claim_many(math.random(12), { wait = 0.1 })) or {}
    for _, job in ipairs(jobs) do runs("claimed", job.id, job.run) end
    for _, job in ipairs(jobs) do
      local verdict, give = settle(job)
      local ok, code = insist(verdict, give)
      runs("ended", job.id, ok and verdict or code)
      if verdict == "wait" then send(job.id) end
    end
  until #jobs == 0 and stopping()
end

function roles.kill()
  local n, most = 0, tonumber(number)
  while n < most do
    local list = assert(db:execute [[SELECT id FROM information_schema.processlist
      WHERE db = DATABASE() AND id <> CONNECTION_ID()]])
    for _ = 1, 100 do
      if #list > 0 and db:execute("KILL QUERY " .. list[math.random(#list)].id) then n = n + 1 end
      nst.sleep(math.random() * 0.002)
    end
  end
  runs("killed", n)
end

repeat
  db = nightshift.open(url)
until db
roles[role]()
db:close()
