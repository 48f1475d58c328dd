-- What keeps a host from starting: each with its exit code and a message.

local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"

local url

setup(function() url = db.fresh() end)

-- Runs `nightshift work` until it ends.
local function work(args, where)
  local status, out, err = proc.nightshift({ "work", table.unpack(args) }, where or url)
  assert.equal("", out)
  return status, err
end

local function refuses(exit, text, args, where)
  local status, err = work(args, where)
  assert.equal(exit, status, err)
  assert.matches(text, err, 1, true)
  assert.is_nil(err:find "host.ready", err)
end

local function script(text) return fixture.file("jobs.lua", text) end

describe("handlers that cannot be loaded end the host with 78:", function()
  it("a syntax error, with file and line", function()
    local path = script "return {\n  a = function( end\n}"
    refuses(78, path .. ":2: ", { path })
  end)

  it("a raise, with file and line", function()
    local path = script "local x\nx.y = 1\nreturn {}"
    refuses(78, path .. ":2: attempt to index a nil value", { path })
  end)

  it("a raise of a table", function()
    local path = script "error { code = 7 }"
    refuses(78, '{"code":7}', { path })
  end)

  it("os.exit", function()
    local path = script "\nos.exit(0)"
    refuses(78, path .. ":2: os.exit called", { path })
  end)

  it("a file that returns nothing", function()
    local path = script "local t = {}\n"
    refuses(78, path .. ":1: a handler file must return a table of handlers, this one returns nothing", { path })
  end)

  it("a file that returns a number", function()
    local path = script "\n\nreturn 42"
    refuses(78, path .. ":3: a handler file must return a table of handlers, this one returns a number", { path })
  end)

  it("a handler that is no handler", function()
    local path = script "return { a = 42 }"
    refuses(78, path .. ": handler 'a' is a number; it must be a function or a nightshift.background", { path })
  end)

  it("a handler without a usable name", function()
    refuses(78, "a handler's name is empty", { script "return { [''] = function() end }" })
    refuses(78, "a handler's name must be a string, got the number 1", { script "return { function() end }" })
    refuses(78, "has 101 bytes, the limit is 100", { script "return { [('n'):rep(101)] = function() end }" })
  end)

  it("two files with one name, naming both", function()
    local one = script "return {\n  a = function() end\n}"
    local two = script "return {\n\n  a = function() end\n}"
    refuses(78, ("%s:3: handler 'a' is already defined in %s:2"):format(two, one), { one, two })
  end)

  it("a background handler whose poll has the name of another", function()
    local path = script [[return {
      ["a:poll"] = function() end,
      a = require "nightshift".background { start = print, poll = print } }]]
    refuses(78, "'a:poll' is already defined", { path })
  end)

  it("a file that does not exist", function() refuses(78, "/nowhere/x.lua", { "/nowhere/x.lua" }) end)

  it("a folder without Lua files", function() refuses(78, "has no Lua files", { fixture.dir() }) end)

  it("a file that kills the process that loads it", function()
    local path = script [[os.execute "kill -9 $PPID" os.execute "sleep 1"]]
    refuses(78, "the process that loads the handlers died: killed by signal 9 (Killed)", { path })
  end)

  it("bytecode", function()
    local path = script(string.dump(load "return {}"))
    refuses(78, "compiled Lua; handlers are loaded as text only", { path })
  end)
end)

describe("a folder", function()
  it("stands for the Lua files in it", function()
    local dir = fixture.dir()
    for _, name in ipairs { "a", "b" } do
      local file <close> = io.open(("%s/%s.lua"):format(dir, name), "w")
      file:write(("return { %s = function() end }"):format(name))
    end
    io.open(dir .. "/notes.txt", "w"):close()
    local p = proc.start { proc.program, "work", dir, "--drain", env = { NIGHTSHIFT_URL = url } }
    assert.equal("2", p:wait_line "host.ready .*handlers=(%d+)")
    assert.equal(0, p:wait())
  end)
end)

describe("the database", function()
  local path
  before_each(function() path = script "return { a = function() end }" end)

  it("that is not there: 69", function()
    refuses(69, "", { path }, "mysql://root@localhost/x?unix_socket=/nowhere/s.sock")
  end)

  it("on a host that is not there: 69", function()
    refuses(69, "", { path }, "mysql://root@127.0.0.1:1/x?tls=off")
  end)

  it("that refuses the password: 78", function()
    local user = db.user(url, "SELECT")
    refuses(78, "denied", { path }, (user:gsub("Pass%-word_1", "wrong")))
  end)

  it("without our tables: 78", function() refuses(78, "nightshift init", { path }, (db.empty())) end)

  it("that allows too little: 78", function() refuses(78, "denied", { path }, (db.user(url, "SELECT"))) end)
end)

describe("bad arguments", function()
  it("are refused with 2", function()
    local path = script "return {}"
    refuses(2, "workers", { path, "--workers", "0" })
    refuses(2, "weight", { path, "--queues", "a=0" })
    refuses(2, "twice", { path, "--queues", "a,a" })
    refuses(2, "argument", {})
  end)
end)

describe("a handler file without handlers", function()
  it("is named in a warning, and the others are served", function()
    local folder = proc.folder()
    for name, text in pairs { empty = "return {}", jobs = "return { a = function() end }" } do
      local file <close> = assert(io.open(folder .. "/" .. name .. ".lua", "w"))
      file:write(text)
    end
    proc.run { "chmod", "-R", "go+rX", folder }
    local h = host.spawn(url, folder .. "/empty.lua", { folder .. "/jobs.lua" })
    h:wait_line("host.ready", 20)
    local log = select(2, h:text())
    local told = host.events(log, "handlers.none")
    assert.equal(1, #told)
    assert.same({ "warn", folder .. "/empty.lua" }, { told[1].level, told[1].file })
    assert.equal("1", host.events(log, "host.ready")[1].handlers)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is told of in JSON when the log is", function()
    local path = script "return {}"
    local h = host.spawn(url, path, { "--log", "json" })
    h:wait_line("host.ready", 20)
    assert.matches('"event":"handlers.none","file":"' .. path .. '"', select(2, h:text()), 1, true)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

it("the host says when it is ready, with its pid", function()
  local h = host.start(url, "return { a = function() end }", { "--workers", "3" })
  local ready = host.events(select(2, h:text()), "host.ready")[1]
  assert.equal(tostring(h.pid), ready.pid)
  assert.equal("3", ready.workers)
  eventually(function() return #host.members(h.pid) == 3 end)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)
