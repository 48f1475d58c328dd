--- Nightshift: durable background jobs on MariaDB.
--
-- This file is the public face; the verbs are in db.lua, queue.lua and
-- job.lua, the typed reference in library/nightshift.lua.

local background = require "nightshift.background"
local core = require "nightshift.core"
local db = require "nightshift.db"
local job = require "nightshift.job"
local locks = require "nightshift.lock"
local options = require "nightshift.options"

local number = options.later(function() return require "nightshift.sharded.shards" end)
local sharded = options.later(function() return require "nightshift.sharded" end)

local nightshift = {
  _VERSION = core._VERSION,
  null = core.null,         --- JSON null and SQL NULL inside tables and parameters
  array = core.array,       --- marks a table as a JSON array, so that {} becomes []
  clock = core.clock,       --- monotonic seconds, for measuring
  encode = core.encode,     --- value -> JSON text
  decode = core.decode,     --- JSON text -> value
  background = background.define,
  on = job.hooks.on,        --- has a function called in each worker of a host
  discard = job.discard,    --- raises, below a handler: the job is dead
  retry_in = job.retry_in,  --- raises, below a handler: the next attempt comes so much later
  shared = core.shared,     --- a dict that all workers of a host share
  mutex = locks.mutex,      --- one holder at a time on this host
  semaphore = locks.semaphore, --- at most n of them
}

local text = options.typed "string"

-- A name, or a list of servers, which is a text for the core: see src/core/link/servers.c.
local function hosts(value, what)
  if type(value) ~= "table" then return text(value, what) end
  for i, host in ipairs(value) do
    if type(host) ~= "string" or host == "" or host:find(",", 1, true) then
      options.raise("%s: a list of servers has names as texts, entry %d is %q", what, i, tostring(host))
    end
  end
  if #value == 0 then options.raise("%s: the list of servers is empty", what) end
  return table.concat(value, ",") .. (#value == 1 and "," or "")
end

local OPEN = {
  url = text, host = hosts, user = text, password = text, database = text, socket = text,
  file = text, group = text, tls = text, ca = text, cert = text, key = text,
  port = options.integer(1, 65535),
  connect_timeout = options.duration,
  read_timeout = options.duration,
  max_payload = options.integer(1, 1 << 30),
  max_children = options.integer(1, 1000000),
  no_schema = options.typed "boolean",
  no_look = options.typed "boolean",
  history = options.one_of("all", "failed"),
}

-- Each of these options names the server.
local TARGET = { "url", "host", "port", "socket", "user", "password", "database", "file", "group" }

local function names_server(given)
  for _, key in ipairs(TARGET) do
    if given[key] ~= nil then return true end
  end
  return false
end

--- The options, with the default address when they name no server.
local function with_address(given)
  local default = not names_server(given) and options.address()
  if not default then return given end
  local all = {}
  for key, value in pairs(default) do all[key] = value end
  for key, value in next, given do all[key] = value end
  return all
end

--- Takes `shard=N` out of the URL; gives N. A message: the URL is no single one.
local function number_in(given)
  local urls = number().split(given.url)
  if #urls > 1 then
    return nil, ("database URL: there are %d, and open takes one; nightshift.sharded() opens them all"):format(#urls)
  end
  local wanted, message
  given.url, wanted, message = number().strip(urls[1] or "")
  return wanted, message
end

--- Opens a database handle. Without an address: $NIGHTSHIFT_URL (in a worker:
-- the database its host serves), and without that the private server of the
-- working directory.
---@param where string|nightshift.OpenOptions|nil a URL or options
---@return nightshift.Db|nil
---@return string? message
---@return string? code
function nightshift.open(where)
  if type(where) == "string" then where = { url = where } end
  if where ~= nil and type(where) ~= "table" then
    options.raise("open wants a URL or a table of options, got %s", type(where))
  end
  local given, message, code = options.read("open", with_address(where or {}), OPEN)
  if not given then return nil, message, code end
  local wanted
  if given.url and given.url:find "[%s=]" then
    wanted, message = number_in(given)
    if message then return nil, message, "INVALID" end
  end
  given.forget_done, given.history = given.history == "failed", nil
  local max_children, handle = given.max_children
  given.max_children = nil
  handle, message, code = core.open(given)
  if not handle then return nil, message, code end
  if wanted and not given.no_schema then
    local found
    found, message, code = number().read(handle)
    if found ~= wanted then
      handle:close()
      return nil, message or ("the database at %s is shard %d, and its URL says shard=%d"):format(
        number().place(given.url), found, wanted), code or "STATE"
    end
  end
  if options.is_in_host() then handle:act_as "handler" end
  return db.new(handle, max_children)
end

--- Opens several databases as one: jobs go to one of them by a key, and verbs find the database of
-- an id. See sharded/init.lua. Without a list: the URLs of $NIGHTSHIFT_URL, with blanks between them.
---@param list (string|nightshift.ShardOptions)[]|nil URLs with `shard=N`, or tables of options
---@return nightshift.Sharded|nil
---@return string? message
---@return string? code
function nightshift.sharded(list)
  return options.values(sharded().open(list, nightshift.open))
end

return nightshift
