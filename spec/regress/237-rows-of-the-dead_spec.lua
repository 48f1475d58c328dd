-- The rows of dead holders stayed for a day, and for ever where nobody else died: after the
-- primary had died, its replica had all holders of before.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

local HALF_A_MINUTE <const> = 30000000 -- µs
local CLAIMER = [[
  assert(require "nightshift".open(%q):queue "q":claim())
  print "holds"
  io.flush()
  os.execute "sleep 60"]]

local url, name

before_each(function() url, name = db.fresh() end)

local function ask(sql) return db.sql(sql, name) end

local function pids(where) return ask("SELECT pid FROM nightshift_holder WHERE " .. (where or "TRUE")) end

local function claimer()
  local p = proc.start { proc.lua, "-e", CLAIMER:format(url) }
  p:wait_line("^holds", 20)
  return p
end

--- As if they had been dead for that much longer.
local function age(us) ask(("UPDATE nightshift_holder SET dead = dead - %d"):format(us)) end

local function killed(p)
  p:signal "KILL"
  p:wait(10)
end

it("go half a minute after the death, with any host", function()
  local handle <close> = assert(nightshift.open(url))
  for _ = 1, 2 do assert(handle:queue "q":push("x", 1)) end
  local dead = { claimer(), claimer() }
  local h = host.start(url, "return { a = function() end }", { "--only", "a" })
  for _, p in ipairs(dead) do killed(p) end
  eventually(function() return select(2, pids "dead IS NOT NULL":gsub("%d+", "")) == 2 end, 20)
  age(HALF_A_MINUTE - 15000000) -- 15 s are left: more than it takes until the next look
  eventually(function() return pids() == tostring(h.pid) end, 40)
  h:signal "TERM"
  assert.equal(0, h:wait(20))
end)

it("go with any program that claims, not before their time nor with jobs", function()
  local handle <close> = assert(nightshift.open(url))
  local id = assert(handle:queue "q":push("x", 1))
  local p = claimer()
  killed(p)
  assert(handle:rescue { wait = "5s" })
  assert(handle:rescue())
  assert.equal(tostring(p.pid), pids())
  ask(([=[INSERT INTO nightshift_lease (id, holder, claimed, jobs)
    SELECT 77, h.id, 1, '[[%d,1]]' FROM nightshift_holder h]=]):format(id))
  age(HALF_A_MINUTE)
  local blocker <close> = assert(nightshift.open(url))
  assert(blocker:transaction(function(tx)
    assert(tx:execute "SELECT id FROM nightshift_lease WHERE id = 77 FOR UPDATE")
    handle:rescue()
    assert.equal(tostring(p.pid), pids())
    return true
  end))
  eventually(function()
    assert(handle:rescue())
    return ask "SELECT COUNT(*) FROM nightshift_lease" == "0"
  end, 20)
  age(HALF_A_MINUTE)
  local other <close> = assert(nightshift.open(url))
  assert.equal(1, #assert(other:queue "q":claim_many(10)))
  assert.equal("", pids("pid = " .. p.pid))
end)

it("leave what their hosts could run for the rest of the minute", function()
  local h = host.start(url, "return { a = function() end }")
  eventually(function() return ask "SELECT COUNT(*) FROM nightshift_served" == "1" end)
  killed(h)
  local handle <close> = assert(nightshift.open(url))
  ask(("UPDATE nightshift_holder SET dead = %d - %d"):format(handle._handle:now(), HALF_A_MINUTE + 5000000))
  assert(handle:rescue())
  assert.equal("", pids())
  assert.equal("1", ask "SELECT COUNT(*) FROM nightshift_served WHERE ended IS NOT NULL")
  assert.equal(1, #assert(handle._handle:execute "@report_served"))
end)

describe("do not matter to a verdict that was cut at its commit", function()
  local p, handle, q

  before_each(function()
    p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url)))
    q = handle:queue "q"
  end)
  after_each(function() handle:close() end)

  --- Declared dead, rescued and buried, before it can ask.
  local function buried(when, verb)
    p:tell("commit " .. when .. " 1")
    p:tell "lasting"
    local none, _, code = verb()
    assert.same({ nil, "GONE" }, { none, code })
    local other <close> = assert(nightshift.open(url))
    ask "UPDATE nightshift_holder SET dead = beat"
    assert(other:rescue())
    age(HALF_A_MINUTE)
    assert(other:rescue())
    assert.equal("", pids())
    p:tell "admit"
  end

  local VERBS = {
    ack = function(job) return job:ack "done" end,
    fail = function(job) return job:fail "no" end,
  }
  for verb, give in pairs(VERBS) do
    it("was written: " .. verb, function()
      assert(q:push("job", 1))
      local job = assert(q:claim())
      buried("after", function() return give(job) end)
      assert.is_true(assert(give(job)))
    end)

    it("was not: " .. verb, function()
      assert(q:push("job", 1))
      local job = assert(q:claim())
      buried("before", function() return give(job) end)
      assert.equal("STALE", select(3, give(job)))
      assert.equal("1", ask "SELECT COUNT(*) FROM nightshift_job")
    end)
  end

  it("is told apart from one that was written before it", function()
    assert(q:push_many { { "a" }, { "b" } })
    local jobs = assert(q:claim_many(2))
    assert(jobs[1]:ack())
    buried("before", function() return jobs[2]:ack() end)
    assert.equal("STALE", select(3, jobs[2]:ack()))
  end)
end)
