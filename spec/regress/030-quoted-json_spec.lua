-- The message for a text that is not JSON quoted the text as it was: with its
-- newlines, and cut in the middle of a character.

local core = require "nightshift.core"

describe("a text that is not JSON", function()
  local function message(text)
    local value, why, code = core.decode(text)
    assert.same({ nil, "INVALID" }, { value, code })
    assert.matches("^not JSON: line %d+, column %d+: ", why)
    return why
  end

  it("is quoted on one line", function()
    assert.falsy(message('["a\\\x7Fb\n"]'):find "%c")
    assert.falsy(message('[\n\n"x"\ny\n]'):find "%c")
  end)

  it("is quoted in valid UTF-8", function()
    for n = 1, 200 do
      assert.truthy(utf8.len(message('["' .. ("é"):rep(n) .. '\\x"]')))
    end
    assert.truthy(utf8.len(message "[\xFF]"))
  end)

  it("keeps the letters of other languages", function()
    assert.matches("é", message '["é\\x"]', 1, true)
  end)
end)
