-- A ring ended the query of whoever waited for a row, and that query might be opening the
-- table just then. The server reads a table's triggers when it opens it; with a KILL in
-- the middle it kept what it could not read, so that for everybody who got that copy of
-- the table from its cache INSERTs failed ("Unknown trigger has an error in its body"),
-- and claims, for good.
--
-- How often that happens is a matter of microseconds; so what is looked at here is that
-- whoever may be rung does not touch the table, and that somebody else looks for him.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local lab = require "spec.support.lab"

local db
lab.handles(1, function(handle) db = handle end)
after_each(function()
  lab.sql "SET GLOBAL general_log = OFF"
  crew.clean()
end)

local function ask(sql, ...) return assert(db:execute(sql, ...))[1] end

it("whoever may be rung does not open the table", function()
  designs.create(db, "migration_task", 0)
  local map = designs.map("migration_task", { allow_alter = true })
  assert(db:adopt(map))
  lab.sql "SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON"
  crew.fork(1, function()
    local own <close> = lab.open()
    local t = assert(own:adopt(map))
    while true do assert(assert(t:claim { wait = 30 }):ack()) end
  end)
  local ear = eventually(function()
    return ask("SELECT IS_USED_LOCK(CONCAT('nightshift-ear:', MD5(DATABASE()), MD5('migration_task'), ':0')) AS n").n
  end)
  local function done(n)
    return ask "SELECT COUNT(*) AS n FROM migration_task WHERE status = 'complete'".n == n
  end
  for i = 1, 3 do
    assert(db:execute(designs.migration_task.row))
    eventually(function() return done(i) end)
  end
  lab.sql "SET GLOBAL general_log = OFF"
  local function statements(which)
    return ask([[SELECT COUNT(*) AS n FROM mysql.general_log
      WHERE argument LIKE '%migration\_task%' AND ]] .. which, ear).n
  end
  assert.equal(0, statements "thread_id = ?")
  assert.is_true(statements "thread_id <> ? AND argument LIKE '%SELECT EXISTS(%'" >= 3)
end)
