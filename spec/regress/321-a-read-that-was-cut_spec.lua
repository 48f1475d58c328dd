-- A handler that asked for the results of its children when a KILL met its connection got an
-- error raised, and the attempt had failed. A read of our own is asked again.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

--- In its second phase it waits until the file is there before it asks.
local SCRIPT <const> = [[return {
  parent = function(job)
    if job.phase == 0 then
      job:spawn "child"
      return job:wait()
    end
    print "asks"
    while not io.open %q do require "nightshift.core".sleep(0.02) end
    return job.results[1].result
  end,
  child = function() return "told" end,
}]]

for _, kill in ipairs { "KILL QUERY", "KILL" } do
  it("results are asked for again after a " .. kill, function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local go = fixture.dir() .. "/go"
    local h = host.start(url, SCRIPT:format(go), { "--workers", "1" })
    local id = assert(handle:queue("q"):push "parent")
    h:wait_line("asks", 20)
    local other <close> = assert(nightshift.open(url))
    assert(other:execute "LOCK TABLES nightshift_finished WRITE")
    assert(io.open(go, "w")):close()
    local waiting = eventually(function()
      local list = db.sql([[SELECT id FROM information_schema.processlist
        WHERE state LIKE 'Waiting for table%' AND info LIKE '%nightshift_child c FORCE%']], name)
      return list ~= "" and list
    end)
    db.sql(kill .. " " .. waiting, name)
    assert(other:execute "UNLOCK TABLES")
    eventually(function() return handle:job(id).state == "done" end)
    assert.equal("told", handle:job(id).result)
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_attempt", name))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end
