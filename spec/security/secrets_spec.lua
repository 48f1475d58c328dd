-- Passwords stay where they were put: not in what `ps` shows, not in the
-- environment of workers or of what they start, not in logs and messages.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local SECRET = "Pass-word_1" -- of db.user

local function read(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

local function hides(text)
  assert.is_nil(text:find(SECRET, 1, true), text)
end

-- A handler that tells what it can see of the secret.
local LOOK = [[
local early = os.getenv "NIGHTSHIFT_URL"
local function sees(text) return text:find("Pass-word_1", 1, true) ~= nil end
return { look = function(job)
  local block <close> = io.open "/proc/self/environ"
  local child <close> = io.popen "env"
  return { early = early ~= nil, late = os.getenv "NIGHTSHIFT_URL" ~= nil, password = os.getenv "MYSQL_PWD" ~= nil,
    block = sees(block:read "a"), child = sees(child:read "a") }
end,
open = function(job)
  local db <close> = assert(require "nightshift".open())
  return db:execute("SELECT DATABASE() AS name")[1].name
end }
]]

describe("a password", function()
  local url, open, name

  before_each(function()
    local root
    root, name = db.fresh()
    url = db.user(root, "ALL")
    open = assert(nightshift.open(root))
  end)
  after_each(function() open:close() end)

  local function results(script, env, args)
    for job in script:gmatch "%S+" do assert(open:queue("q"):push(job, 1)) end
    local status, log = host.drain(url, LOOK, args or { "--drain-within", "500ms" }, env)
    assert.equal(0, status, log)
    hides(log)
    local found = {}
    for _, row in ipairs(assert(open:jobs { state = "done" })) do found[row.name] = open:job(row.id).result end
    return found
  end

  it("is not in a worker's environment, nor in that of what it starts", function()
    assert.same({ early = false, late = false, password = false, block = false, child = false },
      results("look", { MYSQL_PWD = SECRET }).look)
  end)

  it("is in both when the host was asked to leave it there", function()
    assert.same({ early = true, late = true, password = true, block = false, child = true },
      results("look", { MYSQL_PWD = SECRET }, { "--drain-within", "500ms", "--keep-env" }).look)
  end)

  it("need not be known to a handler that opens its host's database", function()
    assert.equal(name, results("open").open)
  end)

  it("is gone from the arguments and the environment block of every process of a host", function()
    for _, form in ipairs { { "--url=" .. url }, { "--url", url } } do
      local path = fixture.file("jobs.lua", LOOK)
      local h = proc.start { proc.program, "work", path, "--workers", "2", form[1], form[2],
        env = { NIGHTSHIFT_URL = url, MYSQL_PWD = SECRET } }
      h:wait_line("host.ready", 20)
      local family = host.family(h.pid)
      table.insert(family, h.pid)
      assert.is_true(#family >= 4)
      for _, pid in ipairs(family) do
        local arguments = read(("/proc/%d/cmdline"):format(pid))
        hides(arguments)
        assert.is_truthy(arguments:find("@localhost/" .. name, 1, true), arguments)
        hides(read(("/proc/%d/environ"):format(pid)))
      end
      assert(h:signal "USR1")
      h:wait_line "dump.host"
      assert(h:signal "TERM")
      assert.equal(0, h:wait())
      local out, err = h:text()
      hides(out .. err)
    end
  end)

  it("with no @ behind it is blanked with all of its URL", function()
    local p = proc.start { proc.program, "push", "q", "n", "-", "--url", "mysql://u:" .. SECRET,
      env = { NIGHTSHIFT_URL = false }, stdin = "1" }
    p:wait()
    local out, err = p:text()
    hides(out .. err)
  end)

  it("is in no message about a connection that fails", function()
    local bad = {
      url:gsub("Pass%-word_1", "%0x"),
      "mysql://u:" .. SECRET .. "@no-such-host.invalid/x",
      "mysql://u:" .. SECRET .. "@127.0.0.1:1/x",
      "mysql://u:" .. SECRET .. "@localhost/x?unix_socket=/nonexistent",
      "mysql://u:" .. SECRET .. "@h:port/x",
      "mysql://u:" .. SECRET .. "/@h/x",
      "mysql://u:" .. SECRET .. "#@h/x",
      "mysql://u:" .. SECRET .. "%@h/x",
      "mysql://u:" .. SECRET,
      "mysql:/u:" .. SECRET .. "@h/x",
      "postgres://u:" .. SECRET .. "@h/x",
      "u:" .. SECRET .. "@h/x",
      (url:gsub("/[^/]+_%d+%?", "/no_such_database?")),
    }
    for _, address in ipairs(bad) do
      for _, argv in ipairs { { "status" }, { "doctor" }, { "work", fixture.file("jobs.lua", LOOK) } } do
        local status, out, err = proc.nightshift(argv, address)
        assert.not_equal(0, status, address)
        hides(out .. err)
      end
      local none, message = nightshift.open(address)
      assert.is_nil(none)
      hides(message)
    end
  end)

  it("is in no text of a handle or of its errors", function()
    local handle <close> = assert(nightshift.open(url))
    hides(tostring(handle))
    hides(tostring(handle:queue "q"))
    hides(select(2, handle:execute "SELECT nonsense"))
    hides(select(2, pcall(nightshift.open, { url = url, sokcet = 1 })))
  end)
end)
