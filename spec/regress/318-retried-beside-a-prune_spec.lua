-- A prune lists a tree, and then deletes it. A job of the list that was retried in between
-- lost its attempts and its place below its parent, while it ran again.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local PRUNER = [[
  local handle = assert(require "nightshift".open(%q))
  print("pruned", handle:prune { tree = %d })]]

it("a job that is retried while its tree is pruned keeps what it has", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local top = assert(q:push "top")
  local parent = assert(q:claim())
  local kid = assert(parent:spawn("kid", nil, { max_attempts = 1 }))
  assert(parent:ack())
  assert(q:claim():fail "no")
  assert.equal("dead", handle:job(kid).state)
  local pruner
  assert(handle:transaction(function()
    assert(handle:retry(kid))
    pruner = proc.start { proc.lua, "-e", PRUNER:format(url, top) }
    eventually(function()
      return pruner:ended()
        or db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
    end)
    return true
  end))
  pruner:wait_line "pruned%s+0"
  assert.equal("1\t1", db.sql(([[SELECT (SELECT COUNT(*) FROM nightshift_attempt WHERE job_id = %d),
    (SELECT COUNT(*) FROM nightshift_child WHERE id = %d)]]):format(kid, kid), name))
  assert.equal("done", handle:job(top).state)
  assert(q:claim():ack())
  assert.equal(2, handle:prune { tree = top })
end)
