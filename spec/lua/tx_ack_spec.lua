-- tx:ack: the end of a job and its own rows in one transaction.

local host = require "spec.support.host"
local nightshift = require "nightshift"

local url, handle, q

with_database(function(opened, _, at)
  handle, url = opened, at
  q = assert(handle:queue "default")
  assert(handle:execute "CREATE TABLE mark (id BIGINT NOT NULL) ENGINE=InnoDB")
end)

local function marks() return handle:execute("SELECT COUNT(*) AS n FROM mark")[1].n end

local function mark(tx, job) assert(tx:execute("INSERT INTO mark VALUES (?)", job.id)) end

describe("tx:ack", function()
  it("ends jobs together with the rows that belong to them", function()
    assert(q:push_many { { "a" }, { "b" } })
    local jobs = assert(q:claim_many(2))
    assert(handle:transaction(function(tx)
      for i, job in ipairs(jobs) do
        mark(tx, job)
        assert.is_true(tx:ack(job, i))
      end
    end))
    assert.equal(2, marks())
    for i, job in ipairs(jobs) do
      assert.equal("done", handle:job(job.id).state)
      assert.equal(i, handle:job(job.id).result)
    end
  end)

  it("counts for nothing when the transaction does not commit", function()
    assert(q:push "a")
    local job = assert(q:claim())
    assert.error_matches(function()
      handle:transaction(function(tx)
        assert(tx:ack(job))
        error "no"
      end)
    end, "no")
    assert.equal("running", handle:job(job.id).state)
    assert.is_true(job:ack())
  end)

  it("keeps the transaction from its commit when the claim is lost", function()
    assert(q:push "a")
    local job = assert(q:claim())
    assert(handle:cancel(job.id))
    local done, message, code = handle:transaction(function(tx)
      mark(tx, job)
      tx:ack(job) -- what it says is not looked at
    end)
    assert.is_nil(done)
    assert.matches("job " .. job.id, message)
    assert.equal("STALE", code)
    assert.equal(0, marks())
  end)

  it("takes no job of another handle", function()
    local other <close> = assert(nightshift.open(url))
    assert(q:push "a")
    local job = assert(q:claim())
    assert.error_matches(function()
      other:transaction(function(tx) tx:ack(job) end)
    end, "job %d+ was not claimed on this handle")
    assert.error_matches(function()
      handle:transaction(function(tx) tx:ack(5) end)
    end, "tx:ack wants a job, got number")
    assert.is_true(job:ack())
  end)

  it("ends the job of a handler with what the handler writes, and its children come", function()
    local id = assert(q:push "pay")
    local status, log = host.drain(url, [[return {
      pay = function(job)
        job:spawn("after", 1)
        assert(job:db():transaction(function(tx)
          assert(tx:execute("INSERT INTO mark VALUES (?)", job.id))
          assert(tx:ack(job, "paid"))
        end))
        error "too late to count"
      end,
      after = function() end,
    }]])
    assert.equal(0, status, log)
    assert.equal(1, marks())
    local job = assert(handle:job(id))
    assert.equal("done", job.state)
    assert.equal("paid", job.result)
    assert.equal(0, job.attempts)
    assert.equal(1, handle:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE parent = ?", id)[1].n)
  end)
end)
