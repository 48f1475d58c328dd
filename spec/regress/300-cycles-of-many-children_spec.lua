-- A host's cycle wrote whatever verdicts had come in, with up to a hundred children each: of
-- 16 workers some thousands of rows, of 32 ten times that, and jobs of all other queues
-- waited for them.

local host = require "spec.support.host"

local CHILDREN, PARENTS = 90, 800
local MOST = 1600 -- children that are written together

local SCRIPT = ([[
return {
  parent = function(job)
    for i = 1, %d do job:spawn("child", i, { queue = "nobody" }) end
  end,
  tick = function() end,
}]]):format(CHILDREN)

describe("jobs that spawn 90 children each", function()
  local handle, q, url
  with_database(function(...) handle, q, url = ... end)

  local function ask(sql, ...) return handle:execute("SELECT " .. sql, ...)[1].n end
  local function ended() return ask "COUNT(*) AS n FROM nightshift_finished WHERE name = 'parent'" end

  -- The rows of one statement have one instant.
  local function written_together()
    return ask [[MAX(together) AS n FROM
      (SELECT COUNT(*) AS together FROM nightshift_job WHERE name = 'child' GROUP BY created) s]]
  end

  it("are written few at a time, and those of another queue start in between", function()
    local h = host.start(url, SCRIPT, { "--queues", "q,other", "--workers", "32" })
    local parents, ticks = {}, 0
    for i = 1, PARENTS do parents[i] = { "parent", nil, { max_attempts = 1 } } end
    assert(q:push_many(parents))
    repeat
      local id = assert(handle:queue "other":push "tick")
      eventually(function() return handle:job(id).state == "done" end)
      ticks = ticks + 1
    until ended() == PARENTS
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal(CHILDREN * PARENTS, ask "COUNT(*) AS n FROM nightshift_child")
    assert.equal(0, ask "COUNT(*) AS n FROM nightshift_lease")
    assert.equal(0, ask "COUNT(*) AS n FROM nightshift_finished WHERE outcome <> 'done'")
    assert.is_true(ticks > 3, ticks)
    local most = written_together()
    assert.is_true(most <= MOST, ("%d children were written together"):format(most))
  end)
end)
