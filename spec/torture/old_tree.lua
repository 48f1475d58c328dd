--- Large trees that ended long ago, as ballast for prunes: hosts delete them beside all
-- else. Nobody runs their jobs, so the audit leaves them out (`NAME`) but for one thing:
-- nothing of a tree goes before what is below it, and in the end all has gone.

local old_tree = {}

--- The name of their jobs.
old_tree.NAME = "ballast"

local CHILDREN <const> = 20000
local FIRST <const> = 1 << 40 -- above all other ids

local planted = 0

--- Plants one, all of it done two days ago. When the server does not take it: none.
function old_tree.plant(cast)
  local root = FIRST + planted * (CHILDREN + 1)
  planted = planted + 1
  pcall(cast.server.sql, cast.server, ([[BEGIN;
    INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run, attempts, polls, crashes,
      lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, parent, root, on_fail, nonce)
    SELECT %d + seq, (SELECT MIN(id) FROM nightshift_queue), '%s', '1', 100, 'done', 1, 0, 0, 0, 0, 1, 1, 1, 1, 1,
      (UNIX_TIMESTAMP() - 2 * 86400) * 1000000, IF(seq = 0, NULL, %d), IF(seq = 0, NULL, %d), 'cancel', 1
    FROM seq_0_to_%d;
    INSERT INTO nightshift_child SELECT %d, seq, %d + seq FROM seq_1_to_%d;
    COMMIT]]):format(root, old_tree.NAME, root, root, CHILDREN, root, root, CHILDREN), cast.database)
end

--- Of each one that is there, the top is; `found` gets a kind and a text.
function old_tree.look(db, found)
  local rows = db:execute([[SELECT c.root AS id, COUNT(*) AS n FROM nightshift_finished c
    LEFT JOIN nightshift_finished p ON p.id = c.root
    WHERE c.name = ? AND c.root IS NOT NULL AND p.id IS NULL GROUP BY c.root]], old_tree.NAME)
  for _, row in ipairs(rows or {}) do
    found("half pruned", ("%d jobs of tree %d are there, and its top has gone"):format(row.n, row.id))
  end
end

--- In the end: prunes what is left of them, and looks that nothing is.
function old_tree.finish(db, found)
  local n, message = db:prune { done = "1d" }
  if not n then found("prune", "a prune of old trees said: " .. message) end
  n = assert(db:execute("SELECT COUNT(*) AS n FROM nightshift_finished WHERE name = ?", old_tree.NAME))[1].n
  if n > 0 then found("left over", n .. " jobs of old trees") end
  n = assert(db:execute("SELECT COUNT(*) AS n FROM nightshift_child WHERE parent >= ?", FIRST))[1].n
  if n > 0 then found("left over", n .. " rows in nightshift_child of old trees") end
end

return old_tree
