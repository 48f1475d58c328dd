--- Command schedules: recurring jobs, their next ticks, and changing them.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local units = require "nightshift.units"

local schedules = { commands = {} }

--- Adds the command to the parser.
function schedules.define(parser)
  local command = parser:command("schedules", "Show recurring jobs with their next five ticks, or change some.")
  command:argument("verb", "pause, resume, run (push its job now) or remove. Default: show all."):args "?"
    :choices { "pause", "resume", "run", "remove" }
  command:argument("name", "Names of schedules, for a verb. Default: none."):args "*"
  command:flag("--json", "Print JSON.")
end

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

local COLUMNS = {
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
  output.table(COLUMNS, rows)
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
local function change(db, told, verb, name)
  local done, message, code = db["schedule_" .. verb](db, name)
  local row = { name = name }
  if not done then
    local near = code == "NOT_FOUND" and near_schedule(db, name)
    return told.failed(row, output.one_line(name, 64), message .. context.tip(near), code)
  end
  if not DID[verb] then row.id = done end
  told.done(row, DID[verb] and ("%s %s"):format(name, DID[verb]) or tostring(done))
end

function schedules.commands.schedules(args)
  if not args.verb then return list(args) end
  if #args.name == 0 then context.fail(context.USAGE, "give the name of a schedule to %s", args.verb) end
  for _, name in ipairs(args.name) do context.check_name("schedule name", name, options.MAX_NAME) end
  local db <close> = context.connect(args)
  local told = output.outcomes(args)
  for _, name in ipairs(args.name) do change(db, told, args.verb, name) end
  return told.finish()
end

return schedules
