-- A host deleted old history, and gave back what the dead had held, in the thread that
-- starts jobs, settles them and tells that the host lives. The bound on a prune was looked
-- at between two trees, so one tree of 100,000 jobs kept the jobs of all queues waiting
-- for more than a second, and whoever locked a row of it, for as long as he held it.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"

local CHILDREN = tonumber(os.getenv "CHILDREN") or 20000 -- 300000 takes some minutes

local SCRIPT = "return { tick = function() end }"

--- One tree, all of it done two days ago; the id of its root.
local function old_tree(sql, q)
  local root = assert(q:push "root")
  sql(([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls,
      crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
    SELECT id + IF(seq = 0, 0, 1000000000 + seq), queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1,
      1, 1, created, created - 2 * 86400000000, IF(seq = 0, NULL, id), IF(seq = 0, NULL, id), on_fail, nonce
    FROM nightshift_job JOIN seq_0_to_%d;
    INSERT INTO nightshift_child SELECT id, seq, id + 1000000000 + seq FROM nightshift_job JOIN seq_1_to_%d;
    DELETE FROM nightshift_job; DELETE FROM nightshift_ready]]):format(CHILDREN, CHILDREN))
  return root
end

describe("a host that deletes a large tree of old jobs", function()
  local handle, q, url, sql
  with_database(function(...)
    handle, q, url = ...
    local name = select(4, ...)
    sql = function(text) return (db.sql(text, name)) end
  end)

  local function left() return tonumber((sql "SELECT COUNT(*) FROM nightshift_child")) end
  local function tick() return assert(q:push "tick") end

  it("goes on with jobs while somebody holds a row of it", function()
    local root = old_tree(sql, handle:queue "old")
    local h = host.start(url, SCRIPT)
    local holder <close> = assert(nightshift.open(url))
    assert(holder:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_finished WHERE id IN (?, ?) FOR UPDATE", root + 1000000007,
        root + 1000000000 + CHILDREN // 2))
      eventually(function() return left() < CHILDREN end, 30)
      for _ = 1, 20 do
        local id = tick()
        eventually(function() return assert(handle:job(id)).state == "done" end)
      end
      assert.is_true(left() >= CHILDREN // 2)
    end))
    eventually(function() return left() == 0 end, 60)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("goes on with jobs of other queues before it is gone", function()
    old_tree(sql, handle:queue "old")
    local h = host.start(url, SCRIPT)
    eventually(function() return left() < CHILDREN end, 30)
    local done = 0
    while sql "SELECT id FROM nightshift_child LIMIT 1" ~= "" do
      local id = tick()
      eventually(function() return assert(handle:job(id)).state == "done" end, 60)
      done = done + 1
    end
    assert.is_true(done > 5, done) -- by the thread that starts jobs: 1; `make bench` has how late they are
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
