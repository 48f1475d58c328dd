-- A verdict on a job whose row somebody else had locked was logged as refused,
-- hundreds of times a second, though it was written in the end.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

describe("a verdict on a job that a stranger has locked", function()
  it("is written later, and the log does not call it refused", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local stranger <close> = assert(nightshift.open(url))
    local h = host.start(url, [[return { hold = function() print "holds" io.flush() os.execute "sleep 0.3" end }]])
    local id = handle:queue("q"):push "hold"
    h:wait_line "^holds"
    stranger:transaction(function(tx)
      assert(tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
      nst.sleep(0.8)
    end)
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.same({}, host.events(select(2, h:text()), "job.refused"))
  end)
end)
