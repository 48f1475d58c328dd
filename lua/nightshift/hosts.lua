--- Hosts: the versions of their scripts, and what they report. From that follows which jobs no host
-- has a handler for, and which verdicts wait to be written. And how many workers a host is to have.
--
-- A version is made of the handler files and of the Lua modules that they require while they
-- are loaded. Libraries in C do not count, nor modules that a handler requires when it runs,
-- nor files that `dofile` reads. Where the files are does not matter: hosts of several machines
-- that run the same texts run the same version.

local audit = require "nightshift.audit"
local core = require "nightshift.core"
local options = require "nightshift.options"
local units = require "nightshift.units"

-- Scripts may change the library while they are loaded.
local open, searchpath, utf8_len = io.open, package.searchpath, utf8.len

local hosts = {}

-- ----------------------------------------------------------- versions of scripts

-- Short hashes of the texts that were read, and a comparison of the hosts' versions.
local versions = {}
hosts.versions = versions

-- Bytes of the list of files. Files that do not fit are left out of the list, not out of the
-- hash.
local LISTED = 16384

---@class nightshift.Seen
---@field before table<string, boolean> modules that were there before
---@field items string[][] {name, hash} of each text

--- Before anything is loaded.
---@return nightshift.Seen
function versions.begin()
  local before = {}
  for name in pairs(package.loaded) do before[name] = true end
  return { before = before, items = {} }
end

local function add(seen, name, text)
  name = name:gsub("%c", "?")
  if not utf8_len(name) then name = name:gsub("[\x80-\xFF]", "?") end
  seen.items[#seen.items + 1] = { name, core.hash(text) }
end

local function text_of(file)
  local handle <close>, message = open(file, "rb")
  if not handle then return nil, "cannot open " .. message end
  local text
  text, message = handle:read "a"
  if not text then return nil, ("cannot read %s: %s"):format(file, message) end
  return text
end

--- The text of a handler file, ready for `load`: without the mark and the first line that
-- `loadfile` skips.
---@param seen nightshift.Seen
---@param file string
---@return string? text
---@return string? message
function versions.read(seen, file)
  local text, message = text_of(file)
  if not text then return nil, message end
  add(seen, file:match "[^/]*$", text)
  return (text:gsub("^\xEF\xBB\xBF", "", 1):gsub("^#[^\n]*", "", 1))
end

--- Adds modules loaded meanwhile, without our own and modules in C.
local function add_modules(seen)
  if type(package.path) ~= "string" then return end
  for name in pairs(package.loaded) do
    local file = type(name) == "string" and not seen.before[name] and not name:find "^nightshift%f[.\0]"
      and searchpath(name, package.path)
    local text = file and text_of(file)
    if text then add(seen, name, text) end
  end
end

--- [["jobs.lua","1a2b3c4d"],…], as many as fit.
local function list_files(items)
  local shown, n = {}, 2
  for _, item in ipairs(items) do
    local text = core.encode(core.array(item))
    n = n + #text + 1
    if n > LISTED then break end
    shown[#shown + 1] = text
  end
  return "[" .. table.concat(shown, ",") .. "]"
end

--- After all is loaded.
---@param seen nightshift.Seen
---@return {short: string, files: string} version a hash of all, of one text its own, and the files, as JSON
function versions.finish(seen)
  local items, hashes = seen.items, {}
  add_modules(seen)
  table.sort(items, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    return a[2] < b[2]
  end)
  for i, item in ipairs(items) do hashes[i] = item[2] end
  table.sort(hashes)
  return { short = #hashes == 1 and hashes[1] or core.hash(table.concat(hashes)), files = list_files(items) }
end

-- ------------------------------------------------------------ versions of hosts

--- How a host goes on when its scripts could not be read.
---@param scripts string version of its present ones; "": none
---@return string
function versions.goes_on(scripts)
  return scripts == "" and "runs nothing" or "goes on with " .. scripts
end

--- The first line of an error, without the colon that leads on to the next: "module 'x' not found".
---@param text string
---@return string
function versions.first_line(text) return (text:match("[^\n]*"):gsub(":$", "")) end

--- The sentence about a host that could not read its scripts again: the scripts it goes on with,
-- and why.
---@param row {id: integer, pid: integer, host: string, scripts: string, load_error: string}
---@param ago number seconds
---@return string
function versions.failure(row, ago)
  return ("host %d (pid %d on %s) could not read its scripts again %s ago, and %s: %s"):format(row.id, row.pid,
    row.host, units.span(math.max(0, ago)), versions.goes_on(row.scripts), versions.first_line(row.load_error))
end

--- A JSON list, made from texts of scripts; {} for any other value.
local function decoded(text)
  local value = core.decode(text or "[]")
  return type(value) == "table" and value or {}
end

--- {name = "hash,hash"}: of one name there may be several files.
local function files_of(row)
  local hashes, files = {}, {}
  for _, item in ipairs(decoded(row.files)) do
    local name, hash = table.unpack(type(item) == "table" and item or {})
    if type(name) == "string" and type(hash) == "string" then
      hashes[name] = hashes[name] or {}
      table.insert(hashes[name], hash)
    end
  end
  for name, all in pairs(hashes) do
    table.sort(all)
    files[name] = table.concat(all, ",")
  end
  return files
end

--- Do two hosts run jobs of the same name? A host that has more names than it tells may.
local function share(a, b)
  local names = {}
  for _, name in ipairs(decoded(a.handlers)) do names[name] = true end
  for _, name in ipairs(decoded(b.handlers)) do
    if names[name] then return true end
  end
  return false
end

--- "1a2b3c4d (host 100, pid 3 on web1)" of each version, the oldest host first.
local function shown(name, running)
  local texts, seen = {}, {}
  for _, row in ipairs(running) do
    local hash = row.names[name]
    if hash and not seen[hash] then
      seen[hash] = true
      texts[#texts + 1] = ("%s (host %d, pid %d on %s)"):format(hash, row.id, row.pid, row.host)
    end
  end
  return ("%s: %s"):format(name, table.concat(texts, ", "))
end

--- Files of the same name that differ between hosts which run jobs of the same name.
---@param rows {id: integer, pid: integer, host: string, scripts: string, files: string, handlers: string}[]
---@return string[] texts "jobs.lua: 1a2b3c4d (host 100, pid 3 on web1), …"
function versions.differ(rows)
  local running, known, names, texts = {}, {}, {}, {}
  for _, row in ipairs(rows) do
    if not known[row.scripts] then
      known[row.scripts] = true
      running[#running + 1] = setmetatable({ names = files_of(row) }, { __index = row })
    end
  end
  for i, a in ipairs(running) do
    for k = i + 1, #running do
      for name, hash in pairs(share(a, running[k]) and a.names or {}) do
        local other = running[k].names[name]
        names[name] = names[name] or other ~= nil and other ~= hash
      end
    end
  end
  for name, differs in pairs(names) do
    if differs then texts[#texts + 1] = shown(name, running) end
  end
  table.sort(texts)
  return texts
end

-- ---------------------------------------------------------- jobs without a handler

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
