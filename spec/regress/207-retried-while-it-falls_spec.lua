-- What falls with a failed job falls in pieces. A tree of many levels that was
-- retried before all were told had its top cancelled while the rest ran again.

local nightshift = require "nightshift"

local LEVELS = 320 -- more than one piece

describe("a deep tree that is retried while it falls", function()
  local url, handle, q

  with_database(function(...) handle, q, url = ... end)

  local function fallen()
    local node = { name = "leaf" }
    for _ = 1, LEVELS do node = { name = "node", children = { node } } end
    node.queue = "q"
    local root = assert(handle:flow(node))
    assert(q:claim():discard "no")
    return root
  end

  local function runs(root)
    for _ = 0, LEVELS do assert(assert(q:claim()):ack()) end
    local counts = handle:progress(root)
    assert.same({ LEVELS + 1, "done" }, { counts.done, handle:job(root).state })
  end

  it("runs again up to its top", function()
    local root = fallen()
    assert.equal(LEVELS + 1, handle:retry(root, { tree = true }))
    runs(root)
  end)

  it("also when another program says so", function()
    local root = fallen()
    local other <close> = assert(nightshift.open(url))
    assert.equal(LEVELS + 1, other:retry(root, { tree = true }))
    runs(root)
  end)
end)
