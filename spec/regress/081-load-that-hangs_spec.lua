-- A script that did not end while HUP had it loaded kept every later HUP from
-- being obeyed, without a word in the log.

local host = require "spec.support.host"
local nst = require "nst"

local url, handle

with_database(function(opened, _, at) handle, url = opened, at end)

local HANG = 'print "loading" while true do end'

local function rewrite(path, text)
  local file <close> = assert(io.open(path, "w"))
  file:write(text)
end

-- Whether HUP waits for the process, or is caught: soon after it began, and
-- long before it reads scripts.
local function hears_hup(pid)
  local file <close> = assert(io.open(("/proc/%d/status"):format(pid)))
  local text = file:read "a"
  return ((tonumber(text:match "SigBlk:%s*(%x+)", 16) | tonumber(text:match "SigCgt:%s*(%x+)", 16)) & 1) == 1
end

local function result()
  local id = assert(handle:queue "q":push "which")
  return eventually(function() return handle:job(id).result end)
end

local function stop(h)
  h:signal "TERM"
  assert.equal(0, h:wait(20))
end

describe("HUP while a script is being loaded for ever", function()
  it("ends that and loads the script as it is now", function()
    local h = host.start(url, "return { which = function() return 1 end }")
    rewrite(h.script, HANG)
    h:signal "HUP"
    h:wait_line "^loading"
    assert.equal(1, result())
    rewrite(h.script, "return { which = function() return 2 end }")
    h:signal "HUP"
    h:wait_line("reload.done", 20)
    assert.equal(2, result())
    eventually(function() return #host.members(h.pid, "ns-zygote") == 1 end)
    assert.is_nil(h:transcript():find "reload.failed", h:transcript())
    stop(h)
  end)

  it("works at the start as well", function()
    local h = host.spawn(url, HANG)
    h:wait_line "^loading"
    rewrite(h.script, "return { which = function() return 3 end }")
    h:signal "HUP"
    h:wait_line("host.ready", 20)
    assert.equal(3, result())
    stop(h)
  end)
end)

describe("a script that takes long to load", function()
  it("is told of in the log", function()
    local h = host.spawn(url, 'os.execute "sleep 9" return { which = function() return 4 end }')
    h:wait_line("load.slow seconds=%d", 20)
    h:wait_line("host.ready", 20)
    assert.equal(4, result())
    stop(h)
  end)
end)

describe("HUP and USR1 before a host listens", function()
  it("do not end it", function()
    local h = host.spawn(url, "return { which = function() return 5 end }")
    eventually(function() return hears_hup(h.pid) end)
    for _ = 1, 20 do
      h:signal "HUP"
      h:signal "USR1"
      nst.sleep(0.005)
    end
    h:wait_line("host.ready", 20)
    assert.equal(5, result())
    stop(h)
  end)
end)
