-- Children of a run that said "again" wait for their parent's end. When a later
-- run of it said "wait", the parent waited for them, and they for it, for ever.
-- Found by the torture.

describe("a parent that waits after it has said again", function()
  local handle, q
  with_database(function(...) handle, q = ... end)

  -- The parent's second run, claimed; its first had these children.
  local function second_run(...)
    assert(q:push("parent", 1, { priority = 200, backoff = 0 }))
    local job = assert(q:claim())
    local ids = {}
    for i, options in ipairs { ... } do ids[i] = assert(job:spawn("child", i, options)) end
    assert(job:again(0))
    assert.equal("waiting", handle:job(ids[1]).state)
    return assert(q:claim()), ids
  end

  it("lets the earlier children go", function()
    local job, ids = second_run({}, { delay = 3600 })
    local after = assert(job:spawn("child", 3, { after = { ids[1] } }))
    assert(job:wait())
    assert.same({ "ready", "scheduled", "waiting" },
      { handle:job(ids[1]).state, handle:job(ids[2]).state, handle:job(after).state })
    assert.equal(3, handle:job(job.id).unmet)
    assert(assert(q:claim()):ack "first")
    assert(handle:run_now(ids[2]))
    for _ = 1, 2 do assert(assert(q:claim()):ack()) end
    local last = assert(q:claim())
    assert.same({ job.id, 1, "first" }, { last.id, last.phase, last.results[1].result })
    assert(last:ack())
    assert.equal(0, assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_edge")[1].n)
  end)

  it("leaves those that wait for its end for another reason", function()
    local job = second_run {}
    local join = assert(q:push("join", 1, { after = { job.id } }))
    assert(job:wait())
    assert.equal("waiting", handle:job(join).state)
    assert(assert(q:claim()):ack())
    assert(assert(q:claim()):ack())
    assert.equal("join", assert(q:claim()).name)
  end)
end)
