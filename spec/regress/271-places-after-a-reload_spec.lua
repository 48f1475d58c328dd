-- After a reload the jobs of workers that were to leave still took the places of those
-- that had come for them: with half of the workers busy nothing was claimed any more
-- until a long job ended, while new workers sat idle. Each further reload added to it,
-- and so did a worker that did not stop when its job was to end.

local host = require "spec.support.host"

local SCRIPT = [[
  local function sleep() os.execute "sleep 600" end
  return { short = function() end, long = sleep }]]

local url, handle, q
with_database(function(...) handle, q, url = ... end)

local function running(n)
  eventually(function()
    return handle:execute("SELECT COUNT(*) AS n FROM nightshift_running")[1].n == n
  end, 20)
end

local function reload(h, times)
  h:signal "HUP"
  h:wait_line("event=reload.done", 20, times)
end

--- Five short jobs are done while long ones run.
local function serves()
  local ids = {}
  for i = 1, 5 do ids[i] = assert(q:push("short", i)) end
  eventually(function()
    for _, id in ipairs(ids) do
      if handle:job(id).state ~= "done" then return false end
    end
    return true
  end)
end

local function stop(h)
  h:signal "QUIT"
  h:wait(20)
end

describe("a host with long jobs in the workers of old scripts", function()
  it("has the places of its new workers", function()
    local h = host.start(url, SCRIPT, { "--workers", "4" })
    for i = 1, 2 do assert(q:push("long", i)) end
    running(2)
    reload(h, 1)
    serves()
    stop(h)
  end)

  it("has them after one reload per long job, too", function()
    local h = host.start(url, SCRIPT, { "--workers", "8" })
    for i = 1, 5 do
      assert(q:push("long", i))
      running(i)
      reload(h, i)
    end
    serves()
    stop(h)
  end)

  it("has those of reserved workers", function()
    local h = host.start(url, SCRIPT, { "--workers", "6", "--reserve", "q=2" })
    for _, queue in ipairs { "q", "other", "other" } do assert(handle:queue(queue):push "long") end
    running(3)
    reload(h, 1)
    serves()
    stop(h)
  end)
end)

describe("a worker that outlives the end of its job", function()
  it("takes nobody's place", function()
    local h = host.start(url, [[return {
      short = function() end,
      long = function()
        local pid = io.popen "exec sh -c 'echo $PPID'":read "n"
        local child <close> = assert(io.popen("kill -STOP " .. pid .. "; sleep 600"))
        child:read "a"
      end,
    }]], { "--workers", "2" })
    assert(q:push("long", nil, { timeout = 0.3, max_attempts = 1 }))
    running(1)
    h:wait_line("event=job.timeout", 20)
    serves()
    stop(h)
  end)
end)
