-- Pushes one film.publish job, watches it and says what came of it.
-- usage: lua5.4 push.lua FILE OUT [BYTES OF A PIECE]
local nightshift = require "nightshift"

local function absolute(path)
  local pipe <close> = assert(io.popen("realpath -m -- '" .. path:gsub("'", "'\\''") .. "'"))
  return pipe:read "l"
end

local file, out, size = ...
if not out then
  io.stderr:write "usage: push.lua FILE OUT [BYTES OF A PIECE]\n"
  os.exit(2)
end

local begun = nightshift.clock()
local db = assert(nightshift.open()) -- $NIGHTSHIFT_URL, else a private server
out = absolute(out)
local id = assert(db:queue("film"):push("film.publish",
  { file = absolute(file), out = out, size = math.tointeger(tonumber(size)) or 4 << 20 },
  { unique = { key = out, on_conflict = "keep" }, max_crashes = 100 })) -- one at a time per result

local CHILDREN = [[SELECT COUNT(f.id) AS ended, COUNT(*) AS n FROM nightshift_child c
  LEFT JOIN nightshift_finished f ON f.id = c.id WHERE c.parent = ?]]
local ENDED = { done = true, dead = true, cancelled = true }
local on_terminal = os.execute "test -t 1"

local info
local waits_since = begun
repeat
  info = assert(db:job(id))
  local now = assert(db:execute(CHILDREN, id))[1]
  if info.state == "ready" and waits_since and nightshift.clock() - waits_since > 5 then
    print(("job %d is ready, and nobody takes it: %s"):format(id, assert(db:why(id))))
    waits_since = nil
  end
  if on_terminal then io.write(("\rjob %d: %d of %d steps\27[K"):format(id, now.ended, now.n)):flush() end
until ENDED[info.state] or not os.execute "sleep 0.2"
if on_terminal then io.write "\r\27[K" end

if info.state ~= "done" then
  print(("job %d is %s: %s"):format(id, info.state, info.error or info.reason))
  os.exit(1, true)
end
print(("%s: %d pieces, sha256 %s, %.1f s"):format(out, info.result.pieces, info.result.sha256,
  nightshift.clock() - begun))
os.exit(true, true)
