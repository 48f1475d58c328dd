-- A host that pruned the history of trees took each of a thousand in a
-- transaction of its own, and all of them in one go: its jobs waited for a second
-- and more, once a second.

local nightshift = require "nightshift"
local core = require "nightshift.core"
local db = require "spec.support.db"

describe("the history of many small trees", function()
  it("goes a bounded number of rows at a time beside a host's jobs", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local jobs = {}
    for i = 1, 1500 do jobs[i] = { "top" } end
    local tops = assert(q:push_many(jobs))
    for i, id in ipairs(tops) do jobs[i] = { "child", nil, { parent = id, priority = 50 } } end
    assert(q:push_many(jobs))
    db.sql([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls,
        crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
      SELECT id, queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1, 1, 1, created,
        created - 2 * 86400000000 + id, parent, root, on_fail, nonce
      FROM nightshift_job; DELETE FROM nightshift_job; DELETE FROM nightshift_ready]], name)
    local h <close> = assert(core.open { url = url })
    local total, calls = 0, 0
    repeat
      local deleted = assert(h:prune(86400, 86400, 1))
      assert.is_true(deleted <= 1001, deleted)
      total, calls = total + deleted, calls + 1
    until deleted == 0
    assert.equal(3000, total)
    assert.is_true(calls <= 500, calls) -- on a slow machine each ends before it has 1,000
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_child", name)))
  end)
end)
