-- What a KILL QUERY cuts may be answered with OK: a DELETE that did nothing, an array-bound
-- one that left off in the middle, a DELETE … RETURNING without its rows. So jobs were given
-- out twice under one token, were done and came again, or stayed for ever, and callers were
-- told "Commands out of sync (2014)".
--
-- NIGHTSHIFT_KILLS=100000 makes the storm longer.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"
local journal = require "spec.torture.journal"
local proc = require "spec.support.proc"

local KILLS = tonumber(os.getenv "NIGHTSHIFT_KILLS") or math.ceil(1000 / proc.limit(1))
local HANDLER = [[
  local journal = require "spec.torture.journal"
  local note
  return { work = function(job)
    note = note or journal.writer(%q, "runs")
    note("claimed", job.id, job.run)
    if job.id %% 5 == 0 and job.run == 1 then return job:again(0.01) end
    return job.run
  end }]]

local PROMISED = { GONE = true, BUSY = true }

describe("a storm of KILL QUERY", function()
  local url, name, folder, members

  before_each(function()
    url, name = db.fresh()
    nightshift.open(url):close()
    folder, members = proc.folder(), {}
  end)

  local function start(role, number)
    local member = proc.start { proc.lua, "spec/support/programs/storm.lua", role, url, folder, number,
      env = { LUA_PATH = "./?.lua;./lua/?.lua;./lua/?/init.lua;;" }, cwd = proc.root }
    members[#members + 1] = member
    return member
  end

  local function codes()
    local seen = {}
    for w in journal.lines(folder, "codes") do
      if not PROMISED[w[1]] then seen[#seen + 1] = table.concat(w, " ") end
    end
    return seen
  end

  local function check_tokens()
    local seen, twice = {}, {}
    for w in journal.lines(folder, "runs") do
      local token = w[1] == "claimed" and w[3] .. ":" .. w[4]
      if token and seen[token] then twice[#twice + 1] = token end
      seen[token or 1] = true
    end
    assert.same({}, twice)
  end

  local function check_pushes()
    local past = {}
    local done = db.sql("SELECT id FROM nightshift_finished WHERE outcome = 'done'", name)
    for id in done:gmatch "%d+" do past[id] = true end
    for w in journal.lines(folder, "pushes") do
      for id in w[3]:gmatch "%d+" do assert.is_true(past[id], "job " .. id .. " was pushed, and is not done") end
    end
  end

  it("loses nothing, doubles nothing, and is told as GONE or BUSY", function()
    local h = host.start(url, HANDLER:format(folder), { "--workers", "2", "--queues", "q" },
      { LUA_PATH = ("%s/?.lua;%s/lua/?.lua;%s/lua/?/init.lua;;"):format(proc.root, proc.root, proc.root) })
    for i = 1, 2 do start("push", i) end
    for i = 1, 3 do start("claim", i) end
    start("kill", KILLS):wait(KILLS / 100 + proc.limit(60))
    assert(io.open(folder .. "/stop", "w")):close()
    for _, member in ipairs(members) do assert.equal(0, member:wait(proc.limit(60)), member:transcript()) end
    local stop = nightshift.clock() + proc.limit(30)
    local live
    repeat
      live = db.sql("SELECT COUNT(*) FROM nightshift_job", name)
    until live == "0" or nightshift.clock() > stop
    h:signal "TERM"
    local status = h:wait(proc.limit(30))
    local _, log = h:text()
    assert.equal("0", live, db.sql("SELECT id, run, unmet, due, waits FROM nightshift_job LIMIT 20", name))
    assert.equal(0, status, log)
    assert.same({}, codes())
    check_tokens()
    check_pushes()
    for _, hot in ipairs { "scheduled", "edge", "met", "signal", "lease", "running", "unique_key" } do
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_" .. hot, name), hot)
    end
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name))
    assert.is_nil(log:find("2014", 1, true))
    assert.is_nil(log:find("event=job.stale", 1, true), log)
  end)
end)
