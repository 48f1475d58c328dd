--- Signals the jobs that ask for it, also before they wait, until it has an answer. usage:
-- signaller.lua URL FOLDER; ends when the file `quiet` is there. A line in `verbs` each:
--
--   signal  TIME ID RUN ok|CODE

local nightshift = require "nightshift"
local nst = require "nst"
local journal = require "spec.torture.journal"

local url, folder = table.unpack(arg)
local note = journal.writer(folder, "verbs")
local db
local told = {} -- "ID RUN" of those that have an answer
local runs

for w in journal.lines(folder, "verbs") do
  if w[1] == "signal" then told[w[3] .. " " .. w[4]] = true end
end

-- The same again until the server has said something.
local function signal(id, run)
  local ok, code, _
  repeat
    db = db or nightshift.open(url)
    if db then ok, _, code = db:signal(id, run, "go") end
    local later = not db or code == "GONE" or code == "BUSY"
    if later then nst.sleep(0.1) end
  until not later
  note("signal", id, run, ok and "ok" or code or "NONE")
end

local function look()
  runs = runs or io.open(folder .. "/runs", "rb")
  for line in runs and runs:lines() or function() end do
    local id, run = line:match "^asks %S+ (%d+) (%d+)$"
    if id and not told[id .. " " .. run] then
      told[id .. " " .. run] = true
      signal(math.tointeger(id), math.tointeger(run))
    end
  end
end

local function stopping()
  local file = io.open(folder .. "/quiet")
  return file and file:close()
end

while not stopping() do
  look()
  nst.sleep(0.05)
end
