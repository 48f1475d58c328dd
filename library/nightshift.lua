---@meta nightshift
-- luacheck: ignore 212 241
--- The public interface of Nightshift, for editors (LuaCATS). Nothing here
--- runs. Verbs give a value, or nil, a message and a code; misuse raises.
---
--- Durations are seconds, or texts such as "5m", "1h30m", "500ms". Times come back as seconds.
--- An instant is seconds since 1970, UTC, by the server's clock.

local nightshift = {}

---@alias nightshift.Duration number|string

---@alias nightshift.Code
---| "STALE"     # the claim is lost; another holder settles this job
---| "GONE"      # the server is unreachable; nothing is known written
---| "BUSY"      # retries are exhausted; try again later
---| "DENIED"    # the server refuses this user
---| "SCHEMA"    # tables missing, or of an older or newer version
---| "SERVER"    # not a MariaDB 10.6 or later, or a Galera node that must not write
---| "INVALID"   # a bad value
---| "TOO_BIG"   # a value over its size limit
---| "DUPLICATE" # the unique key is taken
---| "NOT_FOUND" # no such job or queue
---| "STATE"     # the verb is not allowed in the job's state
---| "FULL"      # a limit of the queue is reached
---| "NOMEM"     # out of memory
---| "SQL"       # the server refused a statement of the caller
---| "FAILED"    # of t:drain: a handler has failed

---@alias nightshift.State
---| "scheduled" # due later
---| "ready"     # may be claimed
---| "running"   # claimed
---| "waiting"   # for another job
---| "done"      # ended well
---| "dead"      # given up; `reason` says why
---| "cancelled" # ended from outside

--- Version of the library.
---@type string
nightshift._VERSION = ""

--- JSON null inside payloads, SQL NULL as a parameter. Truthy.
---@type lightuserdata
nightshift.null = nil

---@class nightshift.OpenOptions
---@field url string? mysql:// or mariadb://user:password@host:port/database?option=value
---@field host string|string[]|nil a list is a primary and its replicas: "a", "a:3307", "[::1]:3307", "/run/s.sock"
---@field port integer?
---@field socket string? path of a unix socket
---@field user string?
---@field password string?
---@field database string?
---@field file string? my.cnf to read instead of the standard ones
---@field group string? group of my.cnf, read after [client]
---@field tls "off"|"verify"|"trust"|nil default: verify to other machines, off to this one
---@field ca string? PEM file
---@field cert string? PEM file
---@field key string? PEM file
---@field connect_timeout nightshift.Duration? default 3 s
---@field read_timeout nightshift.Duration? how long a reply may take; default 30 s, `nightshift work` 20 s
---@field max_payload integer? bytes of JSON; default 1 MiB
---@field max_children integer? that a run may spawn; default 2000
---@field history "all"|"failed"|nil "failed": jobs that are done and have no parent leave no
---history; default "all"
---@field no_schema boolean? skip the check of the tables' version, for migrate
---@field no_look boolean? opening gives back no claims of dead holders: hosts do so

--- Opens a database handle. Without an address: $NIGHTSHIFT_URL, and without
--- that the private server of the working directory.
---@param where string|nightshift.OpenOptions|nil
---@return nightshift.Db? db
---@return string? message
---@return nightshift.Code? code `GONE`, `DENIED`, `SCHEMA`, `SERVER`, `INVALID`
function nightshift.open(where) end

---@class nightshift.ShardOptions: nightshift.OpenOptions
---@field shard integer? the number of that database, 0 to 89; else it is learnt when all are first reached

--- Several databases as one. Verbs on a job find the database of its id. Verbs on queues, filters and
--- lists are of all; `missing` of what they give is a list of databases that are away. Trees,
--- transactions, unique keys, locks and claims stay within one database.
---@class nightshift.Sharded: nightshift.Db
---@field shard fun(self: nightshift.Sharded, number: integer): nightshift.Db?, string?, nightshift.Code? one of them
---@field of_key fun(self: nightshift.Sharded, key: string|integer): nightshift.Db?, string?, nightshift.Code? that with
---the jobs of a key
---@field shards fun(self: nightshift.Sharded): {shard: integer?, place: string, away: string?}[] all, in the order of
---the list

--- Opens several databases as one, each with a number: see doc/sharding.md.
---@param list (string|nightshift.ShardOptions)[]? URLs, with `shard=N` in them; default: those of $NIGHTSHIFT_URL, with
---blanks between them
---@return nightshift.Sharded? db
---@return string? message
---@return nightshift.Code? code as of open
function nightshift.sharded(list) end

--- Monotonic seconds with an unknown start, for measuring.
---@return number
function nightshift.clock() end

--- Marks a table as a JSON array, so that an empty one becomes `[]`.
---@generic T: table
---@param t T
---@return T
function nightshift.array(t) end

--- JSON text of a value. Integers are exact.
---@param value any
---@param max_bytes integer? refuse a longer text
---@return string? text
---@return string? message names the path of the bad value
---@return nightshift.Code? code `INVALID`, `TOO_BIG`
function nightshift.encode(value, max_bytes) end

--- Value of a JSON text; null becomes nightshift.null.
---@param text string
---@return any value
---@return string? message
---@return nightshift.Code? code `INVALID`
function nightshift.decode(text) end

---@class nightshift.BackgroundDefinition
---@field start fun(job: nightshift.Job): any starts the operation and returns it
---@field poll fun(job: nightshift.Job, operation: any): any returns the result, or job:again()
---@field on_timeout (fun(job: nightshift.Job, operation: any): any)? called in place of the last "not yet"; what it
--- returns is the result; `again`, `fail` and a raise mean dead, *poll deadline*
---@field every nightshift.Duration? pause between polls; default 5 s
---@field growth number? factor from pause to pause; default 1
---@field max_every nightshift.Duration? the longest pause; default 1 h
---@field jitter number? 0 to 1: a pause is up to this part of itself shorter or longer; default 0.1
---@field deadline nightshift.Duration? after this a poll is dead; it has one last look then
---@field max_polls integer? after so many polls it is dead
---@field max_attempts integer? of the poll: errors before it is dead
---@field max_crashes integer? of the poll: workers that die of it before it is dead
---@field wait boolean? the job ends as its poll ends, with its result; else it is done once started

--- Two handlers in one: the parent starts a slow operation elsewhere, a child
--- polls it; neither holds a worker in between.
---@param definition nightshift.BackgroundDefinition
---@return table handler for a handler file
function nightshift.background(definition) end

--- Has a function called in each worker of a host: at its start, before its first job; at its
--- orderly end; or around each job. All functions of an end together have a second. `job.start`
--- gets the job; `job.done` gets job, result and seconds; `job.failed` gets job, error and
--- seconds; `job.dead` gets job, reason and error. Called while a script is loaded. An error is
--- logged, and the worker goes on.
---@param event "worker.start"|"worker.stop"|"job.start"|"job.done"|"job.failed"|"job.dead"
---@param fn fun(job: nightshift.Job?, ...)
function nightshift.on(event, fn) end

--- Raises, anywhere below a handler: the job is dead at once, as by `job:discard`.
---@param reason any
function nightshift.discard(reason) end

--- Raises, anywhere below a handler: the attempt has failed, and the next comes after `delay`.
---@param delay nightshift.Duration
---@param err any
function nightshift.retry_in(delay, err) end

--- The memory that the processes of one host share. These are its workers; in plain Lua, a
--- process and the children it forks after the first use. Lost when all have ended. Keys are 1
--- to 255 bytes. Each verb happens whole or not at all, also when its process is killed.
---@class nightshift.Shared
local Shared = {}

---@type nightshift.Shared
nightshift.shared = nil

---@alias nightshift.SharedValue string|number|boolean|table

--- Makes the memory before its first use, in plain Lua: "4M", or "4M,evict" to
--- give the least recently used away when it is full. Default:
--- $NIGHTSHIFT_SHARED, or 1M. In a host `nightshift work --shared` has done it.
---@param size string? from 64K to 64G
---@return true? ok
---@return string? message
---@return nightshift.Code? code `STATE` when it is there already, `INVALID`
function Shared:open(size) end

--- The value of a key, a bare nil when there is none. A table is a copy.
---@param key string
---@return nightshift.SharedValue? value
---@return string? message
---@return nightshift.Code? code `INVALID`, `BUSY`
function Shared:get(key) end

--- Sets the value of a key. Tables are kept as JSON.
---@param key string
---@param value nightshift.SharedValue
---@param ttl nightshift.Duration? default: it stays
---@return true? ok
---@return string? message
---@return nightshift.Code? code `FULL`, `TOO_BIG`, `INVALID`, `BUSY`
function Shared:set(key, value, ttl) end

--- Sets the value of a key that has none.
---@param key string
---@param value nightshift.SharedValue
---@param ttl nightshift.Duration?
---@return boolean? added false: the key has a value, which stays
---@return string? message
---@return nightshift.Code? code as of set
function Shared:add(key, value, ttl) end

--- Adds to a number. Keeps the ttl.
---@param key string
---@param by number? default 1
---@param init number? start of a key without a value; default 0
---@return number? sum
---@return string? message
---@return nightshift.Code? code `INVALID` for no number or an overflow, `FULL`
function Shared:incr(key, by, init) end

--- Sets the value if it equals `old`; nil stands for no value. Keeps the ttl.
---@param key string
---@param old string|number|boolean|nil
---@param new nightshift.SharedValue?
---@return boolean? swapped
---@return string? message
---@return nightshift.Code? code as of set
function Shared:cas(key, old, new) end

---@param key string
---@return boolean? deleted false: there was nothing
---@return string? message
---@return nightshift.Code? code
function Shared:delete(key) end

--- Seconds until a key expires, math.huge for never, nil for no such key.
---@param key string
---@return number? seconds
---@return string? message
---@return nightshift.Code? code
function Shared:ttl(key) end

--- The keys, or only keys with a prefix, in no order.
---@param prefix string?
---@return string[]? keys
---@return string? message
---@return nightshift.Code? code
function Shared:keys(prefix) end

--- A mutex or semaphore of this host. Called with a function it runs that while
--- it holds a unit, and gives its results, or nil, message, `BUSY`:
--- `nightshift.mutex "account" (function() … end)`.
---@class nightshift.Lock
---@overload fun(fn: fun(...): ..., ...): ...
local Lock = {}

--- Waits for a unit and takes it: `local held <close> = assert(lock:acquire(5))`.
--- Raises when this process has one already.
---@param timeout nightshift.Duration? default: the lock's own, 30 s
---@return nightshift.Lock? lock itself
---@return string? message names the holder
---@return nightshift.Code? code `BUSY`, `INVALID`, `FULL`
function Lock:acquire(timeout) end

--- Gives the unit back; raises when this object does not hold one.
---@return true? ok
---@return string? message
---@return nightshift.Code? code `BUSY`
function Lock:release() end

--- One holder at a time among the processes of this host. A job's locks are given back at its
--- end, and a process's when it dies.
---@param name string 1 to 100 bytes; need not be declared
---@param opts {timeout: nightshift.Duration?}?
---@return nightshift.Lock
function nightshift.mutex(name, opts) end

--- At most `n` holders. All callers of a name give the same `n`.
---@param name string
---@param n integer 1 to 1000
---@param opts {timeout: nightshift.Duration?}?
---@return nightshift.Lock
function nightshift.semaphore(name, n, opts) end

--- A database handle: one connection, for one thread of control at a time.
--- `local db <close> = …` closes it.
---@class nightshift.Db
local Db = {}

--- A handle on a queue, which need not exist yet.
---@param name string 1 to 64 bytes, no control characters
---@return nightshift.Queue? queue
---@return string? message
---@return nightshift.Code? code `INVALID`
function Db:queue(name) end

--- All facts about a job, live or finished.
---@param id integer
---@return nightshift.JobInfo? info
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `GONE`
function Db:job(id) end

--- Why a job is not running, in one sentence: how it ended, its holder, or the pause that holds
--- it. Or the job that it waits for (and why that one does not run), when it is due, or why no
--- host takes it. The table has the facts.
---@param id integer
---@return string? sentence "#14 'join' waits for #12 'fetch' and 3 more; #12 'fetch' is scheduled, due in 3m59s"
---@return nightshift.Why|string fact or the message
---@return nightshift.Code? code `NOT_FOUND`, `GONE`
function Db:why(id) end

--- Which jobs: all conditions that are given have to hold.
---@class nightshift.Filter
---@field state nightshift.State?
---@field queue string?
---@field name string?
---@field error string? what they died of, or live ones failed of last: the whole text, its first line, or its kind
---@field since number|string|nil they ended, or live ones were pushed, since: an instant in seconds or as a text
--- ("2026-11-26T06:00:00Z", UTC), or a duration ("2h") before now
---@field parent integer? children of that job
---@field tag string? one of its tags
---@field group string?

---@class nightshift.JobFilter: nightshift.Filter
---@field state nightshift.State? without: every state, by id, roughly the newest first
---@field limit integer? default 50
---@field after integer? an id: only jobs below it, newest id first; of an ended state: jobs that ended before it
---@field look integer? jobs that are looked at where no key leads to the wanted ones; default 20,000

--- Lists jobs, without their payloads. With a state: next first, or newest
--- first when finished. Where no key leads to the wanted jobs, among more than 20,000, it looks at
--- so many, newest id first; `more.after` goes on from there. A list of one live state is in the
--- order of claims, and has no next page: ask for a larger limit.
---@param filter nightshift.JobFilter?
---@return nightshift.JobRow[]? rows
---@return {after: integer, looked: integer?}|string|nil more nil: that is all; or the message
---@return nightshift.Code? code
function Db:jobs(filter) end

--- A kind of errors. `error` goes into a filter: `db:retry{error = kind.error}`.
---@class nightshift.ErrorKind
---@field error string the first line, with "#" for what differs from job to job
---@field count integer
---@field dead integer
---@field retrying integer jobs that wait for another attempt
---@field first number instant of the first failure that was looked at
---@field last number
---@field id integer a job with it
---@field queue string of that job
---@field name string

---@class nightshift.ErrorFilter
---@field queue string?
---@field name string?
---@field since number|string|nil as of a filter: they died, or failed last, since
---@field limit integer? kinds; default 50
---@field look integer? jobs that are looked at, dead ones and scheduled ones; default 20,000 of each

--- Kinds of errors of dead jobs, the last ones, and of jobs that wait for another attempt. The most
--- frequent comes first.
---@param given nightshift.ErrorFilter?
---@return nightshift.ErrorKind[]? kinds
---@return {looked: integer}|string|nil more there are more jobs than were looked at; or the message
---@return nightshift.Code? code `INVALID`, `GONE`
function Db:errors(given) end

--- What a verb on all jobs of a filter takes besides the conditions. It goes in transactions of its
--- own, of 500 jobs at most, and not inside one.
---@class nightshift.ManyOptions: nightshift.Filter
---@field rate number? so many jobs a second; default: as fast as it goes

---@class nightshift.ManyCounts
---@field found integer jobs that the filter held for when they were met
---@field changed integer
---@field refused integer they stay, because another live job has their unique key (retry, move)

---@class nightshift.CancelMany: nightshift.ManyOptions
---@field reason string?

---@class nightshift.MoveMany: nightshift.ManyOptions
---@field to string a queue's name

--- Moves jobs to another queue, with their unique keys: scheduled, ready and waiting jobs, or with
--- such a state done, dead or cancelled ones. Jobs that run stay, and rows of adopted tables.
---@param given nightshift.MoveMany
---@return nightshift.ManyCounts?
---@return string? message
---@return nightshift.Code? code `INVALID`, `STATE`, `GONE`, `BUSY`
function Db:move(given) end

--- Ends a live job as cancelled; a running one is told, stopped when it does not listen, and its
--- late verdict is STALE. `reason` goes into its history: 255 characters, and a longer one as
--- its error, too. `tree`: with all below it.
---@overload fun(self: nightshift.Db, filter: nightshift.CancelMany): nightshift.ManyCounts?, string?, nightshift.Code?
---@param id integer
---@param opts {reason: string?, tree: boolean?}?
---@return true|integer|nil ok how many jobs, with `tree`
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `STATE`
function Db:cancel(id, opts) end

--- No job at or below it starts until it is resumed; jobs spawned or pushed below it later are
--- paused, too. Running jobs run on.
---@param id integer
---@return integer? jobs that it holds now and did not before
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `STATE`
function Db:pause(id) end

--- Ends the `pause` of the same id. Jobs with a pause of their own stay paused.
---@param id integer
---@return integer? jobs
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `STATE`
function Db:resume(id) end

--- No job of this name starts, on hosts and in programs, until it is resumed: whatever its queue,
--- and before the first is pushed, too. What runs runs on; jobs stay where they are. A busy host
--- obeys within a second.
---@param name string
---@return boolean? changed false: it was paused before
---@return string? message
---@return nightshift.Code? code `INVALID`
function Db:pause_name(name) end

--- Ends what `pause_name` began; hosts are woken at once.
---@param name string
---@return boolean? changed false: it was not paused
---@return string? message
---@return nightshift.Code? code `INVALID`
function Db:resume_name(name) end

--- No job starts anywhere: every queue is paused, adopted tables and queues made later among them.
---@return boolean? changed false: they were before
---@return string? message
---@return nightshift.Code? code
function Db:pause_all() end

--- Ends what `pause_all` began; queues and names that are paused by themselves stay so.
---@return boolean? changed false: they were not
---@return string? message
---@return nightshift.Code? code
function Db:resume_all() end

---@class nightshift.Tuned
---@field id integer the host
---@field host string its machine
---@field pid integer
---@field workers integer what it is to have now
---@field was integer what it was to have before

--- Has a host have so many workers from now on, until it ends. New ones are forked at once; those
--- that are too many leave, idle ones first, and a busy one after its job. Waits for the host's
--- answer, 10 s at most. Not inside a transaction.
---@param host integer|string its id, or the name of its machine when that has one host: as `stats().holders` has them
---@param workers integer
---@return nightshift.Tuned?
---@return string? message with `NOT_FOUND`: which hosts there are
---@return nightshift.Code? code `NOT_FOUND`, `INVALID` (more or fewer than it may have, or a name of several hosts),
---`BUSY` (it has not answered yet), `STATE`
function Db:tune_host(host, workers) end

--- Runs a finished job again with fresh budgets. `tree`: all jobs at or below it that failed or
--- were cancelled, each waiting for the same jobs as before; done jobs stay done.
---@overload fun(self: nightshift.Db, filter: nightshift.ManyOptions): nightshift.ManyCounts?, string?, nightshift.Code?
---@param id integer
---@param opts {tree: boolean?}?
---@return true|integer|nil ok how many jobs, with `tree`
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `STATE`, `DUPLICATE`
function Db:retry(id, opts) end

--- Deletes a job with its payload, result, errors, log and signals, at once. A live job that does
--- not run ends first, as cancelled, and its dependents are told. A running job is `STATE`, and so
--- is a child of a live parent. `tree`: with all below it, when that whole tree has ended.
---@overload fun(self: nightshift.Db, filter: nightshift.ManyOptions): nightshift.ManyCounts?, string?, nightshift.Code?
---@param id integer
---@param opts {tree: boolean?}?
---@return true|integer|nil ok how many jobs, with `tree`
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `STATE`
function Db:delete(id, opts) end

--- Makes a scheduled job ready now. `tree`: all jobs at or below it, except jobs that wait for a
--- signal.
---@overload fun(self: nightshift.Db, filter: nightshift.ManyOptions): nightshift.ManyCounts?, string?, nightshift.Code?
---@param id integer
---@param opts {tree: boolean?}?
---@return true|integer|nil ok how many jobs, with `tree`
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `STATE`
function Db:run_now(id, opts) end

--- A live job is not started any more after this, from now: it ends dead, reason `deadline`. A
--- polling job has its last look then. Jobs that it spawns later without a deadline of their own
--- inherit it. false: no limit. `tree`: all below it, too.
---@param id integer
---@param deadline nightshift.Duration|false
---@param opts {tree: boolean?}?
---@return true|integer|nil ok how many jobs, with `tree`
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `STATE`, `INVALID`
function Db:deadline(id, deadline, opts) end

---@class nightshift.Progress
---@field done integer
---@field dead integer
---@field cancelled integer
---@field running integer
---@field waiting integer
---@field scheduled integer
---@field ready integer
---@field total integer

---@class nightshift.Children: nightshift.Progress
---@field gone integer? pruned ones
---@field estimated true? there are more than 10,000: the states are those of a sample, and `total` is exact
---@field more true? there are more than 100,000, which `total` stops at

--- How many children of a job are in which state. It takes some 50 ms at most, however many there
--- are.
---@param id integer
---@return nightshift.Children? counts
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`
function Db:children(id) end

--- How many jobs at or below it are in which state. Pruned jobs are not counted.
---@param id integer
---@return nightshift.Progress? counts
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`
function Db:progress(id) end

--- Runs `fn` in one transaction: its pushes, statements and verdicts of jobs claimed on this
--- handle commit together when it returns. Nothing of them is kept when it raises (the error
--- passes on), or when it returns nil and a message (given back). Nothing is kept either when a
--- verb in it failed outside `tx:try`: that gives nil, message and code of the first failure. A
--- verb that only looks and finds nothing has not failed. Gives the values of `fn`, or true when
--- there are none. Does not nest.
---@param fn fun(tx: nightshift.Transaction): ...
---@return any ...
function Db:transaction(fn) end

--- Runs one SQL statement with bound parameters (`?`). Gives rows as tables by column name, NULL
--- left out; else {affected=, insert_id=}. Integers stay exact; decimals, dates and unsigned
--- integers above 2^63-1 are strings. A value that the server refuses is `DUPLICATE`, `INVALID`
--- or `TOO_BIG`; a missing table or procedure of Nightshift's own is `SCHEMA`.
---@param sql string
---@param ... nil|boolean|number|string|lightuserdata
---@return table? rows
---@return string? message
---@return nightshift.Code? code `SQL`, `DENIED`, `GONE`, `BUSY`, or one of the above
function Db:execute(sql, ...) end

---@class nightshift.DbLockOptions
---@field timeout nightshift.Duration? how long to wait; default 30 s, 0 tries once

--- A lock for all hosts. `db:lock("report")(fn)` runs `fn` while no other job or program holds
--- the lock, and gives it back when `fn` returns or raises. Inside a handler,
--- `job:db():lock(…)`, it belongs to the job; elsewhere to this handle. Bad arguments raise.
---@param name string 1 to 190 characters, no control characters
---@param opts nightshift.DbLockOptions?
---@return nightshift.DbLock
function Db:lock(name, opts) end

--- A semaphore for all hosts: at most `n` holders at a time. The caller says how many slots
--- there are: it takes one of the slots 1 to `n`.
---@param name string
---@param n integer 1 to 10,000
---@param opts nightshift.DbLockOptions?
---@return nightshift.DbLock
function Db:semaphore(name, n, opts) end

--- Waits for the end of a job, without polling. In a handler `job:wait` parks the job instead.
---@param id integer
---@param wait nightshift.Duration
---@return "done"|"dead"|"cancelled"|"gone"|nil outcome "gone": it was deleted meanwhile, or left no history
---@return any result of a done job; without an outcome the message
---@return string? why error or reason of one that is not done; without an outcome `NOT_FOUND`, `BUSY`: it
--- has not ended, `STATE`: in a transaction, `GONE`
function Db:wait(id, wait) end

--- The same for many, until all have ended.
---@param ids integer[]
---@param wait nightshift.Duration
---@return nightshift.Result[]? ends in the order of the ids
---@return string? message
---@return nightshift.Code? code as of `wait`
function Db:wait_all(ids, wait) end

---@class nightshift.UpdateMany
---@field rate number? so many jobs a second
---@field retry boolean? dead or cancelled jobs run again, in the transaction of their change

---@class nightshift.Change
---@field payload any `nightshift.null`: null; or a function(payload, job) that gives the new one, nil: the job stays
---@field set table? in the place of `payload`: what is different in it, a merge patch (RFC 7396)
---@field queue string?
---@field priority integer? 0 to 255
---@field due number|string|nil seconds since 1970, or a text like "2030-01-31T12:00:00Z"; a past one: now
---@field max_attempts integer? more than it has spent
---@field tags string[]? in the place of all that it has
---@field group string|false|nil what the limits of groups go by; false: none

--- Changes a job that does not run: what a push has said of it. A ready one is then the last of its
--- priority. A dead or cancelled job is changed for its retry, but for `due`.
--- A filter: all of its jobs, each in a transaction of its own; `retry`: dead or cancelled ones run
--- again.
---@overload fun(self: nightshift.Db, filter: nightshift.Filter, change: nightshift.Change, opts: nightshift.UpdateMany?): nightshift.ManyCounts?, string?, nightshift.Code?
---@param id integer
---@param change nightshift.Change
---@return true? ok
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `STATE`, `INVALID`, `TOO_BIG`, `DUPLICATE`
---@return integer? holder with `DUPLICATE`: the live job that has the key
function Db:update(id, change) end

--- Gives a live job another priority; a ready one is the last of its new lane.
--- `tree`: all below it as well.
---@overload fun(self: nightshift.Db, filter: nightshift.ManyOptions, priority: integer): nightshift.ManyCounts?, string?, nightshift.Code?
---@param id integer
---@param priority integer 0 to 255
---@param opts {tree: boolean?}?
---@return true|integer|nil ok how many jobs, with `tree`
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `STATE`, `INVALID`
function Db:reprioritise(id, priority, opts) end

---@class nightshift.ScheduleOptions
---@field name string 1 to 100 bytes
---@field cron string? "0 3 * * *", with seconds in front "*/10 * * * * *", or "@daily"
---@field every nightshift.Duration? instead of cron: a second or more
---@field zone string? of cron, a name of the system's tzdata; default "UTC"
---@field missed "one"|"all"|"none"|nil ticks that no host was there for; default "one"
---@field overlap "allow"|"skip"|nil "skip": no job while the last one lives; default "allow"
---@field push table {name, payload, options}: options of push, and `queue` (default "default")

---@class nightshift.Schedule
---@field name string
---@field cron string?
---@field every number? seconds
---@field zone string?
---@field queue string
---@field job string its name
---@field payload any
---@field options table<string, number|string>? of its push, durations in seconds
---@field missed "one"|"all"|"none"
---@field overlap "allow"|"skip"
---@field paused boolean
---@field declared boolean by handler scripts
---@field due number? instant of its next tick
---@field upcoming number[] the next five
---@field last number? instant of the last tick that pushed a job
---@field last_id integer? that job
---@field skipped integer ticks without a job, because the last one lived
---@field error string? why it has no ticks: its job could not be pushed

--- Adds a recurring job, or changes it. An unchanged definition keeps its next tick.
---@param given nightshift.ScheduleOptions
---@return number|false|nil next instant of its next tick; false while it is paused
---@return string? message
---@return nightshift.Code? code `INVALID`, `STATE`: handler scripts declare one of that name
function Db:schedule(given) end

--- All schedules, by name.
---@return nightshift.Schedule[]?
---@return string? message
---@return nightshift.Code? code
function Db:schedules() end

--- Stops the ticks of a schedule.
---@param name string
---@return true|nil
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`
function Db:schedule_pause(name) end

--- Lets its ticks go on; ticks of the time between are dropped.
---@param name string
---@return true|nil
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`
function Db:schedule_resume(name) end

--- Pushes the job of a schedule now, beside its ticks. With `overlap = "skip"` gives the job
--- that lives, if there is one.
---@param name string
---@return integer? id
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, or as push
function Db:schedule_run(name) end

--- Deletes a schedule. A schedule that a live host declares comes back within the hour.
---@param name string
---@return true|nil
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`
function Db:schedule_remove(name) end

--- Sends a value to a job that waits for a signal, or will. From SQL:
--- `CALL nightshift_signal(id, '"json"', 'name')`, then `CALL nightshift_ring()`.
---@param id integer
---@param value any encoded as JSON
---@param name string? nil: whatever it waits for
---@return true? ok
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `INVALID`, `TOO_BIG`
function Db:signal(id, value, name) end

---@class nightshift.FlowNode: nightshift.PushOptions
---@field name string
---@field payload any
---@field queue string? "default", or that of the root
---@field children nightshift.FlowNode[]? the node runs when they have ended
---@field as string? a name for `after`
---@field after (string|integer)[]? nodes by their names, or ids of other jobs

--- Pushes a tree of jobs in one transaction. Unknown names and circles raise.
---@param root nightshift.FlowNode
---@return integer? id of the root
---@return table|string|nil ids {id =, children = {…}}, or the message
---@return nightshift.Code? code
function Db:flow(root) end

--- Pushes many trees of jobs in one transaction, all or none.
---@param roots nightshift.FlowNode[]
---@return integer[]? ids of the roots
---@return table[]|string|nil ids of each: {id =, children = {…}}; or the message
---@return nightshift.Code? code
function Db:flow_many(roots) end

---@class nightshift.AdoptStatus values of the status column: text, whole numbers,
--- booleans or nightshift.null; in a column of dates "now" is the present, or any date not named
--- for another state: "1970-01-01 00:00:01"
---@field column string
---@field open string|integer|boolean|lightuserdata
---@field processing string|integer|boolean|lightuserdata|nil
---@field done string|integer|boolean|lightuserdata|nil absent: `completed_at` tells
---@field failed string|integer|boolean|lightuserdata|nil absent: rows come back until their attempts are spent

---@class nightshift.Mapping names of columns; absent ones are not used
---@field table string of this database
---@field id string? its primary key, a whole number; "id"
---@field name string|{column: string}|nil the handler that runs its rows; the table's name
---@field payload {column: string}? the payload of a row's job; the whole row
---@field status nightshift.AdoptStatus
---@field claimed_by string? text of 20 characters or more: `ns:JOB` while a job has the row
---@field claimed_at string? times are DATETIME, TIMESTAMP, or whole seconds since 1970
---@field completed_at string?
---@field started string?
---@field updated string?
---@field retry_after string? the row is not claimed before
---@field host string? the claiming machine's name
---@field attempts string? failures, counted up
---@field attempts_left string? counted down to 0
---@field max_attempts integer? of `attempts`; none: no limit
---@field priority string|{column: string, higher_first: boolean?, decay: integer?}|nil higher first; `decay` (0) is
---lost with each unfinished return
---@field parent string|{column: string, done: any}|nil id of a row that has to be done before
---@field order "id"|"-id"|nil
---@field overdue nightshift.Duration? rows that other programs have had for longer are open again
---@field every nightshift.Duration? between looks at a table without open rows; 0.05 s to 60 s; 1 s
---@field alone boolean? no other program works on the table: needed where nothing shows that a row is taken
---@field max_polls integer? of all its jobs, as in a push; so the next four
---@field max_crashes integer?
---@field deadline nightshift.Duration?
---@field timeout nightshift.Duration?
---@field backoff nightshift.Duration?
---@field time_zone string? of DATETIME columns: "+02:00", "Europe/Vienna"; the server's

--- Takes an existing table as a source of jobs: its rows are taken in as jobs of a queue with the
--- table's name. Nothing is added to the table.
---@param mapping nightshift.Mapping
---@return nightshift.Adopted? t
---@return string? message names the part that does not fit the table
---@return nightshift.Code? code `INVALID`, `NOT_FOUND`, `DENIED`, `BUSY`, `STATE`
function Db:adopt(mapping) end

--- The owners of locks and semaphores.
---@return nightshift.Slot[]? slots
---@return string? message
---@return nightshift.Code? code
function Db:slots() end

--- Counts per queue, holders, and the counters of this handle.
---@return nightshift.Stats? stats
---@return string? message
---@return nightshift.Code? code
function Db:stats() end

---@class nightshift.ScaleTotal
---@field ready integer jobs that may be claimed
---@field counted_ago number seconds since `ready` was counted: more than 0 where a queue has more than 1,000
---@field scheduled integer
---@field running integer claimed jobs
---@field waiting integer
---@field approximate table<nightshift.State, true>? counts that may be larger
---@field oldest_age number seconds that the oldest ready job has been ready; 0: none is
---@field rate_in number jobs a second that were pushed in the last five minutes, not those of SQL
---@field rate_out number jobs a second that were done or dead in the last five minutes
---@field run number? seconds that a run takes, the mean of five minutes or of an hour; nil: none has ended
---@field drain_seconds number? until the ready jobs are done, with the workers there are; nil: not known
---@field workers integer of live hosts that may take such jobs
---@field busy integer of these, those that run a job of any queue
---@field wanted integer workers that keep up with what comes, and are done with `ready` within the target

---@class nightshift.ScaleRow: nightshift.ScaleTotal
---@field name string
---@field paused boolean

---@class nightshift.Scale
---@field at number instant
---@field target number seconds
---@field queues nightshift.ScaleRow[] in the order that was asked for, or by name
---@field total nightshift.ScaleTotal `oldest_age` and `drain_seconds` are the largest; `workers` counts each once

--- For autoscalers: how much waits in queues, how fast jobs come and go, how long the rest
--- takes. And how many workers would be done with it in time.
---@param opts {queues: string[]?, target: nightshift.Duration?}? queues: names, nil: all; target: "60s" if nil
---@return nightshift.Scale? found
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `INVALID`
function Db:scale(opts) end

---@class nightshift.Bucket
---@field at number instant that it begins at
---@field done integer jobs that were done
---@field failed integer attempts that failed, crashed or were lost
---@field dead integer jobs
---@field cancelled integer jobs
---@field pushed integer jobs that hosts and programs have pushed, not those of SQL
---@field runs integer runs with a known time
---@field wait number? seconds from a job's due instant to its start, the mean; nil: none is known
---@field wait_max number the longest
---@field run number? seconds that runs took, the mean; nil: none is known
---@field run_max number the longest

--- What has happened in a queue, or in all, in buckets, the newest last. An hour is 60 minutes, a
--- day 96 quarters of an hour, 7 days 84 times two hours. Hosts write their counts once a minute.
---@param opts {span: nightshift.Duration?, queue: string?}? span: "1h" (if nil), "1d" or "7d"; queue nil: all
---@return nightshift.Bucket[]? buckets
---@return string? message
---@return nightshift.Code? code `INVALID`
function Db:series(opts) end

---@alias nightshift.Keep nightshift.Duration|false|"default"

---@class nightshift.Rule
---@field age nightshift.Keep? how long; false: for ever; "default": as all queues
---@field count integer|false|"default"|nil so many of the queue, the newest; false: any number

---@class nightshift.Rules
---@field done nightshift.Rule|nightshift.Keep|nil
---@field dead nightshift.Rule|nightshift.Keep|nil
---@field cancelled nightshift.Rule|nightshift.Keep|nil

---@class nightshift.Retention
---@field queue string? nil: all queues that have no rule of their own
---@field done {age: number|false, count: integer|false} age: seconds; false: no limit
---@field dead {age: number|false, count: integer|false}
---@field cancelled {age: number|false, count: integer|false}

--- Removes a queue that nothing needs, with its pause and limit. Its history stays; the next push
--- to that name makes it anew.
---@param name string
---@return true? ok
---@return string? message with `STATE`: what needs it
---@return nightshift.Code? code `STATE`, `NOT_FOUND`, `INVALID`
function Db:remove_queue(name) end

--- The limits of all queues that have one, by name.
---@return nightshift.LimitUse[]? limits
---@return string? message
---@return nightshift.Code? code
function Db:limits() end

--- Says how long, and how many, ended jobs of a queue are kept; hosts delete the rest. What is
--- absent stays as it is.
---@param queue string? nil: all queues that have no rule of their own
---@param rules nightshift.Rules
---@return true? ok
---@return string? message
---@return nightshift.Code? code `INVALID`
function Db:retain(queue, rules) end

--- The rules: of all queues first, then of queues that have one, with what they have of that.
---@return nightshift.Retention[]? rules
---@return string? message
---@return nightshift.Code? code
function Db:retention() end

--- Deletes history now: what the rules of `retain` do not keep (without any: done jobs after a day,
--- others after 30). Or what is older than `done` and `dead` (cancelled jobs too); false keeps that
--- kind. A tree of jobs goes as a whole, when all of it has finished and may go. `tree`: the tree
--- of one job, however old.
---@param opts {done: nightshift.Duration|false|nil, dead: nightshift.Duration|false|nil, tree: integer?}?
---@return integer? deleted
---@return string? message
---@return nightshift.Code? code
function Db:prune(opts) end

---@class nightshift.Action what a person, or a program, has done to jobs, queues, …
---@field id integer
---@field at number when
---@field verb string the method, as `cancel`, `pause`, `schedule_run`
---@field what string to what it was done
---@field job integer? the job that it was about
---@field jobs integer how many it has changed
---@field account string the server's USER() of the session
---@field host string the machine
---@field pid integer
---@field via "shell"|"lua"|"page"|"c"|"handler"

--- Actions of people, the newest first; rows go after 90 days.
---@param opts {since: number|string|nil, verb: string?, before: integer?, limit: integer?}? before: an id; limit: 100
---@return nightshift.Action[]? actions
---@return string? message
---@return nightshift.Code? code `INVALID`
function Db:audit(opts) end

--- Looks at all other holders and gives back claims of dead ones. Living hosts and waiting
--- handles do it by themselves; this is for where none may live.
---@param opts {wait: nightshift.Duration?}? how long it may take to be sure; 2 s
---@return { holders: integer, jobs: integer, poison: integer }|nil found
---@return string? message
---@return nightshift.Code? code
function Db:rescue(opts) end

--- Creates or upgrades the tables, and makes procedures and views anew.
---@return integer? before version found, 0 for none
---@return integer|string|nil now version now, or the message
---@return nightshift.Code? code `DENIED`, `SCHEMA`, `BUSY`
function Db:migrate() end

--- Is the server there? Reconnects when needed.
---@return true? ok
---@return string? message
---@return nightshift.Code? code `GONE`
function Db:ping() end

--- Has the handle not been closed?
---@return boolean
function Db:is_open() end

--- Gives unsettled claims back and closes the connection. May be repeated.
function Db:close() end

---@class nightshift.Adopted an existing table as a queue
---@field table string
local Adopted = {}

--- Claims one row; nil alone when none came within `wait`. The job's payload is the row, without
--- NULL columns; `job.row` is the row's id. Its verdict and the row are one commit.
---@param opts {wait: nightshift.Duration?}?
---@return nightshift.Job? job
---@return string? message
---@return nightshift.Code? code `GONE`, `BUSY`, `STATE`, `SQL`
function Adopted:claim(opts) end

--- Claims up to `n` rows.
---@param n integer 1 to 10,000
---@param opts {wait: nightshift.Duration?}?
---@return nightshift.Job[]? jobs
---@return string? message
---@return nightshift.Code? code
function Adopted:claim_many(n, opts) end

--- `for job in t:jobs{wait = 5} do … end`
---@param opts {wait: nightshift.Duration?}?
---@return fun(): nightshift.Job?
function Adopted:jobs(opts) end

--- Writes debts to rows, cancels jobs with rows that other programs have, and opens overdue
--- rows. Claims and hosts do it by themselves.
---@return integer? freed
---@return string? message
---@return nightshift.Code? code
function Adopted:rescue() end

--- The index that looks for rows lack to be fast, as a statement; false: none.
---@return string|false|nil sql
---@return string? message
---@return nightshift.Code? code
function Adopted:advice() end

--- Takes up to n rows in, for any worker of the queue, as a host's runner does by itself.
---@param n integer
---@return integer? taken
---@return string? message
---@return nightshift.Code? code
function Adopted:take(n) end

--- Opens rows that were taken in and that no worker has begun.
---@return integer? rows
---@return string? message
---@return nightshift.Code? code
function Adopted:give_back() end

--- Writes debts to rows, as far as the rows are not locked.
---@return integer? rows
---@return string? message
---@return nightshift.Code? code
function Adopted:pay() end

---@class nightshift.AdoptedStats rows by state
---@field name string the table
---@field ready integer
---@field waiting integer for their time or their parent
---@field running integer
---@field done integer
---@field dead integer
---@field next number? seconds until a row that waits for its time may be claimed
---@field approximate table<string, true>? counts that stopped at 100,000

--- Counts rows by state.
---@return nightshift.AdoptedStats? stats
---@return string? message
---@return nightshift.Code? code
function Adopted:stats() end

--- Stops claims from this table, everywhere, within a second; running jobs go on.
---@return true?
---@return string? message
---@return nightshift.Code? code
function Adopted:pause() end

--- Lets claims go on.
---@return true?
---@return string? message
---@return nightshift.Code? code
function Adopted:resume() end

--- Changes how many rows a second are taken in, by all together; 0: no limit.
---@param opts {rate: number?}
---@return true?
---@return string? message
---@return nightshift.Code? code
function Adopted:tune(opts) end

--- Runs dead rows again: they are open, with all their attempts. In a list, rows that are not
--- dead, or locked, stay as they are.
---@param what integer|integer[]|"all" an id; ids; all
---@return true|integer|nil retried true for one id, else how many
---@return string? message
---@return nightshift.Code? code `STATE` it is not dead, `NOT_FOUND`, `INVALID` the mapping has `attempts_left` without
---`max_attempts`
function Adopted:retry(what) end

--- Deletes rows that are done (`state = "dead"`: dead), or moves them to another table. That
--- table has to be there, InnoDB, with all their columns. It works in batches, each a
--- transaction. A row that another one has for its parent, that has a job, or is owed something,
--- stays. Not inside a transaction.
---@param opts {state: "done"|"dead"|nil, older: nightshift.Duration?, into: string?, limit: integer?}? older: those
---that ended longer ago; a done row says so in `completed_at` or `updated`, a dead one in `updated`
---@return integer? pruned
---@return string? message
---@return nightshift.Code? code `INVALID`, `NOT_FOUND` no such target, `DUPLICATE` it has one of the rows
function Adopted:prune(opts) end

---@alias nightshift.CrashPoint
---| "push.before_commit"
---| "push.after_commit"
---| "claim.after_commit"
---| "settle.before_commit"
---| "settle.after_commit"
---| "transaction.before_commit"
---| "transaction.after_commit"

--- Makes open rows jobs of a queue and deletes them here, a batch in one transaction. Ended rows
--- stay: see `prune`.
---@param opts {into: string} the queue; made, if need be
---@return {jobs: integer, left: integer}? drained rows that became jobs, and open ones that stay: claimed, locked,
---or refused by the server or as a job
---@return string? message
---@return nightshift.Code? code `INVALID` (a name; the mapping has parents), `STATE` (in a transaction), `DENIED`,
---`GONE`, `BUSY`, `SQL`
function Adopted:drain(opts) end

--- A lock or a semaphore; holds one slot at a time. Call it with a function, or `local held
--- <close> = assert(l:acquire())`. A slot that is still held goes back when the job's run is
--- over. Outside a handler it goes back when the handle is closed or collected, or when the
--- program ends in any way.
---@class nightshift.DbLock
---@field name string
---@overload fun(fn: fun(...): ..., ...): ... the values of fn; or nil, message, `BUSY`
local DbLock = {}

--- Takes a slot. Raises when this object holds one. Not inside a transaction.
---@param timeout nightshift.Duration? 0 tries once; default: the object's
---@return nightshift.DbLock? held
---@return string? message
---@return nightshift.Code? code `BUSY`, `STALE` the job's claim is lost, `STATE`, `GONE`
function DbLock:acquire(timeout) end

--- Gives the slot back. Raises when this object holds none.
---@return true? ok
---@return string? message
---@return nightshift.Code? code `STALE` it was lost before; `GONE` it follows when the server is back
function DbLock:release() end

--- Does this object hold a slot, as far as its program knows?
---@return boolean
function DbLock:is_held() end

--- The argument of the function of `db:transaction`; ends with it.
---@class nightshift.Transaction
local Transaction = {}

---@param name string
---@return nightshift.Queue? queue its pushes are part of the transaction
---@return string? message
---@return nightshift.Code? code
function Transaction:queue(name) end

---@param sql string
---@param ... nil|boolean|number|string|lightuserdata
---@return table? rows
---@return string? message
---@return nightshift.Code? code
function Transaction:execute(sql, ...) end

--- As db:signal; the job gets it when the transaction commits.
---@param id integer
---@param value any
---@param name string?
---@return true? ok
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`, `INVALID`, `TOO_BIG`
function Transaction:signal(id, value, name) end

--- Ends a job as done if the transaction commits. The job was claimed on this handle; on the
--- handle of `job:db()` it is the running one. When it cannot be ended the transaction does not
--- commit: `db:transaction` gives the same message and code. In a worker a row of an adopted
--- table cannot: its host has claimed it.
---@param job nightshift.Job
---@param result any? kept with the job's history
---@return true? ok
---@return string? message
---@return nightshift.Code? code `STALE`, `INVALID`, `TOO_BIG`, `GONE`, `BUSY`
function Transaction:ack(job, result) end

--- Runs `fn`, a part of the transaction that may fail alone. Its changes are undone, to a
--- savepoint, when a verb in it failed, or when it returns nil and a message. Then it gives nil,
--- message and code, and the transaction goes on. When it raises, its changes are undone, too,
--- and the error goes on. It may stand in another one. Its acks are written at its end. It saves
--- nothing when the server has rolled back all (`BUSY`: a deadlock).
---@param fn fun(tx: nightshift.Transaction): ...
---@return any ... the values of `fn`, or true when there are none
function Transaction:try(fn) end

--- A queue handle; it keeps its database handle alive.
---@class nightshift.Queue
---@field name string
local Queue = {}

---@class nightshift.Unique
---@field key string any text of 1 to 190 characters, compared byte by byte
---@field period nightshift.Duration? from the push: a job that is done sooner has the key until then
---@field on_conflict "refuse"|"keep"|"replace"|nil when a job has the key: `DUPLICATE` (default); nothing is pushed
--- and the id is that job's; or a job that has not begun becomes this one, and one that has is
--- followed by it. Not in flows and for children

---@class nightshift.PushOptions
---@field key string|integer|nil of nightshift.sharded: jobs of one key are of one database
---@field delay nightshift.Duration? run it this much later
---@field at number|string|nil run it then: seconds since 1970, or a text like "2030-01-31T12:00:00Z"; without `delay`
---@field tags string[]? up to 16 of 1 to 64 characters, without control characters
---@field group string? what the limits of groups go by, like "tenant:7": 1 to 190 characters, no control characters
---@field priority integer? 0 to 255, higher first; default 100
---@field decay integer? 0 to 255: priority it loses with each failure, crash or `again`, down to 0; default 8
---@field unique string|nightshift.Unique|nil key that at most one live job of the queue has
---@field max_attempts integer? errors before it is dead; default 10, at most a million
---@field max_polls integer? polls before it is dead; default: no limit
---@field max_phases integer? waits since the push or the last signal before it is dead; default: its handler's number,
---or 100; 0: no limit
---@field max_crashes integer? worker deaths before it is dead; default 5. It runs again after 0, 1, 10, then 60 s
---@field backoff nightshift.Duration? first delay before a retry; default 5 s, doubling
---@field timeout nightshift.Duration? wall time of one run; default 1 h
---@field deadline nightshift.Duration? from now; a poll after that is dead
---@field after integer[]? ids of jobs to wait for
---@field on_fail "cancel"|"run"|nil when one of them fails: be cancelled (default), or run all the same
---@field parent integer? a live job: the parent of this one
---@field id integer? one that `GONE` gave on this handle: repeats that push

---@class nightshift.PushOneOptions: nightshift.PushOptions
---@field wait nightshift.Duration? for room, while the queue is full; not in a transaction

--- Pushes one job; with an id it is durable.
---@param name string which handler runs it; 1 to 100 bytes, no control characters
---@param payload any encoded as JSON; nil is null
---@param opts nightshift.PushOneOptions?
---@return integer? id
---@return string? message; or `kept`: nothing was pushed, the id is that of the job with the key; or `replaced`: that
---job has become this one
---@return nightshift.Code? code `INVALID`, `TOO_BIG`, `DUPLICATE`, `FULL`, `GONE`, `BUSY`, `DENIED`
---@return integer? holder with `DUPLICATE`: the job that has the key; with `GONE`: the id to repeat the push with,
---when it may have been written
function Queue:push(name, payload, opts) end

--- Pushes many jobs in one transaction, all or none. A list with holes or
--- other keys raises.
---@param items {[1]: string, [2]: any, [3]: nightshift.PushOptions?}[]
---@param opts {wait: nightshift.Duration?}? for room, while the queue is full
---@return integer[]? ids
---@return string|table<integer, "kept"|"replaced">|nil message; or such words by place, as of `push`
---@return nightshift.Code? code
---@return integer|integer[]|nil holder with `DUPLICATE`: the job that has the key; with `GONE`: the ids, as of `push`
function Queue:push_many(items, opts) end

--- Claims one job; a bare nil when none came within `wait`. With `lease` it is
--- given back so long after the claim or its last `job:touch`. With `strict` the
--- highest priority always comes first, and lower ones may starve. With `names` jobs
--- of other names stay as they are.
---@param opts {wait: nightshift.Duration?, lease: nightshift.Duration?, strict: boolean?, names: string[]?}?
---@return nightshift.Job? job
---@return string? message
---@return nightshift.Code? code `GONE`, `BUSY`
function Queue:claim(opts) end

--- Claims up to `n` jobs (1 to 10,000); the list may be empty.
---@param n integer
---@param opts {wait: nightshift.Duration?, lease: nightshift.Duration?, strict: boolean?, names: string[]?}?
---@return nightshift.Job[]? jobs
---@return string? message
---@return nightshift.Code? code
function Queue:claim_many(n, opts) end

--- `for job in q:jobs{wait = 5} do … end`: one after the other until none comes within `wait`. A
--- job has failed ("no verdict") when the loop goes on without a verdict of it, or when an error
--- leaves the loop. Leaving the loop early gives the job back.
---@param opts {wait: nightshift.Duration?, lease: nightshift.Duration?, strict: boolean?, names: string[]?}?
---@return fun(): nightshift.Job?
function Queue:jobs(opts) end

--- Stops claims from this queue; pushes still work. A queue that nothing was pushed to yet is
--- made, paused.
---@return true? ok
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`
function Queue:pause() end

--- Lets claims go on.
---@return true? ok
---@return string? message
---@return nightshift.Code? code `NOT_FOUND`
function Queue:resume() end

--- Limits how many of its jobs run at once and start in a time, over all hosts; nil: not at all. It
--- replaces the limit that the queue has. A queue that nothing was pushed to yet is made.
---@param given nightshift.Limit|nil
---@return true? ok
---@return string? message
---@return nightshift.Code? code `INVALID`, `STATE`
function Queue:limit(given) end

--- The limit as it was set, and how much of it is used; a bare nil: it has none.
---@return nightshift.LimitUse? limit
---@return string? message
---@return nightshift.Code? code
function Queue:limits() end

---@return nightshift.QueueStats? stats
---@return string? message
---@return nightshift.Code? code
function Queue:stats() end

--- A claimed job. Its times are seconds by the server's clock; instants are since 1970, UTC, with
--- fractions. `local job <close> = q:claim()` gives it back when unsettled; an error that leaves
--- the block fails it. A verb ends it once; a second one says STALE. Inside a handler: `return
--- job:again(30)`.
---@class nightshift.Job
---@field id integer
---@field key string constant per job, for idempotency elsewhere
---@field run integer grows each time the job comes back; (id, run) is the claim
---@field queue string
---@field name string
---@field payload any nil for null
---@field state any kept by the last `again`
---@field attempt integer 1 for the first
---@field attempts integer failed ones before
---@field polls integer times it came back by `again`
---@field crashes integer
---@field max_attempts integer
---@field max_polls integer? nil: no limit
---@field priority integer as it is now
---@field parent integer?
---@field root integer?
---@field phase integer how often `wait` has parked it
---@field after integer[] the jobs that it was pushed to wait for, without parent and children
---@field tags string[] sorted
---@field group string? nil: it has none
---@field results nightshift.Result[] outcomes of its children, in the order of spawning, and behind them of the jobs of
---`after`
---@field awaits string? the signal it has waited for
---@field signal any the value sent, nightshift.null for null; nil: nothing came before the deadline
---@field created number
---@field due number
---@field deadline number?
---@field timeout number seconds
local Job = {}

---@class nightshift.Result
---@field id integer
---@field name string? nil: gone
---@field outcome "done"|"dead"|"cancelled"|"gone"|nil nil while it lives; gone: the history does not have it any more
---@field result any
---@field reason string?
---@field error string?
---@field after true? it is of `after`, and no child

--- Done, with a result.
---@param result any
---@return true? ok
---@return string? message
---@return nightshift.Code? code `STALE`, `INVALID`, `TOO_BIG`, `GONE`
function Job:ack(result) end

--- An error: retried after the backoff, or dead when the attempts are spent.
---@param err any
---@param opts {retry_in: nightshift.Duration?}?
---@return true? ok
---@return boolean|string|nil dead whether it is dead now, or the message
---@return nightshift.Code? code
function Job:fail(err, opts) end

--- Parks the job until its children have ended, or until a signal comes; then it
--- runs again, with `phase` one higher. A child that fails ends it as dead, unless
--- `on_fail` is "continue". Raises when it has no children and names no signal; after
--- `max_phases` waits without a signal it is dead.
---@param opts {on_fail: "fail"|"continue"|nil, signal: string?, deadline: nightshift.Duration?, state: any}?
---@return true? ok
---@return string? message
---@return nightshift.Code? code
function Job:wait(opts) end

---@class nightshift.AgainOptions
---@field delay nightshift.Duration? when `retry_after` says nothing; nil: the pace of the poll, or the job's backoff
---@field retry_after string|number|nil a response's Retry-After: seconds or a date of HTTP. Any other text counts as
--- absent; less than a second, or an instant that is over, means a second
---@field date string? the Date of the same response, which a date is compared with; nil: this machine's clock
---@field state any nil keeps the last one
---@field stop "group"|"queue"|nil until then no other job of its group, or queue, starts, as far as that has limits

--- Not yet: comes back after a delay, with `state` as `job.state`.
---@param delay nightshift.Duration|nightshift.AgainOptions|nil
---@param state any nil keeps the last one
---@return true? ok
---@return boolean|string|nil dead
---@return nightshift.Code? code
function Job:again(delay, state) end

--- Dead at once.
---@param reason any
---@return true? ok
---@return boolean|string|nil dead
---@return nightshift.Code? code
function Job:discard(reason) end

--- Given back untouched: costs no attempt and no priority.
---@return true? ok
---@return string? message
---@return nightshift.Code? code
function Job:release() end

--- Shows life, and says whether the claim still holds: not after a verdict.
---@return true? ok
---@return string? message
---@return nightshift.Code? code `STALE`, `GONE`
function Job:touch() end

--- Shows how far the job is; a number that is not from 0 to 1 raises.
---@param progress number 0 to 1
---@param text string?
---@return true? ok
---@return string? message
---@return nightshift.Code? code `STALE`, `GONE`
function Job:progress(progress, text) end

--- Keeps a state while the job runs, durably: whatever ends this run, the next one finds it in
--- `job.state`. Costs a commit; in a transaction of the same handle it is a part of that.
---@param state any encoded as JSON; what JSON cannot hold raises
---@return true? ok
---@return string? message
---@return nightshift.Code? code `STALE`, `GONE`, `BUSY`
function Job:checkpoint(state) end

--- Keeps a line with this attempt; shown when it fails or its worker dies. Text that is printed
--- or written to stderr goes to the output of the host.
---@param text any
function Job:log(text) end

--- Has it been cancelled, or lost otherwise, meanwhile?
---@return boolean
function Job:cancelled() end

--- The same, and whether its host drains or stops: a long handler had better end.
---@return boolean
function Job:stopping() end

--- A child, written with this run's verdict: claimable once this job is done,
--- dropped when the run fails.
---@param name string
---@param payload any
---@param opts nightshift.PushOptions|{queue: string?}|nil
---@return integer? id
---@return string? message
---@return nightshift.Code? code `GONE`
function Job:spawn(name, payload, opts) end

--- The worker's own connection; only inside `nightshift work` and `run`.
---@return nightshift.Db
function Job:db() end

---@class nightshift.JobRow a line of db:jobs
---@field id integer
---@field queue string
---@field name string
---@field state nightshift.State
---@field priority integer
---@field run integer
---@field attempts integer
---@field max_attempts integer
---@field polls integer
---@field crashes integer
---@field created number
---@field due number? live jobs
---@field parent integer?
---@field unmet integer? waiting: for how many jobs, a pause counted as one
---@field awaits string? waiting: for this signal
---@field paused integer? waiting: by the pause of which job
---@field claimed number? running: since when
---@field holder integer? running: the holder that has it
---@field progress number? running
---@field status string? running
---@field finished_at number?
---@field started number? ended: when the run began that it ended with
---@field host string? ended: the machine of that run
---@field worker integer? ended: the number of its worker on that host
---@field reason string? dead, cancelled
---@field error string? its first 300 characters

---@class nightshift.JobInfo: nightshift.JobRow the row of db:job
---@field key string
---@field payload any
---@field kept any kept by the last `again`: a handler has it as `job.state`
---@field result any
---@field unique string?
---@field max_polls integer?
---@field max_crashes integer
---@field paused integer? by the pause of which job
---@field last_run nightshift.Run? ended: the run that it ended with; nil: it ended while it did not run
---@field output string? ended: what that run has printed, and its `job:log`, the last 16 KiB; nil: nothing is kept
---@field after integer[]? the jobs that it was pushed to wait for, without parent and children
---@field tags string[]? sorted; nil: it has none
---@field group string? nil: it has none
---@field decay integer
---@field deadline number?
---@field timeout number seconds
---@field root integer?

---@class nightshift.Run how an ended job has run; a field that is not known is nil
---@field started number? when its handler began; in a program, when the job was claimed
---@field ended number when its end was written
---@field seconds number? between the two
---@field host string? the machine
---@field pid integer? of the host, or of the program
---@field worker integer? the number of the worker on that host, as in its log

--- So many starts in a time: `{500, "1m"}`, by a bucket; `{500, "1m", "window"}`: in fixed windows.
---@alias nightshift.Rate {[1]: integer, [2]: nightshift.Duration, [3]: "window"|nil}

---@class nightshift.Limit
---@field running integer? at most so many at once
---@field rate nightshift.Rate?
---@field backlog integer? pushes are refused while so many jobs wait
---@field group nightshift.GroupLimit? of each group

---@class nightshift.GroupLimit
---@field running integer? at most so many at once of each group
---@field rate nightshift.Rate? of each group
---@field ordered boolean? one after the other, in the order of their pushes
---@field fair boolean? groups take turns

---@class nightshift.LimitUse: nightshift.Limit
---@field queue string
---@field counts {running: integer?, waiting: integer, groups: integer, full_groups: integer, capped: table<string, true>?}
---@field full true? so many jobs wait that pushes are refused
---@field stopped number? none starts before
---@field due number? the next start, by the queue's rate
---@field lifted true? it ends, once its backlog has been moved
---@field holds string? what keeps all waiting jobs from starting, in words
---@field shards nightshift.LimitUse[]? of `nightshift.sharded`: of each database, the counts being of all
---@field shard integer? of which database it is

---@class nightshift.QueueStats
---@field name string
---@field paused boolean
---@field limited true? it has a limit, or a bound of its waiting jobs: `q:limits`
---@field ready integer
---@field scheduled integer
---@field running integer
---@field waiting integer
---@field dead integer
---@field oldest number? seconds the oldest ready job has waited
---@field next number? seconds until the next job is due
---@field approximate table<nightshift.State, true>? counts that were too large to be exact

---@class nightshift.Holder
---@field id integer
---@field kind "host"|"handle"
---@field host string
---@field pid integer
---@field started number
---@field beat number
---@field version string
---@field leases integer batches it holds
---@field workers integer? of a host: workers that take jobs
---@field wanted integer? workers that it is to have now
---@field busy integer? workers that run one
---@field leaving integer? workers that take no more, and end when their job has
---@field loads integer? how often its scripts have been loaded
---@field scripts string? a short hash of their texts
---@field old_scripts integer? workers that still run older ones
---@field load_ended number? when they were last read, or could not be
---@field load_error string? why they could not be read; the earlier ones go on
---@field unsettled {n: integer, oldest: number, server: string?}? verdicts that have waited for more than a second to
--- be written: how many, seconds of the oldest, the server's state of the host's wait; an account
--- that may not see the host's sessions gets none

---@class nightshift.Why the facts of db:why
---@field kind nightshift.WhyKind
---@field id integer
---@field name string
---@field queue string
---@field state nightshift.State? of a live job
---@field outcome "done"|"dead"|"cancelled"|nil finished
---@field reason string? finished
---@field error string? finished, retry: the history's text, cut
---@field finished_at number? finished
---@field holder integer? running, busy, lost: its holder
---@field host string? the same: his machine
---@field pid integer? the same: his process
---@field since number? the same: since when; limited: since when the places are taken
---@field progress number? running, 0 to 1
---@field status string? running
---@field waited number? unsettled: seconds since its handler has ended
---@field server string? unsettled: the server's state of its host's wait
---@field lock string? limit: the lock or semaphore it waits for
---@field held_by {id: integer?, name: string?, host: string?, pid: integer?, since: number}[]? limit: job or program;
---limited: the jobs that have the places, the first three
---@field limit "running"|"rate"|"order"|"stop"|nil limited: which of them
---@field group string? limited: the job's group
---@field running integer? limited: jobs that have a place
---@field places integer? limited
---@field before integer? limited: the job that comes first in its ordered group
---@field stopped_by integer? limited: the job that has stopped its group or queue
---@field by integer? paused: the job that was paused; running: the same, later
---@field left integer? waits, waits_children: jobs it waits for; paused: besides
---@field total integer? waits_children: all its children
---@field done integer? waits_children: ended children
---@field on {id: integer, name: string?, state: nightshift.State?}[]? waits, waits_children: the first three
---@field cause nightshift.Why? waits, waits_children, limited: the one that tells most
---@field signal string? waits_signal
---@field came string[]? waits_signal: names of signals that have come, and that it does not wait for
---@field deadline number? waits_signal: when it runs without; poll
---@field due number? scheduled, retry, poll, no_handler; limited: when the next may start
---@field attempt integer? retry: which one is next
---@field max_attempts integer? retry
---@field crashes integer? retry
---@field max_crashes integer? retry: so many, and it is dead
---@field polls integer? poll
---@field max_polls integer? poll
---@field queue_paused true? scheduled, retry, poll, waits_signal: its queue is
---@field name_paused true? the same: all jobs of its name are
---@field all_paused true? the same: every queue is
---@field hosts integer? no_host: live ones, of other queues; quiet: hosts that could
---@field programs integer? no_host: live programs that claim by themselves
---@field handler string? no_handler; scheduled, retry, poll, waits_signal: no live host has one of this name
---@field known string[]? no_handler: names that the hosts of its queue have
---@field missed integer? no_handler: hosts that had none
---@field dead_at number? no_handler: it ends then
---@field workers integer? busy, ready: of all hosts that could run it
---@field free integer? busy, ready
---@field ahead integer? busy, ready: jobs before it in its queue; nil: it has just left
---@field ahead_at_least true? there are even more
---@field alone true? busy, ready: its holders died with it, so it is claimed alone

---@alias nightshift.WhyKind
---| "finished"
---| "running"
---| "lost" # by a holder that is gone
---| "unsettled" # its handler has ended, and the database does not take the verdict
---| "limited" # its queue or group has no place, no start left, or an earlier job
---| "limit" # it runs, and waits for a lock or semaphore
---| "paused" # it, or a job above it
---| "waits" # for other jobs
---| "waits_children"
---| "waits_signal"
---| "scheduled"
---| "retry"
---| "poll"
---| "queue_paused"
---| "name_paused" # all jobs of its name
---| "all_paused" # every queue
---| "no_host" # none that lives serves its queue
---| "no_handler" # none of the serving hosts has one
---| "quiet" # the serving hosts take no jobs now
---| "busy" # no worker is free
---| "batch" # it waits in a host for more jobs of its batch
---| "ready" # it is about to start

---@class nightshift.Finding of `nightshift doctor --json`, in `findings`
---@field name string of the check
---@field status "ok"|"note"|"warn"|"fail"
---@field says string
---@field fix string? a command or a setting; of all but "ok"
---@field value any? the number behind it: seconds, bytes or a count; nil: there is none

---@class nightshift.Slot
---@field name string
---@field slot integer
---@field job integer? the job that has it
---@field run integer? and its run
---@field holder integer? or the holder that has it
---@field since number

---@class nightshift.Unserved
---@field queue string
---@field name string
---@field n integer jobs, ready or due later
---@field later integer how many of these are not due yet
---@field waited number seconds that the oldest has been ready
---@field near string? a name that is handled, and much like it

---@class nightshift.Stats
---@field now number
---@field queues nightshift.QueueStats[] by name
---@field holders nightshift.Holder[]
---@field unserved nightshift.Unserved[] ready and scheduled jobs of names that no live host handles: among the first
---20,000 of each kind
---@field paused {all: number?, names: {name: string, since: number}[]} instants since which: every queue, names of jobs
---@field counters table<string, number> of this handle; `slow`: answers that took more than a second,
---`slowest`: the longest, seconds

--- The kit for tests: `require "nightshift.testing"`. See doc/testing.md.
---@class nightshift.testing
local testing = {}

--- Opens the kit of this process, without jobs. `nightshift.open()` opens its database from then
-- on.
---@param where string|{url: string?, dir: string?}|nil URL of a database of tests; nil: on a private server
---@return nightshift.Testing|nil
---@return string? message
---@return nightshift.Code? code DENIED: the database is not one of tests
function testing.open(where) end

---@class nightshift.Testing
---@field db nightshift.Db
---@field url string
local Testing = {}

--- Deletes all jobs, schedules, pauses and history.
---@return true|nil
---@return string? message
---@return nightshift.Code? code
function Testing:clean() end

--- Runs ready jobs to their ends, in this process.
---@param handlers table<string, any>|string|string[] handlers by name, or files
---@param opts {may_fail: boolean?, scheduled: boolean?, runs: integer?}?
---@return nightshift.TestedJobs|nil
---@return string? message
---@return nightshift.Code? code FAILED: a handler has failed, or there is no end
---@return nightshift.TestedJobs? counts with FAILED
function Testing:drain(handlers, opts) end

--- So much time passes for all that is in the database.
---@param duration nightshift.Duration
---@return true|nil
---@return string? message
---@return nightshift.Code? code
function Testing:advance(duration) end

--- Jobs that were pushed since the last clean, in their order.
---@param filter {name: string?, queue: string?, payload: any}?
---@return nightshift.PushedJob[]|nil
---@return string? message
---@return nightshift.Code? code
function Testing:pushed(filter) end

--- The process dies at a point, as by kill -9: an error unwinds what runs.
---@param point nightshift.CrashPoint
---@param nth integer? the time that it comes there
---@return true|nil
---@return string? message
---@return nightshift.Code? code
function Testing:crash_at(point, nth) end

--- Ends the kit.
function Testing:close() end

---@alias nightshift.CrashPoint
---| "push.before_commit"
---| "push.after_commit"
---| "claim.after_commit"
---| "settle.before_commit"
---| "settle.after_commit"
---| "transaction.before_commit"
---| "transaction.after_commit"

---@class nightshift.TestedJobs
---@field runs integer
---@field done integer
---@field failed integer attempts
---@field dead integer jobs
---@field again integer polls
---@field waiting integer jobs that were parked
---@field stale integer verdicts of claims that were lost
---@field crashed integer deaths at crash_at
---@field advanced number seconds that the clock was moved on
---@field left table<string, integer> ready jobs that did not run, by name
---@field errors {id: integer?, name: string, attempt: integer?, error: string?, dead: boolean?}[]

---@class nightshift.PushedJob
---@field id integer
---@field name string
---@field queue string
---@field payload any
---@field priority integer
---@field state nightshift.State
---@field created number
---@field due number?
---@field parent integer?
---@field unique string?
---@field group string?
---@field attempts integer

return nightshift
