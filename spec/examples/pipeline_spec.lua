-- The pipeline of examples/: its result is that of a plain computation, byte for
-- byte, whatever is killed in between, and no piece is encoded twice.
--
-- SEED=n repeats what is killed when, as far as that goes; PIPELINE_MB=512 takes
-- a large file.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

local JOBS = "examples/pipeline/jobs.lua"
local MEGABYTES = tonumber(os.getenv "PIPELINE_MB")
local PIECES = 6
local SIZE = MEGABYTES and MEGABYTES * 1000000 // 1 or 2000001
local PIECE = SIZE // (PIECES - 1) -- the last one is short
local PATIENCE = 150 + (MEGABYTES or 0)
local seed = math.tointeger(os.getenv "SEED") or os.time()

local dir, handle, url, name, env

local function lines(command)
  local list = {}
  local pipe <close> = assert(io.popen(command))
  for line in pipe:lines() do list[#list + 1] = line end
  return list
end

-- Processes whose command line names the folder: encoders.
local function encoders(folder)
  local list = {}
  for _, pid in ipairs(lines "ls /proc | grep -x '[0-9]*'") do
    local file <close> = io.open(("/proc/%s/cmdline"):format(pid), "rb")
    if file and (file:read "a" or ""):find(folder .. "/", 1, true) then list[#list + 1] = math.tointeger(pid) end
  end
  return list
end

local function write(path, text)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(text))
end

-- The encoder of these tests takes its time, writes down when it begins and
-- ends, and fails while there are lines in fail.NUMBER OF THE PIECE.
local ENCODER = [[#!/bin/sh
cd '%s' || exit
part=$(readlink /proc/self/fd/0) && part=${part##*/}
echo "begin $part" >>log
sleep 0.15
if [ -s "fail.$part" ]; then
  sed -i 1d "fail.$part"
  echo "no picture in $part" >&2
  exit 1
fi
gzip -9n && echo "end $part" >>log]]

before_each(function()
  url, name = db.fresh()
  handle = assert(nightshift.open(url))
  dir = fixture.dir()
  assert(os.execute(("(yes 'a film, frame by frame' | cat -n) 2>/dev/null | head -c %d >%s/film"):format(SIZE, dir)))
  assert(os.execute(("mkdir %s/out"):format(dir)))
  write(dir .. "/encoder", ENCODER:format(dir))
  env = { ENCODE = "sh " .. dir .. "/encoder" }
end)

after_each(function()
  handle:close()
  for _, pid in ipairs(encoders(dir)) do nst.kill(pid, "KILL") end
end)

local function start_host()
  return host.start(url, JOBS, { "--workers", "4", "--drain-timeout", "2s" }, env)
end

-- Fails twice, and so on, for good when it is more than attempts are made.
local function spoil(part, times) write(dir .. "/fail." .. part, ("once\n"):rep(times)) end

local function push()
  return assert(handle:queue "film":push("film.publish",
    { file = dir .. "/film", out = dir .. "/out/film.gz", size = PIECE }, { max_crashes = 100 }))
end

local function has_ended(id)
  local state = handle:job(id).state
  return state == "done" or state == "dead" or state == "cancelled"
end

-- How often the encoder began and ended with each piece.
local function encoded()
  local counts = {}
  for _, line in ipairs(lines(("cat %s/log"):format(dir))) do counts[line] = (counts[line] or 0) + 1 end
  return counts
end

local function each_piece_once()
  local counts = {}
  for i = 0, PIECES - 1 do
    counts[("begin %05d"):format(i)] = 1
    counts[("end %05d"):format(i)] = 1
  end
  return counts
end

local function assert_result()
  local plain = ("split -b %d --filter='gzip -9n' film"):format(PIECE)
  assert.is_true(os.execute(("cd %s && %s | cmp - out/film.gz"):format(dir, plain)), "other bytes; seed " .. seed)
  assert.is_true(os.execute(("cd %s && gzip -dc out/film.gz | cmp - film"):format(dir)))
end

local function assert_nothing_left(files)
  assert.same(files, lines(("ls -A %s/out"):format(dir)))
  assert.same({}, encoders(dir))
  for _, left in ipairs { "job", "edge", "scheduled" } do
    assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), left)
  end
end

local function ends(job_name)
  local rows = assert(handle:execute(
    "SELECT outcome, reason, attempts, error FROM nightshift_finished WHERE name = ? ORDER BY id", job_name))
  return rows
end

describe("the pipeline", function()
  it("gives what a plain computation gives", function()
    start_host()
    local p = proc.start { proc.lua, "examples/pipeline/push.lua", dir .. "/film", dir .. "/out/film.gz",
      PIECE, env = { NIGHTSHIFT_URL = url } }
    assert.equal(0, p:wait(PATIENCE), (p:text()))
    assert_result()
    local sum = lines(("sha256sum <%s/out/film.gz"):format(dir))[1]:match "%x+"
    assert.matches(("film.gz: %d pieces, sha256 %s, "):format(PIECES, sum), (p:text()), 1, true)
    assert.same(each_piece_once(), encoded())
    assert_nothing_left { "film.gz" }
  end)

  it("starts a piece anew when its encoder fails", function()
    spoil("00003", 1)
    start_host()
    local id = push()
    eventually(function() return has_ended(id) end, PATIENCE)
    assert.same({ "done", nil }, { handle:job(id).state, handle:job(id).error })
    assert_result()
    local expected = each_piece_once()
    expected["begin 00003"] = 2
    assert.same(expected, encoded())
    local attempts = {}
    for i, row in ipairs(ends "film.encode:poll") do attempts[i] = row.attempts end
    table.sort(attempts)
    assert.equal("0,1", attempts[PIECES - 1] .. "," .. attempts[PIECES])
    assert_nothing_left { "film.gz" }
  end)

  it("ends without a join when a piece fails for good, and says which; retried, it runs again", function()
    spoil("00003", 3)
    start_host()
    local id = push()
    eventually(function() return has_ended(id) end, PATIENCE)
    local info = handle:job(id)
    assert.same({ "dead", "discarded" }, { info.state, info.reason })
    assert.matches("^film.encode %(job %d+%): piece 4 of 6: no picture in 00003$", info.error)
    for _, stage in ipairs { "film.join", "film.check" } do
      local rows = ends(stage)
      assert.same({ 1, "cancelled", "dependency" }, { #rows, rows[1].outcome, rows[1].reason })
    end
    assert.same({}, ends "film.join:poll")
    local expected = each_piece_once()
    expected["begin 00003"], expected["end 00003"] = 3, nil
    assert.same(expected, encoded())
    assert_nothing_left {}

    assert(handle:retry(id))
    eventually(function() return has_ended(id) end, PATIENCE)
    assert.same({ "done", nil }, { handle:job(id).state, handle:job(id).error })
    assert_result()
    assert_nothing_left { "film.gz" }
  end)

  it("starts a command once, however many ask at once and for whatever try", function()
    local asking = {}
    for i = 1, 8 do
      local command = ("echo x >>%s/log; echo yes"):format(dir)
      asking[i] = proc.start { "sh", "examples/pipeline/encoder", dir .. "/op", i, command }
    end
    for _, p in ipairs(asking) do assert.equal(0, p:wait()) end
    eventually(function()
      local _, said = proc.run { "sh", "examples/pipeline/encoder", dir .. "/op", 9, "false" }
      return said == "finished\nyes\n"
    end)
    assert.same({ x = 1 }, encoded())
  end)
end)

-- Workers of a host; those that are in the middle of something.
local function workers(h)
  local all, busy = host.members(h.pid), {}
  for _, pid in ipairs(all) do
    if #host.children(pid) > 0 then busy[#busy + 1] = pid end
  end
  return all, busy
end

local function kill_one_of(list)
  return #list > 0 and nst.kill(list[math.random(#list)], "KILL")
end

-- Kills workers, some of them in the middle of something, and two hosts, which
-- are replaced. It stops some time, as a job that is killed every second cannot
-- do what takes ten, and waits for a minute when that was its fourth worker.
local VICTIMS = 20

local function fire(id, hosts)
  local killed = { worker = 0, busy = 0, host = 0 }
  local stop = nst.clock() + proc.limit(PATIENCE)
  local next_worker, next_host = 0, nst.clock() + 0.3 + math.random()
  while not has_ended(id) do
    local now, which = nst.clock(), math.random(2)
    local all, busy = workers(hosts[which])
    if killed.worker + killed.busy >= VICTIMS then
      nst.sleep(0.05)
    elseif math.random(4) == 1 and kill_one_of(busy) then
      killed.busy = killed.busy + 1
    elseif now > next_worker and kill_one_of(all) then
      killed.worker, next_worker = killed.worker + 1, now + math.random() / 3
    end
    if now > next_host and killed.host < 2 then
      hosts[which]:signal "KILL"
      hosts[which]:wait()
      hosts[which] = start_host()
      killed.host, next_host = killed.host + 1, nst.clock() + 0.3 + math.random()
    end
    assert(now < stop, "it does not end; seed " .. seed)
    nst.sleep(0.005)
  end
  return killed
end

describe("the pipeline under fire", function()
  it("gives the same bytes, and encodes nothing twice, whoever is killed", function()
    math.randomseed(seed)
    local hosts = { start_host(), start_host() }
    local id = push()
    local begun = nst.clock()
    local killed = fire(id, hosts)
    local info = handle:job(id)
    assert.same({ "done", nil }, { info.state, info.error }, "seed " .. seed)
    assert_result()
    assert.same(each_piece_once(), encoded(), "seed " .. seed)
    assert_nothing_left { "film.gz" }
    assert.same({}, handle:execute "SELECT id, name, reason, error FROM nightshift_finished WHERE outcome <> 'done'")
    assert.is_true(killed.worker + killed.busy > 0 and killed.host > 0, "nobody was killed; seed " .. seed)
    if os.getenv "VERBOSE" then
      print(("seed %d: killed %d workers, %d busy ones, %d hosts in %.1f s"):format(seed, killed.worker, killed.busy,
        killed.host, nst.clock() - begun))
    end
  end)
end)
