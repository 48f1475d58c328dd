-- NEXTVAL needs INSERT on a sequence, and SETVAL needs no more. A pusher that set
-- nightshift_id to its end stopped all pushes, and the doctor saw nothing.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

describe("nightshift_id", function()
  local url, name

  before_each(function() url, name = db.fresh() end)

  local function ids(place)
    local _, out = proc.nightshift({ "doctor", "--json" }, place or url)
    for _, check in ipairs(nightshift.decode(out).checks) do
      if check.name == "ids" then return check end
    end
  end

  local function push()
    local handle <close> = assert(nightshift.open(url))
    return handle:queue("q"):push("a", 1)
  end

  local function as_pusher(sql)
    local _, user = db.user(url, "")
    local _, text = proc.nightshift { "doctor", "--grants", "pusher", "--user", user .. "@localhost" }
    db.sql(text, name)
    local reach = db.url(name, user, "Pass-word_1")
    local handle <close> = assert(nightshift.open(reach))
    assert(handle:execute(sql))
    return reach
  end

  it("that only pushes have moved is all right", function()
    assert(push())
    assert.equal("ok", ids().level)
    local reach = as_pusher "SELECT 1"
    assert.equal("ok", ids(reach).level)
    assert.equal("ok", ids((db.user(url, "CREATE TEMPORARY TABLES"))).level)
  end)

  it("that was set far ahead is named, with the way back", function()
    local first = assert(push())
    as_pusher "SELECT SETVAL(nightshift_id, 5000000000000000)"
    local far = assert(push())
    assert.is_true(far > first * 1000)
    local check = ids()
    assert.equal("warn", check.level)
    assert.is_truthy(check.found:find("block 5000000000", 1, true), check.found)
    local statement = check.advice:match "ALTER SEQUENCE nightshift_id RESTART %d+"
    assert.is_truthy(statement, check.advice)
    db.sql(statement, name)
    assert.equal("ok", ids().level)
    local id = assert(push())
    assert.is_true(id > first and id < far)
  end)

  for _, last in ipairs { "92233720368547758", "9223372036854775806" } do
    it("that was set to its end is a failure, and no number of ours runs over: " .. last, function()
      local first = assert(push())
      local reach = as_pusher(("SELECT SETVAL(nightshift_id, %s)"):format(last))
      local id, message, code = push()
      assert.same({ nil, "SQL" }, { id, code })
      assert.is_truthy(message:find("nightshift doctor", 1, true) or message:find("run out", 1, true), message)
      local check = ids()
      assert.equal("fail", check.level)
      assert.is_truthy(ids(reach).advice:find("ALTER SEQUENCE nightshift_id RESTART", 1, true))
      db.sql(check.advice:match "ALTER SEQUENCE nightshift_id RESTART %d+", name)
      assert.is_true(assert(push()) > first)
      assert.equal("ok", ids().level)
    end)
  end
end)
