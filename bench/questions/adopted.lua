-- Rows of an adopted table: a host, and 50 programs that claim by themselves. Also in a table of a
-- million rows, with 64 KiB in each row, and with a server 1 ms away. The table is the first
-- published design's, in spec/support/designs.lua. Each way is one run of this program, which
-- prints one JSON line.
--   lua5.4 bench/questions/adopted.lua URL BUILD host|programs OPEN [DONE [BYTES [MS [BATCH]]]]
-- OPEN rows are open, of OPEN + DONE; each has a text of BYTES; each reply of the server comes MS
-- later. The time is from the table's resumption to the last verdict.
if ... == "bench/questions/adopted.lua" then return { migrate = function() end } end

local nightshift = require "nightshift"
local processes = require("bench.lib.stage").processes

local NAME, PROGRAMS, MS = "migration_task", 50, 1
local PLAIN, LARGE = 100, 65536 -- bytes
local MILLION = 1000000

local function question(s)
  local ask = {}
  local function add(what, way, n, ...)
    local rows, more = s:jobs(n, 100), { ... }
    ask[#ask + 1] = function()
      local line = s:program("adopted", way, rows, table.unpack(more))[1]
      line.what = what
      return line
    end
  end
  add("`nightshift work`, 8 workers", "host", 20000)
  add("… a million rows, one in fifty open", "host", 20000, s:jobs(MILLION - 20000))
  add("… 64 KiB in each row", "host", 4000, 0, LARGE)
  add("… a server 1 ms away", "host", 20000, 0, PLAIN, MS)
  add("50 programs, one row at a time", "programs", 4000, 0, PLAIN, 0, 1)
  add("50 programs, blocks of 100", "programs", 20000, 0, PLAIN, 0, 100)
  add("50 programs, blocks of 100, a server 1 ms away", "programs", 20000, 0, PLAIN, MS, 100)
  return {
    title = "Rows of an adopted table", rounds = 1, ask = ask,
    text = "Rows a second, from open to done; handlers do nothing. Each program is a process with a handle of its own,"
      .. " which acknowledges a block in one transaction.",
  }
end
if ... == "bench.questions.adopted" then return question end

local designs = require "spec.support.designs"

local url, build, way, open = arg[1], arg[2], arg[3], tonumber(arg[4])
local done, bytes, ms, batch = tonumber(arg[5] or 0), tonumber(arg[6] or PLAIN), tonumber(arg[7] or 0), arg[8] or 1
local db <close> = assert(nightshift.open(url))

local function ask(sql) return assert(db:execute(sql))[1] end

-- ------------------------------------------------------------- one program

--- Claims until nothing is open; while the table is paused nothing is.
local function claim(t)
  repeat
    local jobs = assert(t:claim_many(math.tointeger(batch), { wait = 0.2 }))
    if #jobs == 1 then
      assert(jobs[1]:ack())
    elseif #jobs > 0 then
      assert(db:transaction(function(tx)
        for _, job in ipairs(jobs) do tx:ack(job) end
        return true
      end))
    end
  until #jobs == 0 and ask(("SELECT paused FROM nightshift_queue WHERE name = '%s'"):format(NAME)).paused == 0
end

if way == "claim" then
  local t = assert(db:adopt(designs.map(NAME)))
  print "ready"
  io.stdout:flush()
  claim(t)
  os.exit(true, true)
end

-- ------------------------------------------------------------------ the run

local function create()
  designs.create(db, NAME, 0)
  assert(db:execute(("ALTER TABLE %s MODIFY imageUrl MEDIUMTEXT NOT NULL"):format(NAME)))
  local every = (open + done) // open
  assert(db:execute(([[INSERT INTO %s (imageUrl, status, completedAt)
    SELECT REPEAT('x', %d), IF(seq %% %d = 0, 'open', 'complete'), NOW() FROM seq_1_to_%d]]):format(NAME, bytes, every,
    open * every)))
  assert(db:execute("ANALYZE TABLE " .. NAME))
end

--- The server's address by way of a proxy that holds each reply back.
local function far_away(folder)
  local socket, target = folder .. "/p.sock", url:match "unix_socket=(.*)":gsub("%%(%x%x)", function(hex)
    return string.char(tonumber(hex, 16))
  end)
  assert(os.execute(("mkfifo %s/fifo.in %s/fifo.out"):format(folder, folder)))
  local proxy = assert(io.popen(processes.tied(("%s/proxy %s %s %s/fifo"):format(build, socket, target, folder))))
  assert(proxy:read "l":find "^listening")
  local commands, answers = assert(io.open(folder .. "/fifo.in", "w")), assert(io.open(folder .. "/fifo.out"))
  commands:setvbuf "no"
  commands:write("delay ", ms, "\n")
  assert(answers:read "l" ~= "unknown")
  return (url:gsub("unix_socket=.*", { ["unix_socket=" .. url:match "unix_socket=(.*)"] = "unix_socket=" .. socket })),
    { proxy, commands, answers }
end

local function seconds_until_done(t)
  assert(t:resume())
  local began = nightshift.clock()
  repeat
    assert(db:execute "DO SLEEP(0.01)")
    local left = assert(db:execute(("SELECT 1 FROM %s WHERE status IN ('open', 'processing') LIMIT 1"):format(NAME)))[1]
  until not left
  return nightshift.clock() - began
end

local function by_host(t, at, folder)
  local path = folder .. "/map.lua"
  local file <close> = assert(io.open(path, "w"))
  file:write(("return require 'spec.support.designs'.map %q"):format(NAME))
  file:close()
  local _ <close> = processes.start_host { url = at, build = build, workers = 8,
    script = "bench/questions/adopted.lua", options = "--adopt " .. path }
  return seconds_until_done(t)
end

local function by_programs(t, at)
  local pipes = {}
  for i = 1, PROGRAMS do
    local words = "%s bench/questions/adopted.lua '%s' %s claim 0 0 0 0 %s"
    pipes[i] = assert(io.popen(processes.tied(words:format(arg[-1], at, build, batch))))
  end
  for _, pipe in ipairs(pipes) do assert(pipe:read "l" == "ready", "bench: a program has failed") end
  local seconds = seconds_until_done(t)
  for _, pipe in ipairs(pipes) do assert(pipe:close(), "bench: a program has failed") end
  return seconds
end

create()
local t = assert(db:adopt(designs.map(NAME)))
assert(t:pause())
local folder = os.tmpname()
assert(os.remove(folder) and os.execute("mkdir " .. folder))
local at, proxy = url, nil
if ms > 0 then at, proxy = far_away(folder) end
local seconds = (way == "host" and by_host or by_programs)(t, at, folder)
os.execute("rm -r " .. folder)
assert(db:execute("DROP TABLE " .. NAME))
print(('{"what":"adopted","jobs":%d,"seconds":%.6f,"rate":%.1f}'):format(open, seconds, open / seconds))
io.stdout:flush()
os.exit(proxy == nil or true) -- without waiting for the proxy, which ends with us
