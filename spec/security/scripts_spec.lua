-- Job scripts are text, and names are names: nothing that a job carries ever
-- becomes a path or code.

local db = require "spec.support.db"
local handlers = require "nightshift.handlers"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

describe("a handler file", function()
  for _, strip in ipairs { false, true } do
    it("of bytecode is refused, and the message says what it is; stripped: " .. tostring(strip), function()
      local chunk = string.dump(assert(load "return { a = function() end }"), strip)
      local file = fixture.file("jobs.lua", chunk)
      local none, message = handlers.load { file }
      assert.is_nil(none)
      assert.is_truthy(message:find(file, 1, true), message)
      assert.is_truthy(message:find("compiled", 1, true), message)
      local status, _, err = proc.nightshift({ "work", file, "--drain" }, (db.fresh()))
      assert.equal(78, status)
      assert.is_truthy(err:find("compiled", 1, true), err)
      assert.equal(78, (proc.nightshift { "run", "a", "--script", file }))
    end)
  end

  it("of bytecode behind a first line with # is refused as well", function()
    local file = fixture.file("jobs.lua", "#!/usr/bin/lua\n" .. string.dump(assert(load "return {}")))
    assert.is_nil((handlers.load { file }))
  end)

  it("that is hidden in a folder is not read", function()
    local folder = fixture.dir()
    for name, text in pairs { [".evil.lua"] = "error 'evil'", ["evil.lua~"] = "error 'evil'",
      ["a.lua"] = "return { a = function() return 1 end }" } do
      local file <close> = assert(io.open(folder .. "/" .. name, "w"))
      file:write(text)
    end
    local status, out, err = proc.nightshift { "run", "a", "--script", folder }
    assert.same({ 0, "ack 1\n", "" }, { status, out, err })
  end)
end)

describe("a name that looks like a path", function()
  local NAMES = { "../../../../etc/passwd", "/etc/passwd", "..", ".", "a/b", "jobs.lua", "./jobs", "a/../jobs",
    "~root/x", "file:///etc/passwd", "$(touch evil)", "`touch evil`", "; touch evil", "|touch evil", "%s%n%p", "-h",
    "" }

  it("is a name: of a job, of its queue and of its unique key", function()
    local url = db.fresh()
    local open <close> = assert(nightshift.open(url))
    local folder = fixture.dir()
    local script = [[local functions = { known = function() end }
      return functions]]
    local path = folder .. "/jobs.lua"
    local file <close> = assert(io.open(path, "w"))
    file:write(script)
    file:flush()
    local pushed = 0
    for _, name in ipairs(NAMES) do
      if name ~= "" then
        assert(open:queue(name):push(name, { name = name }, { unique = name }))
        pushed = pushed + 1
      else
        assert.equal("INVALID", select(3, open:queue(name)))
        assert.equal("INVALID", select(3, open:queue("q"):push(name, 1)))
      end
    end
    local h = proc.start { proc.program, "work", path, "--workers", "2", cwd = folder,
      env = { NIGHTSHIFT_URL = url } }
    local known = assert(open:queue("q"):push "known")
    eventually(function() return assert(open:job(known)).state == "done" end, 20)
    assert.equal(pushed, #assert(open:jobs { state = "ready" }))
    assert(h:signal "TERM")
    assert.equal(0, h:wait())
    local listing <close> = io.popen("ls -A " .. folder)
    assert.equal("jobs.lua\n", listing:read "a")
    for _, row in ipairs(assert(open:jobs { state = "ready" })) do
      assert.equal(row.name, row.queue)
    end
  end)

  it("with a NUL, a control character or bad UTF-8 is refused before anything is written", function()
    local open <close> = assert(nightshift.open((db.fresh())))
    local q = open:queue "q"
    for _, name in ipairs { "a\0b", "a\0", "\0", "a\nb", "a\27[31m", "a\127", "\xff\xfe", "\xc0\xaf",
      "\xed\xa0\x80" } do
      assert.equal("INVALID", select(3, q:push(name, 1)), name)
      assert.equal("INVALID", select(3, open:queue(name)), name)
    end
    assert.same({}, assert(open:jobs()))
  end)

  it("of a handler file's handler may be a path no more than any other", function()
    local file = fixture.file("jobs.lua", "return { ['../x'] = function() return 'ran' end }")
    local url = db.fresh()
    local open <close> = assert(nightshift.open(url))
    local id = assert(open:queue("q"):push("../x", 1))
    assert.equal(0, (host.drain(url, file)))
    assert.equal("ran", open:job(id).result)
  end)
end)
