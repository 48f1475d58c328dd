-- A claim does not lock the job, and its lease cannot be seen before it commits. A verb over a
-- tree that met a claim under way took its job for one that nobody has, and gave it a row of
-- its next run: it was started a second time, beside the first.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local VERBS = {
  pause = "handle:pause(id)",
  reprioritise = "handle:reprioritise(id, 7, { tree = true })",
  deadline = "handle:deadline(id, 3600, { tree = true })",
}
local ASKER = [[
  local id = %d
  local handle = assert(require "nightshift".open(%q))
  io.write("asks\n") io.flush()
  print("told", %s)]]

local url, name, handle, q
before_each(function()
  url, name = db.fresh()
  handle = assert(nightshift.open(url))
  q = handle:queue "q"
end)
after_each(function() handle:close() end)

local function ready() return db.sql("SELECT job_id, run, rank FROM nightshift_ready WHERE job_id > 0", name) end

for verb, call in pairs(VERBS) do
  it("a job that is being claimed is not queued again: " .. verb, function()
    local id = assert(q:push("job", 1, verb == "deadline" and { delay = 7200 } or nil))
    local claimer <close> = assert(core.open { url = url })
    assert(claimer:begin()) -- what a claim writes, step by step
    assert(claimer:execute("DELETE FROM nightshift_ready WHERE job_id = ?", id))
    assert(claimer:execute("DELETE FROM nightshift_scheduled WHERE job_id = ?", id))
    assert(claimer:execute("INSERT INTO nightshift_lease (id, holder, claimed, jobs) VALUES (7, 7, 1, ?)",
      ("[[%d,1]]"):format(id)))
    local asker = proc.start { proc.lua, "-e", ASKER:format(id, url, call) }
    asker:wait_line "asks"
    eventually(function()
      return asker:ended()
        or db.sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'") ~= ""
    end)
    assert(claimer:commit())
    asker:wait_line "told%s+1"
    assert.equal("1", db.sql("SELECT run FROM nightshift_job", name))
    assert.equal("", ready())
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_scheduled", name))
  end)
end

it("jobs that nobody claims move, from ready and from scheduled, from all lanes and queues", function()
  local root = assert(handle:flow { name = "root", queue = "q", children = {
    { name = "a", priority = 1 }, { name = "b", priority = 2 }, { name = "c", queue = "p" },
    { name = "d", delay = 3600 } } })
  assert.equal(5, handle:pause(root))
  assert.is_nil(q:claim())
  assert.equal(5, handle:resume(root))
  assert.equal(5, handle:reprioritise(root, 7, { tree = true }))
  assert.equal("3", db.sql("SELECT COUNT(*) FROM nightshift_job j JOIN nightshift_ready r ON r.job_id = j.id "
    .. "AND r.run = j.run AND r.rank = 248", name))
  assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_job j JOIN nightshift_scheduled r ON r.job_id = j.id "
    .. "AND r.run = j.run AND r.rank = 248", name))
end)
