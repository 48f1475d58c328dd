--- An embedded claimer: a plain Lua program that claims by itself, one job or
-- many, acks now and then in a transaction with a row of its own, and dies as
-- its jobs tell it. usage: claimer.lua URL SEED, with the environment of
-- outcomes.lua. Ends when the file `stop` is in the folder.
--
--   lease  TIME ID RUN SECONDS                in `runs`: a claim that runs out
--   answer TIME ID RUN VERDICT ok|CODE        what the verb said

local nightshift = require "nightshift"
local nst = require "nst"
local journal = require "spec.torture.journal"
local outcomes = require "spec.torture.outcomes"

local url, seed = arg[1], arg[2]
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
    outcomes.note("lease", claimed.id, claimed.run, options.lease)
  end
  return jobs or {}, message
end

local function stopping()
  local file = io.open(folder .. "/stop")
  return file and file:close()
end

local queues = { "a", "b", "c" }
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
