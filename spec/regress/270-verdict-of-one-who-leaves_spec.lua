-- A worker that is about to leave says so with a verdict. The host took back the jobs
-- that it had sent ahead to that worker, and each of them became a verdict in a list that
-- grew and moved; what the worker's own verdict carried was then written to where the
-- list had been. The job was done, or came again, without its result, its children, its
-- delay and its state.

local proc = require "spec.support.proc"

local SCRIPT = [[
  local kept = {}
  local function leave_open() for i = 1, 200 do kept[#kept + 1] = io.open "/dev/null" end end
  return {
    short = function() end,
    leaver = function(job)
      for i = 1, 3 do job:spawn("short", i) end
      leave_open()
      return job:ack { made = "leaver" }
    end,
    again = function(job)
      if job.run > 1 then return job:ack(job.state) end
      leave_open()
      return job:again(0.2, { made = "again" })
    end,
  }]]

local url, handle
with_database(function(db, _, address) handle, url = db, address end)

--- Drains 'n' short jobs, one of 'name', and 300 short ones that are sent behind it.
-- The list has to grow at the right moment, so this is done with several numbers.
local function run(n, name)
  local id
  assert(handle:transaction(function(tx)
    for i = 1, n do assert(tx:queue("q"):push("short", i)) end
    id = assert(tx:queue("q"):push(name))
    for i = 1, 300 do assert(tx:queue("q"):push("short", i)) end
  end))
  local status, _, err = proc.run { "sh", "-c", 'ulimit -n 128; exec "$@"', "sh", proc.program,
    "work", fixture.file("jobs.lua", SCRIPT), "--workers", "1", "--drain", "--drain-within", "2s",
    env = { NIGHTSHIFT_URL = url } }
  assert.equal(0, status, err)
  return id, handle:job(id)
end

describe("the verdict of a worker that leaves with jobs sent ahead to it", function()
  for _, n in ipairs { 20, 60, 130 } do
    it(("carries result and children, after %d jobs"):format(n), function()
      local id, job = run(n, "leaver")
      assert.same({ "done", { made = "leaver" } }, { job.state, job.result })
      assert.equal(3, #handle:execute("SELECT 1 FROM nightshift_child WHERE parent = ?", id))
    end)

    it(("carries delay and state, after %d jobs"):format(n), function()
      local _, job = run(n, "again")
      assert.same({ "done", { made = "again" } }, { job.state, job.result })
    end)
  end
end)
