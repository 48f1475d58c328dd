-- The processes of the bench: hosts and measuring programs, none of which outlives its parent.
-- Also which processes descend from one, and the processor time that it, or its reaped
-- children, have used. Times are seconds.
local processes = {}

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

return { processes = processes, tables = tables }
