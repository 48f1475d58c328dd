-- The database goes away and comes back while a host runs.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

local server, url

before_each(function()
  server = db.server()
  url = server:fresh()
end)

local SCRIPT = [[return {
  noop = function() end,
  slow = function(job) print "started" os.execute "sleep 1" return "slept" end,
}]]

-- With a handle that is open only meanwhile: it may not live through the outage.
local function with(fn)
  local handle <close> = assert(nightshift.open(url))
  return fn(handle)
end

local function state(id)
  return with(function(handle) return handle:job(id).state end)
end

local function push(name)
  return with(function(handle) return assert(handle:queue("q"):push(name)) end)
end

for _, how in ipairs { "stop", "kill" } do
  describe("a server that goes away (" .. how .. ")", function()
    it("is waited for; the handler goes on and its result is kept", function()
      local h = host.start(url, SCRIPT)
      local id = push "slow"
      h:wait_line "^started"
      server[how](server)
      h:wait_line "db.lost"
      nst.sleep(1.5)
      server:start()
      h:wait_line("db.back", 20)
      eventually(function() return state(id) == "done" end)
      local after = push "noop"
      eventually(function() return state(after) == "done" end)
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end)
end

describe("a large result while the server is away", function()
  it("waits in a file without a name, and arrives", function()
    local folder = fixture.dir()
    local h = host.start(url, [[return { big = function(job)
      print "started"
      os.execute "sleep 1"
      return ("%d"):format(job.id):rep(100000):sub(1, 300000)
    end }]], { "--workers", "2" }, { TMPDIR = folder })
    local ids = { push "big", push "big" }
    h:wait_line("^started", 10, 2)
    server:stop()
    h:wait_line "db.lost"
    local function spilled()
      local maps <close> = io.open(("/proc/%d/maps"):format(h.pid))
      return select(2, maps:read "a":gsub(folder:gsub("%p", "%%%0") .. "/[^\n]*%(deleted%)", ""))
    end
    eventually(function() return spilled() == 2 end)
    server:start()
    for _, id in ipairs(ids) do
      eventually(function() return state(id) == "done" end, 20)
      local expected = tostring(id):rep(100000):sub(1, 300000)
      assert.is_true(with(function(handle) return handle:job(id).result end) == expected)
    end
    eventually(function() return spilled() == 0 end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

describe("a host that is to stop while the server is away", function()
  it("tries until its drain timeout, then ends with 1", function()
    local h = host.start(url, SCRIPT, { "--drain-timeout", "500ms" })
    push "slow"
    h:wait_line "^started"
    server:kill()
    h:signal "TERM"
    assert.equal(1, h:wait(20))
    h:wait_line "host.give_up"
  end)

  it("ends at once when it has nothing to tell it", function()
    local h = host.start(url, SCRIPT)
    server:kill()
    h:wait_line("db.lost", 20)
    h:signal "TERM"
    assert.equal(0, h:wait(8))
  end)

  it("ends at the third asking", function()
    local h = host.start(url, SCRIPT)
    push "slow"
    h:wait_line "^started"
    server:kill()
    h:wait_line("db.lost", 20)
    h:signal "TERM"
    h:wait_line "host.drain"
    h:signal "TERM"
    h:wait_line "host.stop"
    h:signal "TERM"
    assert.equal(1, h:wait(20))
  end)
end)
