--- Command work: hands the handler files to the host.

local adopt = require "nightshift.cli.adopt"
local core = require "nightshift.core"
local context = require "nightshift.cli.context"
local options = require "nightshift.options"

-- Loaded by the few commands that need them.
local hosts = options.later(function() return require "nightshift.hosts" end)

local work = { commands = {} }

--- Adds the command to the parser.
function work.define(parser)
  local command = parser:command("work", "Run jobs with the handlers of Lua scripts.")
  command:argument("files", "Handler files, or folders of them."):args "+"
  command:option("--workers", "Worker processes, 1 to 20000. Default: one per processor."):argname "N"
    :convert(context.integer)
  command:option("--queues", "Queues with their weights, like mail=3,default. Default: every queue.")
    :argname "QUEUES"
  command:option("--only", "Names of jobs, with commas: claims only these, as far as there are handlers for them. "
    .. "Default: all that have one.")
    :argname "NAMES"
  command:option("--adopt", "Lua file with the mapping of an existing table, or a list of them: serves those tables, "
    .. "and queues only with --queues. Default: none."):count("*"):argname "FILE"
  command:option("--reserve", "Workers that take jobs of one queue only, like fast=2; more than once, or with commas. "
    .. "Default: none.")
    :count("*"):argname "QUEUE=N"
  command:flag("--strict", "By priority alone, and one queue after the other in the order of --queues.")
  command:option("--history", "Which ended jobs leave a row: all, or only children and jobs that failed.")
    :choices { "all", "failed" }:default "all"
  command:flag("--drain", "Exit when nothing that this host may run is ready, running or due soon; with status 3 when "
    .. "its queues have jobs, ready or due soon, that no script here can run.")
  command:option("--drain-within", 'What "soon" is, like 0 or "5m"; goes with --drain. Default: 60s.'):argname "TIME"
  command:option("--drain-timeout", "How long running jobs may take at the end. Default: 30s."):argname "TIME"
  command:flag("--single", "Exit at once, with status 0, when another host of this database runs on this machine.")
  command:option("--memory", "What a job may use in Lua, like 64M. Default: no limit."):argname "SIZE"
  command:option("--recycle", "Replaces a worker after so many jobs. Default: never."):argname "JOBS"
    :convert(context.integer)
  command:option("--recycle-memory", "Replaces a worker that has more memory resident after a job, like 256M. "
    .. "Default: never.")
    :argname "SIZE"
  command:option("--max-children", "Children that a run may spawn. Default: 2000."):convert(context.integer)
    :argname "N"
  command:option("--isolation", "What a worker process runs: one job after the other, or one job only. "
    .. "Default: worker.")
    :choices { "worker", "job" }
  command:option("--user", "Whom the workers run as, when the host is root. Default: the user of the host.")
    :argname "NAME"
  command:flag("--allow-setuid", "Programs that handlers start may be setuid or setgid, as sendmail's helpers are.")
  command:option("--shared", 'Size of nightshift.shared, like 16M or "16M,evict". Default: $NIGHTSHIFT_SHARED, or 1M.')
    :argname "SIZE"
  command:flag("--keep-env", "Leave $NIGHTSHIFT_URL and $MYSQL_PWD to workers and what they start.")
  command:option("--log", "Form of the log lines. Default: logfmt, and fields of the journal under systemd.")
    :choices { "logfmt", "json" }
  command:option("--output", "What handlers print: raw, to stdout and stderr, or lines of the log; "
    .. "without: raw, if the log is logfmt."):choices { "raw", "log" }
  command:option("--log-done", "A line of the log for each run that ends well too, at most 100 a second.")
    :choices { "on", "off" }:default "off"
  command:option("--http", "Serves /metrics, /livez and /readyz there, like 127.0.0.1:9108; a port alone is of the "
    .. "loopback. Default: nowhere."):argname "ADDRESS:PORT"
end

-- "name=number"; the number must be from 1 to `most`.
local function parse_number(option, what, name, text, most)
  context.check_name(option .. ": queue name", name, options.MAX_QUEUE)
  local number = math.tointeger(tonumber(text))
  if number and number >= 1 and number <= most then return number end
  context.fail(context.USAGE, "%s: %s of '%s' must be from 1 to %d, got '%s'", option, what, name, most, text)
end

local function parse_feed(text)
  local name, weight = text:match "^(.*)=([^=]*)$"
  name, weight = name or text, weight or "1"
  return { name = name, weight = parse_number("--queues", "the weight", name, weight, 1000) }
end

--- "a=3,b" as {{name = "a", weight = 3}, {name = "b", weight = 1}}.
---@param text string|nil
---@return {name: string, weight: integer}[]|nil
function work.parse_queues(text)
  if not text then return nil end
  local feeds, seen = {}, {}
  for item in (text .. ","):gmatch "([^,]*)," do
    local feed = parse_feed(item)
    if seen[feed.name] then context.fail(context.USAGE, "--queues: '%s' is named twice", feed.name) end
    seen[feed.name] = true
    feeds[#feeds + 1] = feed
  end
  return feeds
end

--- {"a=3,b=1", "c=2"} as {{name = "a", workers = 3}, …}; whether there are as many
-- workers, the host checks.
---@param texts string[]
---@return {name: string, workers: integer}[]|nil
function work.parse_reserves(texts)
  local reserves, seen = {}, {}
  for item in (table.concat(texts, ",") .. ","):gmatch "([^,]*)," do
    local name, workers = item:match "^(.*)=([^=]*)$"
    if #texts == 0 then return nil end
    if not name then context.fail(context.USAGE, "--reserve: '%s' is not QUEUE=N", item) end
    if seen[name] then context.fail(context.USAGE, "--reserve: '%s' is named twice", name) end
    seen[name] = true
    reserves[#reserves + 1] = { name = name, workers = parse_number("--reserve", "the workers", name, workers, 20000) }
  end
  return reserves
end

--- "a,b" as {"a", "b"}.
---@param text string|nil
---@return string[]|nil
function work.parse_only(text)
  if not text then return nil end
  local names = {}
  for name in (text .. ","):gmatch "([^,]*)," do
    context.check_name("--only: name", name, options.MAX_NAME)
    names[#names + 1] = name
  end
  return names
end

-- Refuses shares with --strict: one queue after the other leaves nothing to share.
local function check_strict(args, queues)
  if not args.strict then return end
  if not queues then
    context.fail(context.USAGE, "--strict: say in which order the queues are served, like --queues urgent,mail")
  end
  for _, feed in ipairs(queues) do
    if feed.weight ~= 1 then
      context.fail(context.USAGE, "--strict: queues are served in their order, so '%s' cannot have a weight", feed.name)
    end
  end
  return true
end

local function microseconds(text, what)
  return text and context.checked(options.duration, text, what)
end

local function check_workers(n)
  if n and (n < 1 or n > 20000) then
    context.fail(context.USAGE, "--workers must be from 1 to 20000, got %d", n)
  end
  return n
end

local function bytes(text, option)
  return text and context.checked(options.size, text, option)
end

local function check_count(n, option)
  if n and n < 1 then context.fail(context.USAGE, "%s must be at least 1, got %d", option, n) end
  return n
end

--- "127.0.0.1:9108", "[::1]:9108", ":9108", "9108"
local function check_http(text)
  local port = text and (text:match "^(%d+)$" or text:match ":(%d+)$")
  if text and not (port and tonumber(port) <= 65535 and #text < 120) then
    context.fail(context.USAGE, "--http: '%s' is not ADDRESS:PORT, as 127.0.0.1:9108 is", text)
  end
  return text
end

local SOON = "60s" -- a drain waits for jobs due so soon

local LOOKS = 3 -- at hosts, a quarter of a second apart: one may be about to end

--- Is there a host of this database on this machine, with --single or without?
local function has_host(db)
  local file <close> = io.open "/proc/sys/kernel/random/boot_id"
  local boot = file and file:read "l" or "?"
  for i = 1, LOOKS do
    if i > 1 then core.sleep(0.25) end
    if #context.must(db._handle:execute("@report_hosts", boot)) == 0 then return false end
  end
  return true
end

--- With --single: has another host of this machine been faster? Of hosts that start at once one
-- gets the name of the place, which is the same however the database is named.
local function is_second(host, args)
  if not args.single then return false end
  local db <close> = context.connect(args)
  local ours, message = host.single(context.must(db._handle:execute "@report_place")[1].place)
  if ours == nil then context.fail(context.FAILURE, "--single: %s", message) end
  if ours and not has_host(db) then return false end
  io.stderr:write "nightshift: --single: another host of this database runs on this machine\n"
  return true
end

--- The tables of --adopt as the host takes them, and the queues with their own.
local function read_tables(files, queues)
  local tables = (adopt.mappings("--adopt", files))
  for _, one in ipairs(tables) do
    queues = queues or {}
    queues[#queues + 1] = { name = one.table, weight = 1 }
  end
  return tables, queues
end

local NARROW = 80 -- columns that a line of progress wants

--- With --drain on a terminal: how many jobs there are to run, at least 1. nil: that is not shown,
-- as in a form of the log that is for programs, or with adopted tables, whose rows are not counted.
local function drain_total(args, config)
  local shown = config.drain and args.log ~= "json" and #config.adopt == 0 and (core.terminal(2) or 0) >= NARROW
  if not shown or not require "nightshift.cli.output".progress "jobs".active then return nil end
  local db <close> = context.connect(args)
  local names = {}
  for i, feed in ipairs(config.queues or {}) do names[i] = feed.name end
  local list = config.queues and core.encode(core.array(names)) or core.null
  local row = context.must(db._handle:execute("@report_drain", list, list, config.drain_within, list, list))[1]
  return math.max(1, row.n)
end

local LEFT = 3 -- exit code: --drain left jobs that no script here can run

--- With --drain, after a host that had nothing left to do: are there jobs that it could
-- not do? Says which.
local function left_over(args, config, known)
  local db <close> = context.connect(args)
  local names, queues = {}, nil
  for name in known:gmatch "[^\n]+" do names[#names + 1] = name end
  for _, feed in ipairs(config.queues or {}) do
    queues = queues or {}
    queues[#queues + 1] = feed.name
  end
  local rows = context.must(hosts().left(db._handle, names, queues, config.drain_within))
  if #rows == 0 then return 0 end
  for _, row in ipairs(rows) do
    row.near = hosts().near(row.name, names)
    io.stderr:write("nightshift: jobs are left that no script here can run: ", hosts().unserved_text(row), "\n")
  end
  io.stderr:write("nightshift: known here: ", #names > 0 and table.concat(names, ", ") or "nothing", "\n")
  return LEFT
end

function work.commands.work(args)
  local queues = work.parse_queues(args.queues)
  local strict = check_strict(args, queues)
  local tables
  tables, queues = read_tables(args.adopt, queues)
  local config = {
    adopt = tables,
    workers = check_workers(args.workers),
    queues = queues,
    only = work.parse_only(args.only),
    reserve = work.parse_reserves(args.reserve),
    strict = strict,
    forget_done = args.history == "failed",
    drain = args.drain or args.drain_within ~= nil,
    drain_within = microseconds(args.drain_within or SOON, "--drain-within"),
    drain_timeout = microseconds(args.drain_timeout, "--drain-timeout"),
    memory = bytes(args.memory, "--memory"),
    recycle = check_count(args.recycle, "--recycle"),
    max_children = check_count(args.max_children, "--max-children"),
    recycle_memory = bytes(args.recycle_memory, "--recycle-memory"),
    user = args.user,
    allow_setuid = args.allow_setuid,
    isolation = args.isolation,
    shared = args.shared,
    keep_env = args.keep_env,
    log = args.log,
    output = args.output,
    log_done = args.log_done == "on",
    http = check_http(args.http),
    files = args.files,
  }
  config.url = args.url or (options.address() or {}).url
  if config.url and config.url:find "[?&]shard=" then
    context.connect(args):close() -- it checks the number
    config.url = require "nightshift.sharded.shards".strip(config.url)
  end
  local there, host = pcall(require, "nightshift.host")
  if not there then
    context.fail(context.FAILURE, "work needs the program nightshift; this is plain Lua with the module only")
  end
  if is_second(host, args) then return 0 end
  config.progress = drain_total(args, config)
  local code, known = host.work(config)
  if code == context.UNREACHABLE then context.complain("%s", context.origin(args)) end
  if code ~= 0 or not config.drain or known == nil then return code end
  return left_over(args, config, known)
end

return work
