-- The migration of examples/: every file arrives, byte for byte, although workers
-- are killed with tasks in their hands.

local host = require "spec.support.host"
local nst = require "nst"
local proc = require "spec.support.proc"

local FILES = 200

local from, out

local function write(path, text)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(text))
end

local function read(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

local ODD = { "two words", "100%", "%41", "caf\u{e9}", "a+b&c?d#e", "empty", "-rf", "quo'te" }

before_each(function()
  from, out = fixture.dir(), fixture.dir()
  assert(os.execute("mkdir " .. from .. "/below"))
  for i = 1, FILES - #ODD do write(("%s/below/%d.png"):format(from, i), ("image %d\r\n\0"):format(i):rep(i * 7)) end
  for _, name in ipairs(ODD) do write(from .. "/" .. name, name == "empty" and "" or name) end
end)

-- A process below another whose command line has this in it.
local function find(pid, what)
  for _, child in ipairs(host.children(pid)) do
    local file <close> = io.open(("/proc/%d/cmdline"):format(child), "rb")
    if file and (file:read "a" or ""):find(what, 1, true) then return child end
  end
end

local function images()
  local pipe <close> = assert(io.popen("ls " .. out .. "/images 2>/dev/null"))
  local n = 0
  for line in pipe:lines() do
    if line:find "^%d+$" then n = n + 1 end
  end
  return n
end

-- The table lies in a database of the example's own.
local ROWS = [[
  local db = assert(require "nightshift".open())
  for _, row in ipairs(assert(db:execute "SELECT * FROM migration_task")) do
    print(row.id, row.status, row.iteration, row.completedAt and "dated", row.imageUrl)
  end]]

local function rows()
  local status, text, errors = proc.run { proc.lua, "-e", ROWS, cwd = out, env = { NIGHTSHIFT_URL = false } }
  assert.equal(0, status, errors)
  local list = {}
  for id, state, iteration, dated, url in text:gmatch "(%d+)\t(%l+)\t(%d+)\t(%w+)\t(%S+)" do
    list[#list + 1] = { id = id, state = state, iteration = tonumber(iteration), dated = dated, url = url }
  end
  return list
end

local function unescape(url)
  return (url:gsub("^http://[^/]*/", ""):gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end))
end

describe("the migration", function()
  it("brings every file, though workers are killed in the middle", function()
    local p = proc.start { "sh", "examples/migration/run.sh",
      env = { DIR = from, OUT = out, O = proc.build, WORKERS = 3, LUA = proc.lua } }
    eventually(function() return images() >= 20 end, 30)
    local server = assert(find(p.pid, "server.lua"))
    nst.kill(server, "STOP")
    eventually(function() -- all workers wait for it
      local claimed = 0
      for _, row in ipairs(rows()) do claimed = claimed + (row.state == "processing" and 1 or 0) end
      return claimed >= 3
    end, 30)
    assert(images() < FILES)
    for _, pid in ipairs(host.members(p.pid)) do nst.kill(pid, "KILL") end -- they wait for the server
    nst.kill(server, "CONT")
    assert.equal(0, p:wait(60), p:transcript())
    local text = p:text()
    assert.truthy(text:find(("%d tasks"):format(FILES), 1, true), text)
    assert.truthy(text:find(("[%s] %d of %d, "):format(("#"):rep(40), FILES, FILES), 1, true), text)
    assert.truthy(text:find "/s, %d+:%d%d min left", text)
    assert.truthy(text:find(("%d complete, 0 given up"):format(FILES), 1, true), text)
    local list, again, seen = rows(), 0, {}
    assert.equal(FILES, #list)
    for _, row in ipairs(list) do
      assert.same({ "complete", "dated" }, { row.state, row.dated }, row.id)
      local name = unescape(row.url)
      assert.is_nil(seen[name], name)
      assert.equal(read(from .. "/" .. name), read(out .. "/images/" .. row.id), name)
      seen[name], again = true, again + row.iteration
    end
    assert.is_true(again >= 1, again) -- what the dead had claimed
    assert.equal(FILES, images())
  end)
end)
