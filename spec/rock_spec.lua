-- The rock, for real: a clean clone, `luarocks make` into an empty tree, and
-- then module and program used from that tree alone.

local root = assert(io.popen "pwd"):read "l"

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- Runs a script with a bare environment, so that nothing of this build tree,
-- its settings or its make reaches it. Gives what it printed, and success.
local function run(folder, script, more)
  local command = ("cd %s && env -i PATH=\"$PATH\" HOME=%s %s sh -c %s 2>&1")
    :format(quote(folder), quote(folder), more or "", quote(script))
  local pipe = assert(io.popen(command))
  local text = pipe:read "a"
  return text, pipe:close() or false
end

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local HANDLERS = [[
return { double = function(job) return job.payload * 2 end }
]]

local PUSH_AND_CLAIM = [[
local nightshift = require "nightshift"
local db <close> = assert(nightshift.open())
local q = assert(db:queue "rock")
local id = assert(q:push("hello", {list = {1, 2}}))
local job = assert(q:claim())
assert(job.id == id and job.payload.list[2] == 2)
assert(job:ack())
print("done", assert(db:job(id)).state)
print("pushed", assert(q:push("double", 21)))
]]

local ASK = [[
local nightshift = require "nightshift"
local db <close> = assert(nightshift.open())
local info = assert(db:job(tonumber(arg[1])))
print(info.state, info.result)
]]

describe("the rock", function()
  local t, tree, paths

  setup(function()
    t = assert(io.popen "mktemp -d"):read "l"
    tree = t .. "/tree"
    local share = tree .. "/share/lua/5.4/"
    paths = ("LUA_PATH=%s LUA_CPATH=%s"):format(quote(share .. "?.lua;" .. share .. "?/init.lua"),
      quote(tree .. "/lib/lua/5.4/?.so"))
    assert(os.execute("mkdir " .. quote(t .. "/run")))
    write(t .. "/run/handlers.lua", HANDLERS)
    write(t .. "/run/push.lua", PUSH_AND_CLAIM)
    write(t .. "/run/ask.lua", ASK)
  end)

  teardown(function() os.execute("rm -rf " .. quote(t)) end)

  it("installs from a clean clone", function()
    assert.is_true(os.execute "command -v luarocks git >/dev/null", "luarocks and git are needed")
    local text, ok = run(t, ("git -c safe.directory='*' clone -q --no-hardlinks %s clone && cd clone && " ..
      "luarocks --lua-version=5.4 --tree %s make"):format(quote(root), quote(tree)))
    assert.is_true(ok, text)
    for _, path in ipairs { "bin/nightshift", "lib/lua/5.4/nightshift/core.so", "share/lua/5.4/nightshift/init.lua",
      "share/lua/5.4/nightshift/cli/init.lua" } do
      assert.is_truthy(io.open(tree .. "/" .. path), path .. " is missing")
    end
    assert.matches("nightshift%-work%.1", (run(t, "find tree -name 'nightshift*.1'"))) -- in the rock's own folder
    assert(os.execute("rm -rf " .. quote(t .. "/clone"))) -- it must not be needed any more
  end)

  it("links the module without a second Lua", function()
    local text = run(t, "readelf -d tree/lib/lua/5.4/nightshift/core.so")
    assert.is_truthy(text:find("libmariadb", 1, true), text)
    assert.is_nil(text:find("liblua", 1, true), text)
  end)

  it("lets plain Lua push and claim, and its program run the job", function()
    local text, ok = run(t .. "/run", tree .. "/bin/nightshift init")
    assert.is_true(ok, text)
    text, ok = run(t .. "/run", "lua5.4 push.lua", paths)
    assert.is_true(ok, text)
    assert.is_truthy(text:find "done\tdone", text)
    local id = assert(text:match "pushed\t(%d+)", text)
    text, ok = run(t .. "/run", tree .. "/bin/nightshift work handlers.lua --workers 1 --drain")
    assert.is_true(ok, text)
    text, ok = run(t .. "/run", "lua5.4 ask.lua " .. id, paths)
    assert.is_true(ok, text)
    assert.is_truthy(text:find("done\t42\n", 1, true), text)
  end)
end)
