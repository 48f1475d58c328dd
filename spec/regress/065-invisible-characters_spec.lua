-- Characters that turn the direction of text, or hide in it, went to the terminal
-- as they are: a queue or job could look like another one.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"

local HIDDEN = { 0x61C, 0x200B, 0x200E, 0x200F, 0x2028, 0x202A, 0x202E, 0x2060, 0x2066, 0x2069, 0xFEFF, 0xE0041 }

describe("a character that cannot be seen", function()
  it("is written out where queues and jobs are shown, and kept in JSON", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    for _, code in ipairs(HIDDEN) do
      local char = utf8.char(code)
      local id = assert(handle:queue("q" .. char .. "x"):push("n" .. char .. "x", 1, { unique = "u" .. char }))
      local shown = ("\\u{%x}x"):format(code)
      for _, argv in ipairs { { "jobs" }, { "status" }, { "show", id } } do
        local exit, out = proc.nightshift(argv, url)
        assert.equal(0, exit)
        assert.is_nil(out:find(char, 1, true), argv[1] .. shown)
        assert.is_truthy(out:find("q" .. shown, 1, true), out)
      end
      local _, json = proc.nightshift({ "show", id, "--json" }, url)
      assert.equal("n" .. char .. "x", nightshift.decode(json).name)
    end
  end)

  it("is written out in errors and logs", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    assert(handle:queue("q"):push("a", "\u{202E}\u{9B}31mred", { max_attempts = 1 }))
    local status, log = host.drain(url, [[return { a = function(job)
      job:log(job.payload)
      error(job.payload, 0)
    end }]])
    assert.equal(0, status)
    assert.is_truthy(log:find("\\u{202e}\\u{9b}31mred", 1, true), log)
    assert.is_nil(log:find("\u{202E}", 1, true), log)
    local _, out = proc.nightshift({ "jobs" }, url)
    assert.is_truthy(out:find("\\u{202e}\\u{9b}31mred", 1, true), out)
    assert.is_nil(out:find("\u{202E}", 1, true) or out:find("\u{9B}", 1, true))
    status, log = host.drain(url, "return {}", { "--drain", "--log", "json" })
    assert.equal(0, status, log)
  end)

  it("leaves what can be seen as it is", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local name = "über.צ.שם.名前.🚀"
    assert(handle:queue("q"):push(name, 1))
    local _, out = proc.nightshift({ "jobs" }, url)
    assert.is_truthy(out:find(name, 1, true), out)
  end)
end)
