-- A host's prune waited, a minute and more, for whoever held a row of what it was to delete;
-- so did what is written and given back on the same connection: large verdicts, claims of
-- the dead.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local db = require "spec.support.db"

local CHILDREN = 4000

local SCRIPT = [[
return { parent = function(job)
  for i = 1, 200 do job:spawn("child", i, { queue = "nobody" }) end
end }]]

describe("a host whose prune meets a row that somebody holds", function()
  local handle, q, url, name
  with_database(function(...) handle, q, url, name = ... end)

  local function count(what) return tonumber((db.sql("SELECT COUNT(*) FROM nightshift_" .. what, name))) end

  --- One tree, all of it done two days ago; the id of its root.
  local function old_tree()
    local root = assert(handle:queue "old":push "root")
    db.sql(([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls,
        crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
      SELECT id + IF(seq = 0, 0, 1000000 + seq), queue_id, name, payload, priority, 'done', run, 0, 0, 0, 0, 1, 1, 1, 1,
        created, created - 2 * 86400000000, IF(seq = 0, NULL, id), IF(seq = 0, NULL, id), on_fail, nonce
      FROM nightshift_job JOIN seq_0_to_%d;
      INSERT INTO nightshift_child SELECT id, seq, id + 1000000 + seq FROM nightshift_job JOIN seq_1_to_%d;
      DELETE FROM nightshift_job; DELETE FROM nightshift_ready]]):format(CHILDREN, CHILDREN), name)
    return root
  end

  it("writes large verdicts meanwhile, and deletes the rest when it is free", function()
    local root = old_tree()
    local h = host.start(url, SCRIPT, { "--queues", "q" })
    local holder <close> = assert(nightshift.open(url))
    assert(holder:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_finished WHERE id = ? FOR UPDATE", root + 1000000 + CHILDREN // 2))
      eventually(function() return count "finished" < CHILDREN end, 30)
      for i = 1, 10 do
        local id = assert(q:push "parent")
        eventually(function() return handle:job(id).state == "done" end)
        assert.equal(200 * i, count "job")
      end
      assert.is_true(count "finished" >= CHILDREN // 2)
    end))
    eventually(function() return count "finished" == 10 end, 40)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
