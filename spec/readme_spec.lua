-- What the README shows runs as it stands there.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local README = assert(io.open "README.md"):read "a"

--- The block of Lua that holds a text.
local function block(text)
  for code in README:gmatch "```lua\n(.-)```" do
    if code:find(text, 1, true) then return code end
  end
  error("the README has no block with " .. text)
end

describe("the README's", function()
  it("handlers can be pasted and run", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local script = block "nightshift.background":gsub("sleep 8", "sleep 1"):gsub("every = 5", "every = 1")
    local path = proc.folder() .. "/sized"
    assert(io.open(path, "w")):write("12345"):close()
    local q = handle:queue "q"
    local sized = assert(q:push("file.size", { path = path }))
    local missing = assert(q:push("file.size", { path = "/none" }, { max_attempts = 1 }))
    local encoded = assert(q:push "video.encode")
    local h = host.start(url, script, { "--drain" })
    assert.equal(0, h:wait(60), h:transcript())
    assert.same({ bytes = 5 }, handle:job(sized).result)
    assert.is_truthy(handle:job(missing).error:find("No such file", 1, true))
    assert.equal("done", handle:job(encoded).state)
    local results = 0
    for _, row in ipairs(handle:jobs { state = "done" }) do
      local job = handle:job(row.id)
      if job.parent == encoded and type(job.result) == "string" then results = results + 1 end
    end
    assert.equal(1, results)
  end)

  it("five lines run, and run again", function()
    local url = db.fresh()
    local lines = block "job:ack { sent = true }"
    assert.is_truthy(lines:find("nightshift.open", 1, true))
    lines = lines:gsub('nightshift.open "[^"]*"', ("nightshift.open %q"):format(url))
      :gsub('delay = "30s"', "delay = 0"):gsub("wait = 60", "wait = 5")
    for _ = 1, 2 do assert(load(lines .. "\nassert(job)"))() end
  end)
end)
