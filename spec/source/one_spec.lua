-- Programs that claim one row after the other: a claim is one statement, and so is an ack. All
-- else that a claim and an ack have to see is seen. And a connection that breaks in one leaves
-- each row done once, whatever the program was told.

local db = require "spec.support.db"
local designs = require "spec.support.designs"
local lab = require "spec.support.lab"
local nightshift = require "nightshift"
local proxy = require "spec.support.proxy"

local ROWS, WARM = 12, 9 -- rows are taken in by 1, 2, 4, 8
local NAME = "migration_task"

describe("rows that are claimed one by one", function()
  local a, b, t
  lab.handles(2, function(...) a, b = ... end)

  --- Some are done, and others are taken in already.
  before_each(function()
    designs.create(a, NAME, 40)
    t = assert(a:adopt(designs.map(NAME)))
    for _ = 1, WARM do assert(assert(t:claim()):ack()) end
  end)

  local function count(sql) return assert(b:execute("SELECT COUNT(*) AS n FROM " .. sql))[1].n end

  it("cost two statements each", function()
    local function statements()
      return tonumber(assert(a:execute "SHOW SESSION STATUS LIKE 'Questions'")[1].Value)
    end
    local before = statements()
    for _ = 1, 30 do assert(assert(t:claim()):ack()) end
    local each = (statements() - before) / 30
    assert.is_true(each < 6, each) -- with the looks around, more on a slow machine, and taking in
  end)

  it("are passed by when their jobs are cancelled, and no lease is left", function()
    local ready = assert(b:execute "SELECT job_id AS id FROM nightshift_ready WHERE job_id > 0 ORDER BY 1")
    for i = 1, #ready - 1 do assert(b:cancel(ready[i].id)) end
    local job = assert(t:claim())
    assert.equal(ready[#ready].id, job.id)
    assert.equal(1, count "nightshift_lease")
    assert.is_true((job:ack()))
    assert.equal(0, count "nightshift_lease")
  end)

  it("are not given while the table is paused", function()
    assert(b:queue(NAME):pause())
    assert.is_nil((t:claim()))
    assert(b:queue(NAME):resume())
    assert(assert(t:claim()):ack())
  end)

  it("release the jobs that wait for theirs", function()
    local q, job = b:queue "q", assert(t:claim())
    local next_id = assert(q:push("next", 1, { after = { job.id } }))
    assert.is_nil((q:claim()))
    assert.is_true((job:ack { n = 1 }))
    assert.equal(next_id, assert(q:claim()).id)
    assert.same({ n = 1 }, b:job(job.id).result)
  end)

  it("are settled in another way when others hold them", function()
    local job = assert(t:claim())
    assert(b:transaction(function(tx)
      assert(tx:execute("SELECT * FROM " .. NAME .. " WHERE id = ? FOR UPDATE", job.row))
      assert.is_true((job:ack()))
      return true
    end))
    assert.equal("done", b:job(job.id).state)
    assert.equal(1, count "nightshift_owed")
    assert.equal(1, t:pay())
    assert.equal(1, count(("%s WHERE id = %d AND status = 'complete'"):format(NAME, job.row)))
  end)

  it("are those of other programs when these have changed them", function()
    local job = assert(t:claim())
    assert(b:execute("UPDATE " .. NAME .. " SET claimedBy = 'theirs' WHERE id = ?", job.row))
    local ok, _, code = job:ack()
    assert.same({ nil, "STALE" }, { ok, code })
    assert.equal("cancelled", b:job(job.id).state)
    assert.equal(1, count(("%s WHERE id = %d AND claimedBy = 'theirs'"):format(NAME, job.row)))
  end)
end)

describe("a connection that breaks while rows are worked on one by one:", function()
  local direct, through
  setup(function()
    lab.fresh()
    direct = lab.open()
    designs.create(direct, NAME, ROWS)
  end)
  before_each(function() through = proxy.start(db.shared()) end)
  teardown(function() direct:close() end)

  local function count(sql, ...) return assert(direct:execute("SELECT COUNT(*) AS n FROM " .. sql, ...))[1].n end

  --- The same verb until it says how it ended; a cut one says GONE.
  local function insist(verb, ...)
    for _ = 1, 3 do
      local value, message, code = verb(...)
      if value ~= nil or message == nil then return value end
      assert.equal("GONE", code, message)
      through:tell "admit"
    end
    error "it never worked"
  end

  -- What each verb begins with, and the verb.
  local cases = {
    claim = {
      statements = 2, begin = function() end,
      run = function(t)
        local job = assert(insist(t.claim, t))
        assert.is_true(insist(job.ack, job))
      end,
    },
    ack = {
      statements = 1, begin = function(t) return assert(t:claim()) end,
      run = function(_, job) assert.is_true(insist(job.ack, job)) end,
    },
  }

  --- A table of which some rows are done, as fast as they can be. Then the verb, with the proxy
  -- armed for it; then all the rest.
  local function try(case, arm)
    assert(direct:execute "DELETE FROM nightshift_finished")
    assert(direct:execute("UPDATE " .. NAME .. " SET status = 'open', claimedBy = NULL, claimedAt = NULL"))
    local its <close> = assert(nightshift.open(through:url(lab.url())))
    local t = assert(its:adopt(designs.map(NAME)))
    for _ = 1, WARM do assert(assert(t:claim()):ack()) end
    local job = case.begin(t)
    arm()
    case.run(t, job)
    local packets, fired = through:packets(), through:tell "fired" == "yes"
    through:tell "admit"
    for next_job in t:jobs() do assert.is_true((next_job:ack())) end
    assert.equal(ROWS, count(NAME .. " WHERE status = 'complete' AND iteration = 0"))
    assert.equal(ROWS, count "nightshift_finished WHERE outcome = 'done' AND attempts = 0")
    assert.equal(ROWS, count "(SELECT DISTINCT ukey FROM nightshift_finished) k")
    for _, name in ipairs { "job", "unique_key", "lease", "owed" } do
      assert.equal(0, count("nightshift_" .. name), name)
    end
    return packets, fired
  end

  --- Where to cut: at the end of the first statement, and at that of its answer.
  local function places(case)
    for _ = 1, 20 do -- now and then a claim looks around, too
      local packets, sent, answered = try(case, function() through:tell "trace" end), 0, nil
      for _, packet in ipairs(packets) do
        if packet.who:lower() == "c" then sent = sent + 1 elseif sent == 1 then answered = packet.at end
      end
      if sent == case.statements then return { packets[1].at - 1, packets[1].at, answered - 1 } end
    end
    error "it is more than one statement"
  end

  for name, case in pairs(cases) do
    it("in a " .. name, function()
      for _, at in ipairs(places(case)) do
        for _, lasting in ipairs { false, true } do
          local _, fired = try(case, function()
            through:tell("cut " .. at)
            if lasting then through:tell "lasting" end
          end)
          assert.is_true(fired, ("byte %d never passed"):format(at))
        end
      end
    end)
  end
end)
