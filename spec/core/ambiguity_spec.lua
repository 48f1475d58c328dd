-- A connection that breaks at any byte of a verb: what is in the database is
-- one of the two legal states, and what the caller was told agrees with it.
-- A verb that said GONE and is repeated comes to the same end as one that was
-- never cut.
--
-- Cut are the ends of what either side said, ± 1, and every seventh byte (with
-- NIGHTSHIFT_LONG=1 each) from the last statement before the COMMIT to the COMMIT's
-- reply. With NIGHTSHIFT_CUT=all (make test-cut-all) it is every byte; where time
-- runs slower (sanitizers, valgrind) only some of them.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

local ALL = os.getenv "NIGHTSHIFT_CUT" == "all"
local EVERY = ALL and 1 or math.ceil(proc.limit(1))
local INSIDE = os.getenv "NIGHTSHIFT_LONG" and 1 or 7

-- The state of one job by its name and id, in one statement, so in one view.
local STATE = [[SELECT
  (SELECT COUNT(*) FROM nightshift_job WHERE name = ?) AS live,
  (SELECT COUNT(*) FROM nightshift_ready r JOIN nightshift_job j ON j.id = r.job_id AND j.run = r.run
    WHERE j.name = ?) AS ready,
  (SELECT COUNT(*) FROM nightshift_finished WHERE id = ?) AS past,
  (SELECT COUNT(*) FROM nightshift_job WHERE parent = ?) AS children,
  (SELECT COUNT(*) FROM nightshift_edge WHERE on_id = ?) AS edges,
  (SELECT COUNT(*) FROM nightshift_attempt WHERE job_id = ?) AS attempts,
  (SELECT COUNT(*) FROM nightshift_scheduled s JOIN nightshift_job j ON j.id = s.job_id AND j.run = s.run
    WHERE j.id = ?) AS later,
  (SELECT COUNT(*) FROM nightshift_lease) AS leases]]

-- Each: what stands before the verb ('prepare' gives what the verb works on),
-- the verb, the two states it may leave (fields that are not named are 0), and
-- what its repetition says when it is done already.
local verbs = {
  push = {
    verb = function(q, _, name) return q:push(name, { n = 1 }, { unique = name }) end,
    no = {}, yes = { live = 1, ready = 1 }, alone = true, -- its one statement commits
  },
  push_many = {
    verb = function(q, _, name) return q:push_many { { name, 1 }, { name, 2 }, { name, 3, { priority = 7 } } } end,
    no = {}, yes = { live = 3, ready = 3 },
  },
  ["push_many that keeps"] = {
    verb = function(q, _, name)
      local keep = { unique = { key = name, on_conflict = "keep" } }
      return q:push_many { { name, 1 }, { name, 2, keep }, { name, 3, keep } }
    end,
    no = {}, yes = { live = 2, ready = 2 },
  },
  claim = {
    prepare = function(_, pushed) return pushed end,
    verb = function(q) return q:claim() end,
    no = { live = 1, ready = 1 }, yes = { live = 1, leases = 1 },
  },
  ["ack with a child"] = {
    prepare = function(q) return assert(q:claim()) end,
    verb = function(_, job)
      job._children = nil
      job:spawn("child", 1)
      return job:ack { ok = true }
    end,
    no = { live = 1, leases = 1 }, yes = { past = 1, children = 1 },
  },
  fail = {
    prepare = function(q) return assert(q:claim()) end,
    verb = function(_, job) return job:fail "no luck" end,
    no = { live = 1, leases = 1 }, yes = { live = 1, attempts = 1, later = 1 },
  },
  ["again with a child"] = {
    prepare = function(q) return assert(q:claim()) end,
    verb = function(_, job)
      job._children = nil
      job:spawn("child", 1)
      return job:again(60, { page = 2 })
    end,
    no = { live = 1, leases = 1 }, yes = { live = 1, children = 1, edges = 1, later = 1 },
  },
  ["wait with a child"] = {
    prepare = function(q) return assert(q:claim()) end,
    verb = function(_, job)
      job._children = nil
      job:spawn("child", 1)
      return job:wait()
    end,
    no = { live = 1, leases = 1 }, yes = { live = 1, children = 1 },
  },
  ["ack of the last child"] = {
    prepare = function(its, _, q) -- one claim on the connection: a later one looks for due jobs, or not yet
      local parent = assert(q:claim())
      parent:spawn("child", 1)
      assert(parent:wait())
      return assert(its:claim())
    end,
    verb = function(_, job) return job:ack "last" end,
    no = { live = 1, leases = 1, edges = 1 }, yes = { live = 1, ready = 1, past = 1 },
  },
  cancel = {
    prepare = function(_, pushed) return pushed end,
    verb = function(q, job) return q.db:cancel(job.id) end,
    no = { live = 1, ready = 1 }, yes = { past = 1 }, again = "STATE",
  },
}

describe("a connection that is cut", function()
  local url, direct, q, through, serial

  setup(function()
    url = db.fresh()
    direct = assert(nightshift.open(url))
    assert(direct:execute "SELECT SETVAL(nightshift_id, 100000)") -- ids of one length: packets too
    q = direct:queue "q"
    assert(q:push "warm-up")
    assert(q:claim()):ack()
    serial = 0
  end)
  -- Leaves nothing for the next try.
  local function clean()
    local tables = { "job", "ready", "scheduled", "edge", "child", "lease", "unique_key", "finished", "attempt" }
    for _, table in ipairs(tables) do
      assert(direct:execute("DELETE FROM nightshift_" .. table .. (table == "ready" and " WHERE job_id > 0" or "")))
    end
  end

  before_each(function() through = proxy.start(db.shared()) end)
  after_each(function() clean() end)
  teardown(function() direct:close() end)

  local function is(state, name, id)
    local row = assert(direct:execute(STATE, name, name, id, id, id, id, id))[1]
    for key, n in pairs(row) do
      if n ~= (state[key] or 0) then return false, ("%s = %d"):format(key, n) end
    end
    return true
  end

  -- One try on a connection of its own; 'arm' breaks it. Returns whether it did,
  -- what was told, and the packets of a trace.
  local function try(case, arm, tracing)
    serial = serial + 1
    local name = ("try-%06d"):format(serial)
    local pushed = case.prepare and { id = assert(q:push(name, 1)) }
    local handle <close> = assert(nightshift.open(through:url(url)))
    local its = { db = handle }
    setmetatable(its, { __index = function(_, verb)
      return function(_, ...) return handle:queue("q")[verb](handle:queue "q", ...) end
    end })
    local job = case.prepare and case.prepare(its, pushed, q)
    local id = job and job.id or 0
    arm()
    local first, message, code = case.verb(its, job, name)
    local packets = tracing and through:packets()
    local fired = through:tell "fired" == "yes"
    if first then
      assert(is(case.yes, name, id))
    else
      assert.equal("GONE", code or message)
      through:tell "admit"
      assert(is(case.no, name, id) or is(case.yes, name, id))
      local second, _, why = case.verb(its, job, name)
      assert.is_truthy(second or (case.again and why == case.again), why)
      assert(is(case.yes, name, id))
      if case.verb == verbs.claim.verb then assert.is_nil(its:claim()) end
    end
    return fired, first, packets
  end

  -- Where to cut: every byte, or the interesting ones.
  local function places(packets, case)
    local last = packets[#packets].at
    local set, list = {}, {}
    local commit, statement, reply
    for i, packet in ipairs(packets) do
      local turn = packets[i + 1] and packets[i + 1].who:lower() ~= packet.who:lower()
      for at = packet.at - 1, packet.at + 1 do set[at] = set[at] or turn end
      if packet.who == "C" then commit = i end
      if packet.who == "c" and not commit then statement = i end
      if packet.who == "s" and commit and not reply then reply = packet.at end
    end
    local from = packets[(case.again or case.alone) and commit - 1 or statement - 1].at
    for at = 0, last do
      local inside = at >= from and at <= reply
      local chosen = ALL or set[at] or (inside and at % INSIDE == 0)
      if chosen and at % EVERY == 0 then list[#list + 1] = { at = at, inside = inside } end
    end
    return list
  end

  -- Of the shortest of three: now and then a try says more, because what it needs
  -- was not prepared yet.
  local function trace(case)
    local shortest
    for _ = 1, 3 do
      local _, _, packets = try(case, function() through:tell "trace" end, true)
      clean()
      if not shortest or packets[#packets].at < shortest[#shortest].at then shortest = packets end
    end
    return places(shortest, case)
  end

  for name, case in pairs(verbs) do
    it("at any byte of " .. name .. " leaves it done once", function()
      for _, place in ipairs(trace(case)) do
        local _, told = try(case, function() through:tell("cut " .. place.at) end)
        assert.is_truthy(told, "the server was there, the verb could be repeated: byte " .. place.at)
        clean()
      end
    end)

    it("for a while, at any byte of " .. name .. ", leaves it done or not, and once when repeated", function()
      local gone = 0
      for _, place in ipairs(trace(case)) do
        if place.inside or ALL then
          local fired, told
          for _ = 1, 3 do -- a try may say less than the traced one did: then once more
            fired, told = try(case, function()
              through:tell("cut " .. place.at)
              through:tell "lasting"
            end)
            through:tell "admit"
            if fired then break end
            clean()
          end
          assert.is_true(fired, ("byte %d never passed"):format(place.at))
          if not told then gone = gone + 1 end
          clean()
        end
      end
      assert.is_true(gone > 0)
    end)
  end
end)
