-- Dependents whose row somebody holds: nobody waits for it, and nobody is missed.

local lab = require "spec.support.lab"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

describe("a job that waits, while somebody's transaction holds its row", function()
  local database, q, other

  setup(lab.fresh)
  before_each(function()
    database, other = lab.open(), lab.open()
    q = assert(database:queue "held")
  end)
  after_each(function()
    for _, job in ipairs(assert(database:jobs { queue = "held" })) do database:cancel(job.id) end
    other:close()
    database:close()
  end)

  local function hold(id)
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
  end

  local function two_with_join(on_fail)
    local first, second = assert(q:push "first"), assert(q:push "second")
    return assert(q:push("join", nil, { after = { first, second }, on_fail = on_fail }))
  end

  local function finish_two(outcome)
    for _ = 1, 2 do
      local job = assert(q:claim())
      assert(job[outcome](job, outcome == "discard" and "no" or nil))
    end
  end

  it("does not stop those it waits for, and starts when it is let go", function()
    local join = two_with_join()
    hold(join)
    local start = nightshift.clock()
    finish_two "ack"
    assert.is_true(nightshift.clock() - start < proc.limit(2.5)) -- it waits for a lock: 3 s
    assert.equal("waiting", database:job(join).state)
    assert.is_nil(q:claim())
    other._handle:rollback()
    assert.equal(join, assert(q:claim { wait = 20 }).id)
    assert.equal(0, database:execute "SELECT COUNT(*) AS n FROM nightshift_met"[1].n)
    assert.equal(0, database:execute "SELECT COUNT(*) AS n FROM nightshift_edge"[1].n)
  end)

  it("is cancelled with the failed ones' name when it is let go", function()
    local join = two_with_join()
    local behind = assert(q:push("behind", nil, { after = { join } }))
    hold(join)
    finish_two "discard"
    other._handle:rollback()
    assert(database:rescue())
    local info = assert(database:job(join))
    assert.equal("cancelled", info.state)
    assert.matches("which it waited for, failed", info.error)
    assert.equal("cancelled", assert(database:job(behind)).state)
  end)

  it("is told by another handle when the one that ended the others is gone", function()
    local join = two_with_join()
    hold(join)
    finish_two "ack"
    database:close()
    other._handle:rollback()
    assert(other:rescue())
    assert.equal(join, assert(other:queue "held":claim()).id)
    database = lab.open()
    q = assert(database:queue "held")
  end)

  it("waits again for one that was retried before it could be told", function()
    local first = assert(q:push "first")
    local join = assert(q:push("join", nil, { after = { first } }))
    hold(join)
    assert(assert(q:claim()):discard "no")
    assert(database:retry(first))
    other._handle:rollback()
    assert(database:rescue())
    assert.equal("waiting", assert(database:job(join)).state)
    assert(assert(q:claim()):ack())
    assert.equal(join, assert(q:claim()).id)
  end)
end)

describe("more ended jobs than are looked at together", function()
  setup(lab.fresh)

  it("do not hide others behind one whose row is held", function()
    local database <close> = lab.open()
    local other <close> = lab.open()
    local q = assert(database:queue "many")
    local items = {}
    for i = 1, 1200 do items[i] = { "piece" } end
    local held = assert(q:push("held", nil, { after = assert(q:push_many(items)) }))
    local free = assert(q:push("free", nil, { after = { assert(q:push "piece") } }))
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id IN (?, ?) FOR UPDATE", held, free))
    local jobs = assert(q:claim_many(1201))
    assert(database:transaction(function()
      for _, job in ipairs(jobs) do assert(job:ack()) end
      return true
    end))
    assert.equal(1201, database:execute "SELECT COUNT(*) AS n FROM nightshift_met"[1].n)
    other._handle:rollback()
    assert(other._handle:begin())
    assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", held))
    assert.equal(free, assert(q:claim { wait = 20 }).id)
    other._handle:rollback()
    assert.equal(held, assert(q:claim { wait = 20 }).id)
  end)
end)

describe("a long chain of jobs that wait for each other", function()
  setup(lab.fresh)

  it("falls as a whole when its first one fails, in pieces", function()
    local database <close> = lab.open()
    local q = assert(database:queue "chain")
    local ids = { assert(q:push "link") }
    for i = 2, 100 do ids[i] = assert(q:push("link", nil, { after = { ids[i - 1] } })) end
    assert(assert(q:claim()):discard "no")
    for _ = 1, 4 do assert(database:rescue()) end
    for i = 2, #ids do assert.equal("cancelled", assert(database:job(ids[i])).state) end
  end)
end)

describe("a job that waits for one that somebody deleted by hand", function()
  setup(lab.fresh)

  it("falls with the next prune, however it was deleted", function()
    local database <close> = lab.open()
    local q = assert(database:queue "gone")
    local target = assert(q:push("target", nil, { delay = 3600 }))
    local strict = assert(q:push("strict", nil, { after = { target } }))
    local easy = assert(q:push("easy", nil, { after = { target }, on_fail = "run" }))
    assert(database:execute("DELETE FROM nightshift_job WHERE id = ?", target))
    assert(database:prune())
    assert.equal("cancelled", assert(database:job(strict)).state)
    assert.equal(easy, assert(q:claim()).id)
  end)
end)
