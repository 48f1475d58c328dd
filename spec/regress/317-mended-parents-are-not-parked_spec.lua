-- A parked parent that was put back, as it waited for nobody, was still marked as parked: a
-- child pushed below it then was waited for, by a job that was ready or ran.

local nightshift = require "nightshift"
local db = require "spec.support.db"

it("a parent that was put back waits for no child that is pushed then", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local id = assert(q:push "parent")
  local parent = assert(q:claim())
  parent:spawn "kid"
  assert(parent:wait())
  db.sql("DELETE FROM nightshift_edge", name)
  assert(q:claim():ack())
  assert.is_nil(q:claim())
  assert.equal(1, assert(handle._handle:mend(true)).jobs + assert(handle._handle:mend(true)).jobs)
  assert(q:push("late", nil, { parent = id }))
  assert.equal("0\tNULL", db.sql(("SELECT unmet, waits FROM nightshift_job WHERE id = %d"):format(id), name))
  local first, second = assert(q:claim()), assert(q:claim())
  assert.same({ [id] = true, [second.id] = true }, { [first.id] = true, [second.id] = true })
  assert(second:ack())
  assert.equal("", db.sql("SELECT job_id FROM nightshift_ready WHERE job_id > 0", name))
  assert(first:ack())
end)
