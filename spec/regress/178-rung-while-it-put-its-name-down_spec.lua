-- Doctor's ring came while its listener still put its name down, in a procedure that
-- runs by the rights of whoever made it: the ring ended that call, and doctor said that
-- rings arrive, by rights that cannot end the sleep of anybody else.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

it("a listener that is rung before it sleeps does not count for doctor", function()
  local server = db.server()
  local empty = server:empty()
  local maker = server:user(empty, "ALL")
  local made <close> = assert(core.open { url = maker, no_schema = true })
  assert(made:migrate())
  local row = assert(made:execute "SHOW CREATE PROCEDURE nightshift_listen")[1]
  local slow, n = row["Create Procedure"]:gsub("^CREATE (.*)END%s*$",
    "CREATE OR REPLACE %1SELECT SUM(seq) INTO @n FROM seq_1_to_300000 WHERE seq %% 7 = 1; END", 1)
  assert.equal(1, n)
  assert(made:execute(slow))
  local worker = server:user(empty, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")
  local _, json = proc.nightshift({ "doctor", "--json" }, worker)
  local found = {}
  for _, check in ipairs(nightshift.decode(json).checks) do found[check.name] = check end
  assert.equal("fail", found.ring.level, found.ring.found)
  assert.is_truthy(found.ring.found:find("slept through", 1, true), found.ring.found)
end)
