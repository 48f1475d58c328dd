-- A host whose user may not call nightshift_listen, or nightshift_ring, started
-- without a word and then heard of each push up to ten seconds late.

local nightshift = require "nightshift"
local nst = require "nst"
local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"

describe("a host that cannot be rung, or cannot ring", function()
  local url, name, worker, user

  before_each(function()
    url, name = db.fresh()
    local _
    _, user = db.user(url, "")
    local _, text = proc.nightshift { "doctor", "--grants", "worker", "--user", user .. "@localhost" }
    db.sql(text, name)
    worker = db.url(name, user, "Pass-word_1")
  end)

  local function warnings()
    local status, log = host.drain(worker, "return { a = function() end }")
    assert.equal(0, status, log)
    local lines = {}
    for line in log:gmatch "[^\n]+" do
      if line:find("event=host.unrung ", 1, true) then lines[#lines + 1] = line end
    end
    return lines
  end

  local function executed()
    return tonumber((db.sql "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'":match "%d+$"))
  end

  it("says so in one line, with what to grant", function()
    assert.same({}, warnings())
    for _, procedure in ipairs { "nightshift_listen", "nightshift_ring" } do
      db.sql(("REVOKE EXECUTE ON PROCEDURE %s FROM %s@localhost"):format(procedure, user), name)
    end
    local lines = warnings()
    assert.equal(1, #lines)
    assert.is_truthy(lines[1]:find("nightshift_listen, nightshift_ring", 1, true), lines[1])
    assert.is_truthy(lines[1]:find("denied", 1, true), lines[1])
    assert.is_truthy(lines[1]:find("doctor --grants worker", 1, true), lines[1])
  end)

  it("says so when they are not there, and finds its work all the same", function()
    db.sql(("GRANT EXECUTE ON `%s`.* TO %s@localhost; DROP PROCEDURE nightshift_listen"):format(name, user), name)
    local lines = warnings()
    assert.equal(1, #lines)
    assert.is_truthy(lines[1]:find("nightshift migrate", 1, true), lines[1])
    local h = host.start(worker, "return { a = function() end }")
    local handle <close> = assert(nightshift.open(url))
    eventually(function() -- behind what follows a start
      local before = executed()
      nst.sleep(3)
      return executed() - before < 16
    end, 30)
    local id = assert(handle:queue("q"):push("a", 1))
    eventually(function() return assert(handle:job(id)).state == "done" end, 15)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
