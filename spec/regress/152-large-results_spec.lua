-- A page of job.results was 500 children, however large their results were: up
-- to half a gigabyte at once, three times that in Lua.

local db = require "spec.support.db"
local nightshift = require "nightshift"

describe("results that are large", function()
  it("are read a few at a time, each once", function()
    local handle <close> = assert(nightshift.open((db.fresh())))
    local q = handle:queue "q"
    assert(q:push("parent", 1, { priority = 200 }))
    local job = assert(q:claim())
    for i = 1, 60 do assert(job:spawn("child", i)) end
    assert(job:wait())
    for i = 1, 60 do
      local large = i > 10 and i <= 40
      assert(assert(q:claim()):ack(i .. (large and ("x"):rep(1000000) or "")))
    end
    job = assert(q:claim())
    collectgarbage()
    local before, most, seen = collectgarbage "count", 0, {}
    for i, child in ipairs(job.results) do
      seen[i] = math.tointeger(tonumber(child.result:match "^%d+"))
      child.result = nil
      collectgarbage()
      most = math.max(most, collectgarbage "count" - before)
    end
    for i = 1, 60 do assert.equal(i, seen[i]) end
    assert.equal(60, #job.results)
    assert.is_true(most < 12000, most .. " KiB")
    for _, i in ipairs { 60, 1, 30, 29, 12, 59 } do
      assert.equal(tostring(i), job.results[i].result:match "^%d+")
    end
    assert.is_nil(job.results[61])
    assert(job:ack())
  end)
end)
