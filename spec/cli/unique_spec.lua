-- `nightshift push --unique`, for cron's "push it unless it is there".

local proc = require "spec.support.proc"
local server = require "spec.support.db"

describe("nightshift push --unique --on-conflict", function()
  local url

  setup(function() url = server.fresh() end)

  local function push(...)
    return proc.nightshift({ "push", "q", "nightly", "--unique", "k", ... }, url)
  end

  it("keep prints the job that is there and ends with 0, refuse ends with 1", function()
    local exit, id = push "--on-conflict=keep"
    assert.equal(0, exit)
    local again, kept, err = push "--on-conflict=keep"
    assert.same({ 0, id, "" }, { again, kept, err })
    again, kept, err = push "--on-conflict=refuse"
    assert.same({ 1, "" }, { again, kept })
    assert.is_truthy(err:find("DUPLICATE", 1, true), err)
    assert.equal(1, (push()))
  end)

  it("wants a key, and one of its words", function()
    local exit, _, err = proc.nightshift({ "push", "q", "n", "--on-conflict", "keep" }, url)
    assert.equal(2, exit)
    assert.is_truthy(err:find("wants --unique", 1, true), err)
    assert.equal(2, (push "--on-conflict=drop"))
  end)
end)
