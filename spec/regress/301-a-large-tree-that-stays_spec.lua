-- A prune looked through a whole tree for each thousand of its jobs, only to find each time
-- that its last job is younger: a tree of 300,000 was read three hundred times.

local nightshift = require "nightshift"
local db = require "spec.support.db"

local CHILDREN = 12000

describe("a prune of a large tree whose last job is younger", function()
  it("looks through it once", function()
    local server = db.server()
    local url, name = server:fresh()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push "root")
    server:sql(([[
      INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls, crashes,
        lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
      SELECT id + IF(seq = 0, 0, 1000000 + seq), queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1, 1, 1,
        created, created - IF(seq = %d, 0, 2 * 86400000000), IF(seq = 0, NULL, id), IF(seq = 0, NULL, id), on_fail,
        nonce
      FROM nightshift_job JOIN seq_0_to_%d;
      INSERT INTO nightshift_child SELECT id, seq, id + 1000000 + seq FROM nightshift_job JOIN seq_1_to_%d;
      DELETE FROM nightshift_job; DELETE FROM nightshift_ready]]):format(CHILDREN, CHILDREN, CHILDREN), name)
    local function read()
      return tonumber((server:sql([[SELECT SUM(variable_value) FROM information_schema.global_status
        WHERE variable_name IN ('Handler_read_key', 'Handler_read_next')]])))
    end
    local before = read()
    assert.equal(0, assert(handle:prune { done = "1d" }))
    local rows = (read() - before) / CHILDREN
    assert.is_true(rows < 12, ("%.1f rows were read for each job"):format(rows))
  end)
end)
