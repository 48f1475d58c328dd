-- Tables for the programs of the bench: emptied, and filled by the server itself, as fast as it
-- can. And a reader that keeps the server from purging them.
local tables = {}

local HOT = { "job", "ready", "lease", "finished", "scheduled", "edge", "child", "met", "attempt" }
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

return tables
