-- A host whose user may not run every statement said it was ready, logged one
-- error and then worked nothing, for ever.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

describe("a host whose user lacks a privilege", function()
  for _, granted in ipairs { "SELECT", "SELECT, INSERT, UPDATE, EXECUTE" } do
    it("ends at once with 78 and names what is denied: only " .. granted, function()
      local url = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      assert(handle:queue("q"):push("a", 1))
      local file = fixture.file("jobs.lua", "return { a = function() end }")
      local status, _, err = proc.nightshift({ "work", file, "--drain" }, (db.user(url, granted)))
      assert.equal(78, status)
      assert.is_truthy(err:find("command denied", 1, true), err)
      assert.equal("ready", assert(handle:jobs {})[1].state)
    end)
  end
end)
