--- Command top: queues, hosts with their jobs, and recent failures on a terminal; keys that act.
--
-- `Top` is a session: what the last look has found, what is selected, and a stack of views. The
-- uppermost is seen: the panes, the jobs of a queue, or a text. Only what is seen is looked for
-- (looks.lua), every --every seconds.
--
-- Invariant: a failed look changes nothing but `trouble`, which is shown until one succeeds.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local looks = require "nightshift.cli.looks"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"
local panes = require "nightshift.cli.panes"

local top = { commands = {} }

local READ_TIMEOUT <const> = 5 -- s that an answer of the server may take

--- Adds the command to the parser.
function top.define(parser)
  local command = parser:command("top", "Watch queues, hosts with their jobs, and failures on a terminal; keys pause "
    .. "and resume queues, retry, cancel and open jobs, and ? shows them all.")
  command:option("--every", "How often to look, at least 1s.", "2s"):argname "TIME"
end

-- ------------------------------------------------------------------------- looking

local Top = {}
Top.__index = Top

local ORDER <const> = { "queues", "work", "failures" }

--- Looks for what the uppermost view shows.
function Top:look()
  local view = self.views[#self.views]
  local look = looks[view.kind]
  if not look then return end
  local ok, message, code = look(self, view)
  self.trouble = not ok and ("%s (%s)"):format(message, code) or nil
  self.away = code == "GONE"
  self:filter_rows()
end

--- Gives the tables those rows of the last look that have the filter's text.
function Top:filter_rows()
  local widest = 9
  for name, rows in pairs(self.rows) do
    self.tables[name]:set(rows, self.filter:lower())
    for _, row in ipairs(rows) do widest = math.max(widest, row.id and #tostring(row.id) or 0) end
  end
  self.id.width = widest
end

-- ----------------------------------------------------------------------- drawing

local CLOCK <const>, CLOCK_WIDTH <const> = " %H:%M:%S UTC", 13

--- Lines above the panes: what database, how many jobs, how fast they end. Fewer on a low screen.
function Top:draw_header(height, width, utf8)
  local lines = {}
  if height >= 16 then
    local away = self.missing and ("  %s is away"):format(self.missing[1].shard and "shard " .. self.missing[1].shard
      or self.missing[1].place) or ""
    lines[1] = ("nightshift  %s%s  %s"):format(self.place, away, panes.hosts(self.holders or {}))
  end
  if self.queues then
    lines[#lines + 1] = panes.totals(self.queues, width)
    if height >= 8 then
      local text = ("%s done  %s dead  "):format(panes.rate(self.rate or 0), panes.rate(self.dying or 0))
      if self.minutes then text = text .. "last hour " end
      lines[#lines + 1] = text .. panes.sparkline(self.minutes or self.bars, math.max(0, width - #text - 1), utf8)
    end
  end
  if #lines == 0 then lines[1] = "nightshift  " .. self.place end
  for i, line in ipairs(lines) do
    self.screen.put(i - 1, 0, width, output.one_line(line, 1000), i == 1 and self.styles.bold or 0)
  end
  if height >= 16 and width >= 60 and self.queues then
    self.screen.put(0, width - CLOCK_WIDTH, CLOCK_WIDTH, os.date("!" .. CLOCK, math.floor(self.now)), self.styles.bold)
  end
  return #lines
end

--- In the first line: what is wrong.
function Top:draw_trouble(width)
  if not self.trouble then return end
  local text = self.away and "the database is away, and looked for again: " or "the last look has failed: "
  self.screen.put(0, 0, width, output.one_line(text .. self.trouble, 1000), self.styles.red | self.styles.bold)
end

local KEYS <const> = {
  panes = {
    queues = "q quit  ? help  Tab pane  / filter  p pause/resume  Enter its jobs",
    work = "q quit  ? help  Tab pane  / filter  Enter open  c cancel",
    failures = "q quit  ? help  Tab pane  / filter  Enter open  r retry",
  },
  jobs = "q quit  ? help  Esc back  / filter  Enter open  r retry  c cancel",
  job = "q quit  ? help  Esc back  r retry  c cancel",
  help = "q quit  Esc back",
}

--- The last line: a question, the filter that is typed, what a key has done, or the keys.
function Top:draw_footer(y, width)
  local keys = KEYS[self.views[#self.views].kind]
  local text, style = type(keys) == "table" and keys[self.focus] or keys, "plain"
  if self.filter ~= "" then text = ("filter: %s  (/ changes it)  %s"):format(self.filter, text) end
  if self.typing then text = ("/%s_  Enter keeps it, Esc ends it"):format(self.filter)
  elseif self.question then text, style = self.question.text .. "  y yes, n no", "yellow"
  elseif self.message then text, style = self.message, self.failed and "red" or "green" end
  self.screen.put(y, 0, width, output.one_line(text, 1000), self.styles[style] | self.styles.bold)
end

function Top:draw_panes(y, height, width)
  local list, focus = {}, 1
  for i, name in ipairs(ORDER) do
    list[i] = self.tables[name]
    if name == self.focus then focus = i end
  end
  local lines = panes.share(list, height, focus)
  for i, pane in ipairs(list) do
    if lines[i] then
      pane:draw(self.screen, self.styles, y, lines[i], width, i == focus)
      y = y + lines[i]
    end
  end
end

--- Draws all; ncurses sends what is different.
function Top:draw()
  local height, width, utf8 = self.screen.size()
  local view = self.views[#self.views]
  self.screen.clear(self.whole)
  self.whole = nil
  local y = view.kind == "panes" and self:draw_header(height, width, utf8) or self.trouble and 1 or 0
  local room = math.max(1, height - y - 1)
  if view.kind == "panes" then self:draw_panes(y, room, width)
  elseif view.kind == "jobs" then self.tables.jobs:draw(self.screen, self.styles, y, room, width, true)
  else view.text:draw(self.screen, self.styles, y, room, width) end
  self:draw_trouble(width)
  self:draw_footer(height - 1, width)
  self.screen.show()
end

-- -------------------------------------------------------------------------- keys

function Top:say(text, failed) self.message, self.failed = text, failed end

--- Says how a verb went, and has the next look come soon.
function Top:told(done, ok, message, code)
  if ok == nil or ok == false then return self:say(("%s: %s"):format(code, message), true) end
  self:say(done)
  self.due = math.min(self.due, (self.views[#self.views].looked or 0) + 1)
end

--- Shows a view above the others.
function Top:open(view)
  self.views[#self.views + 1] = view
  self.due = core.clock()
end

function Top:back()
  if #self.views > 1 then
    self.views[#self.views] = nil
    self.due = math.max(core.clock(), (self.views[#self.views].looked or 0) + 1)
  elseif self.filter ~= "" then
    self.filter = ""
    self:filter_rows()
  end
end

--- The table that keys move in; nil: a text is seen.
function Top:table()
  local view = self.views[#self.views]
  return view.kind == "panes" and self.tables[self.focus] or view.kind == "jobs" and self.tables.jobs or nil
end

--- Id and name of the selected or opened job; nil: none is. And whether it waits for another attempt.
function Top:job()
  local view, pane = self.views[#self.views], self:table()
  if view.kind == "job" then return view.id, view.name, view.again end
  local row = pane and pane:row()
  if row and row.id then return row.id, (row.name:gsub("^ +", "")), row.again end
end

local ACTIONS = {}

--- Pauses the selected queue, or resumes it.
function ACTIONS.p(self)
  local row = self:table() == self.tables.queues and self.tables.queues:row()
  if not row then return self:say("p pauses a queue: select one in the first pane", true) end
  local name = output.one_line(row.name, 64)
  local queue, message, code = self.db:queue(row.name)
  if not queue then return self:told(nil, nil, message, code) end
  local ok
  if row.paused then ok, message, code = queue:resume() else ok, message, code = queue:pause() end
  if ok then row.paused = not row.paused end
  self:told(("queue %s is %s"):format(name, row.paused and "paused" or "resumed"), ok, message, code)
end

--- Runs an ended job again; one that waits for another attempt runs now.
function ACTIONS.r(self)
  local id, name, again = self:job()
  if not id then return self:say("r retries a job: select one", true) end
  local verb = again and self.db.run_now or self.db.retry
  self:told(("job %d '%s' runs again"):format(id, output.one_line(name, 40)), verb(self.db, id))
end

--- Asks, and ends a live job.
function ACTIONS.c(self)
  local id, name = self:job()
  if not id then return self:say("c cancels a job: select one", true) end
  self.question = { text = ("cancel job %d '%s'?"):format(id, output.one_line(name, 40)), yes = function()
    self:told(("job %d is cancelled"):format(id), self.db:cancel(id, { reason = "cancelled in top" }))
  end }
end

function ACTIONS.enter(self)
  local id, name, again = self:job()
  if self.views[#self.views].kind == "job" then return end
  if id then
    return self:open { kind = "job", id = id, name = name, again = again,
      text = panes.text(("job %d  %s"):format(id, output.one_line(name, 40))) }
  end
  local row = self:table() == self.tables.queues and self.tables.queues:row()
  if not row then return end
  self.rows.jobs = {}
  self.tables.jobs.columns[1].title = "JOBS OF " .. output.one_line(row.name, 40)
  self:open { kind = "jobs", queue = row.name }
end
ACTIONS.o = ACTIONS.enter

local function turn(self, by)
  if self.views[#self.views].kind ~= "panes" then return end
  for i, name in ipairs(ORDER) do
    if name == self.focus then
      self.focus = ORDER[(i - 1 + by) % #ORDER + 1]
      return
    end
  end
end

function ACTIONS.tab(self) turn(self, 1) end
ACTIONS.right = ACTIONS.tab
function ACTIONS.backtab(self) turn(self, -1) end
ACTIONS.left = ACTIONS.backtab
ACTIONS["1"] = function(self) self.focus = ORDER[1] end
ACTIONS["2"] = function(self) self.focus = ORDER[2] end
ACTIONS["3"] = function(self) self.focus = ORDER[3] end
ACTIONS["/"] = function(self) self.typing = self:table() ~= nil end
function ACTIONS.redraw(self) self.whole = true end
function ACTIONS.resize(self) self.whole = true end
function ACTIONS.q(self) self.over = true end
ACTIONS.gone = ACTIONS.q

local HELP <const> = [[
Tab, Shift-Tab    the next pane, the one before; also right, left, and 1 2 3
up, down, j, k    select a row; PgUp, PgDn, Home, End, g, G go further
/                 filter: only rows with a text in the names of queues, jobs, hosts or in errors
p                 pause the selected queue, or resume it
Enter, o          the jobs of a queue; a job with its payload, its attempts, and why it does not run
r                 retry a job that has ended; in FAILURES: run one now that is to be tried again
c                 cancel a job that has not; asks first
Esc, Backspace    back; in the panes: end the filter
Ctrl-L            draw all again
Ctrl-Z            stop it; fg brings it back
q, Ctrl-C         quit

Counts end at 1000: 1000+ are so many and more. OLDEST: how long the first ready job has waited.
DONE: jobs of the queue that were done, a second, over the last 10 s. The bars are such rates, 10 s
each, since the start of top; or, with "last hour", jobs that were done in each minute. FOR: how
long a job has run; it shows its worker, what it says and how much of it is done once it has run for
a second.]]

ACTIONS["?"] = function(self)
  if self.views[#self.views].kind == "help" then return end
  local text = panes.text "keys"
  text:set(HELP)
  self:open { kind = "help", text = text }
end
function ACTIONS.escape(self) self:back() end
ACTIONS.backspace = ACTIONS.escape

--- A key while a filter is typed.
function Top:type(key)
  if key == "resize" or key == "redraw" then self.whole = true
  elseif key == "gone" then self.over = true
  elseif key == "enter" then self.typing = false
  elseif key == "escape" then self.typing, self.filter = false, ""
  elseif key == "erase" then self.filter = ""
  elseif key == "backspace" then self.filter = self.filter:sub(1, (utf8.offset(self.filter, -1) or 1) - 1)
  elseif utf8.len(key) == 1 and #self.filter < 100 then self.filter = self.filter .. key end
  self:filter_rows()
end

--- Does what a key says.
function Top:press(key)
  if self.typing then return self:type(key) end
  if key ~= "resize" then self.message = nil end
  local question = self.question
  if question and key ~= "resize" then
    self.question = nil
    if key == "y" then return question.yes() end
    if key ~= "q" and key ~= "gone" then return self:say "it goes on" end
  end
  local view = self.views[#self.views]
  if (self:table() or view.text):move(key) then return end
  local action = ACTIONS[key]
  if action then action(self) end
end

-- ----------------------------------------------------------------------- session

--- Looks, draws and obeys until it is over.
function Top:run(every)
  self.due = core.clock()
  repeat
    local now = core.clock()
    if now >= self.due then
      self.views[#self.views].looked, self.due = now, now + every
      self:look()
    end
    self:draw()
    local key = self.screen.key(math.max(0, self.due - core.clock()))
    while key do
      self:press(key)
      key = not self.over and self.screen.key(0)
    end
  until self.over
end

--- A session on an open screen.
local function session(db, screen, place)
  local styles = screen.styles()
  styles.plain = 0
  local self = setmetatable({ db = db, screen = screen, styles = styles, place = place, focus = "queues", filter = "",
    views = { { kind = "panes" } }, rows = {}, bars = {}, by_queue = {}, now = 0 }, Top)
  self.tables = panes.tables(self)
  return self
end

--- The database as people know it, without what is secret.
local function place_of(args)
  local url = args.url or (options.address() or {}).url
  if not url then return "private server" end
  url = url:gsub("^%w+://", "")
  return url:match "^[^?]*@([^?]*)" or not url:find "@" and url:match "^[^?]*" or "the database"
end

local INSTALL <const> = "top needs ncurses, which the program was built without, or which is not installed:\n"
  .. "apt-get install libncursesw6; for a build libncurses-dev, and then make (%s)"

--- The module of the screen; it is there where ncurses is.
local function load_screen()
  local found, screen = pcall(require, "nightshift.host.screen")
  if found then return screen end
  local why = tostring(screen):match "[^\n]*error loading[^\n]*\n?[^\n]*" or "there is no nightshift/host/screen.so"
  context.fail(context.FAILURE, INSTALL, why)
end

local function check_terminal()
  if not (core.terminal(0) and core.terminal(1)) then
    context.fail(context.FAILURE, "top wants a terminal; `nightshift status` prints what there is")
  end
  local term = os.getenv "TERM"
  if not term or term == "" or term == "dumb" then
    context.fail(context.FAILURE, "top wants a terminal that can place its cursor, and $TERM is %s; "
      .. "`nightshift status` prints what there is", term and term ~= "" and "'" .. term .. "'" or "not set")
  end
end

-- What has gone wrong, with its place, unless it was said for people.
local function traced(err) return context.is_exit(err) and err or debug.traceback(tostring(err), 2) end

function top.commands.top(args)
  local every = context.checked(options.duration, args.every, "--every") / 1000000
  if every < 1 then context.fail(context.USAGE, "--every: at least 1s, got '%s'", args.every) end
  local db <close> = context.connect(args, { read_timeout = READ_TIMEOUT })
  check_terminal()
  local screen = load_screen()
  local ok, message = screen.open((os.getenv "NO_COLOR" or "") == "")
  if not ok then
    context.fail(context.FAILURE, "the terminal cannot be used, $TERM is '%s': %s", os.getenv "TERM", message)
  end
  local place = db._inside and ("%d databases"):format(#db._list) or place_of(args)
  ok, message = xpcall(function() session(db, screen, place):run(every) end, traced)
  screen.close()
  db:close()
  screen.die() -- by the signal that has stopped it, if one has
  if not ok then error(message, 0) end
end

return top
