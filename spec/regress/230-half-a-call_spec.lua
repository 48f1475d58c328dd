-- CALL nightshift_push and nightshift_signal, outside a transaction, committed row by
-- row. A KILL or a crash of the server in between left a job in no place, with its
-- unique key taken for ever; or a job whose signal had been written, and that nobody
-- would ever start.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

-- Says its thread, then makes one call and says how that ended.
local CALLER = [[
  local db = assert(require "nightshift.core".open { url = %q, no_schema = true })
  print("thread " .. db:execute "SELECT CONNECTION_ID() AS n"[1].n)
  io.flush()
  local ok, message, code = db:execute(%q)
  print("told " .. (ok and "OK" or code))]]

local TABLES = { "child", "edge", "finished", "job", "met", "ready", "scheduled", "signal", "unique_key" }

--- All rows of all tables, as a text.
local function rows(server, name)
  local asked = {}
  for _, tab in ipairs(TABLES) do
    asked[#asked + 1] = ("SELECT '%s', t.* FROM nightshift_%s t ORDER BY 2, 3"):format(tab, tab)
  end
  return server:sql(table.concat(asked, ";"), name)
end

--- Jobs to push beside: one that is dead, one that lives, one that waits for a child,
-- one that waits for a signal.
local function furnish(url, queue)
  local handle <close> = assert(nightshift.open(url))
  local q, ids = handle:queue(queue or "q"), {}
  ids.dead = assert(q:push "dead")
  assert(q:claim():discard "no")
  ids.waits = assert(q:push "waits")
  assert(q:claim():wait { signal = "go" })
  ids.parent = assert(q:push "parent")
  local parent = assert(q:claim())
  parent:spawn("kid", 1)
  assert(parent:wait())
  ids.lives = assert(q:push "lives")
  return ids
end

local PUSH = "CALL nightshift_push('q', 'late', '1', '%s')"
-- What is called, and a table that another session holds: the call waits there.
local CASES = {
  { "unique_key", function() return PUSH:format '{"unique":"k"}' end },
  { "job", function() return PUSH:format '{"unique":"k"}' end },
  { "ready", function() return PUSH:format '{"unique":"k"}' end },
  { "scheduled", function() return PUSH:format '{"unique":"k","delay":60}' end },
  { "edge", function(id) return PUSH:format('{"unique":"k","parent":' .. id.parent .. "}") end },
  { "child", function(id) return PUSH:format(('{"after":[%d],"parent":%d}'):format(id.lives, id.parent)) end },
  { "met", function(id) return PUSH:format(('{"after":[%d],"parent":%d}'):format(id.dead, id.parent)) end },
  { "finished", function(id) return PUSH:format(('{"after":[%d],"unique":"k"}'):format(id.dead)) end },
  { "signal", function(id) return ("CALL nightshift_signal(%d, '1', 'go')"):format(id.waits) end },
  { "scheduled", function(id) return ("CALL nightshift_signal(%d, '1', 'go')"):format(id.waits) end },
  { "ready", function(id) return ("CALL nightshift_signal(%d, '1', 'go')"):format(id.waits) end },
}

--- A call that waits in the middle; what it waits for goes with 'holder'.
local function stuck(server, case, url, queue)
  local ids = furnish(url, queue)
  local holder = assert(core.open { url = url, no_schema = true })
  assert(holder:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
  assert(holder:begin())
  assert(holder:execute("SELECT * FROM nightshift_" .. case[1] .. " FOR UPDATE"))
  local name = db.name(url)
  local before, call = rows(server, name), case[2](ids)
  local caller = proc.start { proc.lua, "-e", CALLER:format(url, call) }
  local thread = caller:wait_line "thread (%d+)"
  eventually(function()
    return server:sql("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT' AND"
      .. " trx_mysql_thread_id = " .. thread) ~= ""
  end)
  return { holder = holder, before = before, call = call, caller = caller, thread = thread, name = name }
end

--- Nothing of the call is there, and it works when it is made again.
local function check(server, at)
  assert.equal(at.before, rows(server, at.name))
  server:sql(at.call, at.name)
  assert.not_equal(at.before, rows(server, at.name))
  server:sql("DELETE FROM nightshift_unique_key", at.name)
end

for _, kill in ipairs { "KILL QUERY", "KILL" } do
  local url
  setup(function() url = url or db.fresh() end)
  for i, case in ipairs(CASES) do
    local what = case[2] { parent = 1, dead = 1, lives = 1, waits = 1 }:match "nightshift_(%a+)"
    it(("a %s that %s hits at nightshift_%s leaves nothing"):format(what, kill, case[1]), function()
      local server = db.shared()
      local at = stuck(server, case, url, "q" .. i)
      db.sql(kill .. " " .. at.thread)
      at.caller:wait_line(kill == "KILL" and "told GONE" or "told BUSY")
      at.holder:close()
      check(server, at)
    end)
  end
end

it("a call that the end of the server hits leaves nothing", function()
  local server = db.server()
  local all = {}
  for i, case in ipairs(CASES) do all[i] = stuck(server, case, (server:fresh())) end
  server:kill()
  server:start()
  for _, at in ipairs(all) do
    at.holder:close()
    check(server, at)
  end
end)

describe("the calls", function()
  local url, name, handle
  before_each(function()
    url, name = db.fresh()
    handle = assert(core.open { url = url })
  end)
  after_each(function() handle:close() end)

  it("are all or none in a trigger, with the statement that fires it", function()
    local ids = furnish(url)
    assert(handle:execute "CREATE TABLE ours (id INT PRIMARY KEY) ENGINE=InnoDB")
    assert(handle:execute(([[CREATE TRIGGER pushes AFTER INSERT ON ours FOR EACH ROW BEGIN
      CALL nightshift_push('q', 'late', '1', '{"after":[%d,%d],"on_fail":"run"}');
      CALL nightshift_signal(%d, '1', 'go'); END]]):format(ids.dead, ids.lives, ids.waits)))
    local before = rows(db.shared(), name)
    assert.is_nil((handle:execute "INSERT INTO ours VALUES (1), (1)"))
    assert(handle:begin())
    assert(handle:execute "INSERT INTO ours VALUES (1)")
    assert(handle:rollback())
    assert.equal(before, rows(db.shared(), name))
    assert(handle:execute "INSERT INTO ours VALUES (1)")
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_edge WHERE on_id = " .. ids.lives, name))
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_ready WHERE job_id = " .. ids.waits, name))
  end)

  it("go with the transaction that they are in", function()
    local ids = furnish(url)
    local before = rows(db.shared(), name)
    assert(handle:begin())
    assert(handle:execute "CALL nightshift_push('new', 'late', '1', NULL)")
    assert(handle:execute("CALL nightshift_signal(?, '1', 'go')", ids.waits))
    assert.is_nil((handle:execute "CALL nightshift_push('q', 'late', '1', '{\"after\":[5]}')"))
    assert(handle:rollback())
    assert.equal(before, rows(db.shared(), name))
  end)

  it("take more targets than a concatenation usually has bytes", function()
    local other <close> = assert(nightshift.open(url))
    local list = {}
    for i = 1, 300 do list[i] = { "a", i } end
    local ids = assert(other:queue "q":push_many(list))
    assert(handle:execute "SET group_concat_max_len = 4")
    assert(handle:execute("CALL nightshift_push('q', 'late', '1', ?)", (core.encode { after = ids })))
    assert.equal("300", db.sql("SELECT unmet FROM nightshift_job WHERE name = 'late'", name))
  end)
end)

it("what a server with a binary log reads for a push in REPEATABLE READ holds up nobody", function()
  local server = db.server "log-bin=log\n"
  local url, name = server:fresh()
  local ids = furnish(url)
  local other <close> = assert(core.open { url = url })
  assert(other:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
  assert(other:begin())
  assert(other:execute("CALL nightshift_push('q', 'late', '1', ?)", ('{"after":[%d]}'):format(ids.lives)))
  server:sql("SET innodb_lock_wait_timeout = 2; CALL nightshift_push('q', 'beside', '1', NULL)", name)
  local handle <close> = assert(nightshift.open(url))
  assert(handle:execute "SET innodb_lock_wait_timeout = 2")
  local kid = assert(handle:queue "q":claim { wait = 20 })
  assert(kid:ack())
  assert(other:rollback())
end)

it("without the right to make functions on a server with a binary log, init says what to do", function()
  local server = db.server "log-bin=log\n"
  local url = server:user((server:empty()), "ALL")
  local exit, _, err = proc.nightshift({ "init" }, url)
  assert.not_equal(0, exit)
  assert.is_truthy(err:find("log_bin_trust_function_creators", 1, true), err)
  server:sql "SET GLOBAL log_bin_trust_function_creators = ON"
  assert.equal(0, (proc.nightshift({ "init" }, url)))
end)
