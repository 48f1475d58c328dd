-- Whole trees pushed as one.

local host = require "spec.support.host"

local url, handle

with_database(function(opened, _, at) handle, url = opened, at end)

describe("a flow", function()
  it("runs children before their parents, at any depth, and what waits for others after them", function()
    local root, ids = assert(handle:flow {
      name = "note", payload = "root", queue = "q",
      children = {
        { name = "note", payload = "left", as = "left", children = { { name = "note", payload = "leaf" } } },
        { name = "note", payload = "right", after = { "left" } },
      },
    })
    assert.equal(root, ids.id)
    assert.equal(2, #ids.children)
    local status, log = host.drain(url, [[return { note = function(job)
      io.stderr:write("ran ", job.payload, "\n")
      local seen = {}
      for _, one in ipairs(job.results) do seen[#seen + 1] = (one.after and "after " or "") .. one.result end
      return job.payload .. "(" .. table.concat(seen, ",") .. ")"
    end }]])
    assert.equal(0, status, log)
    local order = {}
    for name in log:gmatch "ran (%a+)" do order[#order + 1] = name end
    assert.same({ "leaf", "left", "right", "root" }, order)
    assert.equal("root(left(leaf()),right(after left(leaf())))", handle:job(root).result)
    assert.equal(root, handle:job(ids.children[1].children[1].id).root)
  end)

  it("with a circle is refused with the way around, and nothing is written", function()
    assert.error_matches(function()
      handle:flow { name = "a", as = "a", children = { { name = "b", as = "b", after = { "c" } },
        { name = "c", as = "c", after = { "b" } } } }
    end, "'b' waits for 'c' waits for 'b'")
    assert.error_matches(function()
      handle:flow { name = "a", as = "a", children = { { name = "b", after = { "a" } } } }
    end, "'a' waits for 'b' waits for 'a'")
    assert.equal(0, #handle:jobs())
  end)

  it("may have more jobs than ids are taken at a time", function()
    local children = {}
    for i = 1, 10500 do children[i] = { name = "leaf", payload = i } end
    local root, ids = assert(handle:flow { name = "root", queue = "wide", children = children })
    assert.equal(10500, #ids.children)
    assert.equal(10500, handle:execute("SELECT COUNT(*) AS n FROM nightshift_edge WHERE job_id = ?", root)[1].n)
  end)

  it("names what is wrong", function()
    assert.error_matches(function() handle:flow { name = "a", children = { { name = 5 } } } end,
      "the flow, child 1: the job's name must be a string, got number")
    assert.error_matches(function() handle:flow { name = "a", children = { { name = "b", queue = 5 } } } end,
      "the flow, child 1: 'queue' must be a string, got number")
    assert.error_matches(function() handle:flow { name = "a", after = { "x" } } end, "no node of that name")
    assert.error_matches(function() handle:flow { name = "a", as = "x", children = { { name = "b", as = "x" } } } end,
      "'x' stands twice")
    assert.error_matches(function() handle:flow { name = "a", color = 1 } end, "unknown option 'color'")
  end)

  it("is cancelled upwards when a child fails", function()
    local root, ids = assert(handle:flow { name = "a", queue = "q", children = { { name = "b" }, { name = "c" } } })
    local job = assert(handle:queue "q":claim())
    assert.equal(ids.children[1].id, job.id)
    assert(job:discard "no")
    assert.equal("cancelled", handle:job(root).state)
    assert.equal("ready", handle:job(ids.children[2].id).state)
  end)
end)

describe("many flows", function()
  it("are pushed at once, each with its own root, names and queue", function()
    local function report(queue)
      return { name = "report", queue = queue, children = { { name = "one", as = "one" },
        { name = "two", after = { "one" } } } }
    end
    local ids, shapes = assert(handle:flow_many { report "a", report "b", { name = "alone" } })
    assert.equal(3, #ids)
    for i, id in ipairs(ids) do assert.equal(id, shapes[i].id) end
    for i, queue in ipairs { "a", "b", "default" } do assert.equal(queue, handle:job(ids[i]).queue) end
    for i = 1, 2 do
      assert.equal(2, handle:job(ids[i]).unmet)
      assert.equal(ids[i], handle:job(shapes[i].children[2].id).parent)
    end
    local status, log = host.drain(url, [[local function run(job)
      io.stderr:write("ran " .. job.queue .. ":" .. job.name .. "\n")
    end
    return { report = run, one = run, two = run, alone = run }]])
    assert.equal(0, status, log)
    for _, queue in ipairs { "a", "b" } do
      local order = {}
      for name in log:gmatch("ran " .. queue .. ":(%a+)") do order[#order + 1] = name end
      assert.same({ "one", "two", "report" }, order)
    end
    for _, id in ipairs(ids) do assert.equal("done", handle:job(id).state) end
  end)

  it("are all written, or none", function()
    assert.error_matches(function()
      handle:flow_many { { name = "good" }, { name = "a", children = { { name = 5 } } } }
    end, "flow 2, child 1: the job's name must be a string, got number")
    local flows, message, code = handle:flow_many { { name = "good" }, { name = "bad", unique = "" } }
    assert.same({ nil, "INVALID" }, { flows, code })
    assert.matches("'bad'", message)
    assert.error_matches(function() handle:flow_many { { name = "a" }, nil, { name = "b" } } end, "item 2 is nil")
    assert.error_matches(function() handle:flow_many "a" end, "a list of flows")
    assert.equal(0, #handle:jobs())
    assert.same({}, handle:flow_many {})
  end)
end)
