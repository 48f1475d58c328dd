-- The statements that a mapping makes of an adopted table. Each published one, as the server
-- plans and runs it; and times in hours that are missing or come twice.

local core = require "nightshift.core"
local db = require "spec.support.db"
local mapping = require "nightshift.source.mapping"
local nightshift = require "nightshift"
local published = require "spec.support.designs".published
local text = require "nightshift.source.text"

local handle
setup(function() handle = assert(nightshift.open((db.fresh()))) end)
teardown(function() handle:close() end)

local function all(sql, ...) return assert(handle._handle:execute(sql, ...)) end

--- The mapping of a published table, and its statements.
local function texts_of(source, changes)
  local given = load("return " .. source)()
  for key, value in pairs(changes or {}) do given[key] = value end
  local map = assert(mapping.check(handle._handle, given))
  local texts = text.make(map, 1, 1, "here")
  return texts
end

local NAMES = { "look", "next", "lock", "mark", "hold", "wait", "lost", "lives", "done", "dead", "open", "retry",
  "renew", "overdue", "overdue_lock", "reset" }

-- Values for the placeholders of a statement, by its name.
local PARAMS = { look = { 1, "[3]", nightshift.null, 10 }, next = {},
  lock = { "[1,2,3]", 3 }, overdue = { 10 }, overdue_lock = { "[1,2]", 2 } }

local function params_of(statement)
  return table.unpack(PARAMS[statement] or { "[[1,5,1,1700000000000000],[2,6,0,null]]" })
end

for _, published_table in ipairs(published) do
  local table_name, definition, rows, given = table.unpack(published_table)

  describe("statements about " .. table_name, function()
    local texts

    --- Calls fn with each statement that the mapping needs.
    local function each(fn)
      for _, statement in ipairs(NAMES) do
        if texts[statement] then fn(statement, texts[statement]) end
      end
    end

    setup(function()
      all(definition)
      all(("INSERT INTO %s %s FROM seq_1_to_3000"):format(table_name, rows))
      all("ANALYZE TABLE " .. table_name)
      texts = texts_of(given)
    end)

    it("change and lock rows by the primary key, one at a time", function()
      each(function(statement, sql)
        local plan = {}
        for _, row in ipairs(all("EXPLAIN " .. sql:gsub("^SET STATEMENT .- FOR%s", "", 1), params_of(statement))) do
          plan[row.table or "-"] = row
        end
        if statement ~= "look" and statement ~= "overdue" and statement ~= "next" then
          assert.is_truthy(plan.t, statement .. ": " .. tostring(plan["-"] and plan["-"].Extra) .. "\n" .. sql)
          assert.same({ "PRIMARY", "eq_ref" }, { plan.t.key, plan.t.type }, statement .. ": " .. sql)
        end
        assert.is_nil(tostring(plan.l and plan.l.Extra):find("filesort", 1, true), statement)
      end)
    end)

    it("are taken by the server", function()
      each(function(statement, sql)
        assert(handle._handle:begin())
        local result, message = handle._handle:execute(sql, params_of(statement))
        assert.is_truthy(result, ("%s: %s\n%s"):format(statement, message, sql))
        handle._handle:rollback()
      end)
    end)

    it("find rows in order, and leave some alone", function()
      local found = all(texts.look, 1, "[3]", nightshift.null, 5)
      for i, row in ipairs(found) do assert.is_true(row.id ~= 3 and (i == 1 or row.id > found[i - 1].id)) end
      assert.is_true(#found > 0)
    end)

    it("take a row, hold it for its job and no other, and give it back", function()
      assert(handle._handle:begin())
      local id = all(texts.look, 1, "[]", nightshift.null, 1)[1].id
      assert.equal(1, #all(texts.lock, ("[%d]"):format(id), 1))
      if texts.mark then all(texts.mark, ("[[%d,77]]"):format(id)) end
      local mine, other = ("[[%d,77,1,null]]"):format(id), ("[[%d,78]]"):format(id)
      assert.same({ id }, { all(texts.hold, mine)[1].id })
      if texts.hold:find("ns:", 1, true) then
        assert.same({}, all(texts.hold, other))
        assert.same({ { id = id, job = 78 } }, all(texts.lost, other))
      end
      assert.same({}, all(texts.lost, mine))
      all(texts.open, mine)
      assert.equal(1, #all(texts.lock, ("[%d]"):format(id), 1))
      if texts.mark then
        assert.equal(0, all(texts.done, mine).affected)
        all(texts.mark, mine)
      end
      assert.equal(1, all(texts.done, mine).affected)
      assert.same({}, all(texts.lock, ("[%d]"):format(id), 1))
      handle._handle:rollback()
    end)
  end)
end

describe("statements about what rows are owed, and their jobs,", function()
  setup(function()
    all [[INSERT INTO nightshift_owed (source, row_id, job_id) SELECT seq % 3, seq, seq FROM seq_1_to_3000]]
    all [[INSERT INTO nightshift_unique_key (queue_id, ukey, job_id)
      SELECT seq % 3 + 1, CONCAT('row:1:', seq), seq FROM seq_1_to_3000]]
    all "ANALYZE TABLE nightshift_owed, nightshift_unique_key"
  end)

  for statement, found in pairs {
    source_attempts = { "j", "PRIMARY", "[[1,2]]" }, source_turn = { "nightshift_source", "PRIMARY", 1, 5 },
    source_back_unready = { "r", "PRIMARY", 1, "[[100,5,1]]" },
    source_back_ready = { "r", "PRIMARY", 1, 1, 1, "[1]", 10 },
    source_debts = { "nightshift_owed", "of_row", 1, 5, 6, 10 },
    source_live = { "nightshift_unique_key", "PRIMARY", 1, "row:1:",
      "row:1;", 10 }, source_paid = { "o", "PRIMARY", "[1,2]" },
    source_refused = { "nightshift_owed", "of_row", "no", 1, 2 },
  } do
    it("read by key: " .. statement, function()
      local row
      for _, each in ipairs(all("EXPLAIN " .. core.sql(statement), table.unpack(found, 3))) do
        if each.table == found[1] then row = each end
      end
      assert.equal(found[2], row.key)
      assert.is_true(row.type == "eq_ref" or row.type == "ref" or row.type == "range", row.type)
      assert.is_nil(tostring(row.Extra):find("filesort", 1, true))
    end)
  end

  it("read by key: source_known", function()
    local keys = {}
    for _, row in ipairs(all("EXPLAIN " .. core.sql "source_known", 1, 1, "[1,2]")) do
      keys[row.table or "-"] = ("%s %s"):format(row.key, row.type)
    end
    assert.same({ "PRIMARY eq_ref", "of_row ref" }, { keys.u, keys.o })
  end)
end)

-- A zone with an hour that is missing, from 1774746000 on, and one that comes twice, from 1792890000.
describe("times without a zone", function()
  local SPRING, AUTUMN, HOUR = 1774746000, 1792890000, 3600

  setup(function()
    db.sql(([[REPLACE INTO time_zone (Time_zone_id, Use_leap_seconds) VALUES (9001, 'N');
      REPLACE INTO time_zone_name (Name, Time_zone_id) VALUES ('Spec/Summer', 9001);
      REPLACE INTO time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation)
        VALUES (9001, 0, 3600, 0, 'W'), (9001, 1, 7200, 1, 'S');
      REPLACE INTO time_zone_transition (Time_zone_id, Transition_time, Transition_type_id)
        VALUES (9001, 0, 0), (9001, %d, 1), (9001, %d, 0)]]):format(SPRING, AUTUMN), "mysql")
    all [[CREATE TABLE timed (id INT PRIMARY KEY, st VARCHAR(9) NOT NULL, who VARCHAR(40) NULL,
      at DATETIME NULL, later DATETIME NULL)]]
  end)

  local MAP = [[{ table = "timed", claimed_by = "who", claimed_at = "at", retry_after = "later", overdue = 600,
    time_zone = "Spec/Summer", status = { column = "st", open = "o", processing = "p", done = "d" } }]]

  local function at(instant) all("SET timestamp = " .. instant) end

  after_each(function()
    all "SET timestamp = DEFAULT"
    all "DELETE FROM timed"
  end)

  --- How many rows are overdue so many seconds after one was claimed at an instant.
  local function overdue(texts, claimed, seconds)
    all "DELETE FROM timed"
    all("INSERT INTO timed VALUES (1, 'p', 'them', CONVERT_TZ(FROM_UNIXTIME(?), '+00:00', 'Spec/Summer'), NULL)",
      claimed)
    at(claimed + seconds)
    return #all(texts.overdue, 10)
  end

  it("are overdue after as long as always when an hour is missing", function()
    local texts = texts_of(MAP)
    for _, claimed in ipairs { SPRING - 300, SPRING - 1, SPRING, SPRING + 300 } do
      assert.equal(0, overdue(texts, claimed, 599), claimed)
      assert.equal(1, overdue(texts, claimed, 601), claimed)
    end
  end)

  it("are never overdue too soon when an hour comes twice", function()
    local texts = texts_of(MAP)
    for _, claimed in ipairs { AUTUMN - HOUR - 1, AUTUMN - HOUR, AUTUMN - 300, AUTUMN, AUTUMN + 300, AUTUMN + HOUR } do
      assert.equal(0, overdue(texts, claimed, 599), claimed)
      assert.equal(1, overdue(texts, claimed, 601 + HOUR), claimed)
    end
  end)

  it("of a retry that would fall into the missing hour are behind it", function()
    local texts = texts_of(MAP)
    at(SPRING - 60)
    all "INSERT INTO timed VALUES (1, 'p', 'ns:5', NULL, NULL)"
    all(texts.lives, ("[[1,5,1,%d]]"):format((SPRING + 60) * 1000000 - 1))
    all "UPDATE timed SET st = 'o', who = NULL"
    assert.equal("2026-03-29 03:01:00", all "SELECT later FROM timed"[1].later)
    assert.equal(0, #all(texts.look, 1, "[]", nightshift.null, 5))
    at(SPRING + 59)
    assert.equal(0, #all(texts.look, 1, "[]", nightshift.null, 5))
    at(SPRING + 60)
    assert.equal(1, #all(texts.look, 1, "[]", nightshift.null, 5))
  end)

  it("that are too far away for the server's clock are not over", function()
    local texts = texts_of(MAP)
    all "INSERT INTO timed VALUES (1, 'o', NULL, NULL, '9999-12-31 23:59:59')"
    assert.equal(0, #all(texts.look, 1, "[]", nightshift.null, 5))
  end)
end)
