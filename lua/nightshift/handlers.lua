--- Loading handler files.
--
-- A handler file is a Lua chunk that returns a table {name = handler}. A handler is a function,
-- a `nightshift.background{…}`, or a function with limits or a schedule: {run = function,
-- memory = "64M", cron = "0 3 * * *"}. Loading checks all of it before anything runs, and a
-- mistake names its file and, where Lua knows one, its line. The host's zygote and the command
-- `run` load through here.

local background = require "nightshift.background"
local core = require "nightshift.core"
local job = require "nightshift.job"
local options = require "nightshift.options"
local schedules = require "nightshift.schedule"
local versions = require("nightshift.hosts").versions

local handlers = {}

-- The suffix of the name of a background handler's poll; the whole name must fit as well.
local POLL = ":poll"

--- The files of a path: a folder stands for the Lua files in it.
local function expand(path, files)
  local ok, host = pcall(require, "nightshift.host")
  local listed, message
  if ok then listed, message = host.scan(path) end
  if message then return message end
  if not listed then
    files[#files + 1] = path
  elseif #listed == 0 then
    return path .. ": the folder has no Lua files"
  else
    table.move(listed, 1, #listed, #files + 1, files)
  end
end

--- Where a function was written, if in this very file: "jobs.lua:12".
local function place(file, handler)
  local fn = type(handler) == "table" and (handler.start or handler.run) or handler
  local info = type(fn) == "function" and debug.getinfo(fn, "S")
  if info and info.source == "@" .. file then return file .. ":" .. info.linedefined end
  return file
end

--- The last line of a chunk that does something: its return.
local function last_line(chunk)
  local last = 1
  for line in pairs(debug.getinfo(chunk, "L").activelines) do last = math.max(last, line) end
  return last
end

local function traceback(err)
  return job.traceback(err, 2)
end

--- Runs one file; its table, or nil and a message.
local function run_file(file, seen)
  local source, message = versions.read(seen, file)
  if not source then return nil, message end
  local chunk
  chunk, message = load(source, "@" .. file, "t")
  if not chunk then
    -- nothing checks compiled code: a broken one can crash Lua
    if message:find("binary chunk", 1, true) then
      return nil, file .. ": this is compiled Lua; handlers are loaded as text only: give their source"
    end
    if not message:find(file, 1, true) then message = file .. ": " .. message end
    return nil, message
  end
  local ok, result = xpcall(chunk, traceback, file)
  if not ok then
    local text = result:gsub("\n%s*%[C%]: in function 'xpcall'.*$", "")
    if not text:find(file, 1, true) then text = file .. ": " .. text end
    return nil, text
  end
  if type(result) == "table" then return result end
  return nil, ("%s:%d: a handler file must return a table of handlers, this one returns %s"):format(
    file, last_line(chunk), result == nil and "nothing" or "a " .. type(result))
end

local function check_name(file, name, handler)
  if type(name) ~= "string" then
    return ("%s: a handler's name must be a string, got the %s %s"):format(
      place(file, handler), type(name), tostring(name))
  end
  local limit = options.MAX_NAME - (background.is(handler) and #POLL or 0)
  local ok, why = options.name("a handler's name", name, limit)
  if not ok then return place(file, handler) .. ": " .. why end
end

local function add(set, file, name, handler, shown)
  local before = set.places[name]
  if before then
    return ("%s: handler '%s' is already defined in %s"):format(place(file, shown), name, before)
  end
  set.functions[name] = handler
  set.places[name] = place(file, shown)
  set.names[#set.names + 1] = name
end

-- Options of a push that a handler may have for its jobs, where the push has said nothing.
local LIMITS = { timeout = options.PUSH.timeout, max_attempts = options.COUNT, max_phases = options.PHASES,
  priority = options.PUSH.priority }

local FIELDS = { run = true, memory = true, queue = true, check = true, around = true, backoff = true,
  on_dead = true, on_dead_queue = true, batch = true, within = true }
for field in pairs(LIMITS) do FIELDS[field] = true end
for field in pairs(schedules.FIELDS) do FIELDS[field] = true end

-- Bytes of a schedule that a file declares.
local MAX_SCHEDULE = 30000

--- The fault of the fields of a handler; nil and its options when there is none.
local function check_fields(handler)
  for key in pairs(handler) do
    if not FIELDS[key] then
      local names = {}
      for name in pairs(FIELDS) do names[#names + 1] = name end
      table.sort(names)
      return ("unknown field '%s'; known: %s"):format(tostring(key), table.concat(names, ", "))
    end
  end
  if type(handler.run) ~= "function" then
    return ("'run' must be a function, got %s"):format(handler.run == nil and "nothing" or type(handler.run))
  end
  for _, field in ipairs { "check", "around" } do
    if handler[field] ~= nil and type(handler[field]) ~= "function" then
      return ("%s must be a function, got %s"):format(field, type(handler[field]))
    end
  end
  local limits = {}
  for field, check in pairs(LIMITS) do
    if handler[field] ~= nil then
      local ok, value, message = pcall(check, handler[field], field)
      if not ok then return (tostring(value):gsub("^nightshift: ", "")) end
      if value == nil then return message end
      limits[field] = value
    end
  end
  if handler.queue ~= nil then
    local ok, message
    if type(handler.queue) == "string" then ok, message = options.name("queue", handler.queue, options.MAX_QUEUE) end
    if not ok then return message or "queue must be a string, got a " .. type(handler.queue) end
    limits.queue = handler.queue
  end
  return nil, limits
end

-- ------------------------------------------------------ around a handler

local LONGEST, SPREAD = 3600, 0.2 -- as those of a push's backoff

--- Microseconds before the next attempt, when the first pause is so long: it doubles, up to an
-- hour.
---@param first integer µs
---@param n integer attempts that have failed
---@return integer
function handlers.pause(first, n)
  local pause = first
  for _ = 2, n do pause = math.min(pause * 2, math.max(first, LONGEST * 1000000)) end
  return math.floor(pause * (1 + SPREAD * (2 * math.random() - 1)))
end

--- The fault of a backoff; nil and the value, µs or a function, when there is none.
local function check_backoff(backoff)
  if backoff == nil or type(backoff) == "function" then return nil, backoff end
  local ok, us, message = pcall(options.duration, backoff, "backoff")
  if not ok then return "backoff must be seconds, a text like '10s', or a function, got a " .. type(backoff) end
  return message, us
end

local function check_memory(memory)
  if memory == nil then return nil end
  local bytes, message = options.size(memory, "memory")
  return message, bytes
end

--- Why a payload is refused: a text, or a verdict that the check has raised; nil: it is good.
local function refusal(check, claimed)
  local ok, good, message = pcall(check, claimed.payload)
  if ok and (good or good == nil and message == nil) then return nil end
  local why = not ok and good or message
  if job.raised(why) then return why end
  return "payload refused: " .. job.error_text(why == nil and "its check says false" or why)
end

--- The handler behind its check: a payload that is refused ends its job.
local function checked(check, run)
  return function(claimed)
    local why = refusal(check, claimed)
    if why == nil then return run(claimed) end
    if job.raised(why) then error(why, 0) end
    return claimed:discard(why)
  end
end

--- The function that is called for a job.
local function composed(handler)
  local run, around = handler.run, handler.around
  if around then
    local inner = run
    run = function(claimed) return around(claimed, inner) end
  end
  return handler.check and checked(handler.check, run) or run
end

-- -------------------------------------------------------- batch handlers

local BATCH_MOST, WITHIN_MOST = 1000, 60 -- jobs, seconds
local WITHIN = 500000 -- µs

--- The fault of batch and within; nil, jobs and µs when there is none; nil alone without a batch.
local function check_batch(handler)
  local most, within = handler.batch, handler.within
  if most == nil then return within ~= nil and "within goes with batch" or nil end
  if math.type(most) ~= "integer" or most < 1 or most > BATCH_MOST then
    return ("batch must be an integer from 1 to %d"):format(BATCH_MOST)
  end
  if within == nil then return nil, most, WITHIN end
  local ok, us, message = pcall(options.duration, within, "within")
  if not ok then return "within must be seconds or a text like '500ms', got a " .. type(within) end
  if us and us > WITHIN_MOST * 1000000 then return ("within must be at most %d s"):format(WITHIN_MOST) end
  return message, most, us
end

--- What a batch handler has returned, as results by position.
local function results_of(value)
  if value == nil or value == true then return {} end
  if type(value) == "table" then return value end
  error(("a batch handler must return a table of results, in the order of its jobs, or nothing; it has returned a %s")
    :format(type(value)), 0)
end

--- The jobs with a good payload; the rest have a verdict then. And where they were.
local function select_good(check, jobs)
  local good, places = {}, {}
  for i, claimed in ipairs(jobs) do
    local why = refusal(check, claimed)
    if job.raised(why) then
      job.let_go(claimed, why)
    elseif why then
      claimed:discard(why)
    else
      good[#good + 1], places[#places + 1] = claimed, i
    end
  end
  return good, places
end

--- The function that is called for the jobs of a batch: results by position, or nil or false and a
-- message.
local function composed_batch(handler)
  local run, around, check = handler.run, handler.around, handler.check
  local inner = around and function(jobs) return around(jobs, run) end or run
  return function(jobs)
    local good, places = jobs, nil
    if check then good, places = select_good(check, jobs) end
    if #good == 0 then return {} end
    local value, message = inner(good)
    if not value and message ~= nil then return nil, message end
    value = results_of(value)
    if not places then return value end
    local results = {}
    for k, i in ipairs(places) do results[i] = value[k] end
    return results
  end
end

--- The same for a job by itself.
local function as_single(many)
  return function(claimed)
    local results, message = many { claimed }
    if not results then return nil, message end
    return results[1]
  end
end

--- Adds a handler that takes batches.
local function add_batch(set, name, handler, most, within)
  local many = composed_batch(handler)
  if most > 1 then set.batches[name] = { run = many, most = most, within = within } end
  return as_single(many)
end

--- Adds a handler's declarations; gives the fault, if there is one.
local function add_schedule(set, name, handler, limits)
  local def, wrong = schedules.declared(name, handler, limits)
  if not def then return wrong end
  local text, message = core.encode({ name = name, schedule = def }, nil, "schedule")
  if not text then return message end
  if #text > MAX_SCHEDULE then
    return ("its schedule has %d bytes, the limit is %d; a larger payload goes with db:schedule"):format(#text,
      MAX_SCHEDULE)
  end
  set.schedules[#set.schedules + 1] = text
end

--- Adds the job that a handler has pushed when its own are dead; the fault of the option, if it has
-- one.
local function add_on_dead(set, name, handler)
  local on_dead, queue = handler.on_dead, handler.on_dead_queue
  if on_dead == nil then return queue ~= nil and "on_dead_queue goes with on_dead" or nil end
  for field, limit in pairs { on_dead = options.MAX_NAME, on_dead_queue = options.MAX_QUEUE } do
    local value = handler[field]
    if value ~= nil and type(value) ~= "string" then
      return ("%s must be a string, got %s"):format(field, type(value))
    end
    local ok, why = options.name(field, value or "-", limit)
    if not ok then return why end
  end
  set.on_dead[#set.on_dead + 1] = core.encode { name = name, on_dead = on_dead, queue = queue }
end

local function add_table(set, file, name, handler)
  local wrong, limits = check_fields(handler)
  if not wrong then wrong, limits.backoff = check_backoff(handler.backoff) end
  if not wrong then wrong, set.memory[name] = check_memory(handler.memory) end
  if not wrong then wrong = add_schedule(set, name, handler, limits) end
  wrong = wrong or add_on_dead(set, name, handler)
  local most, within
  if not wrong then wrong, most, within = check_batch(handler) end
  if wrong then return ("%s: handler '%s': %s"):format(place(file, handler), name, wrong) end
  set.limits[name] = next(limits) and limits or nil
  return add(set, file, name, most and add_batch(set, name, handler, most, within) or composed(handler), handler)
end

local function add_handler(set, file, name, handler)
  local message = check_name(file, name, handler)
  if message then return message end
  if type(handler) == "function" then return add(set, file, name, handler, handler) end
  if type(handler) ~= "table" then
    return ("%s: handler '%s' is a %s; it must be a function, a table with run = function, or a "
      .. "nightshift.background{…}"):format(file, name, type(handler))
  end
  if not background.is(handler) then return add_table(set, file, name, handler) end
  for part, fn in pairs(background.expand(name, handler)) do
    message = add(set, file, part, fn, handler)
    if message then return message end
  end
end

--- Handlers in the order of their names, so that messages do not vary.
local function add_all(set, file, result)
  local names = {}
  for name in pairs(result) do names[#names + 1] = name end
  if #names == 0 then core.warn("handlers.none", file, "the file returns a table without handlers") end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, name in ipairs(names) do
    local message = add_handler(set, file, name, result[name])
    if message then return message end
  end
end

local function add_file(set, file)
  local result, message = run_file(file, set.seen)
  if not result then return message end
  return add_all(set, file, result)
end

---@class nightshift.Handlers
---@field functions table<string, fun(job: nightshift.Job): any> by name
---@field names string[] in order
---@field memory table<string, integer> bytes by name, where a handler has a limit
---@field limits table<string, table> by name: timeout (µs), max_attempts, max_phases, priority, queue; backoff (µs of
---the first pause, or a function)
---@field schedules string[] that handlers declare, {name, schedule} each, as JSON
---@field on_dead string[] jobs that are pushed for dead ones, {name, on_dead, queue} each, as JSON
---@field batches table<string, {run: fun(jobs: nightshift.Job[]), most: integer, within: integer}> by name, of handlers
---that take many jobs in one call; µs
---@field version {short: string, files: string} of the files read

--- Loads handler files.
---@param paths (string|table)[] files, and folders of files; tables of handlers, as files return them
---@return nightshift.Handlers|nil
---@return string? message
function handlers.load(paths)
  local files, set = {}, { functions = {}, places = {}, names = {}, memory = {}, limits = {}, schedules = {},
    on_dead = {}, batches = {}, seen = versions.begin() }
  for _, path in ipairs(paths) do
    local is_table = type(path) == "table"
    local message
    if is_table then message = add_all(set, "the table of handlers", path) else message = expand(path, files) end
    if message then return nil, message end
  end
  for _, file in ipairs(files) do
    local message = add_file(set, file)
    if message then return nil, message end
  end
  table.sort(set.names)
  set.version = versions.finish(set.seen)
  return set
end

--- The message about a name without a handler.
---@param name string
---@param names string[] known ones
---@return string
function handlers.unknown(name, names)
  local known = #names > 0 and table.concat(names, ", ") or "none"
  return ("no handler named '%s'; known: %s"):format(name, known)
end

return handlers
