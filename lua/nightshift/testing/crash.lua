--- Crash points: the process dies at one as by kill -9, and its database sees just that.
--
-- A point replaces a verb of core's handles until it has come. At it the server kills the
-- connection of the handle, which rolls back what was not committed. The holder of that connection
-- is dead, so its claims are given back at once, as another holder does within two seconds. The
-- handle is closed, and an error unwinds what runs: the process has ended there. Verbs of other
-- handles go on.
--
-- A death before a commit is a death before the verb: the database cannot tell them apart.

local core = require "nightshift.core"
local options = require "nightshift.options"

local crash = {}

-- By point: the verbs of core's handles, and whether it lies behind them.
local POINTS = {
  ["push.before_commit"] = { verbs = { "push" } },
  ["push.after_commit"] = { verbs = { "push" }, after = true },
  ["claim.after_commit"] = { verbs = { "claim" }, after = true },
  ["settle.before_commit"] = { verbs = { "settle", "settle_all" } },
  ["settle.after_commit"] = { verbs = { "settle", "settle_all" }, after = true },
  ["transaction.before_commit"] = { verbs = { "commit" } },
  ["transaction.after_commit"] = { verbs = { "commit" }, after = true },
}

local GONE_WITHIN <const> = 5 -- seconds; a kill waits for a statement that runs

--- The verbs of all core handles.
local function verbs_of(kit) return getmetatable(kit._handle).__index end

--- Takes back the replacement of a point.
---@param kit nightshift.Testing
function crash.disarm(kit)
  for name, verb in pairs(kit._replaced or {}) do verbs_of(kit)[name] = verb end
  kit._replaced, kit._died = nil, nil
end

--- Ends a handle as a kill of its process does.
---@param kit nightshift.Testing
---@param handle userdata core handle
function crash.cut(kit, handle)
  if not handle:is_open() then return end
  local own = kit._handle
  local rows = handle:execute "@testing_connection"
  local id = rows and rows[1].id
  if id then
    own:execute("@testing_kill", id)
    local stop = core.clock() + GONE_WITHIN
    repeat
      local gone = own:execute("@testing_gone", id)
    until not gone or gone[1].gone == 1 or core.clock() > stop or core.sleep(0.001)
    own:execute("@testing_end_holder", id)
    own:look(0)
  end
  handle:close()
end

local function die(kit, handle, point)
  crash.disarm(kit)
  kit._died = point
  crash.cut(kit, handle)
  error("nightshift.testing: the process died at " .. point, 0)
end

--- Did the verb do something? A claim that finds nothing commits nothing.
local function has_written(results)
  local first = results[1]
  return first ~= nil and not (type(first) == "table" and next(first) == nil)
end

local replace

--- The verb that dies at its nth call. Behind a verb of an open transaction it dies behind its
-- commit.
local function dying(kit, point, verb, at, nth)
  local left = nth
  return function(handle, ...)
    if handle == kit._handle or handle == kit._keeper then return options.values(verb(handle, ...)) end
    if not at.after then
      left = left - 1
      if left > 0 then return options.values(verb(handle, ...)) end
      die(kit, handle, point)
    end
    local results = table.pack(verb(handle, ...))
    if has_written(results) then left = left - 1 end
    if left > 0 then return table.unpack(results, 1, results.n) end
    if not handle:in_transaction() then die(kit, handle, point) end
    crash.disarm(kit)
    replace(kit, point, POINTS["transaction.after_commit"], 1)
    return table.unpack(results, 1, results.n)
  end
end

function replace(kit, point, at, nth)
  local verbs = verbs_of(kit)
  kit._replaced = {}
  for _, name in ipairs(at.verbs) do
    kit._replaced[name] = verbs[name]
    verbs[name] = dying(kit, point, verbs[name], at, nth)
  end
end

--- Has the process die at a point, the nth time that it comes there.
---@param kit nightshift.Testing
---@param point string
---@param nth integer
---@return true|nil
---@return string? message
---@return string? code
function crash.arm(kit, point, nth)
  local at = POINTS[point]
  if not at then
    local known = {}
    for name in pairs(POINTS) do known[#known + 1] = name end
    table.sort(known)
    return nil, ("crash_at: there is no point '%s'; known: %s"):format(options.shown(point), table.concat(known, ", ")),
      "INVALID"
  end
  if nth < 1 then return nil, "crash_at: which time must be 1 or more, got " .. nth, "INVALID" end
  crash.disarm(kit)
  replace(kit, point, at, nth)
  return true
end

return crash
