-- The stage: where the questions of the bench run their programs. It knows the
-- server, the build and the scale, and counts the processor time of a run.
--
-- Two sides of a question never run at one time. Each starts when the server has purged the
-- rows of the one before it.
local nightshift = require "nightshift"
local processes = require("bench.lib.programs").processes

local stage = {}
local methods = {}
local meta = { __index = methods }

local LUA = arg[-1] or "lua5.4"
local USER = assert(io.popen "id -un"):read "l"

--- Runs a command; its output. Raises when it fails.
function stage.output_of(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "a"
  if not pipe:close() then error("bench: failed: " .. command, 0) end
  return (text:gsub("%s+$", ""))
end

--- The address of a database of the bench's server.
function methods:url(database)
  local escaped = self.socket:gsub("[^%w]", function(c) return ("%%%02X"):format(c:byte()) end)
  return ("mysql://%s@localhost/%s?unix_socket=%s"):format(USER, database, escaped)
end

--- Makes our tables in a database.
function methods:init(database)
  stage.output_of(("NIGHTSHIFT_URL='%s' %s/bin/nightshift init"):format(self:url(database), self.build))
end

--- `asked`: build, socket, scale. The databases nightshift and floor are there.
function stage.new(asked)
  local self = setmetatable({ build = asked.build, socket = asked.socket, scale = asked.scale }, meta)
  self:begin(1)
  self:init "floor"
  self:init "nightshift"
  self.db = assert(nightshift.open(self:url "nightshift"))
  self.server = processes.server(self.db)
  return self
end

local function read(path)
  local file <close> = io.open(path)
  return file and file:read "a" or ""
end

local function hardware()
  return {
    processors = tonumber(stage.output_of "nproc"),
    processor = read "/proc/cpuinfo":match "model name%s*:%s*([^\n]*)" or "processor",
    memory_mb = tonumber(read "/proc/meminfo":match "MemTotal:%s*(%d+)") // 1024,
    system = stage.output_of "uname -sr",
    load = read "/proc/loadavg":match "^%S+",
  }
end

local function versions(db)
  return {
    nightshift = nightshift._VERSION, lua = _VERSION, server = assert(db:execute "SELECT VERSION() AS v")[1].v,
    commit = stage.output_of "git rev-parse --short HEAD 2>/dev/null || true",
  }
end

--- The machine, the versions, and the server's settings as lines of run.sh.
function methods:facts()
  local settings = read(self.build .. "/bench/settings"):gsub("%s+$", ""):gsub("\n", ", ")
  return { machine = hardware(), versions = versions(self.db), settings = settings }
end

--- A number of jobs at this scale: whole batches, and at least one.
function methods:jobs(n, batch)
  batch = batch or 1
  return math.max(batch, math.floor(n * self.scale) // batch * batch)
end

--- Waits until the server has purged deleted rows; not for ever, as an open transaction may hold
-- it up.
function methods:calm()
  for _ = 1, 200 do
    local row = assert(self.db:execute "SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'")[1]
    if tonumber(row.Value) < 1000 then return end
    assert(self.db:execute "DO SLEEP(0.05)")
  end
end

-- The lines that a measuring program prints.
local function lines_of(command)
  local lines, output = {}, stage.output_of(processes.tied(command))
  for text in output:gmatch "[^\n]+" do lines[#lines + 1] = assert(nightshift.decode(text)) end
  assert(#lines > 0, "bench: prints nothing: " .. command)
  return lines
end

--- Runs a measuring program: its lines. The first also gets the processor time of the server and
-- the program, with its children, until all was purged.
function methods:run(command)
  self:calm()
  local server, clients = processes.used(self.server), processes.children_used()
  local lines = lines_of(command)
  self:calm()
  lines[1].server_cpu = processes.used(self.server) - server
  lines[1].client_cpu = processes.children_used() - clients
  return lines
end

local function option_words(options)
  local words = {}
  for name, value in pairs(options) do words[#words + 1] = ("%s=%d"):format(name, value) end
  table.sort(words)
  return table.concat(words, " ")
end

local ROWS_OF_A_FLOOR = 3

--- Begins a round of a question. The floor is measured anew, once for up to three rows that have
-- the same and follow each other.
function methods:begin(round)
  self.round, self.floors = round, {}
end

--- Bare SQL, the C library, the Lua API: one line each. See floor.c, verbs.c and verbs.lua for
-- the work, and bench.h for the options.
function methods:floor(what, options)
  local command = ("%s/bench/floor '%s' floor %s %s"):format(self.build, self.socket, what, option_words(options))
  local known = self.floors[command]
  if not known or known.rows == ROWS_OF_A_FLOOR then
    known = { line = self:run(command)[1], rows = 0 }
    self.floors[command] = known
  end
  known.rows = known.rows + 1
  return known.line
end

function methods:verbs(what, options, database)
  local url = self:url(database or "nightshift")
  return self:run(("%s/bench/verbs '%s' %s %s"):format(self.build, url, what, option_words(options)))[1]
end

function methods:handle(what, options)
  local command = "%s bench/questions/verbs.lua '%s' %s %s"
  return self:run(command:format(LUA, self:url "nightshift", what, option_words(options)))[1]
end

--- A program bench/questions/NAME.lua: its lines. It gets the url of `database`, the build
-- folder, and `...`.
function methods:script(database, name, ...)
  local words = table.concat({ ... }, " ")
  return self:run(("%s bench/questions/%s.lua '%s' %s %s"):format(LUA, name, self:url(database), self.build, words))
end

--- Runs a program in the database of all measurements but the floor's.
function methods:program(name, ...) return self:script("nightshift", name, ...) end

--- A server that has just started is slower: both sides run once for nothing.
function methods:warm_up()
  local options = { jobs = self:jobs(30000, 1000), batch = 1000 }
  self:floor("claim", options)
  self:verbs("claim", options)
end

--- Measures both sides of a row, in an order that changes from round to round.
function methods:both(first, second)
  if self.round % 2 == 1 then
    local a = first()
    return a, second()
  end
  local b = second()
  return first(), b
end

--- A row: the rate of the floor, ours, and how much of it that is.
function methods:beside(what, floor_side, our_side)
  local floor, ours = self:both(floor_side, our_side)
  return { what = what, floor = floor.rate, ours = ours.rate, ratio = ours.rate / floor.rate, jobs = ours.jobs }
end

return stage
