-- A claim does not lock the job, and its lease cannot be seen before it commits. Who
-- gave the job another priority in between found no lease, so it queued the job again
-- under its next run: it was started a second time, beside the first.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local MOVER = [[
  local db = assert(require "nightshift".open(%q))
  io.write("moves\n") io.flush()
  print("told", db:reprioritise(%d, 7))]]

it("a job that is being claimed while its priority changes is not queued again", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local id = assert(handle:queue "q":push("job", 1))
  local claimer <close> = assert(core.open { url = url })
  assert(claimer:begin()) -- what a claim writes, step by step
  assert(claimer:execute("DELETE FROM nightshift_ready WHERE job_id = ?", id))
  assert(claimer:execute("INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (7, 7, 1, ?)",
    ("[[%d,1]]"):format(id)))
  local mover = proc.start { proc.lua, "-e", MOVER:format(url, id) }
  mover:wait_line "moves"
  eventually(function()
    return mover:ended()
      or db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
  end)
  assert(claimer:commit())
  mover:wait_line "told%s+true"
  assert.equal("1\t248", db.sql("SELECT run, rank FROM nightshift_job", name))
  assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id > 0", name))
end)

it("one that nobody claims moves, from ready and from scheduled", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local ready, later = assert(q:push("ready", 1)), assert(q:push("later", 1, { delay = 60 }))
  assert(handle:reprioritise(ready, 7))
  assert(handle:reprioritise(later, 8))
  assert.equal(("%d\t2\t248"):format(ready),
    db.sql("SELECT job_id, run, rank FROM nightshift_ready WHERE job_id > 0", name))
  assert.equal(("%d\t2\t247"):format(later), db.sql("SELECT job_id, run, rank FROM nightshift_scheduled", name))
end)
