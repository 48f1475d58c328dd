-- A host's thread that talks to the database also fetched the ids of children, when a worker
-- asked for them. While a ring of its own lasted, two seconds when a KILL QUERY had to wait,
-- handlers that spawned waited with it, and could run out of time. A host keeps a stock.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local SCRIPT <const> = [[return {
  parent = function(job)
    if job.phase > 0 then return end
    while not io.open %q do require "nightshift.core".sleep(0.02) end
    for _ = 1, job.payload.children do job:spawn "child" end
    return job:wait()
  end,
  child = function() end,
}]]

describe("a handler that spawns", function()
  it("does not wait for a ring of its host", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local folder = fixture.dir()
    local q = handle:queue "q"
    local h = host.start(url, SCRIPT:format(folder .. "/go"), { "--workers", "1" })
    local function parent(children, options)
      local items = { { "parent", { children = children }, options } }
      for _ = 1, 200 do items[#items + 1] = { "child" } end
      return assert(q:push_many(items))[1]
    end
    local function is_done(id)
      return function() return handle:job(id).state == "done" end
    end
    assert(io.open(folder .. "/go", "w")):close()
    for _ = 1, 4 do eventually(is_done(parent(950))) end -- the worker asks for thousands by now
    os.remove(folder .. "/go")
    db.sql([[CREATE TABLE rung (n INT); INSERT INTO rung VALUES (0)]], name)
    db.sql([[CREATE OR REPLACE PROCEDURE nightshift_ring() BEGIN
      IF CONNECTION_ID() IN (SELECT connection FROM nightshift_holder WHERE kind = 'host') THEN
        UPDATE rung SET n = n + 1;
        IF (SELECT n FROM rung) = 1 THEN DO SLEEP(6); END IF;
      END IF;
    END]], name)
    local id = parent(950, { timeout = 5, max_attempts = 1 })
    eventually(function()
      return db.sql("SELECT id FROM information_schema.processlist WHERE state = 'User sleep'", name) ~= ""
    end)
    assert(io.open(folder .. "/go", "w")):close()
    eventually(is_done(id))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)
