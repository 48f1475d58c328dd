-- The server lets a locking read see a commit a moment before a snapshot does: a claim
-- took a ready row and read its job in a snapshot that did not show it yet, held it
-- for cancelled, and forgot it, so that nobody ever ran it; and a job was woken by a
-- signal that its claim did not see. Seen on a machine with far more to do than it
-- could. Here the moment is as long as it takes: of two rows that belong together one
-- is committed by itself, and the claimer's replies are slow.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

local DELAY = 400 -- ms, of each reply

local handle, q, url, late
with_database(function(...) handle, q, url = ... end)
before_each(function() late = assert(nightshift.open(url)) end)
after_each(function() late:close() end)

local CLAIM = [[
  local db = assert(require "nightshift".open(arg[1]))
  db:queue("q"):claim():ack() -- all that it says from here on is prepared
  print "open"
  io.open(arg[2]):read "a" -- until it may go on
  local job = assert(db:queue("q"):claim { wait = 20 })
  print("has " .. job.run .. " " .. tostring(job.signal))
  job:ack(job.signal)]]

--- A claimer whose replies are slow from now on; it claims when it is told to.
local function claimer()
  assert(q:push "warm-up")
  local through, gate = proxy.start(db.shared()), fixture.dir() .. "/gate"
  assert(os.execute("mkfifo " .. gate))
  local process = proc.start { proc.lua, fixture.file("claim.lua", CLAIM), through:url(url), gate }
  process:wait_line "^open"
  through:tell("delay " .. DELAY)
  return process, through, gate
end

--- It claims, and as soon as the ready row is taken what 'late' has done is committed.
local function claim_and_commit(gate)
  assert(io.open(gate, "w")):close()
  eventually(function()
    return handle:execute("SELECT COUNT(*) AS n FROM nightshift_ready WHERE job_id > 0")[1].n == 0
  end)
  assert(late._handle:commit())
end

describe("what a locking read sees before a snapshot does", function()
  it("is a job that is claimed, not one that is gone", function()
    local process, through, gate = claimer()
    local id = assert(q:push "job")
    assert(handle:execute("UPDATE nightshift_ready SET run = 2 WHERE job_id = ?", id))
    assert(late._handle:begin())
    assert(late:execute("UPDATE nightshift_job SET run = 2 WHERE id = ?", id))
    claim_and_commit(gate)
    process:wait_line "^has 2 nil"
    through:tell "delay 0"
    assert.equal(0, process:wait(20))
    assert.equal("done", handle:job(id).state)
  end)

  it("is a signal", function()
    local process, through, gate = claimer()
    local id = assert(q:push "job")
    assert(assert(q:claim()):wait { signal = "go" })
    assert(late._handle:begin())
    assert(late:execute("INSERT INTO nightshift_signal VALUES (?, 'go', '7', 1)", id))
    assert(handle:execute("DELETE FROM nightshift_scheduled WHERE job_id = ?", id))
    assert(handle:execute("UPDATE nightshift_job SET due = 1 WHERE id = ?", id))
    assert(handle:execute("INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)"
      .. " SELECT queue_id, rank, created + 1, id, run FROM nightshift_job WHERE id = ?", id))
    claim_and_commit(gate)
    process:wait_line "^has 2 7"
    through:tell "delay 0"
    assert.equal(0, process:wait(20))
    assert.equal(7, handle:job(id).result)
  end)
end)
