-- nightshift why, through the program.

local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

local url, db

setup(function()
  url = server.fresh()
  db = assert(nightshift.open(url))
end)

teardown(function() db:close() end)

describe("nightshift why", function()
  it("prints the sentence, and the facts as JSON", function()
    local first = assert(db:queue("q"):push("first", nil, { delay = "1h" }))
    local id = assert(db:queue("q"):push("second", nil, { after = { first } }))
    local exit, out, err = proc.nightshift({ "why", tostring(id) }, url)
    assert.same({ 0, "" }, { exit, err })
    assert.matches(("^#%d 'second' waits for #%d 'first'; #%d 'first' is scheduled, due in 59m%%d+s\n$"):format(
      id, first, first), out)
    exit, out = proc.nightshift({ "why", tostring(id), "--json" }, url)
    assert.equal(0, exit)
    local fact = nightshift.decode(out)
    assert.same({ id, "waits", first, "scheduled" }, { fact.id, fact.kind, fact.on[1].id, fact.cause.kind })
    assert.matches("^#%d+ 'second' waits", fact.text)
  end)

  it("shows what a terminal would obey escaped", function()
    local id = assert(db:queue("q"):push("x\u{202E}y", nil, { max_attempts = 1 }))
    assert(db:queue("q"):claim():fail "red \27[31m\nsecond line")
    local _, out = proc.nightshift({ "why", tostring(id) }, url)
    assert.is_truthy(out:find("'x\\u{202e}y' ended", 1, true), out)
    assert.is_truthy(out:find("red \\x1b[31m\n", 1, true), out)
  end)

  it("of a job that is not there fails", function()
    local exit, out, err = proc.nightshift({ "why", "4711" }, url)
    assert.same({ 1, "" }, { exit, out })
    assert.matches("there is no job 4711.*%(NOT_FOUND%)", err)
    assert.equal(2, (proc.nightshift({ "why", "x" }, url)))
    assert.equal(2, (proc.nightshift({ "why" }, url)))
  end)
end)
