-- A retry of a tree counted what a parked parent waits for anew, and left out a child that
-- had ended and of which the parent was not told yet. Once it was, the parent ran beside
-- the children that were left; or its last edges were more than it waited for, and no
-- cycle that came with them could be written.

local nightshift = require "nightshift"

local handle, q, url, parent

with_database(function(...) handle, q, url = ... end)

-- Somebody holds the parent while 'act' is at work.
local function held(act)
  local other <close> = assert(nightshift.open(url))
  assert(other._handle:begin())
  assert(other:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", parent))
  act()
  other._handle:rollback()
end

-- Of 'n' claimed children of a parked parent the first one fails, the second ends while
-- the parent cannot be told, and the tree is retried. Returns them.
local function family(n)
  parent = assert(q:push "parent")
  local job = assert(q:claim())
  for i = 1, n do assert(job:spawn("child", i)) end
  assert(job:wait { on_fail = "continue" })
  local kids = assert(q:claim_many(n))
  assert(kids[1]:discard "no")
  held(function() assert(kids[2]:ack()) end)
  -- in a transaction it does not look first whether anybody is to be told
  assert(handle._handle:begin())
  assert.equal(1, handle:retry(parent, { tree = true }))
  assert(handle._handle:commit())
  return kids
end

describe("a parent whose tree is retried while a child ends", function()
  it("waits for those that are left", function()
    local kids = family(3)
    assert(assert(q:claim()):ack()) -- the first one again
    assert.is_nil(q:claim())
    assert.equal("waiting", handle:job(parent).state)
    assert(kids[3]:ack())
    assert.equal(parent, assert(q:claim()).id)
  end)

  it("runs when it is told of the last two together", function()
    family(2)
    held(function() assert(assert(q:claim()):ack()) end)
    assert.equal(parent, assert(q:claim()).id)
    assert.equal(0, handle:execute "SELECT COUNT(*) AS n FROM nightshift_met"[1].n)
  end)
end)
