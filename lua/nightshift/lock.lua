--- Locks and semaphores: across hosts (db:lock and db:semaphore), and between the processes of one
-- host (nightshift.mutex and nightshift.semaphore).
--
-- Across hosts an object stands for one slot at a time. The core takes and gives slots and never
-- waits. Waiting is done here, in naps of 5 to 250 ms, so a handler that is told to stop meanwhile
-- notices it. A slot is given back at the latest when its job's run ends, or its program: see
-- holder/slot.c. Wrong arguments raise, because the object is called on the spot: db:lock "report"
-- (fn).
--
-- Within a host a mutex has one unit, a semaphore several. A unit is given back by release, or when
-- the variable goes out of scope. The end of the job gives it back, too, and so does the death of
-- the process.

local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

local raise = options.raise

local locks = {}

-- --------------------------------------------------------------- across hosts

local methods = options.methods({}, "the lock")
local meta = { __index = methods, __name = "nightshift.lock" }

local TIMEOUT = 30 -- seconds, unless told
local MAX_NAME = 190 -- characters
local MAX_SLOTS = 10000

local SLOTS = options.integer(1, MAX_SLOTS)

--- Seconds of a duration; raises for a bad one.
local function seconds(value, what)
  local us, message = options.duration(value, what)
  if not us then raise("%s", message) end
  return us / 1000000
end

local function check_name(kind, name)
  if type(name) ~= "string" then raise("%s: the name must be a string, got %s", kind, type(name)) end
  local ok, message = options.name(kind .. ": the name", name, MAX_NAME * 4)
  if not ok then raise("%s", message) end
  if utf8.len(name) > MAX_NAME then
    raise("%s: the name has %d characters, the limit is %d", kind, utf8.len(name), MAX_NAME)
  end
end

local function check_slots(n)
  local ok, message = SLOTS(n, "semaphore: the number of slots")
  if not ok then raise("%s", message) end
  return ok
end

local KNOWN = { timeout = function(value, what) return (seconds(value, what)) end }

local SHOWN_AFTER = 1 -- seconds of waiting, after which the job shows its lock

-- Gives up the place in line, however a wait ends.
local line_meta = {
  __close = function(line)
    if line.shown then line.show(nil) end
    if line.handle:is_open() then line.handle:slot_give_up(line.name) end
  end,
}

--- Tries for so many seconds, after a first try.
local function wait(self, start, timeout, again_in)
  local line <close> =
    setmetatable({ handle = self._handle, name = self.name, show = self._db._show_wait }, line_meta)
  while true do
    local left = start + timeout - core.clock()
    core.sleep(math.max(0, math.min(again_in / 1000000, left)))
    local waited = math.floor((core.clock() - start) * 1000000)
    local token, message, code
    token, message, code, again_in = line.handle:slot_acquire(self.name, self._n, math.max(1, waited))
    if token or code ~= "BUSY" or left <= 0 then return token, message, code end
    if line.show and not line.shown and waited > SHOWN_AFTER * 1000000 then
      line.shown = true
      line.show(("waits for the %s '%s'"):format(self._kind, self.name)) -- read by why.lua
    end
  end
end

--- Takes a slot, or tries for so many seconds.
local function take(self, timeout)
  local start = core.clock()
  local token, message, code, again_in = self._handle:slot_acquire(self.name, self._n, timeout > 0 and 0 or -1)
  if code == "BUSY" and timeout > 0 then token, message, code = wait(self, start, timeout, again_in) end
  if code ~= "BUSY" then return token, message, code end
  if timeout > 0 then message = ("waited %s s: %s"):format(units.number(timeout), message) end
  return nil, ("%s '%s': %s"):format(self._kind, self.name, message), code
end

local function own(self, verb)
  options.own(self, meta, "lock", verb)
end

--- Does this object hold a slot, as far as its program knows?
---@return boolean
function methods:is_held()
  own(self, "is_held")
  return self._token and self._db:is_open() and self._handle:slot_holds(self._token)
end

--- Takes a slot, waiting for one up to `timeout`: 0 tries once. Gives the
-- object itself, so `local held <close> = assert(l:acquire())` works.
---@param timeout number|string? seconds, or "5m"; the object's own unless told
---@return nightshift.DbLock|nil
---@return string? message
---@return string? code
function methods:acquire(timeout)
  own(self, "acquire")
  options.live(self._handle, "acquire")
  local patience = timeout == nil and self._timeout or seconds(timeout, "acquire: the timeout")
  if self:is_held() then
    raise("%s '%s' is held by this very object; release it first, or make another one", self._kind, self.name)
  end
  local token, message, code = take(self, patience)
  if not token then return nil, message, code end
  self._token = token
  return self
end

--- Gives the slot back. STALE: it had been lost, so another owner may have been in.
---@return true|nil
---@return string? message
---@return string? code
function methods:release()
  own(self, "release")
  local token = self._token
  if not token then raise("%s '%s' is not held by this object", self._kind, self.name) end
  options.live(self._handle, "release")
  self._token = false
  return self._handle:slot_release(token)
end

-- Gives back a slot that is still held; a handle that was closed has given everything back
-- itself. The collector does not do it. If an object was dropped by mistake, its lock had
-- better be held too long than not at all.
local function let_go(self)
  if self._token and self._db:is_open() then self:release() end
end

meta.__close = let_go

-- Gives back on every way out; an error passes with its traceback.
local guard_meta = { __close = function(guard) if guard.held then let_go(guard.held) end end }

--- Runs `fn` while a slot is held and gives its values.
---@param fn fun(...): ...
---@param ... any for fn
---@return any ...
function meta:__call(fn, ...)
  if type(fn) ~= "function" then raise("%s '%s' wants a function, got %s", self._kind, self.name, type(fn)) end
  local guard <close> = setmetatable({ held = false }, guard_meta) -- before: memory may end after
  local ok, message, code = self:acquire()
  if not ok then return nil, message, code end
  guard.held = self
  return fn(...)
end

function meta:__tostring()
  return ("nightshift.%s '%s' (%s)"):format(self._kind, self.name, self:is_held() and "held" or "not held")
end

--- Makes a lock or a semaphore.
---@param db nightshift.Db
---@param kind "lock"|"semaphore"
---@param name string
---@param n integer how many slots there are
---@param opts {timeout: number|string?}?
---@return nightshift.DbLock
function locks.new(db, kind, name, n, opts)
  check_name(kind, name)
  local given = options.read(kind, opts, KNOWN)
  return setmetatable({
    name = name, _kind = kind, _n = check_slots(n), _db = db, _handle = db._handle,
    _timeout = given.timeout or TIMEOUT, _token = false,
  }, meta)
end

-- ------------------------------------------------------------- within one host

--     local r = nightshift.mutex "account" (function() … return r end)
--     local held <close> = assert(nightshift.semaphore("gpu", 2):acquire(5))

local unit_methods = {}
local unit_meta = { __index = unit_methods, __name = "nightshift.lock" }
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
function unit_methods:acquire(timeout)
  options.own(self, unit_meta, "mutex", "acquire")
  if self._refused then return nil, self._refused, "INVALID" end
  local us = self._timeout
  if timeout ~= nil then
    local given, message = options.duration(timeout, "acquire: timeout")
    if not given then return nil, message, "INVALID" end
    us = given
  end
  local unit, message, code = core.lock(self._name, self._units, us)
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
function unit_methods:release()
  options.own(self, unit_meta, "mutex", "release")
  if not is_locked(self) then options.raise("%s: release: this object does not hold it", describe(self)) end
  local ok, message, code = give_back(self)
  if code == "STATE" then options.raise("%s: release: %s", describe(self), message) end
  if not ok then return nil, message, code end
  return ok
end

function unit_meta.__close(lock)
  if is_locked(lock) then give_back(lock) end
end

function unit_meta.__tostring(lock)
  return ("nightshift.%s (%s)"):format(describe(lock), is_locked(lock) and "held" or "not held")
end

--- Runs a function while a unit is held; gives its values, and passes its error on.
---@param fn function
---@param ... any its arguments
---@return any ... or nil, message, code of acquire
function unit_meta.__call(lock, fn, ...)
  if type(fn) ~= "function" then
    options.raise("%s: a function expected, got %s", describe(lock), type(fn))
  end
  local guard <close>, message, code = lock:acquire()
  if not guard then return nil, message, code end
  return fn(...)
end

local OF_HOST = { timeout = options.duration }

local function make(verb, name, n, opts)
  if type(name) ~= "string" then options.raise("%s: the name must be a string, got %s", verb, type(name)) end
  local given, message = options.read(verb, opts, OF_HOST)
  return setmetatable({
    _name = name, _units = n, _refused = message, _unit = false, _era = 0,
    _timeout = given and given.timeout or DEFAULT_TIMEOUT,
  }, unit_meta)
end

--- A mutex: one holder at a time among the processes of this host. Names need
-- not be declared.
---@param name string 1 to 100 bytes
---@param opts {timeout: number|string|nil}?
---@return table lock
function locks.mutex(name, opts)
  local lock = make("mutex", name, 0, opts)
  return lock
end

local whole = options.integer(1, 1000)

--- A semaphore: at most `n` holders. All callers that use a name give the same number.
---@param name string
---@param n integer 1 to 1000
---@param opts {timeout: number|string|nil}?
---@return table lock
function locks.semaphore(name, n, opts)
  local checked, message = whole(n, "semaphore: n")
  local lock = make("semaphore", name, checked or 1, opts)
  lock._refused = lock._refused or message
  return lock
end

--- Gives back all units that this process still holds: the leftovers of a job.
function locks.release_all()
  era = era + 1
  core.unlock_all()
end

return locks
