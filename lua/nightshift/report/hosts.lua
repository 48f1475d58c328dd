--- Reports of hosts, and their consequences: jobs that no host has a handler for, and verdicts that
-- wait to be written. And how many workers a host is to have.

local audit = require "nightshift.audit"
local core = require "nightshift.core"
local options = require "nightshift.options"

local hosts = {}

-- -------------------------------------------------------------- jobs without a handler

-- A host claims only names that it has handlers for, so ready jobs of other names stay ready. A
-- name served by a host that ended within a minute still counts as known: a deploy may be under
-- way.

-- Rows that are read; rows behind them are not seen. A caller that looks time and again reads
-- fewer.
local LOOKED_AT, GLANCED_AT = 200000, 20000

--- Jobs of other names, ready or due soon, in queues that are not paused.
---@param handle userdata core handle
---@param known string[] names
---@param queues string[]? of these queues only
---@param within integer µs: jobs due sooner count
---@param most integer? rows that are read, of ready ones and of scheduled ones
---@return {queue: string, name: string, n: integer, later: integer, waited: integer}[]? rows later: how many
---of n are not due yet; waited: µs
---@return string? message
---@return string? code
function hosts.left(handle, known, queues, within, most)
  local list = queues and core.encode(core.array(queues)) or core.null
  most = most or LOOKED_AT
  local rows, message, code =
    handle:execute("@report_left", most, most, within, most, core.encode(core.array(known)), list, list)
  for _, row in ipairs(rows or {}) do row.later = math.tointeger(tonumber(row.later)) end
  return rows, message, code
end

--- The names of handlers of all hosts, those that ended within a minute among them. Nil without a
-- message: a host has more names than it shows.
---@param handle userdata core handle
---@return string[]? names
---@return boolean|string? lives does any host live? Or the message
---@return string? code
function hosts.names(handle)
  local served, message, code = handle:execute "@report_served"
  if not served then return nil, message, code end
  local names, lives = {}, false
  for _, row in ipairs(served) do
    lives = lives or row.lives == 1
    for _, name in ipairs(core.decode(row.handlers)) do
      if name == core.null then names = nil end
      if names then names[#names + 1] = name end
    end
    if not names then return nil, lives end
  end
  return names, lives
end

local EVER = 3155760000000000 -- µs: a hundred years

--- Ready jobs with a name that no live host knows; none while no host lives at all.
---@param handle userdata core handle
---@param scheduled boolean? jobs that are due later as well, the first that will be
---@param glance integer? rows that are read, of ready ones and of scheduled ones; 20,000 unless told
---@return {queue: string, name: string, n: integer, later: integer, waited: integer, near: string?}[]? rows
---@return string? message
---@return string? code
function hosts.unserved(handle, scheduled, glance)
  local names, lives, code = hosts.names(handle)
  if code then return nil, lives, code end
  if not names or not lives then return {} end
  local rows, message
  rows, message, code = hosts.left(handle, names, nil, scheduled and EVER or 0, glance or GLANCED_AT)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do row.near = hosts.near(row.name, names) end
  return rows
end

--- The known name that is most like another; nil: none is.
---@param name string
---@param known string[]
---@return string?
function hosts.near(name, known)
  local set = {}
  for _, k in ipairs(known) do set[k] = true end
  return options.nearest(name, set)
end

--- "'helo.say' (3 in queue 'q', 1 of them due soon; did you mean 'hello.say'?)"
---@param row {queue: string, name: string, n: integer, later: integer, near: string?}
---@param word string? for the ones that are not due yet
---@return string
function hosts.unserved_text(row, word)
  local near = row.near and ("; did you mean '%s'?"):format(row.near) or ""
  word = word or "due soon"
  local later = row.later == 0 and "" or row.later == row.n and ", " .. word
    or (", %d of them %s"):format(row.later, word)
  return ("'%s' (%d in queue '%s'%s%s)"):format(row.name, row.n, row.queue, later, near)
end

-- ------------------------------------------------------------ verdicts to be written

-- The handler has ended, and the database does not take its verdict. A host that cannot write
-- shows verdicts that have waited for a second. They are in the text of a statement, in a
-- session of its own: see src/core/holder/holder.c. An account that may not see the host's
-- sessions gets none. Between two such statements there is a moment without any; so while a
-- host's session waits for the server it is looked at again.

local LOOKS = 3
local PAUSE = 0.03 -- seconds between two

--- The verdicts that one session shows; nil when its text is cut, or not ours.
local function parse(text, lasted)
  local json = text:match "nightshift owes (.*) %*/"
  local told = json and core.decode(json)
  if type(told) ~= "table" or type(told.verdicts) ~= "table" then return nil end
  local by_job, oldest = {}, 0
  for _, verdict in ipairs(told.verdicts) do
    local id, run, waited = table.unpack(verdict)
    by_job[id] = { run = run, waited = waited + lasted }
    oldest = math.max(oldest, waited + lasted)
  end
  return { holder = told.holder, n = told.n, oldest = oldest, by_job = by_job }
end

local function look(handle)
  local rows, message, code = handle:execute "@report_owed"
  if not rows then return nil, message, code end
  local found, states, waits = {}, {}, {}
  for _, row in ipairs(rows) do
    local told = row.told and parse(row.told, row.lasted)
    if told then found[told.holder] = told end
    if row.holder and row.waits == 1 then
      waits[row.holder] = true
      states[row.holder] = row.state ~= "" and row.state or nil
    end
  end
  for holder, told in pairs(found) do
    told.server = states[holder]
    waits[holder] = nil
  end
  return found, waits
end

--- Holders by id that have owed verdicts for more than a second: {n, oldest (µs), by_job = {[id]
-- = {run, waited (µs)}}, server}. server: the server's state of the holder's wait.
---@param handle userdata core handle
---@param holder integer? only this one matters
---@return table<integer, table>? found
---@return any
---@return string? code
function hosts.owed(handle, holder)
  local found, waits, code
  for i = 1, LOOKS do
    found, waits, code = look(handle)
    if not found then return nil, waits, code end
    if not next(waits) or holder and not waits[holder] then break end
    if i < LOOKS then core.sleep(PAUSE) end
  end
  return found
end

-- ------------------------------------------------------------ the number of workers

-- The number is a notice, which wakes the host. It writes the outcome into its row, with a count
-- of the numbers that it was told: a larger count than before is our answer.

local LOOK = 0.01 -- s between two looks for the answer, growing
local ANSWER = 10 -- s to wait for it, unless told

local function label(row) return ("%d (pid %d on %s)"):format(row.id, row.pid, row.host) end

local NAMED = 20 -- hosts that a message lists

local function list_of(rows)
  local texts = {}
  for i = 1, math.min(#rows, NAMED) do texts[i] = label(rows[i]) end
  if #rows > NAMED then texts[NAMED + 1] = ("%d more"):format(#rows - NAMED) end
  return table.concat(texts, ", ")
end

--- The row of the host with this id, or of the only one on a machine of this name.
local function find(rows, what)
  local id, found = math.tointeger(tonumber(what)), {}
  for _, row in ipairs(rows) do
    if row.id == id then return row end
    if row.host == what then found[#found + 1] = row end
  end
  if #found == 1 then return found[1] end
  if #rows == 0 then return nil, "no host is there", "NOT_FOUND" end
  if #found == 0 then
    return nil, ("there is no host '%s'; there are: %s"):format(what, list_of(rows)), "NOT_FOUND"
  end
  return nil, ("'%s' has several hosts, so name one by its id: %s"):format(what, list_of(found)), "INVALID"
end

--- Waits for the host's answer; its row then.
local function await(handle, before, answer)
  local ends, pause = core.clock() + answer, LOOK
  repeat
    core.sleep(pause)
    pause = math.min(pause * 1.5, 0.2)
    local rows, message, code = handle:execute "@report_tuned"
    if not rows then return nil, message, code end
    local now
    for _, row in ipairs(rows) do now = row.id == before.id and row or now end
    if not now then return nil, ("host %s has ended"):format(label(before)), "NOT_FOUND" end
    if now.tuned > before.tuned then return now end
  until core.clock() >= ends
  return nil, ("host %s has not answered for %d s: it is stopped, or its database is slow; it will when it is back")
    :format(label(before), answer), "BUSY"
end

--- Has a host have so many workers from now on, until it ends.
---@param handle userdata core handle
---@param what string|integer its id, or the name of a machine with one host
---@param workers integer
---@param answer integer? seconds to wait for the host; default: 10
---@return {id: integer, host: string, pid: integer, workers: integer, was: integer}|nil
---@return string? message
---@return string? code BUSY: the host has not answered, and does as told when it comes to it
function hosts.tune(handle, what, workers, answer)
  if math.type(what) ~= "integer" and type(what) ~= "string" then
    options.raise("tune_host: the host must be an id or a name, got %s", math.type(what) or type(what))
  end
  if handle:in_transaction() then return nil, "tune_host inside a transaction", "STATE" end
  local n, wrong = options.integer(1, 20000)(workers, "tune_host: the workers")
  if not n then return nil, wrong, "INVALID" end
  local rows, message, code = handle:execute "@report_tuned"
  if not rows then return nil, message, code end
  local before, now, sent
  before, message, code = find(rows, what)
  if not before then return nil, message, code end
  sent, message, code = audit.once(handle, "tune", ("host %s: %d workers"):format(label(before), n), function()
    return handle:execute("@admin_tune", n, before.id)
  end)
  if not sent then return nil, message, code end
  handle:execute("@listen_nudge", before.id, false)
  now, message, code = await(handle, before, answer or ANSWER)
  if not now then return nil, message, code end
  if now.refused then return nil, ("host %s: %s"):format(label(before), now.refused), "INVALID" end
  return { id = before.id, host = before.host, pid = before.pid, workers = now.wanted, was = before.wanted }
end

return hosts
