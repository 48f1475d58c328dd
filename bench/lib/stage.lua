-- The stage: where the questions of the bench run their programs. It knows the server, the build and
-- the scale, and counts the processor time of a run. Also what these programs need: processes that
-- do not outlive their parent, and tables that are filled fast. Times are seconds.
--
-- Two sides of a question never run at one time. Each starts when the server has purged the
-- rows of the one before it.
local nightshift = require "nightshift"

local stage = {}

-- ------------------------------------------------------------------ processes

-- Hosts and measuring programs, none of which outlives its parent. Also which processes descend
-- from one, and the processor time that it, or its reaped children, have used.
local processes = {}
stage.processes = processes

local TICK = 0.01 -- of /proc, on every Linux there is

local function read(path)
  local file <close> = io.open(path)
  return file and file:read "a"
end

-- The fields of a line of /proc/PID/stat, from the third on: the name before
-- them may hold anything.
local function fields(line)
  local list = {}
  for word in line:match "^.*%) (.*)$":gmatch "%S+" do list[#list + 1] = word end
  return list
end

local PARENT, USER, SYSTEM, CHILD_USER, CHILD_SYSTEM = 2, 12, 13, 14, 15

--- All processes below `pid`, and itself.
function processes.below(pid)
  local pipe <close> = assert(io.popen "cat /proc/[0-9]*/stat 2>/dev/null")
  local parent = {}
  for line in pipe:lines() do
    local id = tonumber(line:match "^%d+")
    if id and line:find(") ", 1, true) then parent[id] = tonumber(fields(line)[PARENT]) end
  end
  local list = {}
  for id in pairs(parent) do
    local above = id
    while above and above ~= pid do above = parent[above] end
    if above then list[#list + 1] = id end
  end
  return list
end

local function seconds(path, user, system)
  local text = read(path)
  if not text then return 0 end
  local list = fields(text)
  return (tonumber(list[user]) + tonumber(list[system])) * TICK
end

--- The processor time of a live process, without children; 0 when it is gone.
function processes.used(pid)
  return seconds(("/proc/%d/stat"):format(pid), USER, SYSTEM)
end

--- The processor time of the reaped children of this process, and theirs.
function processes.children_used()
  return seconds("/proc/self/stat", CHILD_USER, CHILD_SYSTEM)
end

--- The process of the server that a handle is connected to.
function processes.server(db)
  local path = assert(db:execute "SELECT @@pid_file AS path")[1].path
  return assert(tonumber(read(path) or nil), "the server's process is not known")
end

--- A command for a shell that becomes it: should this process end, even be killed, the
-- kernel sends the command a signal.
---@param command string a program and its arguments
---@param signal string? KILL
function processes.tied(command, signal)
  return ("exec setpriv --pdeathsig %s %s"):format(signal or "KILL", command)
end

local host_methods = {}
local host_meta = { __index = host_methods, __close = function(self) self:stop() end }

local COMMAND = "echo $$; NIGHTSHIFT_URL='%s' %s 2>&1"
local WORK = "'%s/bin/nightshift' work %s --workers %d %s"

--- Starts `nightshift work` and waits until all its workers are there. Its first line
-- says its process, so that it can be told to end; the pipe is its log.
---@param asked {url: string, build: string, workers: integer, script: string?, options: string?}
function processes.start_host(asked)
  local work = WORK:format(asked.build, asked.script or "bench/questions/work.lua", asked.workers, asked.options or "")
  local pipe = assert(io.popen(COMMAND:format(asked.url, processes.tied(work, "QUIT"))))
  local self = setmetatable({ pid = assert(pipe:read "n"), pipe = pipe, log = {} }, host_meta)
  repeat
    local line = pipe:read "L"
    if not line then error("bench: the host does not start: " .. table.concat(self.log), 0) end
    table.insert(self.log, line)
  until line:find "host.ready"
  return self
end

--- Ends it and waits until it and all its processes are gone.
function host_methods:stop()
  if not self.pipe then return end
  os.execute("kill -TERM " .. self.pid)
  table.insert(self.log, self.pipe:read "a")
  local ended = self.pipe:close()
  self.pipe = nil
  if not ended then error("bench: the host failed: " .. table.concat(self.log), 0) end
end

-- --------------------------------------------------------------------- tables

-- Tables for the programs of the bench: emptied, and filled by the server itself, as fast as it
-- can. And a reader that keeps the server from purging them.
local tables = {}
stage.tables = tables

local HOT = { "job", "ready", "lease", "finished", "scheduled", "edge", "child", "met", "attempt",
  "limit", "group", "backlog", "grant" }
local CHUNK = 200000 -- rows of one statement
local NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
local PAYLOAD = '"' .. ("x"):rep(98) .. '"' -- 100 bytes with its quotes

--- Due in a year.
tables.far = ("%s + %d"):format(NOW, 365 * 86400 * 1000000)

--- Reads one value from the database.
function tables.ask(db, sql, ...)
  local row = assert(db:execute(sql, ...))[1]
  return row and row.n
end

--- The server's clock, µs.
function tables.now(db) return tables.ask(db, "SELECT " .. NOW .. " AS n") end

--- Leaves no job, live or ended.
function tables.empty(db)
  for _, name in ipairs(HOT) do assert(db:execute("TRUNCATE nightshift_" .. name)) end
  assert(db:execute "UPDATE nightshift_queue SET limited = FALSE WHERE limited")
end

--- Waits until a statement gives a row, a minute at most; the server's clock then, µs.
function tables.await(db, sql)
  for _ = 1, 12000 do
    if tables.ask(db, sql) then return tables.now(db) end
    assert(db:execute "DO SLEEP(0.005)")
  end
  error("bench: the jobs do not end", 0)
end

--- Takes so many ids, which no other caller gets; gives the first.
function tables.take_ids(db, n)
  local first = tables.ask(db, "SELECT NEXTVAL(nightshift_id) AS n")
  assert(db:execute(("SELECT SETVAL(nightshift_id, %d)"):format(first + n // 100 + 1)))
  return first * 100
end

local function insert(db, n, what, columns)
  for first = 1, n, CHUNK do
    assert(db:execute(("INSERT INTO nightshift_%s SELECT %s FROM seq_%d_to_%d"):format(what, columns, first,
      math.min(first + CHUNK - 1, n))))
  end
end

--- Adds `n` jobs of one kind; fields left out are as in a push. Each field may be an expression
-- with `seq`, 1 to n.
---@param job {queue: integer, name: string?, payload: string?, rank: string?, due: string?} due: else they are ready
function tables.fill(db, n, job)
  local base, rank = tables.take_ids(db, n), job.rank or "155"
  insert(db, n, [[job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes, backoff, timeout,
    created, due, unmet, nonce)]], ("%d + seq, %d, '%s', '%s', 255 - (%s), %s, 10, 3, 5000000, 3600000000, %s, %s, 0,"
    .. " seq"):format(base, job.queue, job.name or "noop", job.payload or PAYLOAD, rank, rank, NOW, job.due or NOW))
  if job.due then
    insert(db, n, "scheduled (run_at, job_id, queue_id, rank, run)", ("%s, %d + seq, %d, %s, 1")
      :format(job.due, base, job.queue, rank))
  else
    insert(db, n, "ready (queue_id, rank, ready_at, job_id, run)", ("%d, %s, %s + seq, %d + seq, 1")
      :format(job.queue, rank, NOW, base))
  end
end

--- Keeps purge from removing rows until it is closed: a transaction that reads, as a
-- backup's.
function tables.hold(open, url)
  local reader = assert(open(url))
  assert(reader:execute "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
  assert(reader._handle:begin())
  assert(reader:execute "SELECT 1 FROM nightshift_meta")
  return reader
end

--- Waits until purge has caught up.
function tables.rest(db)
  for _ = 1, 1200 do
    local row = assert(db:execute "SHOW GLOBAL STATUS LIKE 'Innodb_history_list_length'")[1]
    if tonumber(row.Value) < 1000 then return end
    assert(db:execute "DO SLEEP(0.1)")
  end
  error("bench: purge does not catch up: somebody else has a transaction open", 0)
end

-- ------------------------------------------------------------------- the stage

local methods = {}
local meta = { __index = methods }

local LUA = arg and arg[-1] or "lua5.4" -- a host that loads handlers has no `arg`

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
  return ("mysql://%s@localhost/%s?unix_socket=%s"):format(self.user, database, escaped)
end

--- Makes our tables in a database.
function methods:init(database)
  stage.output_of(("NIGHTSHIFT_URL='%s' %s/bin/nightshift init"):format(self:url(database), self.build))
end

--- `asked`: build, socket, scale. The databases nightshift and floor are there.
function stage.new(asked)
  local self = setmetatable({ build = asked.build, socket = asked.socket, scale = asked.scale }, meta)
  self.user = stage.output_of "id -un"
  self:begin(1)
  self:init "floor"
  self:init "nightshift"
  self.db = assert(nightshift.open(self:url "nightshift"))
  self.server = processes.server(self.db)
  return self
end

local function hardware()
  return {
    processors = tonumber(stage.output_of "nproc"),
    processor = assert(read "/proc/cpuinfo"):match "model name%s*:%s*([^\n]*)" or "processor",
    memory_mb = tonumber(assert(read "/proc/meminfo"):match "MemTotal:%s*(%d+)") // 1024,
    system = stage.output_of "uname -sr",
    load = assert(read "/proc/loadavg"):match "^%S+",
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
  local settings = (read(self.build .. "/bench/settings") or ""):gsub("%s+$", ""):gsub("\n", ", ")
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

--- Bare SQL, the C library, the Lua API: one line each. See floor.c, verbs.c and work.lua for
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
  return self:program("work", what, option_words(options))[1]
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
