-- resume of a job inside another pause first ended its own pause, and then gave its jobs to
-- the other one. What it had not reached when it was cut off was held by a pause that was
-- over, was let go for that, and ran, though the other pause was still on.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local RESUMER = [[
  local handle = assert(require "nightshift".open(%q))
  handle:resume(%d)]]

it("a resume that is cut off inside another pause lets nothing go", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local outer = assert(q:push "outer")
  local inner = assert(q:push("inner", nil, { parent = outer }))
  local low = assert(q:push("low", nil, { parent = inner }))
  assert(handle:pause(outer))
  assert(handle:pause(inner))
  assert.equal(inner, handle:job(low).paused)
  local holder <close> = assert(nightshift.open(url))
  assert(holder:transaction(function(tx)
    assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", low))
    local resumer = proc.start { proc.lua, "-e", RESUMER:format(url, inner) }
    eventually(function()
      return handle:job(inner).paused == outer
        and db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
    end)
    resumer:signal "KILL"
    eventually(function() return resumer:ended() end)
    return true
  end))
  eventually(function() return db.sql("SELECT trx_id FROM information_schema.innodb_trx") == "" end)
  for _ = 1, 3 do assert.equal(0, assert(handle._handle:mend(true)).jobs) end
  assert.is_nil(q:claim())
  assert(handle:resume(inner))
  assert.same({ outer, outer }, { handle:job(inner).paused, handle:job(low).paused })
  assert.equal(3, handle:resume(outer))
  for _ = 1, 3 do assert(assert(q:claim()):ack()) end
end)
