-- The examples: every byte arrives, whatever is killed in between; a program in C is built against
-- what is installed. And the rock.

local db = require "spec.support.db"
local host = require "spec.support.host"
local lfs = require "lfs"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- The migration of examples/: every file arrives, byte for byte, although workers
-- are killed with tasks in their hands.
describe("the migration", function()
  local FILES = 200

  local from, out

  local function write(path, text)
    local file <close> = assert(io.open(path, "wb"))
    assert(file:write(text))
  end

  local function read(path)
    local file <close> = assert(io.open(path, "rb"))
    return file:read "a"
  end

  local ODD = { "two words", "100%", "%41", "caf\u{e9}", "a+b&c?d#e", "empty", "-rf", "quo'te" }

  before_each(function()
    from, out = fixture.dir(), fixture.dir()
    assert(os.execute("mkdir " .. from .. "/below"))
    for i = 1, FILES - #ODD do write(("%s/below/%d.png"):format(from, i), ("image %d\r\n\0"):format(i):rep(i * 7)) end
    for _, name in ipairs(ODD) do write(from .. "/" .. name, name == "empty" and "" or name) end
  end)

  -- A process below another with this in its command line.
  local function find(pid, what)
    for _, child in ipairs(host.children(pid)) do
      local file <close> = io.open(("/proc/%d/cmdline"):format(child), "rb")
      if file and (file:read "a" or ""):find(what, 1, true) then return child end
    end
  end

  local function images()
    local pipe <close> = assert(io.popen("ls " .. out .. "/images 2>/dev/null"))
    local n = 0
    for line in pipe:lines() do
      if line:find "^%d+$" then n = n + 1 end
    end
    return n
  end

  -- The table lies in a database of the example's own.
  local ROWS = [[
  local db = assert(require "nightshift".open())
  for _, row in ipairs(assert(db:execute "SELECT * FROM migration_task")) do
    print(row.id, row.status, row.iteration, row.completedAt and "dated", row.imageUrl)
  end]]

  local function rows()
    local status, text, errors = proc.run { proc.lua, "-e", ROWS, cwd = out, env = { NIGHTSHIFT_URL = false } }
    assert.equal(0, status, errors)
    local list = {}
    for id, state, iteration, dated, url in text:gmatch "(%d+)\t(%l+)\t(%d+)\t(%w+)\t(%S+)" do
      list[#list + 1] = { id = id, state = state, iteration = tonumber(iteration), dated = dated, url = url }
    end
    return list
  end

  local function unescape(url)
    return (url:gsub("^http://[^/]*/", ""):gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end))
  end

  it("brings every file, though workers are killed in the middle", function()
    local p = proc.start { "sh", "examples/migration/run.sh",
      env = { DIR = from, OUT = out, O = proc.build, WORKERS = 3, LUA = proc.lua } }
    eventually(function() return images() >= 20 end, 30)
    local server = assert(find(p.pid, "tools.lua\0serve"))
    nst.kill(server, "STOP")
    eventually(function() -- all workers wait for it
      local claimed = 0
      for _, row in ipairs(rows()) do claimed = claimed + (row.state == "processing" and 1 or 0) end
      return claimed >= 3
    end, 30)
    assert(images() < FILES)
    for _, pid in ipairs(host.members(p.pid)) do nst.kill(pid, "KILL") end -- they wait for the server
    nst.kill(server, "CONT")
    assert.equal(0, p:wait(60), p:transcript())
    local text = p:text()
    assert.truthy(text:find(("%d tasks"):format(FILES), 1, true), text)
    assert.truthy(text:find(("[%s] %d of %d, "):format(("#"):rep(40), FILES, FILES), 1, true), text)
    assert.truthy(text:find "/s, %d+:%d%d min left", text)
    assert.truthy(text:find(("%d complete, 0 given up"):format(FILES), 1, true), text)
    local list, again, seen = rows(), 0, {}
    assert.equal(FILES, #list)
    for _, row in ipairs(list) do
      assert.same({ "complete", "dated" }, { row.state, row.dated }, row.id)
      local name = unescape(row.url)
      assert.is_nil(seen[name], name)
      assert.equal(read(from .. "/" .. name), read(out .. "/images/" .. row.id), name)
      seen[name], again = true, again + row.iteration
    end
    assert.is_true(again >= 1, again) -- what the dead had claimed
    assert.equal(FILES, images())
  end)
end)

-- The pipeline of examples/. Its result is that of a plain computation, byte for byte, whatever
-- is killed in between, and no piece is encoded twice.
--
-- SEED=n repeats what is killed when, as far as that goes; PIPELINE_MB=512 takes
-- a large file.
describe("examples:", function()
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

  -- Processes with a command line that names the folder: encoders.
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

  -- The encoder of these tests takes its time, and writes down when it begins and ends. It
  -- fails while there are lines in fail.NUMBER OF THE PIECE.
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

  -- Kills workers, some of them in the middle of something, and two hosts, which are replaced.
  -- It stops some time, as a job that is killed every second cannot do ten seconds of work.
  -- Such a job also waits for a minute after its fourth worker.
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
end)

-- The archive demo on small folders of its own: odd names, what cannot be
-- read, and a worker that is killed in the middle.
describe("the schedules", function()
  it("are declared, and run when they are told to", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    assert.equal(0, (host.drain(url, "examples/schedules/jobs.lua")))
    local rows = assert(handle:schedules())
    assert.same({ "cache.clean", "report.daily" }, { rows[1].name, rows[2].name })
    local id = assert(handle:schedule_run "report.daily")
    assert.equal(0, (host.drain(url, "examples/schedules/jobs.lua")))
    assert.same({ pages = 3 }, handle:job(id).result)
  end)
end)

describe("the events", function()
  it("are in their table, once each, a hundred by one statement", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local list = {}
    for i = 1, 250 do list[i] = { "event.store", { kind = i == 7 and 7 or "click", page = "/" .. i } } end
    local ids = assert(handle:queue("events"):push_many(list))
    assert.equal(0, (host.drain(url, "examples/events/jobs.lua")))
    local stored = assert(handle:execute [[SELECT COUNT(DISTINCT JSON_VALUE(body, '$.page')) AS pages, COUNT(*) AS n
      FROM event]])[1]
    assert.same({ 249, 249 }, { stored.pages, stored.n })
    assert.equal("payload refused: an event has a kind", handle:job(ids[7]).error)
    assert.same({ { outcome = "done", n = 249 } },
      handle:execute "SELECT outcome, COUNT(*) AS n FROM nightshift_finished WHERE outcome = 'done'")
  end)
end)

describe("the letters", function()
  it("are sent when they are mended, and leave nothing", function()
    local url = db.fresh()
    local status, out, err = proc.run { proc.lua, "examples/letters/letters.lua", env = { NIGHTSHIFT_URL = url } }
    assert.same({ 0, "" }, { status, err })
    assert.equal("1\tdone\n1\tdead\n1\tscheduled\ndone\tann@example.com\ndone\tbob@example.com\n"
      .. "done\tcy@example.com\n3\tdeleted\n", out)
  end)
end)

describe("make demo", function()
  local ROOT = assert(io.popen "pwd"):read "l"
  local BUILD = os.getenv "NIGHTSHIFT_BUILD" or "build"

  local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

  local function sh(script)
    local pipe = assert(io.popen(script))
    local text = pipe:read "a"
    return text, select(3, pipe:close())
  end

  -- Folder, with a file in it unless it is to be empty.
  local function make(folder, file, text)
    assert(os.execute("mkdir -p -- " .. quote(folder)))
    if not file then return end
    local f = assert(io.open(folder .. "/" .. file, "w"))
    f:write(text or "some text\n")
    f:close()
  end

  local function table_of(text)
    local rows = {}
    for name, value in text:gmatch "%f[^\n\0] *([a-z ]-) ([%d.]+)%f[\n]" do rows[name] = tonumber(value) end
    return rows
  end

  local t, dir, out

  -- `as`: a command in front, which changes the user.
  local function demo(as)
    return sh(("cd %s && DIR=%s OUT=%s O=%s %s sh examples/archive/demo.sh 2>&1")
      :format(quote(ROOT), quote(dir), quote(out), quote(BUILD), as or ""))
  end

  before_each(function()
    t = assert(io.popen "mktemp -d"):read "l"
    dir, out = t .. "/in", t .. "/out"
    make(dir)
    make(out)
  end)

  after_each(function() os.execute("rm -rf " .. quote(t)) end)

  it("archives folders whatever their names are", function()
    local names = { "plain", "two words", "-rf", "quo'te\"s", "new\nline", "$(touch pwned)", "caf\u{e9}", "lat\xe9",
      "%41", "*", ".hidden", ("long"):rep(63) }
    for _, name in ipairs(names) do make(dir .. "/" .. name, "a file\n$x") end
    make(dir .. "/empty")
    assert(os.execute("ln -s plain " .. quote(dir .. "/link")))
    local text, code = demo()
    assert.equal(0, code, text)
    local rows = table_of(text)
    assert.equal(#names + 1, rows.folders, text)
    assert.equal(0, rows.failures)
    assert.equal(#names * #"some text\n", rows["bytes in"])
    assert.is_true(rows["bytes out"] > 0 and rows.polls >= rows.folders and rows.seconds > 0)
    assert.is_truthy(text:find("failures 0", 1, true))
    assert.is_nil(text:find("\r", 1, true), "a progress line although this is no terminal")
    for _, name in ipairs(names) do
      local archive = out .. "/" .. (#name > 240 and name:sub(1, 200) .. "~" or name)
      local count = sh(("cat %s*.tar.gz | gzip -dc | tar -t | wc -l"):format(quote(archive)))
      assert.is_true(tonumber(count) >= 2, name)
    end
    assert.is_nil(io.open(out .. "/pwned"))
    assert.is_nil(io.open(out .. "/link.tar.gz"))
    -- The last line says how to look at it.
    local command, port = assert(text:match "\n  %((cd [^\n]* web)%)\n$", text), proc.free_port()
    local pages = proc.start { "sh", "-c", command:gsub("&& ", "&& exec ") .. " --listen 127.0.0.1:" .. port }
    pages:wait_line(("http://127.0.0.1:%d/"):format(port), 60)
    local page = require "socket.http".request(("http://127.0.0.1:%d/jobs?state=done"):format(port))
    assert.is_truthy(page:find("archive", 1, true), page)
    pages:signal "TERM"
    pages:wait(30)
  end)

  it("has a table for a folder without sub-folders", function()
    local text, code = demo()
    assert.equal(0, code, text)
    assert.equal(0, table_of(text).folders)
  end)

  it("says so when the folder does not exist", function()
    dir = dir .. "/none"
    local text, code = demo()
    assert.equal(2, code)
    assert.is_truthy(text:find(dir, 1, true), text)
  end)

  it("lists what cannot be read and archives the rest", function()
    local as
    make(dir .. "/good", "a")
    make(dir .. "/partly", "a")
    make(dir .. "/partly", "secret")
    make(dir .. "/shut", "a")
    if sh "id -u" == "0\n" then
      local closed = proc.closed_to_nobody()
      if closed then return pending(closed) end
      as = "setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=" .. quote(out)
      assert(os.execute(("chown -R 65534:65534 %s"):format(quote(t))))
    end
    assert(os.execute(("chmod 0 %s/partly/secret %s/shut"):format(quote(dir), quote(dir))))
    local text, code = demo(as)
    os.execute(("chmod 700 %s/shut"):format(quote(dir)))
    assert.equal(1, code, text)
    local rows = table_of(text)
    assert.equal(3, rows.folders, text)
    assert.equal(2, rows.failures, text)
    assert.is_truthy(text:find("partly: tar: [^\n]*secret: Cannot open", 1), text)
    assert.is_truthy(text:find("shut: tar: [^\n]*: Cannot open", 1), text)
    assert.equal("./good/\n./good/a\n", sh(("tar -tzf %s/good.tar.gz"):format(quote(out))))
  end)

  it("ends with a whole table although workers are killed", function()
    for i = 1, 12 do make(dir .. "/" .. i, "a", ("%d text "):format(i):rep(30000)) end
    local p = proc.start { "sh", "examples/archive/demo.sh", env = { DIR = dir, OUT = out, O = BUILD } }
    local killed, due = 0, 0
    local function archived()
      local n = 0
      for _ in lfs.dir(out) do n = n + 1 end
      return n
    end
    while killed < 3 and not p:ended() do
      local worker = archived() >= due and host.members(p.pid)[1] -- each time another job: one killed thrice is dead
      if worker and nst.kill(worker, "KILL") then killed, due = killed + 1, archived() + 3 end
      nst.sleep(0.1)
    end
    local code, text = p:wait(120), p:transcript()
    assert.is_true(killed >= 1, "no worker was found")
    assert.equal(0, code, text)
    local rows = table_of((p:text()))
    assert.equal(12, rows.folders, text)
    assert.equal(0, rows.failures, text)
  end)
end)

describe("the archive's start", function()
  local url, handle
  with_database(function(h, _, u) handle, url = h, u end)

  -- The first archiver comes late to its session, and so dies with the worker that has launched it.
  it("is over when the archiver outlives its worker, not before", function()
    local dir, bin = fixture.dir(), fixture.dir()
    assert(os.execute(("mkdir -p %s/in/a %s/out && echo text >%s/in/a/file"):format(dir, dir, dir)))
    local late <close> = assert(io.open(bin .. "/setsid", "w"))
    late:write(("#!/bin/sh\nmkdir %s/late 2>/dev/null && sleep 30\nPATH=${PATH#*:} exec setsid \"$@\"\n"):format(bin))
    late:close()
    assert(os.execute("chmod +x " .. bin .. "/setsid"))
    local h = host.start(url, "examples/archive/jobs.lua", { "--workers", "1" },
      { PATH = bin .. ":" .. os.getenv "PATH" })
    local id = assert(handle:queue "archive":push("archive.start",
      { folder = dir .. "/in/a", archive = dir .. "/out/a.tar.gz" }))
    eventually(function() return os.rename(bin .. "/late", bin .. "/late") end)
    for _ = 1, 50 do
      if handle:job(id).state == "done" then break end
      nst.sleep(0.01)
    end
    nst.kill(host.member(h.pid), "KILL")
    local ended
    eventually(function()
      ended = handle:execute("SELECT outcome, error FROM nightshift_finished WHERE parent = ?", id)[1]
      return ended
    end)
    assert.same({ outcome = "done" }, ended)
    host.stop(h)
  end)
end)

-- The library for C programs: installed into an empty tree, and used from that tree alone.
describe("the C library, installed", function()
  local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

  local tree, url, handle
  with_database(function(h, _, u) handle, url = h, u end)

  setup(function()
    tree = fixture.dir()
    local pipe = assert(io.popen(("env -u MAKEFLAGS -u MFLAGS make -s install O=%s PREFIX=%s 2>&1")
      :format(quote(proc.build), quote(tree))))
    local text = pipe:read "a"
    assert(pipe:close(), text)
  end)

  local function compile(compiler, source, program)
    local flags = ("$(PKG_CONFIG_PATH=%s pkg-config --cflags --libs nightshift)")
      :format(quote(tree .. "/lib/pkgconfig"))
    local sanitizers = os.getenv "SAN" and "-fsanitize=" .. os.getenv "SAN" or ""
    local pipe = assert(io.popen(("%s -Wall -Wextra -Wpedantic -Werror %s -o %s %s %s 2>&1")
      :format(compiler, sanitizers, quote(program), quote(source), flags)))
    local text = pipe:read "a"
    assert.is_true(pipe:close(), text)
  end

  it("builds the example, which pushes, polls and settles", function()
    local program = tree .. "/mail"
    compile("cc -std=c11", "examples/c/mail.c", program)
    local status, out, err = proc.run { program, url, timeout = 60 }
    assert.equal(0, status, err)
    local first, second = out:match "^pushed (%d+) and (%d+)\n"
    assert.equal("sent", handle:job(tonumber(first)).result)
    local polled = handle:job(tonumber(second))
    assert.same({ "done", "sent", 2 }, { polled.state, polled.result, polled.polls })
    assert.equal(3, select(2, out:gsub("mail.deliver, poll %d", "")))
  end)

  it("says why a database cannot be opened, also when no server is named", function()
    local program = tree .. "/mail"
    compile("cc -std=c11", "examples/c/mail.c", program)
    local status, _, err = proc.run { program, "mysql://nobody@127.0.0.1:1/none", timeout = 60 }
    assert.equal(1, status)
    assert.matches("^mail: open: GONE: ", err)
    status, _, err = proc.run { program, "not a url", timeout = 60 }
    assert.equal(1, status)
    assert.matches("^mail: open: INVALID: ", err)
  end)

  it("has a header that is C++ as well, and installs no other", function()
    local source = fixture.file("use.cpp", [[
#include <nightshift.h>
int main() {
  ns_config cfg = NS_CONFIG_INIT;
  ns_jobs jobs = NS_JOBS_INIT;
  ns_info info = NS_INFO_INIT;
  ns_db *db;
  ns_err err;
  ns_info_free(&info);
  ns_jobs_free(&jobs);
  return ns_open(&db, &cfg, &err) == NS_EINVALID ? 0 : 1;
}
]])
    compile("c++ -std=c++17", source, tree .. "/use")
    assert.equal(0, (proc.run { tree .. "/use", timeout = 60 }))
    local list = io.popen("ls " .. quote(tree .. "/include")):read "a"
    assert.equal("nightshift.h\nnightshift_types.h\n", list)
  end)

  it("is gone after make uninstall", function()
    local pipe = assert(io.popen(("env -u MAKEFLAGS -u MFLAGS make -s uninstall O=%s PREFIX=%s 2>&1")
      :format(quote(proc.build), quote(tree))))
    assert.equal("", pipe:read "a")
    assert.is_true((pipe:close()))
    assert.equal("", io.popen(("find %s/include %s/lib -type f"):format(quote(tree), quote(tree))):read "a")
  end)
end)

-- The rock, for real: a clean clone, `luarocks make` into an empty tree, and then module and
-- program used from that tree alone.

local root = assert(io.popen "pwd"):read "l"

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- Runs a script with a bare environment, so that nothing of this build tree,
-- its settings or its make reaches it. Gives what it printed, and success.
local function run(folder, script, more)
  local command = ("cd %s && env -i PATH=\"$PATH\" HOME=%s %s sh -c %s 2>&1")
    :format(quote(folder), quote(folder), more or "", quote(script))
  local pipe = assert(io.popen(command))
  local text = pipe:read "a"
  return text, pipe:close() or false
end

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local HANDLERS = [[
return { double = function(job) return job.payload * 2 end }
]]

local PUSH_AND_CLAIM = [[
local nightshift = require "nightshift"
local db <close> = assert(nightshift.open())
local q = assert(db:queue "rock")
local id = assert(q:push("hello", {list = {1, 2}}))
local job = assert(q:claim())
assert(job.id == id and job.payload.list[2] == 2)
assert(job:ack())
print("done", assert(db:job(id)).state)
print("pushed", assert(q:push("double", 21)))
]]

local ASK = [[
local nightshift = require "nightshift"
local db <close> = assert(nightshift.open())
local info = assert(db:job(tonumber(arg[1])))
print(info.state, info.result)
]]

describe("the rock", function()
  local t, tree, paths

  setup(function()
    t = assert(io.popen "mktemp -d"):read "l"
    tree = t .. "/tree"
    local share = tree .. "/share/lua/5.4/"
    paths = ("LUA_PATH=%s LUA_CPATH=%s"):format(quote(share .. "?.lua;" .. share .. "?/init.lua"),
      quote(tree .. "/lib/lua/5.4/?.so"))
    assert(os.execute("mkdir " .. quote(t .. "/run")))
    write(t .. "/run/handlers.lua", HANDLERS)
    write(t .. "/run/push.lua", PUSH_AND_CLAIM)
    write(t .. "/run/ask.lua", ASK)
  end)

  teardown(function() os.execute("rm -rf " .. quote(t)) end)

  -- What this build has compiled of the same texts is not compiled again, but for some files. These
  -- need all libraries, and the compiler has to find the headers by the rock's flags. Where sources
  -- and clone differ, or git lacks one, all are compiled.
  local COMPILED = [[set -e
from=$1 build=$2 to=$3
test -z "$(git -c safe.directory='*' -C "$from" status --porcelain src sql Makefile mk)" || exit 0
mkdir -p "$to" && cd "$build" && find base core private lua host gen -name '*.[doh]' | tar -cT - | tar -xC "$to"
cd "$to" && rm gen/*.[do]
find . -name '*.d' | xargs sed -i -e '1s#^[^:]*/\(\(base\|core\|private\|lua\|host\)/[^:]*[.]o\):#build/rock/\1:#' \
  -e 's|[^ ]*/gen/ns_sql|build/rock/gen/ns_sql|g'
rm host/screen.o
for folder in base core/link private lua host host/http host/worker; do rm "$(ls $folder/*.o | head -1)"; done
find gen -type f | xargs touch
find . -name '*.o' | xargs touch]]

  it("installs from a clean clone", function()
    assert.is_true(os.execute "command -v luarocks git >/dev/null", "luarocks and git are needed")
    local text, ok = run(t, ("git -c safe.directory='*' clone -q --no-hardlinks %s clone"):format(quote(root)))
    assert.is_true(ok, text)
    local flags = "-O0 -Wno-cpp -fPIC"
    if not os.getenv "NIGHTSHIFT_LONG" and not os.getenv "SAN" then
      local status, out, err = proc.run { "sh", "-c", COMPILED, "sh", root, proc.build, t .. "/clone/build/rock" }
      assert.equal(0, status, out .. err)
      if os.execute(("grep -q 'invariant broken' %s/nightshift/core.so"):format(quote(proc.build))) then
        flags = flags .. " -DNS_DEBUG" -- which objects of both kinds are compiled with
      end
    end
    text, ok = run(t .. "/clone", ("luarocks --lua-version=5.4 --tree %s make CFLAGS='%s'"):format(quote(tree), flags),
      "MAKEFLAGS=-j2")
    assert.is_true(ok, text)
    for _, path in ipairs { "bin/nightshift", "lib/lua/5.4/nightshift/core.so", "share/lua/5.4/nightshift/init.lua",
      "share/lua/5.4/nightshift/cli/init.lua" } do
      assert.is_truthy(io.open(tree .. "/" .. path), path .. " is missing")
    end
    assert.matches("nightshift%-work%.1", (run(t, "find tree -name 'nightshift*.1'"))) -- in the rock's own folder
    assert(os.execute("rm -rf " .. quote(t .. "/clone"))) -- it must not be needed any more
  end)

  it("links the module without a second Lua", function()
    local text = run(t, "readelf -d tree/lib/lua/5.4/nightshift/core.so")
    assert.is_truthy(text:find("libmariadb", 1, true), text)
    assert.is_nil(text:find("liblua", 1, true), text)
  end)

  it("lets plain Lua push and claim, and its program run the job", function()
    local text, ok = run(t .. "/run", tree .. "/bin/nightshift init")
    assert.is_true(ok, text)
    text, ok = run(t .. "/run", "lua5.4 push.lua", paths)
    assert.is_true(ok, text)
    assert.is_truthy(text:find "done\tdone", text)
    local id = assert(text:match "pushed\t(%d+)", text)
    text, ok = run(t .. "/run", tree .. "/bin/nightshift work handlers.lua --workers 1 --drain")
    assert.is_true(ok, text)
    text, ok = run(t .. "/run", "lua5.4 ask.lua " .. id, paths)
    assert.is_true(ok, text)
    assert.is_truthy(text:find("done\t42\n", 1, true), text)
  end)
end)

-- The commands of examples/README.md, as they stand there.
describe("the example of three tenants", function()
  it("calls an API for each no faster than it takes, and lets no tenant wait for another", function()
    local file <close> = assert(io.open "examples/README.md")
    local commands = assert(file:read("a"):match "\n## tenants: .-\n```sh\n(.-)\n```")
    local calls = fixture.dir() .. "/calls.txt"
    commands = commands:gsub("calls%.txt", calls):gsub("build/bin/nightshift", proc.program)
    local exit, out, err = proc.run { "sh", "-e", "-c", commands, env = { NIGHTSHIFT_URL = db.fresh() } }
    assert.equal(0, exit, out .. err)
    local starts, first = {}, nil
    for line in io.lines(calls) do
      local tenant, at = line:match "^(%a) ([%d.]+)$"
      first = first or tonumber(at)
      local list = starts[tenant] or {}
      starts[tenant] = list
      list[#list + 1] = tonumber(at)
    end
    for _, tenant in ipairs { "a", "b", "c" } do
      local list = starts[tenant]
      assert.equal(10, #list)
      table.sort(list)
      assert.is_true(list[1] - first < proc.limit(0.5), tenant) -- its turn came at once
      assert.is_true(list[10] - list[1] > 0.75, tenant) -- five by the bucket, five more of one second
    end
  end)
end)
