--- Commands on a job and all jobs below it, and how such a tree is drawn.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"

-- Loaded by the few commands that need them.
local reading = options.later(function() return require "nightshift.report.tree" end)

local tree = { commands = {} }
local commands = tree.commands

-- In the order of a person's interest.
local STATES = { "done", "running", "ready", "scheduled", "waiting", "dead", "cancelled", "gone" }

--- Adds --tree to a command on jobs.
function tree.define_flag(command)
  command:flag("--tree", "With all below it.")
end

--- Adds the commands to the parser.
function tree.define(parser)
  local deadline = parser:command("deadline", "Say until when a live job may be started.")
  deadline:argument("id", "Job id."):convert(context.id)
  deadline:argument("time", 'From now: seconds, a text like "2h", or "never".')
  tree.define_flag(deadline)
  deadline:flag("--json", "Print JSON.")
end

-- -------------------------------------------------------------------- reading

--- How many children of a job live.
---@return integer|nil
---@return string? message
---@return string? code
function tree.live_children(db, id)
  local counts, message, code = db:children(id)
  if not counts then return nil, message, code end
  local live = 0
  for _, state in ipairs { "running", "ready", "scheduled", "waiting" } do live = live + (counts[state] or 0) end
  return live
end

-- ------------------------------------------------------------------ progress

local thousands = output.thousands

--- "9,980 done, 10 ready"
local function by_state(counts, without)
  local parts = {}
  for _, state in ipairs(STATES) do
    if counts[state] and counts[state] > 0 and state ~= without then
      parts[#parts + 1] = thousands(counts[state]) .. " " .. state
    end
  end
  return table.concat(parts, ", ")
end

--- "7 of 12 done, 3 running, 2 waiting"; "about 88,000 of 100,000+ done": of a sample, and of more.
function tree.progress(counts)
  local rest = by_state(counts, "done")
  return ("%s%s of %s%s done%s"):format(counts.estimated and "about " or "", thousands(counts.done or 0),
    thousands(counts.total), counts.more and "+" or "", rest ~= "" and ", " .. rest or "")
end

-- ------------------------------------------------------------------- drawing

-- Is our output read as UTF-8? The locale's variables in their order.
local function is_utf8()
  for _, name in ipairs { "LC_ALL", "LC_CTYPE", "LANG" } do
    local value = os.getenv(name)
    if value and value ~= "" then return value:lower():find "utf%-?8" ~= nil end
  end
  return false
end

local UNICODE = { "├─ ", "└─ ", "│  ", "   ", "…" }
local ASCII = { "|- ", "`- ", "|  ", "   ", "..." }

--- Why it ended as it did; of a live job the last error, which it is tried again after.
local function reason_of(node)
  local text = node.error and output.one_line(node.error, 80)
  if not text or not node.attempts then
    return node.reason and text and node.reason .. ": " .. text or node.reason or text
  elseif node.attempts == 0 then
    return "after: " .. text
  end
  return ("attempt %d of %d, after: %s"):format(node.attempts + 1, node.max_attempts, text)
end

local function describe(node)
  local text = ("%s %s %d"):format(node.state, output.one_line(node.name or "?", 60), node.id)
  if node.progress then text = text .. (" %d%%"):format(node.progress * 100 // 1) end
  if node.status then text = text .. " " .. output.one_line(node.status, 60) end
  if node.paused then
    text = text .. (node.paused == node.id and ", paused" or (", paused with %d"):format(math.abs(node.paused)))
  end
  local why = reason_of(node)
  return why and text .. ": " .. why or text
end

local function count_all(counts)
  local sum = 0
  for _, n in pairs(counts) do sum = sum + n end
  return sum
end

local draw

local function draw_children(node, indent, marks)
  local children = node.children or {}
  for i, child in ipairs(children) do
    local last = i == #children and not node.more
    output.line(indent .. marks[last and 2 or 1] .. describe(child))
    draw(child, indent .. marks[last and 4 or 3], marks)
  end
  if node.more then
    output.line(("%s%s%s and %s%s more: %s"):format(indent, marks[2], marks[5], node.estimated and "about " or "",
      thousands(count_all(node.more)), by_state(node.more)))
  end
end

function draw(node, indent, marks)
  if node.inner then return output.line(indent .. marks[2] .. marks[5]) end
  draw_children(node, indent, marks)
end

local function plain(node)
  node.inner = nil
  if not node.children then return node end
  for _, child in ipairs(node.children) do plain(child) end
  core.array(node.children)
  return node
end

--- Draws the tree below `args.id`.
function tree.show(db, args)
  context.checked(options.integer(1, 1000000), args.children, "--children")
  local top = context.must(reading().read(db._handle, args.id, { children = args.children }))
  local counts = context.must(db:children(args.id))
  if not counts.estimated then counts = context.must(db:progress(args.id)) end
  if args.json then
    top = plain(top)
    top.counts = counts
    return output.json(top)
  end
  output.line(describe(top))
  draw(top, "", is_utf8() and UNICODE or ASCII)
  output.line((counts.estimated and "children: " or "") .. tree.progress(counts))
end

-- --------------------------------------------------------------------- verbs

--- How many jobs a verb would touch, as far as one can tell beforehand.
local COUNTED = {
  cancelled = function(p) return p.total - p.done - p.dead - p.cancelled end,
  retried = function(p) return p.dead + p.cancelled end,
  deleted = function(p) return p.total end,
}

--- On the trees of args.id. `done` is the word for the jobs, "cancelled"; `verb` gets an id and gives
-- how many there were. A verb that cannot be undone wants --yes.
function tree.each(db, args, done, verb)
  local ids, told = args.id, output.outcomes(args)
  if COUNTED[done] and not args.yes then
    local sum = 0
    for _, id in ipairs(ids) do sum = sum + COUNTED[done](context.must(db:progress(id))) end
    context.fail(context.USAGE, "%s would be %s; add --yes to do it", output.count(sum, "job"), done)
  end
  for _, id in ipairs(ids) do
    local n, message, code = verb(id)
    if n then
      told.done({ id = id, jobs = n }, ("%d: %s %s"):format(id, output.count(n, "job"), done))
    else
      told.failed({ id = id }, tostring(id), message, code)
    end
  end
  return told.finish()
end

function commands.deadline(args)
  local time = args.time
  if time == "never" then time = false else context.checked(options.duration, time, "the time") end
  local done = time and "with a deadline in " .. time or "without a deadline"
  local db <close> = context.connect(args)
  if args.tree then
    return tree.each(db, { id = { args.id }, json = args.json }, done, function(id)
      return db:deadline(id, time, { tree = true })
    end)
  end
  context.must(db:deadline(args.id, time))
  local told = output.outcomes(args)
  told.done({ id = args.id }, ("%d %s"):format(args.id, done))
  return told.finish()
end

return tree
