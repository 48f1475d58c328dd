--- The contenders of bench/designs/strategies.lua: each published design as it is, the
--- same table adopted, and Nightshift's own tables. Knows how each is prepared and run.
---
--- The tables come from spec/support/designs.lua. Workers are processes with a connection of
--- their own (bench/designs/strategies.c); for "host" they belong to one `nightshift work`.
local designs = require "spec.support.designs"
local nightshift = require "nightshift"
local stage = require "bench.lib.stage"

local processes, tables = stage.processes, stage.tables

local contenders = {}

---@class bench.Contender
---@field name string what ONLY calls it
---@field group string the design; those of one group share a plot
---@field what string
---@field way string as bench/designs/strategies.c wants it; "host": under a host
---@field table string?
---@field batch integer?
---@field advised boolean? with the index that adopt advises
---@field beside string? the contender that its figures are divided by
---@field same boolean? dies and is blocked as the one before it

--- In the order of the tables. The first of a group is the design as published.
contenders.groups = {
  { name = "migration_task", title = "UPDATE … LIMIT under a claim id" },
  { name = "job_queue", title = "FOR UPDATE, held while it runs" },
  { name = "queue_table", title = "SKIP LOCKED, state in the row" },
  { name = "worker_queue", title = "SKIP LOCKED, held while it runs" },
  { name = "checkout", title = "named lock" },
  { name = "own", title = "Nightshift's own tables" },
}

contenders.list = {
  { name = "migration", group = "migration_task", what = "published", way = "bare", batch = 10 },
  { name = "migration_host", group = "migration_task", what = "adopted, one host", way = "host", beside = "migration" },
  { name = "for_update", group = "job_queue", what = "published", way = "bare" },
  { name = "for_update_host", group = "job_queue", what = "adopted, one host", way = "host", beside = "for_update" },
  { name = "skip_inside", group = "queue_table", what = "published", way = "bare" },
  { name = "skip_outside", same = true, group = "queue_table", what = "state written after the lock",
    way = "outside", beside = "skip_inside" },
  { name = "skip_indexed", same = true, group = "queue_table", what = "published, advised index", way = "bare",
    advised = true, beside = "skip_inside" },
  { name = "skip_host", group = "queue_table", what = "adopted, advised index, one host", way = "host",
    advised = true, beside = "skip_indexed" },
  { name = "worker_queue", group = "worker_queue", what = "published", way = "bare" },
  { name = "worker_host", group = "worker_queue", what = "adopted, one host", way = "host", beside = "worker_queue" },
  { name = "checkout", group = "checkout", what = "published", way = "bare" },
  { name = "checkout_host", group = "checkout", what = "adopted, one host", way = "host", beside = "checkout" },
  { name = "own", group = "own", what = "a handle each, one by one", way = "own" },
  { name = "own_batch", same = true, group = "own", what = "a handle each, blocks of 10", way = "own", batch = 10 },
  { name = "host", group = "own", what = "one host", way = "host" },
}

local LEAD = 0.3 -- seconds of a host before it counts

local DONE = { -- the columns of a done row, for many at once
  migration_task = "status = 'complete'", job_queue = "state = 'DONE'", queue_table = "status = 'processed'",
  worker_queue = "is_done = TRUE", checkout = "last_checkout = NOW(), done_at = NOW()",
}

-- Open rows of a table, at most. Without the advised index the published claim locks all of
-- them. The cost grows with the workers times the rows: 200 workers at 20,000 rows are not done
-- in minutes.
local MOST = { queue_table = 1000 }
contenders.most = ("at most %d of queue_table, five times as many under a host"):format(MOST.queue_table)

function contenders.title(c)
  for _, group in ipairs(contenders.groups) do
    if group.name == c.group then return ("%s: %s"):format(group.title, c.what) end
  end
end

-- ----------------------------------------------------------------- the tables

local function advised_index(s, name)
  local t = assert(s.db:adopt(designs.map(name, { alone = name == "worker_queue" or nil })))
  local sql = assert(t:advice() or nil, "bench: no index is advised for " .. name)
  assert(s.db:execute((sql:gsub(";%s*$", ""))))
end

local function create(s, c, rows)
  designs.create(s.db, c.group, 0)
  designs.fill(s.db, c.group, rows)
  if c.advised then advised_index(s, c.group) end
  assert(s.db:execute("ANALYZE TABLE " .. c.group))
end

local function queue_id(s)
  assert(assert(s.db:queue "bench"):push "noop") -- makes it
  return tables.ask(s.db, "SELECT id AS n FROM nightshift_queue WHERE name = 'bench'")
end

-- Ways to fill a table so that many rows have just been done, and, at the end, `rows` are open.
-- Each gives the first id of its rows, and their number.
local fill = {}

function fill.own(s, _, rows, buried)
  if buried > 0 then
    local command = ("%s/bench/verbs '%s' claim jobs=%d batch=1000"):format(s.build, s:url "nightshift", buried)
    stage.output_of(processes.tied(command))
  end
  local queue = queue_id(s)
  assert(s.db:execute "DELETE FROM nightshift_ready")
  assert(s.db:execute "DELETE FROM nightshift_job")
  tables.fill(s.db, rows, { queue = queue, name = "nap" })
  return tables.ask(s.db, "SELECT MIN(id) AS n FROM nightshift_job"), rows
end

function fill.design(s, c, rows, buried)
  if buried > 0 then
    assert(s.db:execute(("UPDATE %s SET %s WHERE id <= %d"):format(c.group, DONE[c.group], buried)))
  end
  return 1, rows + buried
end

-- --------------------------------------------------------------------- a run

local function command(s, verb, c, options)
  local words = {}
  for name, value in pairs(options) do words[#words + 1] = ("%s=%d"):format(name, value) end
  table.sort(words)
  return processes.tied(("%s/bench/strategies '%s' nightshift '%s' %s %s %s %s"):format(s.build, s.socket,
    s:url "nightshift", verb, c.way, c.group, table.concat(words, " ")))
end

local function status(s, name)
  return tonumber(assert(s.db:execute(("SHOW GLOBAL STATUS LIKE '%s'"):format(name)))[1].Value)
end

-- Many rows may have changed in one transaction, so none may be left.
local function await_purge(s)
  for _ = 1, 100 do
    if status(s, "Innodb_history_list_length") == 0 then return end
    assert(s.db:execute "DO SLEEP(0.05)")
  end
end

-- Of a file with an id in each line: executions beyond the first of each job, and jobs.
local function count_again(path)
  local seen, again, begun = {}, 0, 0
  for id in io.lines(path) do
    if seen[id] then again = again + 1 else begun = begun + 1 end
    seen[id] = true
  end
  return again, begun
end

local function write(path, ...)
  local file <close> = assert(io.open(path, "w"))
  assert(file:write(...))
end

-- The handler of a host for all names. It records that its job has begun, in one write to a
-- file of many writers, and sleeps as long as a job takes.
local HANDLERS <const> = [[
local core = require "nightshift.core"
local path <const>, seconds <const> = %q, %.6f
local file
local function nap(job)
  if not file then
    file = assert(io.open(path, "ab"))
    file:setvbuf "full" -- one write at each flush
  end
  file:write((job.row or job.id), "\n")
  file:flush()
  core.sleep(seconds)
end
return { nap = nap, migrate = nap, job_queue = nap, queue_table = nap, worker_queue = nap, checkout = nap }
]]

-- The files of a host: its handlers, their log, and the table that it adopts.
local function host_files(c, asked)
  local files = { log = os.tmpname(), jobs = os.tmpname(), mapping = os.tmpname() }
  write(files.jobs, HANDLERS:format(files.log, asked.job_ms / 1000))
  write(files.mapping, ("return require 'spec.support.designs'.map(%q, { alone = %q })"):format(c.group,
    c.group == "worker_queue"))
  return files
end

local function done_rows(s, c)
  if c.group == "own" then return tables.ask(s.db, "SELECT COUNT(*) AS n FROM nightshift_finished") end
  local done = c.group == "checkout" and "done_at IS NOT NULL" or DONE[c.group]
  return tables.ask(s.db, ("SELECT COUNT(*) AS n FROM %s WHERE %s"):format(c.group, done))
end

-- The counts so far.
local function counts(s, c)
  return { at = nightshift.clock(), jobs = done_rows(s, c), waits = status(s, "Innodb_row_lock_waits"),
    deadlocks = status(s, "Innodb_deadlocks") }
end

-- From a moment after the host has begun.
local function watch(s, c, asked)
  assert(s.db:execute("DO SLEEP(?)", LEAD))
  local first = counts(s, c)
  assert(s.db:execute("DO SLEEP(?)", asked.ms / 1000))
  local last = counts(s, c)
  local line = { workers = asked.workers, seconds = last.at - first.at }
  for _, name in ipairs { "jobs", "waits", "deadlocks" } do line[name] = last[name] - first[name] end
  line.rate = line.jobs / line.seconds
  return line
end

-- The jobs are there when the host comes, and it begins at once.
local function under_host(s, c, asked)
  local files = host_files(c, asked)
  local line
  do
    local _ <close> = processes.start_host { url = s:url "nightshift", build = s.build, workers = asked.workers,
      script = files.jobs, options = c.group ~= "own" and "--adopt " .. files.mapping or nil }
    line = watch(s, c, asked)
  end
  line.again, line.begun = count_again(files.log)
  for _, path in pairs(files) do os.remove(path) end
  return line
end

local function by_program(s, c, asked, first, rows)
  return assert(nightshift.decode(stage.output_of(command(s, "work", c, {
    workers = asked.workers, batch = c.batch or 1, ms = asked.ms, job_us = asked.job_ms * 1000 // 1,
    gap_us = asked.gap_ms * 1000 // 1, first = first, rows = rows,
  }))))
end

-- How many rows are open at the beginning; a host needs more.
local function open_rows(c, asked)
  if c.way == "host" then return asked.rows * 5 end -- which has no claim that sorts them
  return math.min(asked.rows, MOST[c.group] or asked.rows)
end

local function run(s, c, asked, open, buried)
  local first, rows = fill[c.group == "own" and "own" or "design"](s, c, open, buried)
  if not asked.blocked then await_purge(s) end
  if c.way == "host" then return under_host(s, c, asked) end
  return by_program(s, c, asked, first, rows)
end

--- Runs a contender once: the figures of bench/designs/strategies.c.
---@param s table the stage
---@param c bench.Contender
---@param asked table workers, rows, ms, job_ms, gap_ms; for purge: buried, and blocked: a
---transaction reads all the time
---@return table
function contenders.work(s, c, asked)
  local open, buried = open_rows(c, asked), asked.buried or 0
  if c.group == "own" then tables.empty(s.db) else create(s, c, open + buried) end
  s:calm()
  local line
  do
    local _ <close> = asked.blocked and tables.hold(nightshift.open, s:url "nightshift") or nil
    line = run(s, c, asked, open, buried)
  end
  if line.begun >= open then error(("bench: %s has run out of rows; give it more --rows"):format(c.name), 0) end
  return line
end

-- --------------------------------------------------------------- many rows

local GROUP, STEP = "queue_table", 500000
local OPEN = 100 -- of so many rows one

--- The question to a large table, in words.
function contenders.many(rows)
  return ("%s rows, of which one in %d is open, with %d priorities. With the published index a claim sorts all open"
    .. " rows; the advised one has them in order. Servers before 10.8 read DESC in an index and ignore it. There"
    .. " no index has *highest priority first, then lowest id* in order, so a claim sorts the open rows."):format(
    rows, OPEN, 1000)
end

local function create_many(s, rows)
  designs.create(s.db, GROUP, 0)
  for from = 1, rows, STEP do
    assert(s.db:execute(([[INSERT INTO queue_table (id, name, priority, status)
      SELECT seq, 'resize', seq * 7919 %% 1000, IF(seq %% %d, 'processed', 'queued')
      FROM seq_%d_to_%d]]):format(OPEN, from, math.min(from + STEP - 1, rows))))
  end
  assert(s.db:execute("ANALYZE TABLE " .. GROUP))
end

-- Opens done rows again; nothing of them is left to purge.
local function open_many(s)
  assert(s.db:execute(([[UPDATE queue_table SET status = 'queued', attempts = 30, retry_after = NULL
    WHERE id %% %d = 0 AND status <> 'queued']]):format(OPEN)))
  await_purge(s)
end

--- Runs each contender of that table once, with the published index and then with the advised
-- one. The result has, by name and number of workers, the figures of
-- bench/designs/strategies.c.
---@param s table the stage
---@param list bench.Contender[]
---@param asked table many, many_workers, ms, job_ms
---@param tell fun(what: string)
function contenders.at_many(s, list, asked, tell)
  local found = {}
  tell "filling"
  create_many(s, asked.many)
  for _, advised in ipairs { false, true } do
    if advised then
      tell "adding the index"
      advised_index(s, GROUP)
    end
    for _, c in ipairs(list) do
      if c.group == GROUP and (c.advised or false) == advised and c.way == "bare" then
        found[c.name] = {}
        tell(c.name)
        for _, workers in ipairs(asked.many_workers) do
          open_many(s)
          found[c.name][workers] = by_program(s, c, { workers = workers, ms = asked.many_ms, job_ms = asked.job_ms,
            gap_ms = 0 }, 1, asked.many)
        end
      end
    end
  end
  return found
end

-- ------------------------------------------------------------------- deaths

local OVERDUE, LIMIT = 3, 5 -- seconds

--- The question to a dead worker's rows, in words.
contenders.death = ("Claims are overdue after %d s here, in designs that have that. never: not within %d s.")
  :format(OVERDUE, LIMIT)

-- Makes the rows; the first id of those that there are.
local function prepare(s, c)
  if c.group ~= "own" then
    create(s, c, c.batch or 1)
    return 1
  end
  tables.empty(s.db)
  return (fill.own(s, c, c.batch or 1, 0))
end

local function dying(s, c, first)
  local rows = c.batch or 1
  return assert(io.popen(command(s, "death", c, { batch = rows, rows = rows, first = first, overdue = OVERDUE,
    limit = LIMIT })))
end

-- Those that can be at one time: no two at one table. They keep their order.
local function parties(list)
  local all = {}
  for _, c in ipairs(list) do
    local i = 1
    while all[i] and all[i][c.group] do i = i + 1 end
    all[i] = all[i] or {}
    all[i][c.group] = true
    table.insert(all[i], c)
  end
  return all
end

--- Kills one worker of each that has rows: by name, `free_s`, the seconds until another
-- had one of them, or nothing of the kind. A design's new table takes all jobs of ours with it, so
-- these are made last, and none begins before.
function contenders.deaths(s, list)
  local found = {}
  for _, party in ipairs(parties(list)) do
    local firsts, pipes = {}, {}
    for i, c in ipairs(party) do firsts[i] = prepare(s, c) end
    for i, c in ipairs(party) do pipes[i] = dying(s, c, firsts[i]) end
    for i, c in ipairs(party) do
      found[c.name] = assert(nightshift.decode(pipes[i]:read "a"))
      assert(pipes[i]:close(), "bench: a death failed")
    end
  end
  return found
end

return contenders
