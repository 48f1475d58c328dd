-- A program that held a job and whose server had stopped answering never ended: closing its
-- handle waited for the server, without end. A host's listeners could keep it, too.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local START = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  local q = db:queue "q"
  local function go()
    io.stdout:write "go\n"
    io.stdout:flush()
    io.read()
  end
]]

describe("while the server is frozen", function()
  local server, url
  setup(function() server = db.server() end)
  teardown(function() server:remove() end)
  before_each(function() url = server:fresh() end)
  after_each(function() server:thaw() end)

  -- Runs a program up to its go(), freezes the server, and lets it go on; s until it ended.
  local function frozen_from(program, options)
    local fifo = fixture.dir() .. "/fifo"
    assert(os.execute("mkfifo " .. fifo))
    local text = START:format(url .. (options or "")) .. program
    local p = proc.start { "sh", "-c", 'exec "$@" < "$0"', fifo, proc.lua, "-e", text }
    local go <close> = assert(io.open(fifo, "w"))
    p:wait_line("^go", 20)
    server:freeze()
    local since = nightshift.clock()
    go:write "\n"
    go:flush()
    local how = p:wait(25)
    local _, err = p:text()
    return nightshift.clock() - since, how, err
  end

  for what, program in pairs {
    ["with a claim"] = "assert(q:push 'a') local job = assert(q:claim()) go()",
    ["by os.exit"] = "assert(q:push 'a') local job = assert(q:claim()) go() os.exit(0, true)",
    ["that closes"] = "assert(q:push 'a') local job = assert(q:claim()) go() db:close()",
    ["with a lock"] = "local l = assert(db:lock 'l':acquire()) go()",
    ["after a wait"] = "q:claim{ wait = 0.1 } go()",
  } do
    it("a program ends " .. what, function()
      local took, how, err = frozen_from(program)
      assert.is_true(took < proc.limit(20), took)
      assert.equal(0, how, err)
    end)
  end

  it("a program ends that would commit", function()
    local took, how, err = frozen_from([[
      local ok, message, code = db:transaction(function(tx)
        assert(tx:execute "INSERT INTO nightshift_meta VALUES ('x', 'y')")
        go()
        return true
      end)
      assert(code == "GONE", message)]], "&read_timeout=2s")
    assert.is_true(took < proc.limit(20), took)
    assert.equal(0, how, err)
  end)

  it("a wait for a job ends at Ctrl-C, and so does a verb", function()
    for _, program in ipairs { "go() q:claim{ wait = 60 }", "go() q:push 'a'" } do
      local p = proc.start { "sh", "-c", 'exec "$@"', "sh", proc.lua, "-e",
        (START:format(url):gsub("io.read%(%)", "require 'nst'.sleep(0.5)")) .. program }
      p:wait_line("^go", 20)
      server:freeze()
      os.execute "sleep 2"
      local since = nightshift.clock()
      p:signal "INT"
      p:wait()
      local took = nightshift.clock() - since
      local _, err = p:text()
      server:thaw()
      assert.is_truthy(err:find("interrupted!", 1, true), err)
      assert.is_true(took < proc.limit(15), took)
    end
  end)

  it("a host that is told to end does", function()
    local h = host.start(url, "return { a = function() end }", { "--drain-timeout", "1s" })
    server:freeze()
    local since = nightshift.clock()
    h:signal "TERM"
    h:wait(40)
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(19), took)
  end)
end)
