-- The plans of the statements that adopted tables run, as the server saw them: rows
-- are changed by their key and nothing else, and no claim sorts where the advised
-- index is there.

local designs = require "spec.support.designs"
local lab = require "spec.support.lab"

setup(lab.fresh)

local ROWS = 3000

--- What `act` has the server run on a table, each statement once.
local function statements(name, act)
  lab.sql "SET GLOBAL log_output = 'TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log = ON"
  local ok, message = pcall(act)
  lab.sql "SET GLOBAL general_log = OFF"
  assert(ok, message)
  local db <close> = lab.open()
  local found, seen = {}, {}
  for _, row in ipairs(assert(db:execute(
    "SELECT CONVERT(argument USING utf8mb4) AS text FROM mysql.general_log WHERE command_type = 'Execute'"))) do
    local text = row.text:gsub("^SET STATEMENT.- FOR ", "")
    local shape = text:gsub("'[^']*'", "?"):gsub("%d+", "?")
    if text:find("`" .. name .. "`", 1, true) and not text:find "^EXPLAIN" and not seen[shape] then
      seen[shape] = true
      found[#found + 1] = text
    end
  end
  return found
end

--- How the server finds the rows of the table, first to last; none: it has found by
-- the key that there is none any more, or knows that there cannot be one.
local function plan_of(db, text)
  local rows, found = assert(db:execute("EXPLAIN " .. text), text), {}
  for _, row in ipairs(rows) do
    if row.table == "t" then found[#found + 1] = row end
  end
  assert.is_truthy(found[1] or rows[1].Extra:find "after reading const tables"
    or rows[1].Extra:find "Impossible WHERE", text)
  return found
end

local function is_by_key(row, text)
  assert.equal("PRIMARY", row.key, text)
  assert.is_truthy(row.type == "eq_ref" or row.type == "const" or row.type == "range", text)
  assert.is_true(tonumber(row.rows) <= 1, text)
end

--- Neither all rows, nor all of an index, nor sorted.
local function is_look(row, text)
  assert.is_truthy(row.key, text)
  assert.is_truthy(row.type == "ref" or row.type == "range" or row.type == "ref_or_null", text)
  assert.is_nil((row.Extra or ""):find "filesort", text)
end

--- Rows in the order of their ids, from some id on.
local function is_walk(row, text)
  assert.equal("PRIMARY", row.key, text)
  assert.is_nil((row.Extra or ""):find "filesort", text)
end

--- Most rows are done, as in a table that is used.
local function age(db, name)
  local status = designs[name].map.status
  local done = status.done == nil and "2020-01-01" or status.done == true and 1 or status.done
  assert(db:execute(("UPDATE %s SET %s = ? WHERE id %% 20"):format(name, status.column), done))
end

--- All that can become of a row.
local function live(name, strategy)
  local db <close> = lab.open()
  local t = assert(db:adopt(designs.map(name, { strategy = strategy })))
  local jobs = assert(t:claim_many(5))
  assert(jobs[1]:touch())
  assert(jobs[1]:ack())
  assert(jobs[2]:fail("no", { retry_in = 3600 }))
  assert(jobs[3]:again(3600))
  assert(jobs[4]:release())
  jobs[5]:discard "no"
  assert(t:rescue())
  assert(t:retry "all")
  t:retry(jobs[1].id)
  assert(t:prune { limit = 2 })
end

for _, name in ipairs(designs.names) do
  for _, strategy in ipairs(designs[name].strategies) do
    it(("%s by %s reads no more than it has to"):format(name, strategy), function()
      local db <close> = lab.open()
      designs.create(db, name, 1)
      designs.fill(db, name, ROWS)
      age(db, name)
      local t = assert(db:adopt(designs.map(name, { strategy = strategy })))
      for _ = 1, 2 do
        local sql = t:advice()
        if sql then assert(db:execute(sql)) end
      end
      assert.is_false(t:advice())
      assert(db:execute("OPTIMIZE TABLE " .. name)) -- without the dead
      local changes, looks = 0, 0
      for _, text in ipairs(statements(name, function() live(name, strategy) end)) do
        local by_key, rows = text:find("FORCE INDEX (PRIMARY)", 1, true), plan_of(db, text)
        for i, row in ipairs(rows) do
          local walks = text:find "FORCE INDEX %(PRIMARY%).*FORCE INDEX %(PRIMARY%)"
          local check = by_key and i == 1 and is_by_key or walks and is_walk or is_look
          check(row, text)
        end
        if by_key then changes = changes + 1 end
        if not by_key or #rows > 1 then looks = looks + 1 end
      end
      assert.is_true(changes >= 2, "changes: " .. changes)
      assert.is_true(looks >= 1, "looks: " .. looks)
    end)
  end
end

it("a drain reads by the key, and deletes one row by it at a time", function()
  local db <close> = lab.open()
  designs.create(db, "migration_task", 1)
  designs.fill(db, "migration_task", ROWS)
  age(db, "migration_task")
  assert(db:execute "OPTIMIZE TABLE migration_task")
  local ranges, keys = 0, 0
  local function drain()
    local other <close> = lab.open()
    local locker <close> = lab.open()
    assert(locker._handle:begin())
    assert(locker:execute "SELECT id FROM migration_task WHERE id = 100 FOR UPDATE")
    assert(assert(other:adopt(designs.map "migration_task")):drain { into = "post", batch = 200, limit = 800 })
  end
  for _, text in ipairs(statements("migration_task", drain)) do
    if text:find("$[0]", 1, true) or text:find "FORCE INDEX %(PRIMARY%) WHERE t%.`id` >= " then
      for _, row in ipairs(plan_of(db, text)) do
        assert.equal("PRIMARY", row.key, text)
        assert.is_nil((row.Extra or ""):find "filesort", text)
        if row.type == "range" then ranges = ranges + 1 else keys = keys + 1 end
        if row.type ~= "range" then is_by_key(row, text) end
      end
    end
  end
  assert.is_true(ranges >= 1 and keys >= 3, ("%d ranges, %d by key"):format(ranges, keys))
end)
