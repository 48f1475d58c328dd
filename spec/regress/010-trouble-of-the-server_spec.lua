-- A full disk, a full table or a killed query counted as the fault of the
-- verdict: a host turned results into failures, or dropped them.

local nightshift = require "nightshift"
local db = require "spec.support.db"

describe("a verdict that meets the server's own trouble", function()
  for number, trouble in pairs { [1021] = "a full disk", [1114] = "a full table", [1317] = "a killed query" } do
    it("is BUSY and can be given again: " .. trouble, function()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local id = assert(handle:queue("q"):push("job", 1))
      local job = assert(handle:queue("q"):claim())
      db.sql(([[CREATE TRIGGER trouble BEFORE INSERT ON nightshift_finished FOR EACH ROW
        SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = %d]]):format(number), name)
      local none, _, code = job:ack "result"
      assert.is_nil(none)
      assert.equal("BUSY", code)
      db.sql("DROP TRIGGER trouble", name)
      assert.is_true((job:ack "result"))
      assert.equal("result", assert(handle:job(id)).result)
    end)
  end
end)
