-- The handlers of the archive demo: one job packs one folder into a .tar.gz.
-- `start` launches tar | gzip as a process of its own and is done at once;
-- `poll` asks whether it has finished. The folder .work/KEY belongs to one job
-- at every attempt, so starting twice is harmless when a worker dies.
--
-- What a worker has started dies with it, but for sessions of their own. So the
-- archiver takes its lock in its session, and `start` is over when it has. No
-- other attempt sees a lock whose owner is about to die.
local nightshift = require "nightshift"

-- Packs as many folders at a time as there are processors; 75: all are busy.
-- The archiver inherits the lock of its slot, and its output, which it closes
-- when it has the folder's lock, or when another has.
local LAUNCH = [[
mkdir -p "$work" || exit
for slot in $(seq "$(nproc)"); do
  exec 9>"$work/../slot.$slot"; flock -n 9 || continue
  setsid sh -c "$PACK" </dev/null 2>/dev/null &
  exit 0
done; exit 75]]

local PACK = [[
exec 8>"$work/lock"; flock -n 8 && ! [ -e "$work/done" ] || exit 0 # started before
exec >/dev/null
find "$folder" ! -type s -printf '%y %s\n' 2>/dev/null |
  awk '{ n++ } $1 == "f" { b += $2 } END { printf "%.0f %.0f\n", n, b }' >"$work/listed"
{ tar -cf - --no-unquote -C "${folder%/*}/" -- "./${folder##*/}" | gzip -1 >"$work/tar.gz"; } 2>"$work/errors" &&
  tar -tz <"$work/tar.gz" | wc -l >"$work/packed" && mv -- "$work/tar.gz" "$archive" && : >"$work/done"]]

local CHECK = [[
flock -n "$work/lock" true || exit 75 # still at it
[ -e "$work/done" ] && gzip -t <"$archive" || { echo not archived; cat "$work/errors"; exit 1; }
cat "$work/packed" && wc -c <"$archive" && cat "$work/listed"
grep -E ': (Cannot |Read error|File removed)' "$work/errors" || true]]

-- Runs a script with variables of any bytes; gives what it printed and its exit code.
local function shell(script, payload, key)
  local function plain(s) return (s:gsub("%%(%x%x)", function(x) return string.char(tonumber(x, 16)) end)) end
  local set = { folder = plain(payload.folder), archive = plain(payload.archive), PACK = PACK, LC_ALL = "C" }
  set.work = set.archive:gsub("[^/]*$", ".work/" .. key)
  for name, value in pairs(set) do script = ("export %s='%s'\n%s"):format(name, value:gsub("'", "'\\''"), script) end
  local pipe = assert(io.popen(script))
  local text, _, how, code = pipe:read "a", pipe:close()
  return text, how == "exit" and code or error "the script was killed" -- the job is tried again
end

return {
  ["archive.start"] = nightshift.background {
    start = function(job)
      local _, code = shell(LAUNCH, job.payload, job.key)
      if code == 75 then return job:again(0.2 + job.id % 20 / 10) end -- come back, not all at once
      return code == 0 and { key = job.key } or job:discard "cannot launch the archiver"
    end,
    poll = function(job, operation)
      local text, code = shell(CHECK, job.payload, operation.key)
      if code == 75 then return job:again() end
      local entries, size, listed, bytes, errors = text:match "^(%d+)\n(%d+)\n(%d+) (%d+)\n(.*)"
      local failures = select(2, (errors or ""):gsub("\n", ""))
      if code ~= 0 or not entries or entries + failures < tonumber(listed) then return job:discard(text) end
      return { entries = tonumber(entries), bytes_in = tonumber(bytes), bytes_out = tonumber(size),
        failures = failures, unreadable = errors:sub(1, 100000) }
    end,
    every = 0.25, growth = 1.5, max_every = 4, deadline = "10m", max_crashes = 100,
  },
}
