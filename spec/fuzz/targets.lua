--- What is fuzzed from inside Lua: the JSON bridge, and everything that takes options. A target is
-- a function of the input by its name; an error that it raises is a finding. See lua.c.

local core = require "nightshift.core"
local job = require "nightshift.job"
local nightshift = require "nightshift"
local queue = require "nightshift.queue"
local source = require "nightshift.source.mapping"

local targets = {}

-- ------------------------------------------------------------- values from bytes

-- The same bytes always give the same values; where the bytes end, everything is nil, empty or
-- zero.

local Reader = {}
Reader.__index = Reader

local DEPTH = 40 -- deeper than JSON may nest

--- A reader of the bytes of `data`.
local function reader_of(data) return setmetatable({ data = data, at = 1 }, Reader) end

function Reader:byte()
  local b = self.data:byte(self.at) or 0
  self.at = self.at + 1
  return b
end

function Reader:over() return self.at > #self.data end

--- One of a list.
function Reader:pick(list) return list[self:byte() % #list + 1] end

function Reader:bytes(n)
  local s = self.data:sub(self.at, self.at + n - 1)
  self.at = self.at + n
  return s
end

function Reader:text()
  local n = self:byte()
  return n == 255 and ("x"):rep(self:byte() << 3) or self:bytes(n % 32)
end

-- Eight bytes as a number of the given format.
function Reader:number(format)
  local s = self:bytes(8)
  return (string.unpack(format, s .. ("\0"):rep(8 - #s)))
end

local TEXTS = { "5m", "1h30m", "0", "-1", "1e999", "", "nan", "12", "500ms", "mail", "a\0b", "\xC2\x80", "é", "\xFF",
  "@server_now", "mysql://u:p@h/d", "mysql://h/d?max_payload=9", "ack", "again", "release" }
local NUMBERS = { 0, 1, -1, 0.5, 1 / 0, -1 / 0, 0 / 0, math.maxinteger, math.mininteger, 2 ^ 53, 2 ^ 63, -0.0, 255, 256,
  5e-324, 1.7e308, 0.1, 65536 }
-- Of what a table's keys are made, beside those that the caller names.
local KEYS = { 1, 2, 3, 0, -1, 1.5, true, "", "a", "b", "a\0b", "\xFF", "key with space" }

local make = {}

make[0] = function() return nil end
make[1] = function() return true end
make[2] = function() return false end
make[3] = function(r) return r:byte() end
make[4] = function(r) return r:number "<i8" end
make[5] = function(r) return r:number "<d" end
make[6] = function(r) return r:text() end
make[7] = function(r) return r:pick(TEXTS) end
make[8] = function(r) return r:pick(NUMBERS) end
make[9] = function() return core.null end
make[10] = function(r, depth, keys) return r:list(depth, keys) end
make[11] = function(r, depth, keys) return r:table(depth, keys) end
make[12] = function(r, depth, keys) return core.array(r:list(depth, keys)) end
make[13] = function() return print end
make[14] = function(r) return r.made[r:byte() % (#r.made + 1)] end -- again one of those above or around
make[15] = function(r) -- nested straight down
  local value = r:byte()
  for _ = 1, r:byte() % DEPTH do value = { value } end
  return value
end

--- Any value.
function Reader:value(depth, keys)
  depth = depth or 0
  if depth == 0 then self.made = {} end
  if depth > DEPTH or self:over() then return nil end
  return make[self:byte() % 16](self, depth, keys)
end

function Reader:list(depth, keys)
  local list = {}
  self.made[#self.made + 1] = list
  for i = 1, self:byte() % 8 do list[i] = self:value(depth + 1, keys) end
  return list
end

--- A table with keys that are mostly the given ones.
function Reader:table(depth, keys)
  local t = {}
  if depth == 0 then self.made = {} end
  self.made[#self.made + 1] = t
  for _ = 1, self:byte() % 8 do
    local key = self:pick(keys and self:byte() % 8 > 0 and keys or KEYS)
    t[key] = self:value(depth + 1)
  end
  return t
end

-- ------------------------------------------------------------------------ JSON

-- A text that decodes encodes again (unless it is nested deeper than we store), and comes back the
-- same. A value that encodes decodes to the same, where nil is null and an unmarked empty table is
-- an object. Nothing raises.

local function check(good, ...)
  if not good then error(("%s"):rep(select("#", ...)):format(...), 2) end
end

local same

local function same_table(a, b)
  for key, value in next, a do
    if not same(value, rawget(b, key)) then return false end
  end
  for key in next, b do
    if rawget(a, key) == nil then return false end
  end
  return true
end

function same(a, b)
  if math.type(a) ~= math.type(b) or type(a) ~= type(b) then return false end
  if type(a) == "number" then return a == b end
  return a == b or (type(a) == "table" and same_table(a, b))
end

local function refused(message, code)
  check(type(message) == "string" and (code == "INVALID" or code == "TOO_BIG"), "refused with ", message, " ", code)
  check(utf8.len(message) and not message:find "%c", "a bad message: ", message)
end

-- Encodes and decodes; the text, or nil when it was refused.
local function trip(value, max)
  local text, message, code = core.encode(value, max)
  if not text then return refused(message, code) end
  check(#text <= (max or math.huge), "longer than asked for")
  check(utf8.len(text), "not UTF-8: ", text)
  local back, why = core.decode(text)
  check(back ~= nil, "encoded, but does not decode: ", why)
  if value == nil then value = core.null end
  check(same(value, back), "came back different: ", text)
  return text
end

local function decode(text)
  local value, message, code = core.decode(text)
  if value == nil then return refused(message, code) end
  local again, why = core.encode(value)
  check(again or why:find "nested deeper" or why:find "NUL byte", "decoded, but does not encode: ", why)
  if again then trip(value) end
end

function targets.json(data)
  local kind = data:byte() or 0
  if kind < 128 then return decode(data:sub(2)) end
  local reader = reader_of(data:sub(2))
  trip(reader:value(), kind < 160 and kind or nil)
end

-- --------------------------------------------------------------------- options

-- Fuzzes arguments of programs: the options of open and push, mappings of adopted tables,
-- verdicts, each through lua/nightshift and straight to the core.
--
-- A call gives a value, or nil with a message and a code, or raises a message that speaks about
-- the caller's mistake. An error that the interpreter found inside our own code ("attempt to
-- index …") is a bug.

local OPEN = { "url", "host", "user", "password", "database", "socket", "port", "file", "group", "tls", "ca", "cert",
  "key", "connect_timeout", "max_payload", "no_schema" }
local PUSH = { "delay", "priority", "decay", "unique", "max_attempts", "max_polls", "max_crashes", "backoff",
  "timeout", "deadline", "queue", "retry_in", "after", "on_fail", "parent", "group" }
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

function targets.options(data)
  local reader = reader_of(data)
  reader:pick(ways)(reader)
end

return targets
