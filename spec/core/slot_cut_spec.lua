-- A connection that breaks while a slot is taken, given back or waited for: what
-- the caller was told agrees with the table, and no slot is left that nobody
-- knows of. Cut are the ends of what either side said, ± 1; with
-- NIGHTSHIFT_CUT=all it is every byte.

local core = require "nightshift.core"
local db = require "spec.support.db"
local proxy = require "spec.support.proxy"

local ALL = os.getenv "NIGHTSHIFT_CUT" == "all"

describe("a connection that is cut", function()
  local url, direct, through

  setup(function()
    url = db.fresh()
    direct = assert(core.open { url = url })
    assert(direct:execute "SELECT SETVAL(nightshift_id, 100000)") -- ids of one length: packets too
  end)
  before_each(function() through = proxy.start(db.shared()) end)
  teardown(function() direct:close() end)

  local function rows() return direct:execute("SELECT COUNT(*) AS n FROM nightshift_slot")[1].n end

  -- The verbs: what stands before, what is cut, and what has to be true then.
  local verbs = {
    acquire = {
      verb = function(handle) return handle:slot_acquire("x", 2) end,
      check = function(handle, token)
        assert.equal(1, rows())
        assert.is_true(handle:slot_holds(token))
        assert(handle:slot_release(token))
      end,
    },
    ["take over"] = {
      prepare = function()
        assert(direct:execute [[INSERT INTO nightshift_slot (name, slot, token, holder, since)
          VALUES ('x', 1, 1, 1, 1), ('x', 2, 2, 1, 1)]])
      end,
      verb = function(handle) return handle:slot_acquire("x", 2) end,
      check = function(handle, token)
        assert(handle:slot_release(token))
        assert.is_true(rows() <= 1) -- 0: the first was taken over and given back, unheard
      end,
    },
    release = {
      prepare = function(handle) return assert(handle:slot_acquire("x", 1)) end,
      verb = function(handle, token) return handle:slot_release(token) end,
      check = function() assert.equal(0, rows()) end,
    },
    wait = {
      verb = function(handle)
        local token, message, code = handle:slot_acquire("x", 1, 1)
        if code ~= "BUSY" then return token, message, code end
        return handle:slot_acquire("x", 1, 20000000) -- the session that was cut is still next in line
      end,
      check = function(handle, token) assert(handle:slot_release(token)) end,
    },
  }

  -- One try on a connection of its own, whose statements are prepared; 'arm'
  -- breaks it. Says whether it broke, and what was told.
  local function try(case, arm)
    assert(direct:execute "DELETE FROM nightshift_slot")
    local handle <close> = assert(core.open { url = through:url(url) })
    assert(handle:slot_release(assert(handle:slot_acquire("x", 2, 1))))
    local given = case.prepare and case.prepare(handle)
    arm()
    local result, message, code = case.verb(handle, given)
    local fired = through:tell "fired" == "yes"
    through:tell "admit"
    if result then
      case.check(handle, result)
    else
      assert.equal("GONE", code, message)
      assert(handle:now()) -- connects again
    end
    if not case.prepare or given then assert.equal(0, rows()) end
    assert(handle:slot_release(assert(handle:slot_acquire("x", 2))))
    return fired, result
  end

  -- Where to cut.
  local function places(case)
    try(case, function() through:tell "trace" end)
    local packets = through:packets()
    local set, list = {}, {}
    for i, packet in ipairs(packets) do
      local turn = not packets[i + 1] or packets[i + 1].who ~= packet.who
      for at = packet.at - 1, packet.at + 1 do set[at] = set[at] or turn end
    end
    for at = 0, packets[#packets].at do
      if ALL or set[at] then list[#list + 1] = at end
    end
    return list
  end

  for name, case in pairs(verbs) do
    it("at an edge of " .. name .. " changes nothing for the caller", function()
      for _, at in ipairs(places(case)) do
        local _, told = try(case, function() through:tell("cut " .. at) end)
        assert.is_truthy(told, "byte " .. at)
      end
    end)

    it("for a while, at an edge of " .. name .. ", leaves no slot behind", function()
      local gone = 0
      for _, at in ipairs(places(case)) do
        local _, told = try(case, function()
          through:tell("cut " .. at)
          through:tell "lasting"
        end)
        if not told then gone = gone + 1 end
      end
      assert.is_true(gone > 0)
    end)
  end
end)
