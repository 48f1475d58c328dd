-- A zygote that was stopped was waited for without end: workers that it should
-- have killed ran on, dead ones were not reported. A stopped seed kept the host
-- from ending, with its signals blocked.

local host = require "spec.support.host"
local nst = require "nst"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

local SCRIPT = [[return {
  loop = function() print "looping" while true do end end,
  nap = function(job) if job.attempt == 1 then print "napping" os.execute "sleep 20" end return job.crashes end,
  noop = function() return "ran" end,
}]]

local function stop_all(h, name)
  for _, pid in ipairs(host.members(h.pid, name)) do nst.kill(pid, "STOP") end
end

local function assert_nobody(family)
  eventually(function()
    for _, pid in ipairs(family) do
      if host.name(pid) then return false end
    end
    return true
  end)
end

local function finish(h)
  local family = host.family(h.pid)
  h:signal "QUIT"
  assert.equal(0, h:wait(20))
  assert_nobody(family)
end

describe("a zygote that is stopped", function()
  it("is replaced when a job has to be stopped; nothing else is blamed", function()
    local h = host.start(url, SCRIPT)
    local innocent = q:push "nap"
    h:wait_line "^napping"
    local loop = q:push("loop", nil, { timeout = 3, max_attempts = 1 })
    h:wait_line "^looping"
    stop_all(h, "ns-zygote")
    h:wait_line("zygote.silent", 30)
    h:wait_line("zygote.died", 20)
    eventually(function() return handle:job(loop).state == "dead" end)
    assert.matches("^timeout after 3 s", handle:job(loop).error)
    assert.same({ 0, 0 }, { handle:job(loop).crashes, handle:job(innocent).crashes })
    local id = q:push "noop"
    eventually(function() return handle:job(id).result == "ran" end)
    finish(h)
  end)

  it("is replaced when a worker has gone", function()
    local h = host.start(url, SCRIPT)
    local id = q:push "nap"
    h:wait_line "^napping"
    stop_all(h, "ns-zygote")
    for _, pid in ipairs(host.members(h.pid)) do nst.kill(pid, "KILL") end
    h:wait_line("zygote.died", 30)
    local other = q:push "noop"
    eventually(function() return handle:job(other).result == "ran" end)
    assert.equal(0, handle:job(id).crashes)
    finish(h)
  end)
end)

describe("a keeper that is stopped", function()
  it("is replaced when its zygote has to be", function()
    local h = host.start(url, SCRIPT)
    local loop = q:push("loop", nil, { timeout = 3, max_attempts = 1 })
    h:wait_line "^looping"
    stop_all(h, "ns-zygote")
    stop_all(h, "ns-keeper")
    h:wait_line("keeper.silent", 30)
    eventually(function() return handle:job(loop).state == "dead" end)
    local id = q:push "noop"
    eventually(function() return handle:job(id).result == "ran" end)
    finish(h)
  end)
end)

describe("a seed that is stopped", function()
  it("does not keep the host from ending", function()
    local h = host.start(url, SCRIPT)
    local family = host.family(h.pid)
    stop_all(h, "ns-seed")
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    h:wait_line "seed.silent"
    assert_nobody(family)
  end)
end)
