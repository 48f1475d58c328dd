-- A worker lived for as long as its host, whatever a handler's C code leaked.

local host = require "spec.support.host"

local handle, q, url
with_database(function(...) handle, q, url = ... end)

local SCRIPT = [[
local kept = {}
local function pid() return io.open "/proc/self/stat":read "n" end
return {
  pid = pid,
  eat = function()
    kept[#kept + 1] = ("x"):rep(10 << 20)
    return pid()
  end,
}]]

--- The pids that ran n jobs, and how many each of them ran.
local function run(name, n, ...)
  local h = host.start(url, SCRIPT, { "--workers", "2", ... })
  local jobs, by_pid, pids = {}, {}, 0
  for i = 1, n do jobs[i] = { name, nil, { max_attempts = 1, max_crashes = 1 } } end
  for _, id in ipairs(assert(q:push_many(jobs))) do
    local job = eventually(function()
      local found = handle:job(id)
      return found.state:match "^d" and found
    end, 30)
    assert.same({ "done", 0 }, { job.state, job.crashes })
    pids = pids + (by_pid[job.result] and 0 or 1)
    by_pid[job.result] = (by_pid[job.result] or 0) + 1
  end
  h:signal "TERM"
  assert.equal(0, h:wait())
  assert.is_nil(h:transcript():find "worker.died", h:transcript())
  return by_pid, pids
end

describe("a worker is replaced, and nothing that it was sent is lost,", function()
  it("after as many jobs as --recycle says", function()
    local by_pid, pids = run("pid", 500, "--recycle", "20")
    assert.is_true(pids >= 25, pids)
    for _, n in pairs(by_pid) do assert.is_true(n <= 20, n) end
  end)

  it("when it has more memory than --recycle-memory says", function()
    local by_pid = run("eat", 12, "--recycle-memory", "40M")
    for _, n in pairs(by_pid) do assert.is_true(n <= 4, n) end
  end)

  it("and never without these", function()
    local _, pids = run("pid", 300)
    assert.is_true(pids <= 2, pids)
  end)
end)

it("--recycle wants a number above 0, --recycle-memory a size", function()
  for _, args in ipairs { { "--recycle", "0" }, { "--recycle-memory", "much" } } do
    local h = host.spawn(url, SCRIPT, args)
    assert.equal(2, h:wait())
    assert.is_truthy(h:transcript():find(args[1], 1, true), h:transcript())
  end
end)
