-- A row in ready or scheduled says which name it is of, whoever wrote it: a claim of
-- some names reads no job to know. Rows that did not say so were anybody's.

local db = require "spec.support.db"

local handle, q, name

with_database(function(opened, queue, _, at) handle, q, name = opened, queue, at end)

-- Rows that say something else than their job, and how many there are.
local function wrong(where)
  local text = db.sql([[SELECT COUNT(*), COALESCE(SUM(r.kind <> CRC32(j.name)), 0) FROM
    (SELECT job_id, kind FROM nightshift_ready WHERE job_id > 0
     UNION ALL SELECT job_id, kind FROM nightshift_scheduled) r
    JOIN nightshift_job j ON j.id = r.job_id]], name)
  local rows, bad = text:match "(%d+)%s+(%d+)"
  assert.is_true(tonumber(rows) > 0, where .. ": there is no row")
  assert.equal("0", bad, where)
end

describe("a row of what may be claimed says the kind of its job", function()
  it("when it is pushed", function()
    for i, options in ipairs { {}, { delay = 60 }, { unique = "k" }, { unique = "l", delay = 60 }, { priority = 3 } } do
      assert(q:push("grüße." .. i, i, options))
    end
    assert(q:push_many { { "a", 1 }, { "b", 2, { delay = 60 } }, { "c", 3, { unique = "m" } }, { "d", 4 } })
    wrong "push"
    db.sql([[CALL nightshift_push('default', 'sql.grüße', '1', NULL);
      CALL nightshift_push('default', 'later', '1', '{"delay":60}')]], name)
    wrong "CALL nightshift_push"
  end)

  it("when it comes back", function()
    local ids = {}
    for i, verb in ipairs { "release", "fail", "again", "wait" } do
      ids[i] = assert(q:push("back." .. verb, i, { backoff = 60 }))
      local job = assert(q:claim())
      assert(job[verb](job, verb == "again" and 60 or verb == "wait" and { signal = "s" } or "why"))
      wrong(verb)
      if verb == "release" then assert(q:claim():ack()) end
    end
    assert(handle:run_now(ids[2]))
    wrong "run_now"
    assert(handle:reprioritise(ids[3], 7))
    assert(handle:reprioritise(ids[2], 8))
    wrong "reprioritise"
    assert(handle:signal(ids[4], 1, "s"))
    wrong "signal"
    assert(handle:pause(ids[4]))
    assert(handle:resume(ids[4]))
    wrong "resume"
    db.sql("UPDATE nightshift_scheduled SET run_at = 1", name)
    assert(q:claim()) -- promotes
    wrong "promotion"
  end)

  it("when it is of a tree", function()
    local first = assert(q:push("first", 1))
    assert(q:push("second", 2, { after = { first } }))
    assert(q:claim():ack())
    wrong "after"
    assert(q:claim():ack())
    local parent = assert(q:push("parent", 1))
    local job = assert(q:claim())
    for i = 1, 3 do assert(job:spawn("kid." .. i, i, { delay = i == 3 and 60 or nil })) end
    assert(job:wait { on_fail = "continue" })
    wrong "children"
    for _ = 1, 2 do assert(q:claim():discard "so") end
    assert(handle:run_now(handle:execute("SELECT job_id FROM nightshift_scheduled")[1].job_id))
    assert(q:claim():ack())
    wrong "the parent, whose children have ended"
    assert(q:claim():discard "so")
    assert(handle:retry(parent, { tree = true }))
    assert.is_true(handle:job(parent).id == parent)
    wrong "retry of a tree"
  end)
end)
