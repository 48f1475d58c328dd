--- The command scale: numbers of queues for autoscalers.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local scale = require "nightshift.report.scale"
local units = require "nightshift.units"

local commands = {}

local COLUMNS <const> = [[
READY to RUNNING: 10,000+: so many and more.
OLDEST: how long the first of the ready jobs has been so.
IN, OUT: jobs a minute that were pushed, and that ended, in the last five minutes.
RUN: how long a run takes. DRAIN: until the ready jobs are done, with the workers there are; ?: not known.
WORKERS: those of live hosts that may take such jobs; BUSY: those that run one, of any queue.
WANTED: workers that keep up, and are done with the ready jobs within the target.]]

--- Adds the command to the parser.
local function define(parser)
  local command = parser:command("scale", "Show how much waits in queues, how fast it comes and goes, and how many "
    .. "workers are wanted: for autoscalers.")
  command:epilog(COLUMNS)
  command:argument("queue", "Queues. Default: all."):args "*"
  command:option("--target", "Within which time the ready jobs are to be done.", "60s")
  command:flag("--json", "Print JSON.")
end

local function count_of(state)
  return function(row)
    local text = output.thousands(row[state])
    return row.approximate and row.approximate[state] and text .. "+" or text
  end
end

local function a_minute(key)
  return function(row)
    local n = row[key] * 60
    return n >= 100 and output.thousands(n // 1 | 0) or units.fixed(n, 1)
  end
end

local function span_of(key)
  return function(row) return row[key] and output.span(row[key]) or "?" end
end

local TABLE <const> = {
  output.column("QUEUE", "name"),
  { title = "READY", get = count_of "ready", right = true },
  { title = "SCHEDULED", get = count_of "scheduled", right = true },
  { title = "RUNNING", get = count_of "running", right = true },
  { title = "OLDEST", get = span_of "oldest_age", right = true },
  { title = "IN", get = a_minute "rate_in", right = true },
  { title = "OUT", get = a_minute "rate_out", right = true },
  { title = "RUN", get = span_of "run", right = true },
  { title = "DRAIN", get = span_of "drain_seconds", right = true },
  output.column("WORKERS", "workers", true),
  output.column("BUSY", "busy", true),
  output.column("WANTED", "wanted", true),
  { title = "", get = function(row) return row.paused and "paused" or "" end,
    colour = function() return "yellow" end },
}

--- Values that are not known are null, so that each row has all keys.
local function whole(row)
  for _, key in ipairs { "run", "drain_seconds" } do
    if row[key] == nil then row[key] = core.null end
  end
end

local function show(args)
  for _, name in ipairs(args.queue) do context.check_name("queue name", name, options.MAX_QUEUE) end
  context.checked(scale.OPTIONS.target, args.target, "--target")
  local db <close> = context.connect(args)
  local found, message, code = db:scale { queues = args.queue, target = args.target }
  if not found and code == "NOT_FOUND" then
    for _, name in ipairs(args.queue) do message = message .. context.tip(context.near_queue(db, name)) end
  end
  context.must(found, message, code)
  local total = found.total
  if args.json then
    for _, row in ipairs(found.queues) do whole(row) end
    whole(total)
    return output.json(found)
  end
  if #found.queues == 0 then return output.line "no queues yet; `nightshift push` makes the first" end
  local rows = table.move(found.queues, 1, #found.queues, 1, {})
  if #rows > 1 then
    total.name = "all"
    rows[#rows + 1] = total
  end
  output.table(TABLE, rows)
end

commands.scale = show

return { define = define, commands = commands }
