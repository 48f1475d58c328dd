-- Clocks that jump: the server's, which is the only one that counts, and a
-- host's, which does not.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- A wall clock that can be set for single processes; the monotonic one stays.
-- See spec/c/meddle.c.
--
--     local its = clock.new()
--     local server = its.shown(db.server)  -- or: proc.start { …, env = its.env }
--     its.off(-86400)                      -- a day back, now
local clock = {}

--- A clock, right at first.
function clock.new()
  local path = fixture.file("clock", ("i8"):pack(0))
  local self = { env = { LD_PRELOAD = proc.build .. "/meddle.so", MEDDLE_CLOCK = path } }

  --- Sets it off by so many seconds, for all who have it.
  function self.off(seconds)
    local file <close> = assert(io.open(path, "r+b"))
    file:write(("i8"):pack(seconds))
  end

  --- Calls a function with processes that have it, and gives what that returned.
  function self.shown(fn, ...)
    for name, value in pairs(self.env) do nst.setenv(name, value) end
    local _ <close> = setmetatable({}, { __close = function()
      for name in pairs(self.env) do nst.setenv(name, nil) end
    end })
    return (fn(...))
  end

  return self
end

describe("clocks:", function()
  local DAY = 86400

  local SCRIPT = [[return {
  when = function(job) return job:db():execute("SELECT UNIX_TIMESTAMP() AS t")[1].t end,
  hold = function() os.execute "echo holds; sleep 2" return "held" end,
  noop = function() return "ran" end,
}]]

  describe("the server's clock", function()
    local its, server, url, handle, q

    setup(function()
      its = clock.new()
      server = its.shown(db.server)
    end)
    before_each(function()
      its.off(0)
      url = server:fresh()
      handle = assert(nightshift.open(url))
      q = handle:queue "q"
    end)
    after_each(function()
      handle:close()
      its.off(0)
    end)

    local function sql(text) return server:sql(text, url:match "/([^/?]+)%?") end
    local function done(id, timeout)
      return eventually(function()
        local job = handle:job(id)
        return job.state == "done" and job
      end, timeout)
    end
    local function time() return tonumber((server:sql "SELECT UNIX_TIMESTAMP()")) end

    it("is the one that jumps in these tests", function()
      local before = time()
      its.off(DAY)
      assert.is_true(math.abs(time() - before - DAY) < 60)
    end)

    for _, jump in ipairs { DAY, -DAY } do
      it(("jumps by %+d s: what runs goes on, what is pushed starts at once, nobody is taken for dead"):format(jump),
        function()
          local h = host.start(url, SCRIPT)
          local other = host.start(url, SCRIPT)
          for _ = 1, 20 do done(q:push "noop") end
          local id = q:push "hold"
          eventually(function() return h:transcript():find "holds" or other:transcript():find "holds" end)
          its.off(jump)
          for _ = 1, 5 do
            local start = nst.clock()
            done(q:push "noop")
            assert.is_true(nst.clock() - start < proc.limit(9), nst.clock() - start)
          end
          assert.equal(1, done(id).run)
          for _, one in ipairs { h, other } do
            assert.is_nil(one:transcript():find "holder.lost")
            one:signal "TERM"
            assert.equal(0, one:wait())
          end
          assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_attempt")
        end)
    end

    it("jumps back: a handle finds what is pushed into a queue it has already emptied", function()
      for i = 1, 10 do
        q:push("early", i)
        assert(q:claim()):ack()
      end
      its.off(-DAY)
      local other <close> = assert(nightshift.open(url))
      assert(other:queue "q":push "late")
      assert.equal("late", assert(q:claim { wait = 20 }).name)
    end)

    it("jumps ahead: a delayed job is due, an untouched lease is over, and its late verdict is STALE", function()
      assert(q:push("leased"))
      local job = assert(q:claim { lease = 3600 })
      local id = assert(q:push("later", nil, { delay = 3600 }))
      its.off(DAY)
      local other <close> = assert(nightshift.open(url))
      local seen = {}
      for _ = 1, 2 do
        local one = assert(other:queue "q":claim { wait = 30 })
        seen[one.name] = one.run
        assert(one:ack())
      end
      assert.same({ leased = 2, later = 1 }, seen)
      assert.equal("done", handle:job(id).state)
      assert.equal("STALE", select(3, job:ack()))
    end)
  end)

  describe("a host's clock", function()
    if os.getenv "SAN" then return pending "sanitizers want to be loaded first" end

    it("may be off and jump: jobs are due by the server's, and nobody is taken for dead", function()
      local its = clock.new()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      its.off(-DAY)
      local h = host.start(url, SCRIPT, nil, its.env)
      local other = host.start(url, SCRIPT)
      local held = q:push "hold"
      for _, jump in ipairs { 0, DAY, -30 * DAY } do
        its.off(jump)
        local start = nst.clock()
        local ids = { q:push "when", q:push("when", nil, { delay = 0.4 }) }
        for _, id in ipairs(ids) do
          local job = eventually(function()
            local job = handle:job(id)
            return job.state == "done" and job
          end)
          assert.is_true(math.abs(job.result - os.time()) < 60) -- wrong: a day
        end
        local took = nst.clock() - start
        assert.is_true(took >= 0.4 and took < proc.limit(9), took)
      end
      eventually(function() return handle:job(held).state == "done" end)
      assert.equal(1, handle:job(held).run)
      h:wait_line "ts=%d+-%d+-%d+T"
      for _, one in ipairs { h, other } do
        assert.is_nil(one:transcript():find "holder.lost")
        one:signal "TERM"
        assert.equal(0, one:wait())
      end
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_attempt", name))
    end)

    it("is read for the log alone", function()
      local found = {}
      local CLOCKS = "grep -lE 'CLOCK_REALTIME|gettimeofday|[^_a-z]time\\('"
      for line in io.popen(CLOCKS .. " src/*/*.c src/*/*/*.c | sort"):lines() do
        found[#found + 1] = line
      end
      assert.same({ "src/base/log.c" }, found)
    end)
  end)
end)

-- A server with a clock that was set back behind its start had been up for less than no time. A
-- holder that died on another machine was waited for as long as the step.
describe("a server whose clock is set back behind its start", function()
  it("lets those be rescued who die elsewhere", function()
    local its = clock.new()
    local server = its.shown(db.server)
    local url, name = server:fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push "a")
    local p = proc.start { proc.lua, "-e", ([[
      local db = require "nightshift".open(%q)
      local job = db:queue "q":claim()
      print("holds " .. job.id)
      io.flush()
      os.execute "sleep 60"]]):format(url) }
    p:wait_line "^holds"
    server:sql("UPDATE nightshift_holder SET boot_id = 'elsewhere'", name)
    its.off(-86400)
    p:signal "KILL"
    assert.equal("a", assert(q:claim { wait = 40 }).name)
  end)
end)
