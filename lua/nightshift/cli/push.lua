--- Commands that push jobs. push: one, or with --lines one for each line of stdin, in bounded
-- memory. schedules: jobs that come back; it shows their next ticks, and changes them.
--
-- Invariant: jobs are pushed in the order of their lines. When the command stops at a line, all
-- lines before it are pushed, and none behind it.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local units = require "nightshift.units"

local push = { commands = {} }

local function define_schedules(parser)
  local command = parser:command("schedules", "Show recurring jobs with their next five ticks, or change some.")
  command:argument("verb", "pause, resume, run (push its job now) or remove. Default: show all."):args "?"
    :choices { "pause", "resume", "run", "remove" }
  command:argument("name", "Names of schedules, for a verb. Default: none."):args "*"
  command:flag("--json", "Print JSON.")
end

--- Adds the commands to the parser.
function push.define(parser)
  local command = parser:command("push", "Push one job and print its id; or with --lines a job for each line of stdin.")
  command:argument("queue", "Queue name.")
  command:argument("name", "Name of the job: which handler runs it. Default with --lines: as each line says.")
    :args "?"
  command:argument("payload", 'JSON; "-" reads it from stdin.'):default "null"
  command:flag("--json", "Print JSON.")
  command:flag("--lines", 'Read JSON Lines: each is a payload, or without NAME an object, {"name": "email.send", '
    .. '"payload": {"to": 7}, "delay": "5m"}, with options as of db:push. Ids are printed in the order of the lines.')
  command:flag("--skip-bad", "With --lines: say which lines are bad, and push the rest. Without it the first bad line "
    .. "ends the command; lines before it are pushed, and none behind it.")
  command:option("--delay", 'Run it this much later: seconds, or a text like "5m". Default: now.'):argname "TIME"
  command:option("--at", "Run it then, like 2030-01-31T12:00:00Z. Default: now."):argname "INSTANT"
  command:option("--tag", "A tag; up to 16. Default: none."):count "*"
  command:option("--group", "What the limits of groups go by, like tenant:7; 1 to 190 characters. Default: none.")
  command:option("--after", "Id of a job that has to end first; more than once. Default: none."):argname "ID"
    :count "*":convert(context.id)
  command:option("--wait", "Wait so long for room while the queue is full. Default: 0."):argname "TIME"
  command:option("--key", "Of several databases: jobs of one key go to one of them. Default: none."):argname "TEXT"
  command:option("--on-fail", "With --after: when one of those fails, cancel this one, or run it. Default: cancel.")
    :choices { "cancel", "run" }
  command:option("--parent", "Id of a live job that this is a child of. Default: none."):argname "ID"
    :convert(context.id)
  command:option("--priority", "0 to 255, higher first. Default: 100."):argname "N":convert(context.integer)
  command:option("--decay", "Priority it loses with each return that is no end, 0 to 255. Default: 8.")
    :argname "N":convert(context.integer)
  command:option("--unique", "Key that at most one live job of the queue has. Default: none."):argname "KEY"
  command:option("--unique-period", "From now: a job that is done sooner has the key until then. Default: until it "
    .. "has ended."):argname "TIME"
  command:option("--on-conflict", "When a job has the key: refuse; keep that job and print its id; or "
    .. "replace it if it has not begun, and print its id, else be pushed to follow it. Default: refuse.")
    :choices { "refuse", "keep", "replace" }
  command:option("--max-attempts", "Errors before it is dead. Default: the handler's, or 10."):argname "N"
    :convert(context.integer)
  command:option("--max-polls", "Polls before it is dead. Default: no limit."):argname "N":convert(context.integer)
  command:option("--max-phases", "Waits without a signal before it is dead; 0: no limit. Default: the handler's, "
    .. "or 100."):argname "N":convert(context.integer)
  command:option("--max-crashes", "Worker deaths before it is dead. Default: 5."):argname "N":convert(context.integer)
  command:option("--backoff", "First delay before a retry, which doubles; a handler's own goes before it. Default: 5s.")
    :argname "TIME"
  command:option("--timeout", "Wall time of one run. Default: the handler's, or 1h."):argname "TIME"
  command:option("--deadline", "From now; after that it is not started, and a poll is dead. Default: none.")
    :argname "TIME"
  define_schedules(parser)
end

local PUSH_KEYS = { "delay", "at", "priority", "decay", "unique", "max_attempts", "max_polls", "max_phases",
  "max_crashes", "backoff", "timeout", "deadline", "group" }

--- The options of a push; wrong ones are told before a server is asked.
local function push_options(args)
  local given = {}
  for _, key in ipairs(PUSH_KEYS) do
    given[key] = args[key]
    if args[key] then context.checked(options.PUSH[key], args[key], "--" .. key:gsub("_", "-")) end
  end
  if #args.tag > 0 then
    context.checked(options.PUSH.tags, args.tag, "--tag")
    given.tags = args.tag
  end
  given.after, given.on_fail, given.parent = #args.after > 0 and args.after or nil, args.on_fail, args.parent
  given.key = args.connect and args.key or nil -- one database has all keys
  if args.wait then context.checked(options.duration, args.wait, "--wait") end
  if args.on_fail and not given.after then context.fail(context.USAGE, "--on-fail wants --after") end
  if args.at and args.delay then context.fail(context.USAGE, "give either --at or --delay") end
  for _, key in ipairs { "on_conflict", "unique_period" } do
    if args[key] and not given.unique then
      context.fail(context.USAGE, "--" .. key:gsub("_", "-") .. " wants --unique")
    end
  end
  if given.unique then
    given.unique = { key = given.unique, period = args.unique_period, on_conflict = args.on_conflict }
    context.checked(options.PUSH.unique, given.unique, "--unique")
  end
  return given
end

-- -------------------------------------------------------- the lines of stdin

local CHUNK <const> = 1 << 16 -- bytes that are read at once
local LONGEST <const> = 64 << 20 -- bytes of a line

--- Lines of stdin: their numbers, the bytes up to their ends, and their texts; nil: too long.
local function numbered_lines()
  local n, bytes, buffer, at = 0, 0, "", 1
  return function()
    local parts, size = {}, 0
    local stop
    repeat
      stop = buffer:find("\n", at, true)
      local part = buffer:sub(at, stop and stop - 1)
      size = size + #part + (stop and 1 or 0)
      if size > LONGEST then parts = {} else parts[#parts + 1] = part end
      if stop then at = stop + 1 else buffer, at = io.read(CHUNK) or "", 1 end
    until stop or buffer == ""
    if size == 0 then return nil end
    n, bytes = n + 1, bytes + size
    return n, bytes, size <= LONGEST and table.concat(parts) or nil
  end
end

-- Options of a line: those of a push, and the key of several databases.
local LINE <const> = { key = function(value) return value end }
for key, check in pairs(options.PUSH) do LINE[key] = check end

--- The options of a line, over the options of the command.
local function own_options(what, value, shared, several)
  local given = {}
  for key, one in pairs(shared) do given[key] = one end
  for key, one in pairs(value) do
    if key ~= "name" and key ~= "payload" then given[key] = one end
  end
  if not several then given.key = nil end
  local ok, clean, message = pcall(options.read, what, given, LINE)
  if ok and clean then return given end
  return nil, (tostring(ok and message or clean):gsub("^nightshift: ", ""):gsub("^" .. what .. ": ", ""))
end

--- An item of push_many; nil and the fault of the line.
local function item_of(line, args, shared)
  local value, message = core.decode(line)
  if value == nil then return nil, (message:gsub("line 1, column", "column")) end
  if args.name then return { args.name, value, shared } end
  if type(value) ~= "table" or type(value.name) ~= "string" then
    return nil, 'an object with a "name" is expected, for no NAME was given'
  end
  local good, why = options.name("job name", value.name, options.MAX_NAME)
  if not good then return nil, why end
  local given
  given, why = own_options("push", value, shared, args.connect)
  if not given then return nil, why end
  return { value.name, value.payload == nil and core.null or value.payload, given }
end

-- ------------------------------------------------------------ many pushes

local BATCH <const> = 1000 -- jobs of one transaction
local BYTES <const> = 4 << 20 -- of their lines, about
local TRIES <const> = 5 -- of a push that may be written already, a second apart

-- Codes that a single job of a batch may be to blame for.
local BLAMED <const> = { INVALID = true, TOO_BIG = true, DUPLICATE = true, STATE = true }

---@class nightshift.Lines
---@field args table of the command
---@field queue nightshift.Queue
---@field pushed integer jobs
---@field bad integer lines
---@field items table[] of the batch
---@field numbers integer[] their lines

--- Tells of a bad line; without --skip-bad that is the end.
local function reject(self, n, message, code)
  self.bad = self.bad + 1
  local text = ("line %d: %s%s"):format(n, message, code and (" (%s)"):format(code) or "")
  if self.args.skip_bad then
    self.progress.clear()
    return context.complain("%s", text)
  end
  self.progress.finish()
  context.fail(context.FAILURE, "%s; %s before it pushed, none behind it (--skip-bad goes on)", text,
    output.count(self.pushed, "job"))
end

local function told(self, first, ids, outcomes)
  self.pushed = self.pushed + #ids
  self.progress.clear()
  if not self.args.json then return output.write(table.concat(ids, "\n"), "\n") end
  for i, id in ipairs(ids) do
    output.json { line = self.numbers[first + i - 1], id = id, outcome = outcomes and outcomes[i] or "pushed" }
  end
end

--- The ids of a batch. A push that may be written is repeated with its ids, so it is one push.
local function push_batch(self, items)
  local waits = { wait = self.args.wait }
  local ids, message, code, more = self.queue:push_many(items, waits)
  for _ = 1, TRIES do
    if ids or code ~= "GONE" or type(more) ~= "table" then break end
    core.sleep(1)
    for i, id in ipairs(more) do
      local given = { id = id }
      for key, value in pairs(items[i][3]) do given[key] = value end
      items[i] = { items[i][1], items[i][2], given }
    end
    ids, message, code = self.queue:push_many(items, waits)
  end
  return ids, message, code
end

--- Pushes items first to last; where the server refuses some it finds out which.
local function push_range(self, first, last)
  local items = table.move(self.items, first, last, 1, {})
  local ids, message, code = push_batch(self, items)
  if ids then return told(self, first, ids, message) end
  if not BLAMED[code] then
    self.progress.finish()
    context.fail(context.exit_of(code), "lines %d to %d: %s (%s); %s pushed before them", self.numbers[first],
      self.numbers[last], message, code, output.count(self.pushed, "job"))
  elseif first == last then
    return reject(self, self.numbers[first], message, code)
  end
  local middle = (first + last) // 2
  push_range(self, first, middle)
  push_range(self, middle + 1, last)
end

--- Pushes the lines of the batch. Those of one of several databases are a transaction.
local function flush(self)
  local items, numbers = self.items, self.numbers
  local parts = self.several and #items > 0 and self.queue:_parts(items)
  for _, part in ipairs(parts or { items }) do
    if parts then
      self.items, self.numbers = {}, {}
      for k, i in ipairs(part) do self.items[k], self.numbers[k] = items[i], numbers[i] end
    end
    if #self.items > 0 then push_range(self, 1, #self.items) end
  end
  self.items, self.numbers = {}, {}
end

--- A line of the batch; a bad one comes after all before it are pushed.
local function take(self, n, line, shared)
  if line and line:find "^%s*$" then return end
  local item, message
  if line then item, message = item_of(line, self.args, shared) else message = "has more than 64 MiB" end
  if not item then
    flush(self)
    return reject(self, n, message)
  end
  self.items[#self.items + 1], self.numbers[#self.numbers + 1] = item, n
end

--- Bytes of stdin, when it is a file.
local function size_of_stdin()
  local at = io.stdin:seek()
  local size = at and io.stdin:seek "end"
  if size then io.stdin:seek("set", at) end
  return size and size - at
end

local function push_lines(args, given)
  local db <close> = context.connect(args)
  local self = { args = args, queue = context.must(db:queue(args.queue)), several = args.connect, pushed = 0,
    bad = 0, items = {}, numbers = {},
    progress = output.progress("jobs", size_of_stdin()) }
  local flushed = 0
  for n, bytes, line in numbered_lines() do
    take(self, n, line, given)
    if #self.items >= BATCH or bytes - flushed > BYTES then
      flush(self)
      flushed = bytes
      self.progress.show(self.pushed, bytes)
    end
  end
  flush(self)
  self.progress.finish()
  if self.bad == 0 then return 0 end
  context.complain("%s pushed, %s bad", output.count(self.pushed, "job"), output.count(self.bad, "line"))
  return context.FAILURE
end

function push.commands.push(args)
  context.check_name("queue name", args.queue, options.MAX_QUEUE)
  if not args.name and not args.lines then context.fail(context.USAGE, "missing argument 'name'") end
  if args.name then context.check_name("job name", args.name, options.MAX_NAME) end
  if args.payload == "null" and args.name and args.name:find "^[%[{\"]" then
    context.fail(context.USAGE, "push: '%s' is no job's name but a payload; say QUEUE NAME PAYLOAD", args.name)
  end
  if args.skip_bad and not args.lines then context.fail(context.USAGE, "--skip-bad wants --lines") end
  local given = push_options(args)
  if args.lines and args.payload ~= "null" then
    context.fail(context.USAGE, "--lines reads payloads from stdin; leave out the one behind the name")
  end
  if args.lines then return push_lines(args, given) end
  local payload = context.json(args.payload, "the payload")
  local db <close> = context.connect(args)
  local queue = context.must(db:queue(args.queue))
  given.wait = args.wait
  local id, outcome = context.must(queue:push(args.name, payload, given))
  if args.json then return output.json { id = id, outcome = outcome or "pushed" } end
  output.line(tostring(id))
end

-- --------------------------------------------------------------------- schedules

--- "0 3 * * * Europe/Vienna", "every 10m".
local function when(row)
  if not row.every and not row.cron then return nil end -- it cannot be read
  if row.every then return "every " .. output.span(row.every) end
  return row.zone == "UTC" and row.cron or row.cron .. " " .. row.zone
end

local function remark(row)
  local list = {}
  if row.paused then list[#list + 1] = "paused" end
  if row.declared then list[#list + 1] = "by scripts" end
  if row.skipped > 0 then list[#list + 1] = output.count(row.skipped, "tick") .. " skipped" end
  if row.error then list[#list + 1] = output.one_line(row.error, 120) end
  return table.concat(list, ", ")
end

local SCHEDULES <const> = {
  { title = "NAME", get = function(row) return output.one_line(row.name, 40) end },
  { title = "WHEN", get = when },
  { title = "QUEUE", get = function(row) return row.queue end },
  { title = "JOB", get = function(row) return row.job and output.one_line(row.job, 40) end },
  { title = "LAST", get = function(row) return output.time(row.last) end },
  { title = "NEXT", get = function(row) return output.time(row.due) end },
  { title = "", get = remark },
}

local function show(rows)
  if #rows == 0 then
    return output.line "no schedules; handlers declare them with cron or every, programs with db:schedule"
  end
  output.table(SCHEDULES, rows)
  for _, row in ipairs(rows) do
    local later = {}
    for i = 2, #row.upcoming do later[#later + 1] = output.time(row.upcoming[i]) end
    if #later > 0 then output.line(("%s then: %s"):format(output.one_line(row.name, 40), table.concat(later, " "))) end
  end
end

local function list(args)
  local db <close> = context.connect(args)
  local rows = context.must(db:schedules())
  if not args.json then return show(rows) end
  for _, row in ipairs(rows) do
    for i, t in ipairs(row.upcoming) do row.upcoming[i] = units.instant(t, 6) end
    row.upcoming = core.array(row.upcoming)
  end
  output.json_list(rows)
end

local DID = { pause = "paused", resume = "resumed", remove = "removed" }

--- The schedule with a name that is like that of none.
local function near_schedule(db, name)
  local known = {}
  for _, row in ipairs(db:schedules() or {}) do known[row.name] = true end
  return context.near(name, known)
end

--- Does the verb to one.
local function change(db, outcome, verb, name)
  local done, message, code = db["schedule_" .. verb](db, name)
  local row = { name = name }
  if not done then
    local near = code == "NOT_FOUND" and near_schedule(db, name)
    return outcome.failed(row, output.one_line(name, 64), message .. context.tip(near), code)
  end
  if not DID[verb] then row.id = done end
  outcome.done(row, DID[verb] and ("%s %s"):format(name, DID[verb]) or tostring(done))
end

function push.commands.schedules(args)
  if not args.verb then return list(args) end
  if #args.name == 0 then context.fail(context.USAGE, "give the name of a schedule to %s", args.verb) end
  for _, name in ipairs(args.name) do context.check_name("schedule name", name, options.MAX_NAME) end
  local db <close> = context.connect(args)
  local outcome = output.outcomes(args)
  for _, name in ipairs(args.name) do change(db, outcome, args.verb, name) end
  return outcome.finish()
end

return push
