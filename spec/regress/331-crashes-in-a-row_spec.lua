-- Three crashes within milliseconds made a job dead: a library that was being replaced
-- for a second condemned every job that came across it.

local host = require "spec.support.host"

local handle, q, url

with_database(function(...) handle, q, url = ... end)

local function script(broken)
  return ([[return { fragile = function(job)
    local file = io.open %q
    if not file then return job.crashes end
    os.execute("kill -9 " .. (io.open "/proc/self/stat":read "a"):match "^%%d+")
  end }]]):format(broken)
end

local function crashed(id, times)
  return eventually(function()
    local job = assert(handle:job(id))
    return job.crashes == times and job
  end, 20)
end

-- Seconds from a job's last crash to its next run.
local function pause(id)
  return handle:execute([[SELECT (j.due - MAX(a.ended)) / 1000000 AS s FROM nightshift_job AS j, nightshift_attempt AS a
    WHERE j.id = ? AND a.job_id = j.id]], id)[1].s
end

describe("a job whose worker dies again and again", function()
  it("waits 0, 1, 10 and 60 s, and is dead at the fifth time", function()
    local broken = fixture.file("broken", "")
    local h = host.start(url, script(broken))
    local id = assert(q:push "fragile")
    crashed(id, 2)
    for i, seconds in ipairs { 10, 60 } do
      crashed(id, 2 + i)
      assert.is_true(math.abs(pause(id) - seconds) < 0.1, pause(id))
      assert(handle:run_now(id))
    end
    eventually(function() return handle:job(id).state == "dead" end)
    assert.equal("poison", handle:job(id).reason)
    local runs = handle:execute("SELECT ended FROM nightshift_attempt WHERE job_id = ? ORDER BY run", id)
    assert.equal(5, #runs)
    assert.is_true(runs[2].ended - runs[1].ended < 1000000, "the first crash costs no time")
    assert.is_true(runs[3].ended - runs[2].ended >= 1000000, "the second costs one second")
    h:signal "TERM"
    h:wait()
  end)

  it("is done when what killed it is mended within seconds", function()
    local broken = fixture.file("broken", "")
    local h = host.start(url, script(broken))
    local id = assert(q:push "fragile")
    crashed(id, 3)
    assert(os.remove(broken))
    assert(handle:run_now(id))
    eventually(function() return handle:job(id).state == "done" end)
    assert.equal(3, handle:job(id).result)
    h:signal "TERM"
    h:wait()
  end)
end)
