-- A live job that was in no place stayed there for ever: not ready, not scheduled, not
-- claimed, and nothing that it waited for. Nothing looked for such jobs. Hosts now do,
-- and mend what they see twice.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"

local url, name, handle, q

local function sql(text) return db.sql(text, name) end

local function id_of(job) return assert(q:push(job)) end

-- What is planted, by SQL; the job that is to run then, or nil.
local PLANTS = {
  { "a job in no place", function()
    local id = id_of "plain"
    sql("DELETE FROM nightshift_ready WHERE job_id = " .. id)
    return id
  end },
  { "a job that was signalled, and is still scheduled far ahead", function()
    local id = id_of "waits"
    assert(q:claim():wait { signal = "go" })
    sql(([[UPDATE nightshift_job SET due = created WHERE id = %d]]):format(id))
    sql(([[INSERT INTO nightshift_signal VALUES (%d, 'go', '1', 1)]]):format(id))
    return id
  end },
  { "a job whose signal is there, and that still waits for it", function()
    local id = id_of "waits"
    assert(q:claim():wait { signal = "go" })
    sql(([[INSERT INTO nightshift_signal VALUES (%d, 'go', '1', 1)]]):format(id))
    return id
  end },
  { "a job that waits for nothing", function()
    local on = id_of "target"
    local id = assert(q:push("after", 1, { after = { on } }))
    sql("DELETE FROM nightshift_edge WHERE job_id = " .. id)
    assert(q:claim():ack())
    return id
  end },
  { "a parent whose children have all ended", function()
    local id = id_of "parent"
    local parent = assert(q:claim())
    parent:spawn("kid", 1)
    assert(parent:wait())
    sql("DELETE FROM nightshift_edge WHERE job_id = " .. id)
    assert(q:claim():ack())
    return id
  end },
  { "a job that a pause holds that is over", function()
    local id = id_of "paused"
    assert(handle:pause(id))
    sql "DELETE FROM nightshift_pause"
    return id
  end },
}

local LEFT = {
  { "a row of a job that is gone", function()
    sql("DELETE FROM nightshift_job WHERE id = " .. id_of "gone")
  end, "nightshift_ready WHERE job_id > 0" },
  { "a row of a claim", function()
    local id = id_of "claimed"
    local at = sql "SELECT CONCAT_WS(',', queue_id, rank, ready_at, job_id, run) FROM nightshift_ready WHERE job_id > 0"
    assert.equal(id, assert(q:claim()).id)
    sql("INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run) VALUES (" .. at .. ")")
  end, "nightshift_ready WHERE job_id > 0", "a fault" },
  { "a scheduled row of a job that is gone", function()
    sql("DELETE FROM nightshift_job WHERE id = " .. assert(q:push("gone", 1, { delay = 3600 })))
  end, "nightshift_scheduled" },
  { "a signal to a job that left no history", function()
    local forgets <close> = assert(nightshift.open { url = url, history = "failed" })
    local id = id_of "told"
    assert(handle:signal(id, 1, "never"))
    assert(forgets:queue "q":claim():ack())
  end, "nightshift_signal" },
  { "a unique key of a job that is gone", function()
    sql("DELETE FROM nightshift_job WHERE id = " .. assert(q:push("gone", 1, { delay = 3600, unique = "k" })))
    sql "DELETE FROM nightshift_scheduled"
  end, "nightshift_unique_key", "a fault" },
}

--- A host that serves another queue, with looks a few hundred milliseconds apart.
local function look()
  sql "INSERT INTO nightshift_meta VALUES ('mend_every', '200000') ON DUPLICATE KEY UPDATE value = value"
  return host.start(url, "return {}", { "--queues", "other", "--workers", "1" })
end

before_each(function()
  url, name = db.fresh()
  handle = assert(nightshift.open(url))
  q = handle:queue "q"
end)
after_each(function() handle:close() end)

for _, plant in ipairs(PLANTS) do
  it(plant[1] .. " runs again", function()
    local id = plant[2]()
    assert.is_nil(q:claim())
    look()
    local job = assert(q:claim { wait = 90 }) -- looks take a hundredth of the time, however slow it is
    assert.equal(id, job.id)
    assert(job:ack())
    eventually(function()
      return sql "SELECT SUM(n) FROM nightshift_mended WHERE what IN ('nowhere', 'waits')" == "1"
    end)
  end)
end

for _, plant in ipairs(LEFT) do
  it(plant[1] .. " goes", function()
    plant[2]()
    assert.equal("1", sql("SELECT COUNT(*) FROM " .. plant[3]))
    local h = look()
    eventually(function() return sql("SELECT COUNT(*) FROM " .. plant[3]) == "0" end, 90)
    if plant[4] then
      eventually(function() return sql "SELECT SUM(n) FROM nightshift_mended" == "1" end)
    else -- what a cancel leaves behind is nobody's damage
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_mended")
      assert.is_nil(h:transcript():find("mended", 1, true))
    end
  end)
end

it("a claim that its holder does not know of comes back, while the holder lives", function()
  sql "INSERT INTO nightshift_meta VALUES ('mend_every', '200000')"
  local id = id_of "mine"
  local other = id_of "not known"
  assert.equal(id, assert(q:claim()).id)
  sql(("DELETE FROM nightshift_ready WHERE job_id = %d"):format(other))
  sql(([=[INSERT INTO nightshift_lease (id, holder, claimed, jobs)
    SELECT id + 1, holder, claimed, '[[%d,1]]' FROM nightshift_lease]=]):format(other))
  local back = eventually(function()
    assert(handle._handle:look(0))
    return q:claim()
  end, 90)
  assert.equal(other, back.id)
  assert.equal("unknown\t1", sql "SELECT what, n FROM nightshift_mended")
end)

it("nothing is mended that is where it is to be", function()
  local kids = id_of "kids"
  local parent = assert(q:claim())
  parent:spawn("kid", 1, { delay = 60 })
  assert(parent:wait())
  id_of "waits"
  assert(q:claim():wait { signal = "go", deadline = 60 })
  id_of "fails"
  assert(q:claim():fail("no", { retry_in = 60 }))
  assert(q:push("held", 1, { unique = "k", delay = 60, after = { kids } }))
  assert(handle:pause(id_of "paused"))
  assert(q:push("late", 1, { delay = 60, deadline = 90 }))
  id_of "claimed"
  local claimed = assert(q:claim())
  assert(handle:reprioritise(id_of "moved", 7))
  id_of "ready"
  local before = sql "SELECT * FROM nightshift_job ORDER BY id"
  for _ = 1, 3 do
    local found = assert(handle._handle:mend(false))
    assert.same({ 0, 0, 0 }, { found.jobs, found.rows, found.twice })
  end
  assert.equal(before, sql "SELECT * FROM nightshift_job ORDER BY id")
  assert(claimed:ack())
end)

it("the doctor names what is nowhere, and rescue mends it", function()
  local proc = require "spec.support.proc"
  sql "INSERT INTO nightshift_meta VALUES ('mend_every', '200000')"
  local id = id_of "plain"
  sql("DELETE FROM nightshift_ready WHERE job_id = " .. id)
  local _, out = proc.nightshift({ "doctor", "--json" }, url)
  local found
  for _, check in ipairs(nightshift.decode(out).checks) do found = check.name == "lost" and check or found end
  assert.equal("fail", found.level)
  assert.is_truthy(found.found:find("1 ", 1, true), found.found)
  local exit, text = proc.nightshift({ "rescue", "--wait", "0" }, url)
  assert.equal(0, exit)
  assert.is_truthy(text:find("1 job", 1, true), text)
  assert.equal(id, assert(q:claim()).id)
end)
