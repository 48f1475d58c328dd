-- A host that was told to end had five seconds for its last statements, whatever its drain
-- timeout. A server that was busy with 300 hosts at once took longer: "host.give_up" and exit
-- code 1, though everything was written.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local SCRIPT = "return { a = function() end }"
local FROZEN = 7 -- s: longer than that

describe("while the server is frozen a host without jobs", function()
  local server, url, name
  setup(function() server = db.server() end)
  teardown(function() server:remove() end)
  before_each(function() url, name = server:fresh() end)
  after_each(function() server:thaw() end)

  -- The log may say that the server is frozen, which it is; no other error.
  local function no_error(h)
    for line in h:transcript():gmatch "[^\n]+" do
      assert.is_true(not line:find("level=error", 1, true) or line:find("event=db.frozen", 1, true) ~= nil, line)
    end
  end

  local function told_to_end(...)
    local h = host.start(url, SCRIPT, { ... })
    eventually(function() -- no claim is under way
      return server:sleepers(name) == 1 and server:sql("SELECT workers FROM nightshift_holder", name) == "2"
    end)
    server:freeze()
    h:signal "TERM"
    h:wait_line("host.drain", 20)
    return h
  end

  it("waits for it to say goodbye, and ends with 0", function()
    local h = told_to_end()
    nst.sleep(FROZEN)
    assert.is_nil(h:transcript():find("host.end", 1, true))
    server:thaw()
    assert.equal(0, h:wait(20), h:transcript())
    no_error(h)
    h:wait_line "host.end code=0"
    assert.equal("0", server:sql("SELECT COUNT(*) FROM nightshift_holder", name))
  end)

  it("ends with 0 when its drain timeout is over, for nothing is lost", function()
    local h = told_to_end("--drain-timeout", "1s")
    local since = nightshift.clock()
    assert.equal(0, h:wait(40), h:transcript())
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(25), took) -- without it: 30 s
    no_error(h)
  end)

  it("ends sooner when it is told again", function()
    local h = told_to_end()
    local since = nightshift.clock()
    h:signal "TERM"
    assert.equal(0, h:wait(40), h:transcript())
    local took = nightshift.clock() - since
    assert.is_true(took < proc.limit(25), took) -- not told again: 30 s
  end)
end)
