-- A job that the server refused to give back kept the rest of its lease, and
-- every other dead holder, from being rescued, and nobody said so.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"

local url, name, handle

with_database(function(opened, _, at, database) handle, url, name = opened, at, database end)

-- Seven jobs in the hands of a program that is killed; the fourth cannot be
-- given back.
local function disaster()
  local ids = {}
  for i = 1, 7 do ids[i] = assert(handle:queue "q":push("job", i)) end
  local p = proc.start { proc.lua, "-e", [[
    local handle = require "nightshift.core".open { url = os.getenv "NIGHTSHIFT_URL" }
    io.stdout:write(#handle:claim("q", 10), "\n")
    io.stdout:flush()
    handle:claim("none", 1, 60000000)]], env = { NIGHTSHIFT_URL = url } }
  assert.equal("7", p:wait_line "^(%d)")
  db.sql(([[CREATE TRIGGER stubborn BEFORE UPDATE ON nightshift_job FOR EACH ROW
    SET NEW.run = IF(NEW.id = %d AND NEW.lost > 0, -1, NEW.run)]]):format(ids[4]), name)
  p:signal "KILL"
  p:wait()
  return ids
end

local function others_came_back(ids)
  for i, id in ipairs(ids) do
    if i ~= 4 and handle:job(id).state == "running" then return false end
  end
  return true
end

describe("one job of a dead program that cannot be given back", function()
  it("does not keep the others, and the rescue tells", function()
    local ids = disaster()
    local given, message, code = handle:rescue { wait = "2s" }
    assert.is_nil(given)
    assert.matches("^6 jobs came back, others did not: .*Out of range", message)
    assert.equal("SQL", code)
    assert.is_true(others_came_back(ids))
    assert.equal("running", handle:job(ids[4]).state)
    db.sql("DROP TRIGGER stubborn", name)
    assert.equal(1, assert(handle:rescue()).jobs)
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_lease", name)))
  end)

  it("is in the log of the host that found it, which goes on", function()
    local h = host.start(url, "return { other = function() end }", { "--queues", "empty" })
    local ids = disaster()
    eventually(function() return others_came_back(ids) end)
    h:wait_line "rescue.failed.*Out of range"
    local id = assert(handle:queue "empty":push "other")
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("keeps no other dead holder waiting", function()
    disaster()
    local other = assert(core.open { url = url })
    local id = assert(other:push("r", { { name = "job" } }))[1]
    assert(other:claim("r", 1))
    db.sql("UPDATE nightshift_holder SET pid = 4194305", name)
    local thread = assert(handle:execute([=[
      SELECT IS_USED_LOCK(CONCAT('nightshift:', MD5(DATABASE()), ':', holder)) AS n
      FROM nightshift_lease WHERE JSON_CONTAINS(jobs, ?)]=], ("[[%d,1]]"):format(id)))[1].n
    assert(handle:execute("KILL " .. thread))
    eventually(function()
      handle:rescue()
      return handle:job(id).state == "ready"
    end)
    other:close()
  end)
end)
