--- Fuzzes what programs hand in: the options of open and push, mappings of adopted
-- tables, verdicts, each through lua/nightshift and straight to the core.
--
-- A call gives a value, or nil with a message and a code, or raises a message
-- that speaks about the caller's mistake. An error that the interpreter found
-- inside our own code ("attempt to index …") is a bug.

local core = require "nightshift.core"
local job = require "nightshift.job"
local nightshift = require "nightshift"
local queue = require "nightshift.queue"
local source = require "nightshift.source.mapping"
local values = require "spec.fuzz.values"

local OPEN = { "url", "host", "user", "password", "database", "socket", "port", "file", "group", "tls", "ca", "cert",
  "key", "connect_timeout", "max_payload", "no_schema" }
local PUSH = { "delay", "priority", "decay", "unique", "max_attempts", "max_polls", "max_crashes", "backoff",
  "timeout", "deadline", "queue", "retry_in", "after", "on_fail", "parent" }
local ENTRY = { "name", "payload", "id", "on_fail_run", table.unpack(PUSH) }
local VERDICT = { "id", "run", "lease", "kind", "result", "error", "state", "delay", "log", "children", "go_on",
  "signal" }
local WAIT = { "on_fail", "signal", "deadline", "state" }
local NODE = { "name", "payload", "queue", "as", "after", "children", table.unpack(PUSH) }

local BACKGROUND = { "start", "poll", "every", "growth", "max_every", "deadline", "max_polls", "max_attempts",
  "wait" }

local PARTS = { "id", "status", "claimed_by", "claimed_at", "completed_at", "started", "updated", "retry_after", "host",
  "attempts", "attempts_left", "priority", "parent", "table", "name", "payload", "time_zone", "order", "max_attempts",
  "overdue", "every", "alone", "strategy", "allow_alter" }
local STATES = { "column", "open", "processing", "done", "failed" }

local CODES = { INVALID = true, TOO_BIG = true, STALE = true }

-- What the interpreter says about code that did not look first.
local BUGS = { "attempt to %l+ a", "attempt to %l+ %l+ a", "attempt to compare", "attempt to perform", "has no integer",
  "table index is", "invalid key to", "stack overflow", "invalid value %(", "C stack" }

local function judge(what, ok, ...)
  local first, message, code = ...
  if ok and (first ~= nil or select("#", ...) == 0) then return ... end
  if ok then
    if type(message) == "string" and #message > 0 and CODES[code] then return ... end
    error(("%s gave nil, %s, %s"):format(what, message, code))
  end
  if type(first) ~= "string" then error(what .. " raised a " .. type(first)) end
  for _, bug in ipairs(BUGS) do
    if first:find(bug) then error(what .. " raised: " .. first) end
  end
end

local function try(what, fn, ...) return judge(what, pcall(fn, ...)) end

local plain = assert(core.open { host = "h", database = "d" })
local db = assert(nightshift.open { host = "h", database = "d" })
local backend = queue.backend(plain)

local function claimed()
  return job.new({ id = 1, run = 1, lease = 1, queue = "q", name = "n", attempts = 0 }, backend)
end

local function verb(object, name, ...) return try(name, object[name], object, ...) end

local function items(r)
  local list = {}
  for i = 1, r:byte() % 4 do list[i] = { r:value(), r:value(), r:value(0, PUSH) or r:table(0, PUSH) } end
  return list
end

local function entries(r)
  local list = {}
  for i = 1, r:byte() % 4 do
    list[i] = r:table(0, ENTRY)
    list[i].name = list[i].name or r:text()
  end
  return list
end

local function verdict(r)
  local v = r:table(0, VERDICT)
  if r:byte() > 40 then
    v.id, v.run = 1, 1
    v.kind = r:pick { "ack", "fail", "again", "discard", "release", "wait", "crash", "missing" }
    v.children = entries(r)
  end
  return v
end

local function mapping(r)
  local m = r:table(0, PARTS)
  if r:byte() > 40 then m.table = r:text() end
  if r:byte() > 40 then m.status = r:table(0, STATES) end
  return m
end

local function nodes(r, depth)
  local node = r:table(0, NODE)
  if r:byte() > 20 then node.name = r:pick { "a", "b", "c" } end
  if r:byte() > 60 then node.as = r:pick { "one", "two", "three", "four" } end
  if r:byte() > 120 then node.after = { r:pick { "one", "two", "three", "four", 7 } } end
  for i = 1, depth < 4 and r:byte() % 4 or 0 do
    if type(node.children) ~= "table" then node.children = {} end
    node.children[i] = nodes(r, depth + 1)
  end
  return node
end

local ways = {
  function(r) try("open", nightshift.open, r:table(0, OPEN)) end,
  function(r) try("open", nightshift.open, r:value()) end,
  function(r)
    local handle = try("core.open", core.open, r:table(0, OPEN))
    if handle then handle:close() end
  end,
  function(r)
    local q = verb(db, "queue", r:value())
    if q then verb(q, "push", r:value(), r:value(), r:table(0, PUSH)) end
  end,
  function(r) verb(db:queue "q", "push", "n", r:value(), r:table(0, PUSH)) end,
  function(r) verb(db:queue "q", "push_many", items(r)) end,
  function(r) verb(db:queue "q", "push_many", r:value()) end,
  function(r) verb(plain, "push", r:text(), entries(r)) end,
  function(r) verb(plain, "push", r:value(), r:value(0, ENTRY)) end,
  function(r) verb(plain, "settle", verdict(r)) end,
  function(r) verb(plain, "settle", r:value(0, VERDICT)) end,
  function(r) verb(claimed(), "ack", r:value()) end,
  function(r) verb(claimed(), "fail", r:value(), r:table(0, PUSH)) end,
  function(r) verb(claimed(), "again", r:value(), r:value()) end,
  function(r) verb(claimed(), "discard", r:value()) end,
  function(r)
    local j = claimed()
    verb(j, "spawn", r:value() or r:text(), r:value(), r:table(0, PUSH))
    verb(j, "ack", r:value())
  end,
  function(r)
    local j = claimed()
    verb(j, "log", r:value())
    verb(j, "fail", r:value(), r:value(0, PUSH))
  end,
  function(r) verb(claimed(), "wait", r:value(0, WAIT)) end,
  function(r)
    local j = claimed()
    verb(j, "spawn", "n", r:value(), r:table(0, PUSH))
    verb(j, "wait", r:table(0, WAIT))
  end,
  function(r) verb(db, "flow", nodes(r, 0)) end,
  function(r) verb(db, "flow", r:value(0, NODE)) end,
  function(r) verb(db, "signal", r:value(), r:value(), r:value()) end,
  function(r) verb(db, "reprioritise", r:value(), r:value()) end,
  function(r) verb(plain, "signal", 1, r:text(), r:value()) end,
  function(r) try("mapping", source.read, mapping(r)) end,
  function(r) try("mapping", source.read, r:value(0, PARTS)) end,
  function(r) try("duration", core.duration, r:value()) end,
  function(r) try("background", nightshift.background, r:table(0, BACKGROUND)) end,
}

return function(data)
  local reader = values.reader(data)
  reader:pick(ways)(reader)
end
