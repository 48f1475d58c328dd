--- The version of the loaded scripts: short hashes of the texts that were read. And a comparison
-- of the hosts' versions.
--
-- A version is made of the handler files and of the Lua modules that they require while they
-- are loaded. Libraries in C do not count, nor modules that a handler requires when it runs,
-- nor files that `dofile` reads. Where the files are does not matter: hosts of several machines
-- that run the same texts run the same version.

local core = require "nightshift.core"
local span = require "nightshift.units".span

-- Scripts may change the library while they are loaded.
local open, searchpath, utf8_len = io.open, package.searchpath, utf8.len

local versions = {}

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

local function read(file)
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
  local text, message = read(file)
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
    local text = file and read(file)
    if text then add(seen, name, text) end
  end
end

--- [["jobs.lua","1a2b3c4d"],…], as many as fit.
local function list(items)
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
  return { short = #hashes == 1 and hashes[1] or core.hash(table.concat(hashes)), files = list(items) }
end

-- ------------------------------------------------------------- reports of hosts

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
    row.host, span(math.max(0, ago)), versions.goes_on(row.scripts), versions.first_line(row.load_error))
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
local function shown(name, hosts)
  local texts, seen = {}, {}
  for _, row in ipairs(hosts) do
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
  local hosts, known, names, texts = {}, {}, {}, {}
  for _, row in ipairs(rows) do
    if not known[row.scripts] then
      known[row.scripts] = true
      hosts[#hosts + 1] = setmetatable({ names = files_of(row) }, { __index = row })
    end
  end
  for i, a in ipairs(hosts) do
    for k = i + 1, #hosts do
      for name, hash in pairs(share(a, hosts[k]) and a.names or {}) do
        local other = hosts[k].names[name]
        names[name] = names[name] or other ~= nil and other ~= hash
      end
    end
  end
  for name, differs in pairs(names) do
    if differs then texts[#texts + 1] = shown(name, hosts) end
  end
  table.sort(texts)
  return texts
end

return versions
