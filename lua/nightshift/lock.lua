--- Locks and semaphores across hosts: db:lock and db:semaphore.
--
-- An object stands for one slot at a time. The core takes and gives slots and never waits.
-- Waiting is done here, in naps of 5 to 250 ms, so a handler that is told to stop meanwhile
-- notices it. A slot is given back at the latest when its job's run ends, or its program: see
-- holder/slot.c. Wrong arguments raise, because the object is called on the spot: db:lock
-- "report" (fn).

local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

local raise = options.raise

local lock = {}
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
function lock.new(db, kind, name, n, opts)
  check_name(kind, name)
  local given = options.read(kind, opts, KNOWN)
  return setmetatable({
    name = name, _kind = kind, _n = check_slots(n), _db = db, _handle = db._handle,
    _timeout = given.timeout or TIMEOUT, _token = false,
  }, meta)
end

return lock
