-- A method that is not there: the message says which one is like it.

local nightshift = require "nightshift"
local server = require "spec.support.db"

describe("a method that is misspelt", function()
  local db

  setup(function() db = assert(nightshift.open((server.fresh()))) end)
  teardown(function() db:close() end)

  local function message_of(fn, ...)
    local ok, message = pcall(fn, ...)
    assert.is_false(ok)
    return message
  end

  it("raises at the caller's line with the name that was meant", function()
    local q = db:queue "q"
    for expected, fn in pairs {
      ["db has no method 'canel'; did you mean 'cancel'?"] = function() db:canel(1) end,
      ["q has no method 'psuh'; did you mean 'push'?"] = function() q:psuh("a", 1) end,
      ["the lock has no method 'releese'"] = function() db:lock("l"):releese() end,
      ["tx has no method 'excute'; did you mean 'execute'?"] = function()
        assert(db:transaction(function(tx) tx:excute "SELECT 1" end))
      end,
    } do
      local message = message_of(fn)
      assert.is_truthy(message:find(expected, 1, true), message)
      assert.is_truthy(message:find("methods_spec.lua:", 1, true), message)
    end
  end)
end)
