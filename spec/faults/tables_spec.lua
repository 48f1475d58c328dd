-- Tables, rights and rows that are not as a running host expects them.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- `hold` ends when there is a file.
local SCRIPT = [[return {
  hold = function(job)
    print "holds"
    while not io.open(job.payload) do require "nightshift.core".sleep(0.02) end
    return "held"
  end,
  noop = function() return "ran" end,
}]]

-- Each: what breaks, what mends it. The user of the host is USER.
local troubles = {
  ["a table that is gone"] = { "RENAME TABLE nightshift_lease TO gone", "RENAME TABLE gone TO nightshift_lease" },
  ["a table of verdicts that is gone"] = { "RENAME TABLE nightshift_finished TO gone",
    "RENAME TABLE gone TO nightshift_finished" },
  ["a newer schema, at its next connect"] = {
    "UPDATE nightshift_meta SET value = value + 1 WHERE name = 'schema'",
    "UPDATE nightshift_meta SET value = value - 1 WHERE name = 'schema'", true },
  ["an account that is locked, at its next connect"] = { "ALTER USER USER@localhost ACCOUNT LOCK",
    "ALTER USER USER@localhost ACCOUNT UNLOCK", true, "db.lost" },
}

describe("a running host that meets", function()
  for what, case in pairs(troubles) do
    it(what .. " says so, goes on trying and loses nothing", function()
      local url, name = db.fresh()
      local where, user = db.user(url, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")
      local handle <close> = assert(nightshift.open(url))
      local q = handle:queue "q"
      local function sql(text) return db.sql((text:gsub("DATABASE", name):gsub("USER@", user .. "@")), name) end
      local h = host.start(where, SCRIPT)
      local go = fixture.dir() .. "/go"
      local id = q:push("hold", go)
      local waiting = q:push("noop", nil, { delay = 1 })
      h:wait_line "^holds"
      sql(case[1])
      if case[3] then
        for thread in sql("SELECT id FROM information_schema.PROCESSLIST WHERE user = '" .. user .. "'"):gmatch "%d+" do
          pcall(sql, "KILL " .. thread)
        end
      end
      assert(io.open(go, "w")):close()
      h:wait_line("event=" .. (case[4] or "db.error"), 20, case[4] and 1 or 2)
      sql(case[2])
      for _, one in ipairs { id, waiting } do
        eventually(function() return handle:job(one).state == "done" end)
        assert.equal(1, handle:job(one).run)
      end
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
    end)
  end
end)

describe("a process id that somebody else has by now", function()
  it("keeps its dead holder alive for the grace only, and its owner is left alone", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    assert(q:push "a")
    local p = proc.start { proc.lua, "-e", ([[
      local db = require "nightshift".open(%q)
      assert(db:queue "q":claim())
      print "holds"
      io.flush()
      os.execute "sleep 60"]]):format(url) }
    p:wait_line "^holds"
    local bystander = proc.start { "sleep", "60" }
    -- a number comes again when all others have been used: the holder is older
    db.sql(("UPDATE nightshift_holder SET pid = %d, started = started - 60000000"):format(bystander.pid), name)
    p:signal "KILL"
    local start = nst.clock()
    assert.equal("a", assert(q:claim { wait = 40 }).name)
    local took = nst.clock() - start
    assert.is_true(took >= 0.9 and took < proc.limit(23), took)
    -- 15 s after the server's start, 1 s else; by the round 10 more
    assert.is_false(bystander:ended())
  end)
end)

describe("a verdict that comes twice", function()
  it("is refused the second time: of one handle, of another, and after the job ran again", function()
    local url, name = db.fresh()
    local a <close> = assert(nightshift.open(url))
    local b <close> = assert(nightshift.open(url))
    local q = a:queue "q"
    local id = assert(q:push("job", nil, { max_attempts = 5 }))
    local first = assert(q:claim())
    assert(first:fail("once", { retry_in = 0 }))
    assert.equal("STALE", select(3, first:ack()))
    local second = eventually(function() return b:queue "q":claim() end)
    first._settled = nil -- as a program would that lost track of it
    assert.equal("STALE", select(3, first:ack "first"))
    assert(second:ack "second")
    second._settled = nil
    assert.equal("STALE", select(3, second:ack "third"))
    assert.equal("second", a:job(id).result)
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_finished", name))
  end)
end)
