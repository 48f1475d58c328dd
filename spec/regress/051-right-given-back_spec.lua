-- A host that had lost a privilege never noticed that it was granted again: the
-- server looks rights up when a connection is made, and the host kept its own.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

describe("a running host whose right is taken away", function()
  it("says so, and works on when it is given back", function()
    local url, name = db.fresh()
    local where, user = db.user(url, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local go = fixture.dir() .. "/go"
    local h = host.start(where, host.holding(go))
    local id = q:push "hold"
    h:wait_line "^holds"
    db.sql(("REVOKE DELETE ON `%s`.* FROM %s@localhost"):format(name, user))
    for thread in db.sql("SELECT id FROM information_schema.PROCESSLIST WHERE user = '" .. user .. "'"):gmatch "%d+" do
      pcall(db.sql, "KILL " .. thread)
    end
    assert(io.open(go, "w")):close()
    h:wait_line("event=db.error code=DENIED", 20, 2)
    local waiting = q:push "hold"
    db.sql(("GRANT DELETE ON `%s`.* TO %s@localhost"):format(name, user))
    for _, one in ipairs { id, waiting } do
      eventually(function() return handle:job(one).state == "done" end)
      assert.equal(1, handle:job(one).run)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
