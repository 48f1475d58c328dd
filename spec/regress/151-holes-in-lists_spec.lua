-- What stood behind a hole in `after` or in a flow's children was left out in
-- silence: a job did not wait for it, or was never pushed. A node that stood in
-- a flow twice was two jobs, one below itself was a stack overflow, and a child's
-- `parent` was ignored.

local db = require "spec.support.db"
local nightshift = require "nightshift"

describe("what a job waits for", function()
  local handle
  before_each(function() handle = assert(nightshift.open((db.fresh()))) end)
  after_each(function() handle:close() end)

  it("is a list without holes", function()
    local q = handle:queue "q"
    local id = assert(q:push "job")
    for _, after in ipairs { { id, nil, id }, { id, x = id }, { x = id }, { [2] = id } } do
      assert.error_matches(function() q:push("next", 1, { after = after }) end,
        "push: after must be a list without holes")
    end
    local job = assert(q:claim())
    assert.error_matches(function() job:spawn("next", 1, { after = { id, nil, id } }) end, "without holes")
    assert(job:release())
    assert.equal(1, #handle:jobs())
  end)

  it("is a list in a flow, too", function()
    local function refuses(flow, message, ...)
      local more = table.pack(...)
      assert.error_matches(function() handle:flow(flow, table.unpack(more)) end, message, 1, true)
    end
    local leaf = { name = "leaf" }
    refuses({ name = "a", children = { leaf, nil, { name = "b" } } },
      "flow: the flow: 'children' must be a list without holes; item 2 is nil")
    refuses({ name = "a", children = { x = leaf } }, "'children' must be a list without holes")
    refuses({ name = "a", children = { { name = "b", after = { x = "c" } } } },
      "flow: the flow, child 1: 'after' must be a list without holes")
    refuses({ name = "a", children = { { name = "b", children = { leaf } }, leaf } }, "the node 'leaf' stands twice")
    refuses({ name = "a", children = { { name = "b", parent = 1 } } }, "its parent is the node above it")
    refuses({ name = "a" }, "flow takes a tree of jobs", { queue = "q" })
    assert.equal(0, #handle:jobs())
  end)

  it("is not itself", function()
    local a = { name = "a" }
    local b = { name = "b", children = { a } }
    a.children = { b }
    assert.error_matches(function() handle:flow { name = "root", children = { a } } end,
      "nothing could ever start: 'a' waits for 'b' waits for 'a'")
  end)

  it("may be deep", function()
    local node = { name = "leaf" }
    for _ = 1, 20000 do node = { name = "node", children = { node } } end
    assert(handle:flow(node))
  end)
end)
