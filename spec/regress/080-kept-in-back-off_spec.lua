-- A host whose workers had all been killed, and which waited before it forked
-- new ones, kept what it had claimed; and jobs that kill workers, standing
-- together before others, took every worker it forked.

local host = require "spec.support.host"

local url, handle

with_database(function(opened, _, at) handle, url = opened, at end)

local SCRIPT = [[return {
  noop = function() end,
  die = function() os.execute("kill -9 " .. (io.open "/proc/self/stat":read "a"):match "^%d+") end,
}]]

local function push(queue, name, n, options)
  local items = {}
  for i = 1, n do items[i] = { name, nil, options } end
  return assert(handle:queue(queue):push_many(items))
end

local function finished(queue)
  return handle:execute([[SELECT COUNT(*) AS n FROM nightshift_finished f
    JOIN nightshift_queue q ON q.id = f.queue_id WHERE q.name = ? AND f.outcome = 'done']], queue)[1].n
end

-- A host that has learnt that jobs are short, and therefore claims ahead.
local function start(workers)
  push("good", "noop", 1000)
  local h = host.start(url, SCRIPT, { "--workers", workers, "--queues", "bad,good" })
  eventually(function() return finished "good" == 1000 end, 60)
  return h
end

local function stop(h)
  h:signal "TERM"
  assert.equal(0, h:wait())
end

describe("while all workers of a host wait to be forked", function()
  it("what it claimed is given back", function()
    local h = start "8"
    push("bad", "die", 1500, { max_crashes = 1 })
    h:wait_line("worker.crash_loop .*wait_ms=10000", 20)
    eventually(function() return #handle:execute "SELECT id FROM nightshift_lease" == 0 end, 9) -- 10 s: over
    stop(h)
  end)
end)

describe("jobs that kill workers, claimed before others", function()
  it("do not keep the others from being run", function()
    local h = start "2"
    push("bad", "die", 16, { max_crashes = 1 })
    h:wait_line("worker.crash_loop", 20)
    assert(handle:transaction(function()
      push("bad", "die", 150, { max_crashes = 20 })
      push("good", "noop", 300)
    end))
    eventually(function() return finished "good" == 1300 end, 120)
    stop(h)
  end)
end)
