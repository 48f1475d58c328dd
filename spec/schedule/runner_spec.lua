-- The runner of schedules by itself, as a host drives it: signs that scripts declare, and which scripts count.

local core = require "nightshift.core"
local runner = require "nightshift.schedule.runner"

describe("the runner of schedules:", function()
  local handle, url, logged

  with_database(function(h, _, u) handle, url, logged = h, u, {} end)

  local function declared(every)
    return { name = "tick", schedule = { every = every * 1000000, zone = "UTC", queue = "q", job = "tick",
      missed = "one", overlap = "allow", payload = core.null, options = {} } }
  end

  -- A host whose scripts were loaded `age` seconds ago; `rounds` are functions called between its rounds.
  local function run(list, age, ...)
    local rounds, n, generation = { ... }, 0, 1
    local one
    one = assert(runner.open(url, {
      declared = function() return core.encode(core.array(list)), generation, age end,
      log = function(_, event, name) logged[#logged + 1] = event .. (name and " " .. name or "") end,
      fired = function() end,
      wait = function()
        n, generation = n + 1, generation + 1
        if not rounds[n] then return true end
        rounds[n](one)
      end,
    }))
    one:run()
  end

  local function every() return handle:schedules()[1].every end

  it("scripts count from when they were loaded, not from when the server was there", function()
    run({ declared(60) }, 5)
    run({ declared(70) }, 100)
    assert.equal(60, every())
    run({ declared(80) }, 0)
    assert.equal(80, every())
    assert.same({ "schedule.added tick", "schedule.superseded tick", "schedule.changed tick" }, logged)
  end)

  it("older scripts count again when no newer ones have given a sign for a day", function()
    run({ declared(60) }, 5)
    handle:execute "UPDATE nightshift_schedule SET declared = declared - 86401000000"
    run({ declared(70) }, 100)
    assert.equal(70, every())
  end)

  it("one ends a day after it was declared last, on a host that has been there for an hour", function()
    local other = declared(60)
    other.name = "other"
    run({ declared(60), other }, 0)
    handle:execute "UPDATE nightshift_schedule SET declared = declared - 86401000000"
    run({ other }, 0, function() assert.equal(2, #handle:schedules()) end, function(one)
      assert.equal(2, #handle:schedules())
      one.since = one.since - 3600000000
    end)
    assert.equal("other", handle:schedules()[1].name)
    assert.same({ "schedule.added other", "schedule.added tick", "schedule.ended tick" }, logged)
  end)

  it("a host that was away ends nothing", function()
    run({ declared(60) }, 0)
    handle:execute "UPDATE nightshift_schedule SET declared = declared - 86401000000"
    run({}, 0, function(one) one.since, one.seen = one.since - 86400000000, one.seen - 86400000000 end)
    assert.equal(60, every())
  end)

  it("a sign for many costs two statements", function()
    local list = {}
    for i = 1, 300 do
      list[i] = declared(60)
      list[i].name = ("it's \u{1f600} %d"):format(i)
    end
    local function count()
      return handle:execute([[SELECT variable_value + 0 AS n FROM information_schema.global_status
        WHERE variable_name = 'Questions']])[1].n
    end
    local before, version
    run(list, 5, function()
      handle:execute "UPDATE nightshift_schedule SET declared = 1"
      version = handle:execute "SELECT MIN(version) AS v FROM nightshift_schedule"[1].v
      before = count()
    end, function() assert.is_true(count() - before < 50) end)
    local row = handle:execute "SELECT COUNT(*) AS n, MIN(version) AS v, MIN(declared) AS d FROM nightshift_schedule"[1]
    assert.equal(300, row.n)
    assert.is_true(row.v >= version and row.d > 1)
  end)

  it("a declaration starts one that has failed", function()
    run({ declared(60) }, 5)
    handle:execute "UPDATE nightshift_schedule SET next_at = NULL, error = 'why'"
    run({ declared(60) }, 5)
    assert.is_nil(handle:schedules()[1].error)
    assert.is_number(handle:schedules()[1].due)
  end)

  it("memory that runs out is no fault of a schedule", function()
    assert(handle:schedule { name = "t", every = 60, push = { "x" } })
    handle:execute "UPDATE nightshift_schedule SET next_at = 1"
    local definition = require "nightshift.schedule.definition"
    local due = definition.due
    definition.due = function() -- luacheck: ignore
      definition.due = due
      error("not enough memory", 0)
    end
    run({}, 0, function() end)
    assert.same({ "schedule.error" }, logged)
    local row = handle:schedules()[1]
    assert.is_nil(row.error)
    assert.is_number(row.last)
  end)
end)
