-- A prune read all children of a job in one statement, 300,000 of them in seconds; what
-- waited for the same connection of the host, a large verdict for one, waited for its end.

local nightshift = require "nightshift"
local db = require "spec.support.db"

local MOST = 6000 -- rows that a statement of a prune reads
local CHILDREN = 9000

describe("a prune of a large tree", function()
  local server, handle, root, name, url
  before_each(function()
    server = db.server()
    url, name = server:fresh()
    local first <close> = assert(nightshift.open(url))
    root = assert(first:queue("q"):push "root")
    server:sql(([[
      INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls, crashes,
        lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
      SELECT id + IF(seq = 0, 0, 1000000 + seq), queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1, 1, 1,
        created, created - 2 * 86400000000, NULL, IF(seq = 0, NULL, id), on_fail, nonce
      FROM nightshift_job JOIN seq_0_to_%d;
      INSERT INTO nightshift_child SELECT CASE WHEN seq <= 3500 THEN id WHEN seq <= 5500 THEN id + 1000003
        WHEN seq <= 5600 THEN id + 1003500 ELSE id + 1000000 + seq - 5600 END, seq, id + 1000000 + seq
      FROM nightshift_job JOIN seq_1_to_%d; UPDATE nightshift_finished f JOIN nightshift_child c ON c.id = f.id
      SET f.parent = c.parent; DELETE FROM nightshift_job; DELETE FROM nightshift_ready;
      SET GLOBAL log_output = 'TABLE', long_query_time = 0, min_examined_row_limit = %d, slow_query_log = 1]])
      :format(CHILDREN, CHILDREN, MOST), name)
    handle = assert(nightshift.open(url))
  end)
  after_each(function() handle:close() end)

  local function count(what) return tonumber((server:sql("SELECT COUNT(*) FROM " .. what, name))) end

  it("reads it page by page", function()
    assert.equal(CHILDREN + 1, assert(handle:prune { done = "1d" }))
    assert.equal(0, count "nightshift_finished")
    assert.equal(0, count "nightshift_child")
    assert.equal(0, count "mysql.slow_log WHERE sql_text LIKE '%nightshift_child%'")
  end)

  it("leaves it alone when a job at its very end is younger, whatever page that is on", function()
    for _, seq in ipairs { 3500, 5500, 5600, 5601, CHILDREN } do
      server:sql(("UPDATE nightshift_finished SET finished_at = created WHERE id = %d"):format(root + 1000000 + seq),
        name)
      assert.equal(0, assert(handle:prune { done = "1d" }), seq)
      server:sql(("UPDATE nightshift_finished SET finished_at = created - 2 * 86400000000 WHERE id = %d")
        :format(root + 1000000 + seq), name)
    end
    assert.equal(CHILDREN + 1, count "nightshift_finished")
    assert.equal(CHILDREN + 1, assert(handle:prune { tree = root }))
  end)
end)
