-- With a process per job, a sign of life and the verdict of a job that ended at once were
-- written together. The sign found no claim any more, and the next process in that seat
-- was told that the claim of its job was lost.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proxy = require "spec.support.proxy"

local PAIRS = 40
local SCRIPT = [[
local core = require "nightshift.core"
return {
  brief = function(job) job:progress(0.5) end,
  long = function() core.sleep(0.15) end,
}]]

describe("a job in a process of its own", function()
  it("is not stopped for one that showed that it lived and ended", function()
    local url, name = db.fresh()
    local p = proxy.start(db.shared())
    local handle <close> = assert(nightshift.open(url))
    local items = {}
    for i = 1, PAIRS do
      items[2 * i - 1] = { "brief", i }
      items[2 * i] = { "long", i }
    end
    assert(handle:queue "q":push_many(items))
    p:tell "delay 5" -- so that a process is there before the sign of life is written
    local h = host.start(p:url(url), SCRIPT, { "--isolation", "job" })
    eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 60)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    assert.is_nil(h:transcript():find("job.stop", 1, true))
    assert.is_nil(h:transcript():find("STALE", 1, true))
    assert.equal(2 * PAIRS .. "", db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
  end)
end)
