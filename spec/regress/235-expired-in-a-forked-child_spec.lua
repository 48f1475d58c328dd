-- A forked child took over its parent's verdicts on jobs that were claimed too late, and settled
-- claims that are not its own.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local nst = require "nst"

it("what a parent has claimed too late is none of a forked child's business", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local other <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local id = assert(q:push("job", 1, { deadline = 3600 }))
  db.sql("UPDATE nightshift_job SET deadline = 1", name)
  assert(other:transaction(function(tx)
    assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
    assert.is_nil(q:claim())
    return true
  end))
  assert.equal("running", other:job(id).state)
  local pid = nst.fork(function()
    assert(not q:claim())
    handle:close()
  end)
  local how, status
  eventually(function()
    how, status = nst.reap(pid)
    return how
  end)
  assert.same({ "exit", 0 }, { how, status })
  assert.equal("running", other:job(id).state)
  assert.is_nil(q:claim())
  assert.equal("dead", other:job(id).state)
end)
