-- A KILL QUERY that comes between two statements makes the server refuse the next one. When
-- that was a ROLLBACK or a COMMIT, the handle took it for done, and its next beginning
-- committed what was still open: rows that had been rolled back were there (2 % of the
-- kills), and what was told BUSY, and so was run again, was written twice.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

-- Kills the session until it is told to end.
local KILLER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  print "killing"
  io.flush()
  while true do
    local id = assert(db:execute "SELECT id FROM victim")[1].id
    db:execute("KILL QUERY " .. id)
    local until_ = nightshift.clock() + math.random() * 0.001
    while nightshift.clock() < until_ do end -- finer than any sleep
  end]]

describe("a transaction whose end a KILL QUERY hits", function()
  local url, name, handle, killer

  -- The session may be another one after a kill.
  local function show_victim()
    db.sql("REPLACE INTO victim VALUES (1, " .. handle:execute "SELECT CONNECTION_ID() AS n"[1].n .. ")", name)
  end

  before_each(function()
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    db.sql([[CREATE TABLE kept (n INT NOT NULL, KEY (n));
      CREATE TABLE victim (one INT PRIMARY KEY, id BIGINT NOT NULL)]], name)
    show_victim()
    killer = proc.start { proc.lua, "-e", KILLER:format(url) }
    killer:wait_line "killing"
  end)
  after_each(function()
    if killer then
      killer:signal "KILL"
      killer:wait()
    end
    handle:close()
  end)

  local function rest()
    killer:signal "KILL"
    killer:wait()
    killer = nil
    repeat until handle:transaction(function(tx) return tx:execute "INSERT INTO kept VALUES (0)" end)
  end

  local TRIES = math.ceil(1200 / proc.limit(1))

  it("is rolled back when its function raises", function()
    for i = 1, TRIES do
      pcall(handle.transaction, handle, function(tx)
        tx:execute("INSERT INTO kept VALUES (?)", i)
        error "no"
      end)
      if i % 50 == 0 then pcall(show_victim) end
    end
    rest()
    assert.equal("0", db.sql("SELECT COUNT(*) FROM kept WHERE n > 0", name))
  end)

  it("is written once when it is run again after BUSY", function()
    local doubt = {}
    for i = 1, TRIES do
      local ok, code
      repeat
        local ran, done, _, why = pcall(handle.transaction, handle, function(tx)
          local wrote, message = tx:execute("INSERT INTO kept VALUES (?)", i)
          if not wrote then error(message) end
          return true
        end)
        ok, code = ran and done, why
      until ok or code == "GONE"
      doubt[i] = code == "GONE" or nil
      if i % 50 == 0 then pcall(show_victim) end
    end
    rest()
    assert.equal("0", db.sql("SELECT COUNT(*) - COUNT(DISTINCT n) FROM kept WHERE n > 0", name))
    for n in db.sql("SELECT DISTINCT n FROM kept", name):gmatch "%d+" do doubt[tonumber(n)] = true end
    for i = 1, TRIES do assert.is_true(doubt[i], i .. " was told to be written") end
  end)
end)
