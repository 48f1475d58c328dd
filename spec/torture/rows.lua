--- An adopted table in a torture: its rows are worked off by hosts while programs add, take, lock and
-- delete some. In the end rows, jobs and the history have to agree, and nothing is owed.

local rows = {}

--- The name of the jobs.
rows.NAME = "row"

local TABLE <const> = [[CREATE TABLE torture_row (
  id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  status ENUM('open','processing','complete','failed') NOT NULL DEFAULT 'open',
  claimed_by VARCHAR(40) NULL, claimed_at DATETIME(3) NULL, completed_at DATETIME(3) NULL,
  retry_after DATETIME(3) NULL, failures TINYINT UNSIGNED NOT NULL DEFAULT 0, added VARCHAR(40) NOT NULL,
  KEY (status, id))]]

local MAPPING <const> = [[return { table = "torture_row", name = "row",
  status = { column = "status", open = "open", processing = "processing", done = "complete", failed = "failed" },
  claimed_by = "claimed_by", claimed_at = "claimed_at", completed_at = "completed_at", retry_after = "retry_after",
  attempts = "failures", max_attempts = 4, overdue = "8s", backoff = 0.2, max_crashes = 100, timeout = 30 }]]

--- Makes the table, and the file of its mapping, which hosts adopt.
function rows.prepare(db, folder)
  assert(db:execute(TABLE))
  local file <close> = assert(io.open(folder .. "/rows.lua", "w"))
  assert(file:write(MAPPING))
end

--- What the handler does with a row follows from `pick`, a number below 100.
function rows.run(job, pick)
  if pick < 8 then return job:fail("no", { retry_in = 0.1 }) end
  if pick < 12 then return job:again(0.1) end
  if pick < 14 then return job:discard "never" end
  if pick < 15 then os.exit(9, false) end
  if pick < 16 then os.execute "kill -9 $PPID" end
  return pick
end

--- The verbs of a program beside the hosts, by name; each may fail, and no more is known then.
-- `who`: what its rows are claimed by.
rows.verbs = {
  add = function(db, who)
    db:execute("INSERT INTO torture_row (added) SELECT ? FROM seq_1_to_" .. math.random(20), who)
  end,
  take = function(db, who, sleep)
    db:execute([[UPDATE torture_row SET status = 'processing', claimed_by = ?, claimed_at = NOW(3)
      WHERE status = 'open' AND failures < 4 AND claimed_by IS NULL ORDER BY id LIMIT 3]], who)
    sleep(math.random() * 0.3)
    db:execute([[UPDATE torture_row SET status = 'complete', completed_at = NOW(3)
      WHERE status = 'processing' AND claimed_by = ?]], who)
  end,
  lock = function(db, _, sleep)
    pcall(db.transaction, db, function(tx)
      tx:execute "SELECT id FROM torture_row WHERE status = 'processing' ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED"
      sleep(math.random())
      error "no"
    end)
  end,
  delete = function(db)
    db:execute "DELETE FROM torture_row WHERE status IN ('open', 'processing') ORDER BY RAND() LIMIT 1"
  end,
}
rows.NAMES = { "add", "add", "add", "take", "lock", "delete" }

--- Are there rows that hosts have to do, or write?
function rows.left(db)
  return assert(db:execute [[SELECT (SELECT COUNT(*) FROM torture_row
    WHERE status = 'processing' OR status = 'open' AND failures < 4)
    + (SELECT COUNT(*) FROM nightshift_owed) AS n]])[1].n
end

local CHECKS <const> = {
  { "row undone", "SELECT id, status AS what FROM torture_row WHERE status IN ('open', 'processing')" },
  { "row owed", "SELECT row_id AS id, COALESCE(outcome, 'lives') AS what FROM nightshift_owed" },
  { "row kept", "SELECT job_id AS id, ukey AS what FROM nightshift_unique_key WHERE ukey LIKE 'row:%'" },
  { "row done twice", [[SELECT MIN(id) AS id, COUNT(*) AS what FROM nightshift_finished
    WHERE name = 'row' AND outcome = 'done' GROUP BY ukey HAVING COUNT(*) > 1]] },
  { "row without its job", [[SELECT t.id, t.claimed_by AS what FROM torture_row t
    LEFT JOIN nightshift_finished f ON f.id = SUBSTRING(t.claimed_by, 4) AND f.outcome = 'done'
    WHERE t.status = 'complete' AND t.claimed_by LIKE 'ns:%' AND f.id IS NULL]] },
  { "job without its row", [[SELECT f.id, t.status AS what FROM nightshift_finished f
    JOIN torture_row t ON t.id = SUBSTRING_INDEX(f.ukey, ':', -1)
    WHERE f.name = 'row' AND f.outcome = 'done'
    AND NOT (t.status = 'complete' AND t.claimed_by = CONCAT('ns:', f.id))]] },
  { "row failed without a job", [[SELECT t.id, t.failures AS what FROM torture_row t WHERE t.status = 'failed'
    AND t.failures < 4 AND NOT EXISTS (SELECT 1 FROM nightshift_finished f WHERE f.name = 'row'
      AND f.outcome = 'dead' AND SUBSTRING_INDEX(f.ukey, ':', -1) = t.id)]] },
}

--- When all is over; `found` gets a kind and a text. How many rows there were.
function rows.check(db, found)
  for _, check in ipairs(CHECKS) do
    for _, row in ipairs(assert(db:execute(check[2] .. " LIMIT 20"))) do
      found(check[1], ("%d: %s"):format(row.id, row.what))
    end
  end
  return assert(db:execute "SELECT COUNT(*) AS n FROM torture_row")[1].n
end

return rows
