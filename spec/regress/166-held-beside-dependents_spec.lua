-- Somebody's open transaction had been refused the unique key of a dependent
-- that fell, or had pushed a dependent of the next job: whoever ended what they
-- waited for, a host too, waited for that transaction, though it held none of
-- the jobs.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("an open transaction", function()
  local url, handle, other, q

  before_each(function()
    url = db.fresh()
    handle, other = assert(nightshift.open(url)), assert(nightshift.open(url))
    q = handle:queue "q"
  end)
  after_each(function()
    handle:close()
    other:close()
  end)

  -- Discards a job while a transaction, which is rolled back, has done `what`.
  local function discard_while(job, what)
    local ok, why = pcall(other.transaction, other, function(tx)
      what(tx)
      assert(handle:execute "SET innodb_lock_wait_timeout = 10")
      local begun = nightshift.clock()
      assert(job:discard "no")
      assert.is_true(nightshift.clock() - begun < 9)
      error "as planned"
    end)
    if not ok and not tostring(why):find "as planned" then error(why, 0) end
  end

  it("that was refused a unique key does not hold up what makes its job fall", function()
    local first = assert(q:push "job")
    local second = assert(q:push("job", nil, { after = { first }, unique = "key" }))
    local third = assert(q:push("job", nil, { after = { second } }))
    discard_while(assert(q:claim()), function(tx)
      assert.equal("DUPLICATE", select(3, tx:queue("q"):push("job", nil, { unique = "key" })))
    end)
    assert.is_nil(q:claim { wait = 1 })
    assert.same({ "cancelled", "cancelled" }, { handle:job(second).state, handle:job(third).state })
    assert(q:push("job", nil, { unique = "key" }))
  end)

  it("that has pushed a dependent of the next job does not hold up what falls before it", function()
    local first = assert(q:push("job", nil, { priority = 200 }))
    local job = assert(q:claim())
    local ids = assert(q:push_many { { "job", nil, { after = { first } } },
      { "job", nil, { after = { first } } }, { "job" } })
    assert.same({ ids[1] + 1, ids[1] + 2 }, { ids[2], ids[3] })
    local below = {}
    for i = 1, 2 do below[i] = assert(q:push("job", nil, { after = { ids[i] } })) end
    discard_while(job, function(tx) assert(tx:queue("q"):push("job", nil, { after = { ids[3] } })) end)
    for i = 1, 2 do assert.equal("cancelled", handle:job(below[i]).state) end
  end)
end)
