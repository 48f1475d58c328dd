-- The classic mistake, as a negative control: SELECT … SKIP LOCKED and the
-- UPDATE each in its own transaction. usage: naive URL FILE
local core = require "nightshift.core"
local url, path = arg[1], arg[2]
local db = assert(core.open { url = url, no_schema = true })
local file = assert(io.open(path, "ab"))
file:setvbuf "line"
io.write "ready\n"
io.flush()
io.read()
while true do
  local rows = assert(db:execute "SELECT id FROM naive WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED")
  if not rows[1] then break end
  assert(db:execute("UPDATE naive SET state = 1 WHERE id = ?", rows[1].id))
  file:write(rows[1].id, "\n")
end
print "done"
