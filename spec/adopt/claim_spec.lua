-- db:adopt: rows of existing tables as jobs. Each published design under every
-- strategy that it allows: who gets a row, how each verdict leaves it, and what
-- happens to the rows of whoever dies.

local designs = require "spec.support.designs"
local lab = require "spec.support.lab"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local a, b
lab.handles(2, function(...) a, b = ... end)

local function code_of(_, _, code) return code end

local function ids(jobs)
  local list = {}
  for i, job in ipairs(jobs) do list[i] = job.id end
  return list
end

--- The one row, with times as whether there is one.
local function row(name, id)
  local found = assert(a:execute("SELECT * FROM " .. name .. " WHERE id = ?", id))[1]
  return found
end

local function status(name, id) return row(name, id)[designs[name].map.status.column] end

--- What the status column says of a row in a state, as SQL gives it.
local function value(name, state)
  local v = designs[name].map.status[state]
  if v == true or v == false then return v and 1 or 0 end
  return v
end

-- A program that claims and then does nothing until it is killed.
local SITTER = [[
  local designs = require "spec.support.designs"
  local db = assert(require "nightshift".open(arg[1]))
  local t = assert(db:adopt(designs.map(arg[2], { strategy = arg[3] })))
  local jobs = assert(t:claim_many(tonumber(arg[4])))
  io.stdout:setvbuf "no"
  print("holds " .. #jobs)
  require "nightshift.core".sleep(1000)]]

local function sitter(name, strategy, n)
  local p = proc.start { proc.lua, fixture.file("sitter.lua", SITTER), lab.url(), name, strategy, n,
    env = { LUA_PATH = proc.root .. "/?.lua;" .. proc.root .. "/lua/?.lua;" .. proc.root .. "/lua/?/init.lua;;" } }
  p:wait_line("holds " .. n)
  return p
end

for _, name in ipairs(designs.names) do
  for _, strategy in ipairs(designs[name].strategies) do
    describe(name .. " by " .. strategy, function()
      local ta, tb
      local function start(rows, changes)
        designs.create(a, name, rows)
        local map = designs.map(name, changes)
        map.strategy = strategy
        ta, tb = assert(a:adopt(map)), assert(b:adopt(map))
      end

      it("gives each row to one, lowest id first, and marks it done", function()
        start(5)
        local one, two = assert(ta:claim_many(2)), assert(tb:claim_many(10))
        assert.same({ 1, 2 }, ids(one))
        assert.same({ 3, 4, 5 }, ids(two))
        assert.is_nil(ta:claim())
        for _, jobs in ipairs { one, two } do
          for _, job in ipairs(jobs) do
            assert.equal(job.id, job.payload.id)
            assert.equal(designs[name].map.name or name, job.name)
            assert.equal(1, job.attempt)
            assert.is_true((job:ack()))
            assert.equal("STALE", code_of(job:ack()))
          end
        end
        for id = 1, 5 do
          if value(name, "done") then assert.equal(value(name, "done"), status(name, id)) end
        end
        assert.is_nil(ta:claim())
        assert.is_nil(tb:claim())
      end)

      it("gives a released row again, as it was", function()
        start(1)
        local before = row(name, 1)
        local job = assert(ta:claim())
        assert.is_true((job:release()))
        local after = row(name, 1)
        after.updated, after.started, before.updated, before.started = nil, nil, nil, nil
        assert.same(before, after)
        assert.equal(1, assert(tb:claim()).attempt)
      end)

      it("counts a failure and gives the row again", function()
        start(1)
        assert.is_true((assert(ta:claim()):fail("no", { retry_in = 0 })))
        local left, up = designs[name].map.attempts_left, designs[name].map.attempts
        if left then assert.equal(29, row(name, 1)[left]) end
        if up then assert.equal(1, row(name, 1)[up]) end
        local job = assert(tb:claim())
        assert.equal((left or up) and 2 or 1, job.attempt)
        assert.is_true((job:ack()))
      end)

      it("lets a row come back after `again`, which costs no attempt", function()
        start(1)
        assert.is_true((assert(ta:claim()):again(0)))
        assert.equal(1, assert(tb:claim()).attempt)
      end)

      it("gives back what a closed handle held", function()
        start(3)
        assert.equal(3, #ta:claim_many(3))
        a:close()
        assert.same({ 1, 2, 3 }, ids(tb:claim_many(3)))
      end)

      it("gives others the rows of one that was killed, within seconds", function()
        start(4)
        local p = sitter(name, strategy, 2)
        assert.same({ 3, 4 }, ids(tb:claim_many(10)))
        local before = nightshift.clock()
        p:signal "KILL"
        p:wait()
        local got = {}
        while #got < 2 do
          local jobs = assert(tb:claim_many(10, { wait = proc.limit(9) }))
          assert.is_true(#jobs > 0)
          for _, job in ipairs(jobs) do got[#got + 1] = job end
        end
        assert.is_true(nightshift.clock() - before < proc.limit(9)) -- by the round: 10 s
        table.sort(got, function(x, y) return x.id < y.id end)
        assert.same({ 1, 2 }, ids(got))
        for _, job in ipairs(got) do assert.is_true((job:ack())) end
      end)

      it("settles nothing for one whose row was given to another", function()
        if strategy == "transaction" then return end -- there it is the lock that says so
        start(1)
        local job = assert(ta:claim())
        assert(a:execute("UPDATE nightshift_holder SET dead = ? WHERE connection = CONNECTION_ID()",
          (a._handle:now())))
        assert.equal(1, tb:rescue())
        local other = assert(tb:claim())
        assert.is_true(job:cancelled())
        for _, verb in ipairs { "ack", "release" } do assert.equal("STALE", code_of(job[verb](job))) end
        assert.is_true((other:touch()))
        assert.is_true((other:ack()))
      end)
    end)
  end
end
