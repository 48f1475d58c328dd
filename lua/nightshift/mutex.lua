--- Mutexes and semaphores between the processes of one host.
--
--     local r = nightshift.mutex "account" (function() … return r end)
--     local held <close> = assert(nightshift.semaphore("gpu", 2):acquire(5))
--
-- Both are one kind of object; a mutex has one unit. A unit is given back by release, or when
-- the variable goes out of scope. The end of the job gives it back, too, and so does the death
-- of the process.

local core = require "nightshift.core"
local options = require "nightshift.options"

local mutex = {}

local Lock = {}
local metatable = { __index = Lock, __name = "nightshift.lock" }
local era = 0 -- units locked in an earlier era have been given back

local DEFAULT_TIMEOUT = 30000000 -- µs

local function describe(lock)
  return ("%s '%s'"):format(lock._units == 0 and "mutex" or "semaphore", options.shown((lock._name:gsub("%c", "?"))))
end

--- Waits for a unit and takes it.
---@param timeout number|string|nil how long at most; default: as told when it was made, or 30 s
---@return table|nil lock itself, for `local held <close> = assert(lock:acquire())`
---@return string? message
---@return string? code `BUSY` when none became free in time, `INVALID`, `FULL`
function Lock:acquire(timeout)
  options.own(self, metatable, "mutex", "acquire")
  if self._refused then return nil, self._refused, "INVALID" end
  local wait = self._timeout
  if timeout ~= nil then
    local us, message = options.duration(timeout, "acquire: timeout")
    if not us then return nil, message, "INVALID" end
    wait = us
  end
  local unit, message, code = core.lock(self._name, self._units, wait)
  if unit then
    self._unit, self._era = unit, era
    return self
  end
  if code == "STATE" then options.raise("%s: %s", describe(self), message) end
  return nil, describe(self) .. ": " .. message, code
end

local function is_locked(lock)
  return lock._unit and lock._era == era
end

local function give_back(lock)
  local ok, message, code = core.unlock(lock._name, lock._units, lock._unit)
  if code ~= "BUSY" then lock._unit = false end
  return ok, message, code
end

--- Gives the unit back. Raises when this object does not hold one.
---@return true|nil ok
---@return string? message
---@return string? code `BUSY`
function Lock:release()
  options.own(self, metatable, "mutex", "release")
  if not is_locked(self) then options.raise("%s: release: this object does not hold it", describe(self)) end
  local ok, message, code = give_back(self)
  if code == "STATE" then options.raise("%s: release: %s", describe(self), message) end
  if not ok then return nil, message, code end
  return ok
end

function metatable.__close(lock)
  if is_locked(lock) then give_back(lock) end
end

function metatable.__tostring(lock)
  return ("nightshift.%s (%s)"):format(describe(lock), is_locked(lock) and "held" or "not held")
end

--- Runs a function while a unit is held; gives its values, and passes its error on.
---@param fn function
---@param ... any its arguments
---@return any ... or nil, message, code of acquire
function metatable.__call(lock, fn, ...)
  if type(fn) ~= "function" then
    options.raise("%s: a function expected, got %s", describe(lock), type(fn))
  end
  local guard <close>, message, code = lock:acquire()
  if not guard then return nil, message, code end
  return fn(...)
end

local KNOWN = { timeout = options.duration }

local function make(verb, name, units, opts)
  if type(name) ~= "string" then options.raise("%s: the name must be a string, got %s", verb, type(name)) end
  local given, message = options.read(verb, opts, KNOWN)
  return setmetatable({
    _name = name, _units = units, _refused = message, _unit = false, _era = 0,
    _timeout = given and given.timeout or DEFAULT_TIMEOUT,
  }, metatable)
end

--- A mutex: one holder at a time among the processes of this host. Names need
-- not be declared.
---@param name string 1 to 100 bytes
---@param opts {timeout: number|string|nil}?
---@return table lock
function mutex.new(name, opts)
  local lock = make("mutex", name, 0, opts)
  return lock
end

local whole = options.integer(1, 1000)

--- A semaphore: at most `n` holders. All callers that use a name give the same number.
---@param name string
---@param n integer 1 to 1000
---@param opts {timeout: number|string|nil}?
---@return table lock
function mutex.semaphore(name, n, opts)
  local units, message = whole(n, "semaphore: n")
  local lock = make("semaphore", name, units or 1, opts)
  lock._refused = lock._refused or message
  return lock
end

--- Gives back all units that this process still holds: the leftovers of a job.
function mutex.release_all()
  era = era + 1
  core.unlock_all()
end

return mutex
