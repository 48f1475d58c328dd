--- Transactions of a handle: db:transaction, and tx:try, which is a part of one that may fail
-- alone.
--
-- A scope is the record of a transaction or a try since it began. It lists the jobs that were
-- settled in it, so that a rollback opens them again. It has the acks that are written at its
-- end, and the first verb that failed in it. A failed verb keeps it from being committed: the
-- scope is written whole or not at all. The open scope is its backend's `in_transaction`.
--
-- A coroutine may be inside db:transaction and never come back. Its transaction can be ended
-- from outside. Then its scopes have `ended`, and later verbs of that coroutine touch no
-- transaction begun since.

local job = require "nightshift.job"
local options = require "nightshift.options"
local scope = require("nightshift.failure").scope

local raise, values = options.raise, options.values

local transaction = {}

-- ------------------------------------------------------------------------- tx

-- The argument of db:transaction's function: the verbs that take part in it.
local methods = options.methods({}, "tx")
local meta = { __index = methods, __name = "nightshift.transaction" }

local function open_tx(tx, verb)
  options.own(tx, meta, "tx", verb)
  if not tx._db then raise("this transaction has ended") end
  return tx._db
end

function methods:queue(name)
  return values(open_tx(self, "queue"):queue(name))
end

function methods:execute(sql, ...)
  return values(open_tx(self, "execute"):execute(sql, ...))
end

function methods:signal(id, value, name)
  return values(open_tx(self, "signal"):signal(id, value, name))
end

--- Ends a job as done if the transaction commits. All such acks are written together at the end
-- of the function that calls it.
function methods:ack(claimed, result, extra)
  local backend = open_tx(self, "ack")._backend
  options.no_more("tx:ack", "a job and its result", extra)
  local open = backend.in_transaction
  local entry, message, code = job.ack_on(claimed, backend, result)
  if entry == nil then
    scope.spoil(open, message, code)
    return nil, message, code
  end
  if entry then open.acks[#open.acks + 1] = entry end
  return true
end

-- ---------------------------------------------------------------------- scopes

--- Raises an error behind a failed verb anew, with the reason first. Code that took the verb's nil
-- for a value says only "attempt to index a nil value".
local function blame(open, err)
  local why = open.failed and open.failed[1]
  if type(err) ~= "string" or type(why) ~= "string" or err:find(why, 1, true) then return end
  error(("%s; then: %s"):format(why, err), 0)
end

local ENDED = "this transaction was rolled back from outside: what began it, a job say, has ended"

--- May the scope stand? Writes its acks if so. Else nil, message, code: of the first verb that
-- failed, or the values of its function.
local function conclude(guard, results)
  local open = guard.scope
  if open.ended then return nil, ENDED, "STATE" end
  if not guard.handle:is_open() then raise "transaction: its handle was closed inside it; nothing was committed" end
  if open.failed then return nil, table.unpack(open.failed, 1, 3) end
  if results[1] == nil and results[2] ~= nil then return table.unpack(results, 1, results.n) end
  if #open.acks == 0 then return true end
  return guard.handle:settle_all(open.acks)
end

local function given(results)
  if results.n == 0 then return true end
  return table.unpack(results, 1, results.n)
end

-- -------------------------------------------------------------------------- try

-- Takes back the changes of a try, unless it stands. When the server refuses that, the whole
-- transaction is lost.
local try_meta = {
  __close = function(guard, err)
    local open = guard.scope
    if open.ended then return end
    guard.backend.in_transaction = open.outer
    if guard.stands or not guard.handle:is_open() then return end
    scope.reopen(open)
    local ok, message, code = guard.handle:undo(open.depth, guard.mark)
    if not ok then
      local first = open.failed or { message, code }
      scope.spoil(open.outer, first[1], first[2])
    end
    blame(open, err)
  end,
}

local function begin_try(db)
  local backend, handle = db._backend, db._handle
  local open = scope.new(backend.in_transaction)
  local mark, message, code = handle:savepoint(open.depth)
  if not mark then
    scope.spoil(open.outer, message, code)
    return nil, message, code
  end
  backend.in_transaction = open
  return setmetatable({ backend = backend, handle = handle, scope = open, mark = mark }, try_meta)
end

--- Runs `fn`. Its changes alone are undone when a verb fails in it, when it returns nil and a
-- message, or when it raises. After a raise the error goes on.
function methods:try(fn, extra)
  local db = open_tx(self, "try")
  options.no_more("tx:try", "a function", extra)
  if type(fn) ~= "function" then raise("try wants a function, got %s", type(fn)) end
  local guard <close>, message, code = begin_try(db)
  if not guard then return nil, message, code end
  local results = table.pack(fn(self))
  local verdict = table.pack(conclude(guard, results))
  if not verdict[1] then return table.unpack(verdict, 1, verdict.n) end
  guard.stands = true
  local outer = guard.scope.outer
  table.move(guard.scope, 1, #guard.scope, #outer + 1, outer)
  return given(results)
end

-- ------------------------------------------------------------------ db:transaction

--- Tells the workers' own backend, and so the host, which jobs have been ended here.
local function tell(guard)
  for _, claimed in ipairs(guard.scope) do
    local backend = claimed._backend
    if backend.committed then
      backend.committed(claimed)
    elseif backend ~= guard.backend then
      backend.settle(claimed, { kind = "ack", go_on = 1 }) -- it has ended: the host only forgets it
    end
  end
end

-- The guard of the open transaction of each backend, for as long as it could go on.
local guards = setmetatable({}, { __mode = "kv" })

-- Rolls back unless the commit was reached.
local function finish(guard)
  guard.tx._db = nil
  if guard.scope.ended then return end
  guard.scope.ended = true
  guards[guard.backend] = nil
  if not guard.stands then
    if guard.handle:is_open() then guard.handle:rollback() end
    scope.reopen(guard.scope)
  end
  guard.backend.in_transaction = nil
end

--- From outside, whatever of the transaction its coroutine is in.
local function abandon(backend)
  local open, guard = backend.in_transaction, guards[backend]
  if guard then finish(guard) end
  while open do -- a try in it
    open.ended = true
    scope.reopen(open)
    open = open.outer
  end
  backend.in_transaction = nil
  return guard ~= nil
end

-- A coroutine that can not be resumed any more is collected with its transaction. A coroutine
-- that died of an error may be kept, but its transaction is not: it has raised.
local guard_meta = {
  __close = function(guard, err)
    finish(guard)
    blame(guard.scope, err)
  end,
  __gc = finish,
  abandon = function(guard)
    if guards[guard.backend] == guard then abandon(guard.backend) end
  end,
}

local function begin(db)
  local ok, message, code = db._handle:begin()
  if not ok then return nil, message, code end
  local open = scope.new()
  db._backend.in_transaction = open
  local tx = setmetatable({ _db = db }, meta)
  local guard = setmetatable({ tx = tx, handle = db._handle, backend = db._backend, scope = open }, guard_meta)
  guards[db._backend] = guard
  db._handle:keep(guard)
  return guard
end

--- Sets the session of a handle back to its first state: see ns_session_reset. Gives a sentence
-- about the rest of a transaction, or nil.
---@param db nightshift.Db
---@return string?
function transaction.reset(db)
  -- ends a dead coroutine's transaction
  if db._handle:is_open() then db._handle:in_transaction() end
  local kept = abandon(db._backend)
  local left = db._handle:reset()
  if kept then return "a coroutine was left inside db:transaction; resume it to its end, or close it" end
  return left and "a transaction was left open; use db:transaction(function(tx) … end)" or nil
end

--- Runs `fn` in one transaction of the handle; see db.lua.
---@param db nightshift.Db not in one
---@param fn fun(tx: nightshift.Transaction): ...
function transaction.run(db, fn)
  local guard <close>, message, code = begin(db)
  if not guard then return nil, message, code end
  local results = table.pack(fn(guard.tx))
  guard.tx._db = nil
  local verdict = table.pack(conclude(guard, results))
  if not verdict[1] then return table.unpack(verdict, 1, verdict.n) end
  local ok
  ok, message, code = guard.handle:commit()
  if not ok then return nil, message, code end
  guard.stands = true
  tell(guard)
  return given(results)
end

return transaction
