-- run_now of a job that was promoted and claimed in the same moment made it ready once more:
-- it was started a second time, beside the first.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local ASKER = [[
  local handle = assert(require "nightshift".open(%q))
  io.write("asks\n") io.flush()
  print("told", handle:run_now(%d))]]

it("a job that is being claimed is not made ready again by run_now", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local id = assert(handle:queue("q"):push("job", 1, { delay = 3 }))
  local claimer <close> = assert(core.open { url = url })
  assert(claimer:begin()) -- what promotes and claims, step by step
  assert(claimer:execute("DELETE FROM nightshift_scheduled WHERE job_id = ?", id))
  assert(claimer:execute("INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (7, 7, 1, ?)",
    ("[[%d,1]]"):format(id)))
  local asker = proc.start { proc.lua, "-e", ASKER:format(url, id) }
  asker:wait_line "asks"
  eventually(function()
    return asker:ended()
      or db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
  end)
  eventually(function()
    return db.sql("SELECT due < UNIX_TIMESTAMP(NOW(6)) * 1000000 FROM nightshift_job", name) == "1"
  end)
  assert(claimer:commit())
  asker:wait_line "told%s+nil.*ready or running"
  assert.equal("1", db.sql("SELECT run FROM nightshift_job", name))
  assert.equal("", db.sql("SELECT job_id FROM nightshift_ready WHERE job_id > 0", name))
end)

it("a job without a row before its time is made ready", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local id = assert(q:push("job", 1, { delay = 3600 }))
  db.sql("DELETE FROM nightshift_scheduled", name)
  assert.is_true(handle:run_now(id))
  assert.equal(id, q:claim().id)
end)
