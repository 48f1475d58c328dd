-- Pushes one archive.start job per sub-folder of FOLDER, watches until all of
-- them have ended and prints what came of it. The archives go into OUT.
-- usage: lua5.4 push.lua FOLDER OUT      (absolute paths)
local nightshift = require "nightshift"

local root, out = ...
local begun, on_terminal = nightshift.clock(), os.execute "test -t 1"
local db = assert(nightshift.open()) -- $NIGHTSHIFT_URL, else a private server

-- File names are bytes but JSON is UTF-8: escapes all that is not plain.
local function escape(s)
  return (s:gsub("[%%%c\128-\255]", function(c) return ("%%%02X"):format(c:byte()) end))
end

-- The real sub-folders, not links to folders; names may hold anything.
local function sub_folders()
  local find = "find '%s/' -mindepth 1 -maxdepth 1 -type d -printf '%%f\\0'"
  return assert(io.popen(find:format(root:gsub("'", "'\\''")))):read("a"):gmatch "[^\0]+"
end

local jobs = {}
for name in sub_folders() do
  local short = #name > 240 and ("%s~%d"):format(name:sub(1, 200), #jobs) or name
  jobs[#jobs + 1] = { "archive.start",
    { folder = escape(root .. "/" .. name), archive = escape(out .. "/" .. short .. ".tar.gz") },
    { max_crashes = 100 } } -- a person may kill our workers to see what happens
end
local ids = #jobs > 0 and assert(db:queue("archive"):push_many(jobs)) or { 0 }

-- Ends of ours: polls, the children of what we pushed, and starts gone wrong.
local ENDS = [[FROM nightshift_finished WHERE COALESCE(parent, id) BETWEEN ? AND ?
  AND (parent IS NOT NULL OR outcome <> 'done')]]
local TOTALS = [[SELECT COUNT(*) AS folders, SUM(polls + 1) AS polls,
  SUM(JSON_VALUE(result, '$.bytes_in')) AS bytes_in, SUM(JSON_VALUE(result, '$.bytes_out')) AS bytes_out,
  SUM(COALESCE(JSON_VALUE(result, '$.failures'), 1)) AS failures ]] .. ENDS
local FAILURES = [[SELECT COALESCE(JSON_VALUE(payload, '$.folder'), JSON_VALUE(payload, '$.payload.folder')) AS folder,
  COALESCE(JSON_VALUE(result, '$.unreadable'), error, reason) AS why ]] .. ENDS ..
  [[ AND COALESCE(JSON_VALUE(result, '$.failures'), 1) > 0]]

local function ask(sql) return assert(db:execute(sql, ids[1], ids[#ids])) end
local function count(n) return math.tointeger(tonumber(n) or 0) end

local now
repeat
  now = ask(TOTALS)[1]
  if on_terminal then
    local line = "\r%d of %d folders, %d MB read, %d MB written\27[K"
    io.write(line:format(now.folders, #jobs, count(now.bytes_in) // 1000000, count(now.bytes_out) // 1000000)):flush()
  end
until now.folders >= #jobs or not os.execute "sleep 0.25"

if on_terminal then io.write "\r\27[K" end
for _, row in ipairs(ask(FAILURES)) do print(("failed: %s: %s"):format(row.folder, row.why)) end
local lines = "  folders %d\n bytes in %d\nbytes out %d\n    polls %d\n  seconds %.1f\n failures %d"
print(lines:format(now.folders, count(now.bytes_in), count(now.bytes_out), count(now.polls),
  nightshift.clock() - begun, count(now.failures)))
os.exit(count(now.failures) == 0, true)
