--- The numbers of shards: what they have to do with ids, with keys and with addresses.
--
-- A shard is a database with a number from 0 to 89. Its ids are those from number x 10^14 on, so an
-- id tells its database: the digits before the last fourteen are the number. The sequence of ids
-- has the number, by its bounds, and nothing else has. A database that was given none is shard 0.
--
-- Invariant: the shard of a key depends on the key and on the numbers of the list, and on nothing
-- else. A new number takes keys from the other ones, and moves none between those.

local options = require "nightshift.options"

local number = {}

local IDS <const> = 100000000000000 -- of a shard
local BLOCK <const> = 100 -- ids: see handle_ids in sql/query/handle.sql

--- The highest number: its ids are below 2^53, which JSON keeps everywhere.
number.LAST = 89

--- Blocks of ids of a shard.
number.BLOCKS = IDS // BLOCK

--- The number of the shard that an id is of.
---@param id integer
---@return integer
function number.of(id) return id // IDS end

--- Check: the number of a shard.
number.check = options.integer(0, number.LAST)

-- ------------------------------------------------------------------- databases

--- The number of a database.
---@param handle userdata core handle
---@return integer|nil
---@return string? message
---@return string? code
function number.read(handle)
  local rows, message, code = handle:execute "@report_shard"
  if not rows then return nil, message, code end
  local low, next_block = rows[1].low, rows[1].next
  local found = low == 1 and 0 or low // number.BLOCKS
  local fits = low == 1 or low % number.BLOCKS == 0
  if fits and next_block <= (found + 1) * number.BLOCKS then return found end
  return nil, ("the ids of this database, from block %d on, are not those of a shard: see nightshift doctor"):format(
    next_block), "STATE"
end

--- Gives a number to a database that has given no ids so far. It does nothing where the database has
-- that number.
---@param handle userdata core handle
---@param wanted integer
---@return integer|nil number
---@return string? message
---@return string? code
function number.give(handle, wanted)
  local now, message, code = number.read(handle)
  if not now then return nil, message, code end
  if now ~= wanted and now == 0 then
    local done
    done, message, code = handle:execute("@admin_shard", wanted * number.BLOCKS, (wanted + 1) * number.BLOCKS - 1)
    if not done then return nil, message, code end
    now, message, code = number.read(handle)
    if not now then return nil, message, code end
  end
  if now == wanted then return now end
  return nil, ("this database is shard %d and cannot be shard %d: %s"):format(now, wanted, now == 0
    and "it has given ids already, so give that number to an empty one" or "it was given that number"), "STATE"
end

-- ------------------------------------------------------------------- addresses

--- A URL without `shard=N`, and N.
---@param url string
---@return string url
---@return integer|nil number
---@return string? message when it is no number of a shard
function number.strip(url)
  local before, mark, text, behind = url:match "^(.*)([?&])shard=([^&]*)(.*)$"
  if not before then return url, nil end
  local found = text:find "^%d+$" and math.tointeger(tonumber(text))
  if not found or found > number.LAST then
    return url, nil, ("database URL: shard must be a number from 0 to %d, got '%s'"):format(number.LAST,
      options.shown(text))
  end
  if behind ~= "" then behind = mark .. behind:sub(2) end
  return before .. behind, found
end

--- The URLs of a text with blanks between them. A blank within one URL is a fault of that.
---@param text string
---@return string[]
function number.split(text)
  local list = {}
  if not text:find "%s%a[%w+.-]*://" then return text ~= "" and { text } or list end
  for url in text:gmatch "%S+" do list[#list + 1] = url end
  return list
end

--- Where a URL leads to, for messages: without the account and the options.
---@param url string
---@return string
function number.place(url)
  local rest = url:match "^%a[%w+.-]*://(.*)$" or url
  return options.shown((rest:gsub("^.*@", ""):gsub("%?.*$", "")))
end

-- ------------------------------------------------------------------------ keys

local OFFSET <const>, PRIME <const> = 0xcbf29ce484222325, 0x100000001b3 -- of FNV-1a, 64 bits

local function hash(text)
  local h = OFFSET
  for i = 1, #text do h = (h ~ text:byte(i)) * PRIME end
  return h
end

-- Every bit of the result depends on every bit of x: the last step of SplitMix64.
local function mixed(x)
  x = (x ~ (x >> 30)) * 0xbf58476d1ce4e5b9
  x = (x ~ (x >> 27)) * 0x94d049bb133111eb
  return x ~ (x >> 31)
end

--- The number that a key goes to: the one with the highest weight (rendezvous hashing).
---@param key string
---@param numbers integer[] none twice
---@return integer
function number.pick(key, numbers)
  local h, best, most = hash(key), nil, nil
  for _, n in ipairs(numbers) do
    local weight = mixed(h ~ mixed(n + 1))
    if not best or math.ult(most, weight) then best, most = n, weight end
  end
  return best
end

--- Check: a key, a text or a whole number; gives a text.
---@param key any
---@param what string
---@return string
function number.key(key, what)
  if math.type(key) == "integer" then return tostring(key) end
  if type(key) ~= "string" then
    options.raise("%s must be a text or a whole number, got %s", what, type(key))
  end
  return key
end

return number
