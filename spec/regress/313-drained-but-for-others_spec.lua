-- `work --drain` with a job whose name no script has waited for its death, minutes, and
-- ended with 0. And a drain of an adopted table ended while rows were open: a claim had
-- read before they were due, and the look at what comes due after that.

local host = require "spec.support.host"

local handle, q, url

with_database(function(...) handle, q, url = ... end)

local function drain(script, args)
  local h = host.spawn(url, script, args or { "--drain" })
  local code = h:wait(20)
  local _, err = h:text()
  return code, err
end

describe("a drain that leaves jobs which no script can run", function()
  it("ends at once, names them and the nearest known name, and exits with 3", function()
    for i = 1, 3 do assert(q:push("helo.say", i)) end
    assert(q:push("hello.say", 1))
    local code, err = drain "return { ['hello.say'] = function() end, other = function() end }"
    assert.equal(3, code)
    assert.is_truthy(err:find("jobs are left that no script here can run: 'helo.say' (3 in queue 'q'; "
      .. "did you mean 'hello.say'?)", 1, true), err)
    assert.is_truthy(err:find("known here: hello.say, other", 1, true), err)
    assert.equal(3, #assert(handle:jobs { state = "ready" }))
  end)

  it("does so without any handler, and with --only", function()
    assert(q:push("a", 1))
    local code, err = drain "return {}"
    assert.equal(3, code)
    assert.is_truthy(err:find("'a' (1 in queue 'q')", 1, true), err)
    code = drain("return { a = function() end, b = function() end }", { "--drain", "--only", "b" })
    assert.equal(3, code)
  end)

  it("exits with 0 when all is done, or what is left is in other or paused queues", function()
    assert(q:push("a", 1))
    assert(handle:queue("other"):push("b", 1))
    assert(handle:queue("still"):push("b", 1))
    assert(handle:queue("still"):pause())
    assert.equal(0, (drain("return { a = function() end }", { "--drain", "--queues", "q,still" })))
    assert.equal(3, (drain "return { a = function() end }"))
  end)
end)
