--- What db:update changes about a job: values, or how the new payload is made from the old one, by
-- a function or a merge patch.
--
-- Invariant: a payload that was made from another one is written only while the job has that one,
-- and is in the same run.

local core = require "nightshift.core"
local failure = require "nightshift.failure"
local options = require "nightshift.options"

local must, raise = failure.must, options.raise

local change = {}

local ARRAY <const> = getmetatable(core.array {})

--- Is it an object of JSON? A table without a key is one, unless it is marked.
---@param value any
---@return boolean
function change.is_object(value)
  if type(value) ~= "table" or getmetatable(value) == ARRAY then return false end
  local key = next(value)
  return key == nil or type(key) == "string"
end

--- A value after a merge patch, RFC 7396: objects are merged, null deletes a key, all else takes
-- the place of the old one.
---@param target any is not changed
---@param patch any
---@return any
function change.merged(target, patch)
  if not change.is_object(patch) then return patch end
  local result = {}
  if change.is_object(target) then
    for key, value in next, target do result[key] = value end
  end
  for key, value in next, patch do
    if value == core.null then result[key] = nil else result[key] = change.merged(result[key], value) end
  end
  return result
end

--- Reads the changes.
---@param given table as of db:update
---@return table? checked `make` gives the new payload from the old one and the job; nil: none
---@return string? message
---@return string? code
function change.read(given)
  if type(given) ~= "table" then raise("update: the changes must be a table, got %s", type(given)) end
  local plain, make = {}, nil
  for key, value in next, given do plain[key] = value end
  if type(plain.payload) == "function" then make, plain.payload = plain.payload, nil end
  if plain.set ~= nil then
    if make or plain.payload ~= nil then raise "update: give either payload or set" end
    local patch = plain.set
    if type(patch) ~= "table" then raise("update: set must be a table, got %s", type(patch)) end
    local text, message = core.encode(patch, math.maxinteger, "update: set")
    if not text then return nil, message, "INVALID" end
    plain.set, make = nil, function(payload) return change.merged(payload, patch) end
  end
  local checked, message, code = options.read("update", plain, options.UPDATE)
  if not checked then return nil, message, code end
  if next(checked) == nil and not make then return nil, "update: there is nothing to change", "INVALID" end
  checked.json, checked.payload = checked.payload, nil
  return checked, make
end

--- The change of one job, with the payload that is made for it.
local function change_of(checked, make, row)
  local text = row.payload
  row.payload = nil
  local old = core.decode(text)
  local new = make(old ~= core.null and old or nil, row)
  if new == nil then return false end
  local own = {}
  for key, value in pairs(checked) do own[key] = value end
  local message
  own.json, message = core.encode(new, math.maxinteger, ("update: the payload of job %d"):format(row.id))
  if not own.json then return nil, message, "INVALID" end
  return own, text
end

--- Changes a job, and has it run again, in a transaction. Both count the job for the audit.
local function write_again(handle, id, ...)
  must(handle:update(id, ...))
  must(handle:retry(id))
  return must(handle:act_note(-1))
end

--- Changes one job. STATE: it cannot be changed, has gone on, or was changed by another.
---@param handle userdata core handle
---@param checked table by `read`
---@param make function? by `read`
---@param row table id; and for `make` run, payload as text, and what else it may look at
---@param ended boolean? it has ended, or has not; nil: any
---@param again boolean? it is to run again
---@return boolean? changed false: there is no new payload
---@return string? message
---@return string? code
---@return integer? holder with DUPLICATE, unless it is to run again
function change.write(handle, checked, make, row, ended, again)
  local run, own, text = nil, checked, nil
  if make then
    local code
    run = row.run
    own, text, code = change_of(checked, make, row)
    if not own then return own, text, code end
  end
  if again then return failure.transaction(handle, write_again, handle, row.id, own, ended, run, text) end
  return handle:update(row.id, own, ended, run, text)
end

--- What `make` looks at: jobs that have ended, or have not.
---@param handle userdata core handle
---@param kind "ended"|"live"
---@param ids integer[]
---@return table[]|nil rows
---@return string? message
---@return string? code
function change.rows(handle, kind, ids)
  return handle:execute("@admin_payloads_" .. kind, "[" .. table.concat(ids, ",") .. "]")
end

return change
