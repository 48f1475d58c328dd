-- History of trees: it goes when the whole tree has finished, not before.

local lab = require "spec.support.lab"

describe("history of a tree", function()
  local database, q

  setup(lab.fresh)
  before_each(function()
    database = lab.open { max_children = 10000 }
    q = assert(database:queue "trees")
  end)
  after_each(function() database:close() end)

  local function take(name)
    local job = assert(q:claim())
    assert.equal(name, job.name)
    return job
  end

  -- A parent with children; those in `open` stay live.
  local function tree(children, open)
    local id = assert(q:push "parent")
    local parent = take "parent"
    local ids = {}
    for i = 1, children do ids[i] = assert(parent:spawn("child", i, { delay = i <= open and 3600 or nil })) end
    assert(parent:ack())
    for _ = open + 1, children do assert(take "child":ack(1)) end
    return id, ids
  end

  local function is_known(id) return database:job(id) ~= nil end

  it("stays while one of it lives, and then goes as a whole", function()
    local id, children = tree(3, 1)
    local lonely = assert(q:push "alone")
    assert(take "alone":ack())
    assert.equal(1, database:prune { done = 0 })
    assert.is_false(is_known(lonely))
    assert.is_true(is_known(id))
    for _, child in ipairs(children) do assert.is_true(is_known(child)) end
    assert(database:cancel(children[1]))
    assert.equal(0, database:prune { done = 0, dead = "1d" }) -- the cancelled one is not old enough
    assert.equal(4, database:prune { done = 0, dead = 0 })
    assert.equal(0, #database:execute("SELECT * FROM nightshift_child WHERE parent = ?", id))
  end)

  it("of a parent that waits stays for its results", function()
    assert(q:push "parent")
    local parent = take "parent"
    assert(parent:spawn("child", 1))
    assert(parent:spawn("child", 2))
    assert(parent:wait())
    assert(take "child":ack "first")
    assert.equal(0, database:prune { done = 0, dead = 0 })
    assert(take "child":ack "second")
    parent = take "parent"
    assert.equal("first", parent.results[1].result)
    assert.equal("second", parent.results[2].result)
    assert(parent:ack())
    assert.equal(3, database:prune { done = 0, dead = 0 })
  end)

  it("goes in batches when there is much of it", function()
    tree(2500, 0)
    assert.equal(2501, database:prune { done = 0 })
    assert.equal(0, database:execute "SELECT COUNT(*) AS n FROM nightshift_finished"[1].n)
  end)

  it("is found behind thousands of rows that stay", function()
    tree(2200, 1)
    local last = assert(q:push "alone")
    assert(take "alone":ack())
    assert.equal(1, database:prune { done = 0 })
    assert.is_false(is_known(last))
  end)

  it("goes at once when asked for by its root, if all of it has finished", function()
    local id, children = tree(2, 1)
    local deleted, message, code = database:prune { tree = id }
    assert.is_nil(deleted)
    assert.equal("STATE", code)
    assert.matches("has not finished", message)
    assert(database:cancel(children[1]))
    assert.equal(3, database:prune { tree = id })
    assert.is_false(is_known(id))
    assert.has_error(function() database:prune { tree = id, done = 0 } end)
  end)
end)
