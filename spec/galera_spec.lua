-- A Galera cluster of three nodes, of which one writes: `make test-galera` runs it. Each fault is
-- made NIGHTSHIFT_ROUNDS times under load. Then what was acknowledged has run once, limits and
-- locks have held, and all nodes have the same rows.
-- The cluster is on this machine. Clients use unix sockets; the nodes use TCP ports of 127.0.0.1
-- among themselves, which were free a moment before. Programs work on it while nodes are
-- broken. Each appends what it does to a file, as the handlers of its hosts do.

local db = require "spec.support.db"
local fork = require "spec.support.crew".fork
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

-- The folder with the scripts that copy a node's data; nil: another target runs these specs.
local SCRIPTS <const> = os.getenv "NIGHTSHIFT_GALERA"
if not SCRIPTS then
  pending "a Galera cluster: `make test-galera` runs it"
  return
end

local socket = require "socket"
local galera = {}

local SETTINGS <const> = [[
wsrep_on=ON
wsrep_provider=/usr/lib/galera/libgalera_smm.so
wsrep_cluster_address=gcomm://
wsrep_node_name=%s
wsrep_node_address=127.0.0.1:%d
wsrep_node_incoming_address=%s.example:3306
wsrep_sst_method=rsync
wsrep_sst_receive_address=127.0.0.1:%d
wsrep_provider_options="gcache.size=64M;base_port=%d;gmcast.listen_addr=tcp://127.0.0.1:%d;ist.recv_addr=127.0.0.1:%d"
server-id=%d
log-bin=bin
binlog-format=ROW
log-slave-updates=ON
log-bin-trust-function-creators=ON
innodb-autoinc-lock-mode=2
innodb-flush-log-at-trx-commit=0
innodb-buffer-pool-size=64M
]]

-- `n` ports that are free, all different.
local function ports(n)
  local held, list = {}, {}
  for i = 1, n do
    held[i] = assert(socket.bind("127.0.0.1", 0))
    list[i] = math.tointeger(select(2, held[i]:getsockname()))
  end
  for i = 1, n do held[i]:close() end
  return list
end

local function edit(path, from, to)
  local file = assert(io.open(path))
  local text = file:read "a"
  file:close()
  file = assert(io.open(path, "w"))
  file:write((text:gsub(from, to)))
  file:close()
end

-- What its log says beside notes.
local function log_of(node)
  local file <close> = assert(io.open(node.server.folder .. "/server.log"))
  return file:read "a":gsub("[^\n]*%[Note%][^\n]*\n", ""):sub(-3000)
end

local function status(node, name)
  local ok, text = pcall(node.server.sql, node.server, "SHOW STATUS LIKE '" .. name .. "'")
  return ok and text:match "\t(.*)" or nil
end
galera.status = status

--- Waits until these nodes are a whole cluster of `n`, and have applied all.
function galera.wait(nodes, n)
  local stop = nst.clock() + proc.limit(60)
  for _, node in ipairs(nodes) do
    while node.away ~= true and not (status(node, "wsrep_cluster_size") == tostring(n)
      and status(node, "wsrep_local_state_comment") == "Synced") do
      assert(nst.clock() < stop, node.name .. " does not join")
      nst.sleep(0.05)
    end
  end
end

--- Three nodes; each has name and server.
function galera.cluster()
  nst.setenv("PATH", SCRIPTS .. ":" .. os.getenv "PATH")
  local port = ports(9)
  local nodes = {}
  local all = {}
  for i = 1, 3 do all[i] = "127.0.0.1:" .. port[i] end
  all = "gcomm://" .. table.concat(all, ",")
  for i = 1, 3 do
    local name = ("abc"):sub(i, i)
    local settings = SETTINGS:format(name, port[i], name, port[3 + i], port[i], port[i], port[6 + i], i)
    if i > 1 then settings = settings:gsub("gcomm://", "%0" .. all:match "//(.*)") end
    local ok, server = pcall(db.server, settings)
    if not ok then error(server .. "\nthe first node: " .. (nodes[1] and log_of(nodes[1]) or "none")) end
    nodes[i] = { name = name, server = server }
    edit(nodes[i].server.settings, "wsrep_cluster_address=[^\n]*", "wsrep_cluster_address=" .. all)
  end
  galera.wait(nodes, 3)
  return nodes
end

-- ------------------------------------------------------------- what works on it

--- The table that hosts adopt, and its mapping.
galera.TABLE = [[CREATE TABLE task (
  id INT NOT NULL PRIMARY KEY, status ENUM('open','processing','done') NOT NULL DEFAULT 'open',
  claimed_by VARCHAR(40) NULL, KEY (status)) ENGINE=InnoDB]]
galera.MAP = [[return { table = "task", claimed_by = "claimed_by",
  status = { column = "status", open = "open", processing = "processing", done = "done" } }]]

--- The handlers. `a` is pushed by the program that counts pushes. Of `limited` two may run at once.
-- A `tree` has three children, and is done with the sum of their results. `task` is a row of the
-- table.
---@param folder string of the files
function galera.handlers(folder)
  return ([[
  local clock, files = require "nightshift.core".clock, {}
  local function note(name, ...)
    files[name] = files[name] or assert(io.open(%q .. "/" .. name, "ab"))
    files[name]:setvbuf "no"
    files[name]:write(table.concat({ ... }, " ") .. "\n")
  end
  return {
    a = function(job) note("begun", job.id, job.payload) end,
    limited = function(job)
      local from = clock()
      require "nightshift.core".sleep(0.02)
      note("limited", job.id, job.run, ("%%.6f"):format(from), ("%%.6f"):format(clock()))
    end,
    tree = function(job)
      if job.phase == 0 then
        for i = 1, 3 do job:spawn("leaf", i) end
        return job:wait()
      end
      local sum = 0
      for _, child in ipairs(job.results) do sum = sum + child.result end
      note("tree", job.id, sum)
      return sum
    end,
    leaf = function(job)
      note("leaf", job.id, job.payload)
      return job.payload
    end,
    task = function(job) note("task", job.row, job.id) end,
  }]]):format(folder)
end

-- Does it again until it works; what is in doubt, with the value that it gave.
local function insist(fn)
  local again
  while true do
    local done, why, code, doubt = fn(again)
    if done then return done end
    assert(code == "GONE" or code == "BUSY", why)
    again = doubt or again
    nst.sleep(0.05)
  end
end

local function append(path, format, ...)
  local file <close> = assert(io.open(path, "ab"))
  file:write(format:format(...), "\n")
end

-- Pushes to the limited queue, pushes parents, and inserts rows of the table.
local function feed(url, folder, is_over)
  local handle <close> = insist(function() return nightshift.open(url) end)
  for n = 1, math.huge do
    if is_over() then return end
    for _, name in ipairs { "limited", "tree" } do
      local q = handle:queue(name)
      append(folder .. "/fed", "%s %d", name, insist(function(id) return q:push(name, n, { id = id }) end))
    end
    insist(function() return handle:execute("INSERT IGNORE INTO task (id) VALUES (?)", n) end)
    append(folder .. "/fed", "task %d", n)
    nst.sleep(0.1)
  end
end

-- Takes one of `n` slots again and again, and notes from when to when it had one for sure. A slot
-- that it could not give back is given back by its handle later.
local function hold(url, folder, name, n, is_over)
  local handle <close> = insist(function() return nightshift.open(url) end)
  while not is_over() do
    local slot = handle:semaphore(name, n)
    local held, why, code = slot:acquire(2)
    assert(held or code == "BUSY" or code == "GONE", why)
    if held then
      local from = nst.clock()
      nst.sleep(0.01)
      local to = nst.clock()
      if slot:release() then append(folder .. "/" .. name, "%.6f %.6f", from, to) end
    elseif code == "GONE" then
      nst.sleep(0.05)
    end
  end
end

--- Starts them: a feeder, two that want a lock, and three that want one of two slots. They end when
-- the file `stop` is in the folder.
---@return table crew
function galera.crew(url, folder)
  local function is_over()
    local file <close> = io.open(folder .. "/stop")
    return file ~= nil
  end
  return fork(6, function(i)
    if i == 1 then return feed(url, folder, is_over) end
    local is_lock = i <= 3
    hold(url, folder, is_lock and "lock" or "slots", is_lock and 1 or 2, is_over)
  end)
end

--- How many of these spans, {from, to}, overlap at most.
function galera.overlap(spans)
  local edges, now, most = {}, 0, 0
  for _, span in ipairs(spans) do
    edges[#edges + 1] = { span[1], 1 }
    edges[#edges + 1] = { span[2], -1 }
  end
  table.sort(edges, function(a, b) return a[1] < b[1] or a[1] == b[1] and a[2] < b[2] end)
  for _, edge in ipairs(edges) do
    now = now + edge[2]
    most = math.max(most, now)
  end
  return most
end

-- ----------------------------------------------------------------------- specs

local ROUNDS = tonumber(os.getenv "NIGHTSHIFT_ROUNDS") or 1

local nodes, URL

local function url(...)
  local sockets = {}
  for i, n in ipairs { ... } do sockets[i] = nodes[n].server.socket:gsub("/", "%%2F") end
  return ("mysql://root@%s/shop"):format(table.concat(sockets, ","))
end

-- The node that writes, as any other node than that one knows it.
local function writer(but)
  for i = 1, 3 do
    local ok, address = false, nil
    if nodes[i] ~= but then
      ok, address = pcall(nodes[i].server.sql, nodes[i].server, "SELECT address FROM nightshift_node", "shop")
    end
    if ok and address:find "example" then return ("abc"):find(address:sub(1, 1)) end
  end
end

-- What the doctor says of the cluster, at the node that writes.
local function diagnosis()
  local _, out = proc.nightshift({ "doctor", "--json" }, URL)
  for _, finding in ipairs(nightshift.decode(out).findings) do
    if finding.name == "replication" then return finding end
  end
end

setup(function()
  nodes = galera.cluster()
  nodes[1].server:sql "CREATE DATABASE shop"
  URL = url(1, 2, 3)
end)

describe("a Galera cluster", function()
  it("takes the tables; one node writes, and a second one is refused", function()
    local exit, _, err = proc.nightshift({ "init" }, URL)
    assert.equal(0, exit, err)
    local handle <close> = assert(nightshift.open(URL))
    local id = assert(handle:queue("first"):push("a", 1))
    local job = assert(handle:queue("first"):claim())
    assert.equal(id, job.id)
    assert(handle:transaction(function() return job:ack() end))
    local none, message, code = nightshift.open { socket = nodes[2].server.socket, user = "root", database = "shop" }
    assert.same({ nil, "SERVER" }, { none, code })
    assert.is_truthy(message:find("the node that writes is a.example:3306", 1, true), message)
    local out
    exit, out = proc.nightshift({ "doctor" }, nodes[2].server:url "shop")
    assert.equal(1, exit)
    assert.is_truthy(out:find("the node that writes is a.example:3306", 1, true), out)
    for _, look in ipairs { "status", "jobs" } do
      exit, _, err = proc.nightshift({ look }, nodes[2].server:url "shop")
      assert.equal(78, exit)
      assert.is_truthy(err:find "writes is a.example:3306.*; name all nodes in the address, mysql://user@a,b,c/db", err)
    end
    assert.equal("", nodes[1].server:sql [[SELECT t.table_name FROM information_schema.tables t
      LEFT JOIN information_schema.statistics s ON s.table_schema = t.table_schema
        AND s.table_name = t.table_name AND s.index_name = 'PRIMARY'
      WHERE t.table_schema = 'shop' AND t.engine = 'InnoDB' AND t.table_type = 'BASE TABLE' AND s.index_name IS NULL]])
  end)

  it("has a doctor who names the node that writes, its state, and how many there are", function()
    local finding = diagnosis()
    assert.same({ "ok", 3, "this node of a Galera cluster, a.example:3306, writes; it is Synced, one of 3" },
      { finding.status, finding.value, finding.says })
  end)

  it("wakes an idle host with a push at the writing node", function()
    local file = fixture.dir() .. "/woken"
    local h = host.start(URL, ([[return { wake = function() io.open(%q, "w"):close() end }]]):format(file))
    local handle <close> = assert(nightshift.open(URL))
    nst.sleep(1)
    local began = nst.clock()
    assert(handle:queue("w"):push("wake", 1))
    eventually(function() return io.open(file) end, 5)
    print(("  woken after %.0f ms"):format((nst.clock() - began) * 1000))
    assert.is_true(nst.clock() - began < proc.limit(2))
    host.stop(h)
  end)

  -- It used to answer with its old rows for a moment. So parents had an empty job.results.
  it("answers no question at a node that was frozen, and left behind by the cluster", function()
    local READERS <const> = 6
    local dir, node = fixture.dir(), nodes[writer()]
    local function write(name, text)
      local path = dir .. "/" .. name
      local out <close> = assert(io.open(path .. ".new", "w"))
      out:write(text)
      out:close()
      assert(os.rename(path .. ".new", path))
    end
    local function read(name)
      local from <close> = io.open(dir .. "/" .. name)
      return from and from:read "a"
    end
    local function all(name)
      return eventually(function()
        for i = 1, READERS do
          if not read(name .. i) then return false end
        end
        return true
      end, 30)
    end
    local readers = fork(READERS, function(i)
      local handle <close> = assert(nightshift.open(URL))
      write("opened" .. i, "")
      local id
      eventually(function()
        id = tonumber(read "id")
        return id
      end, 60)
      write("asks" .. i, "")
      local job, why = handle:job(id)
      write("answer" .. i, job and job.state or why)
    end)
    all "opened"
    finally(function() node.server:thaw() end)
    node.server:freeze()
    local handle
    eventually(function()
      handle = nightshift.open(URL)
      return handle
    end, 60)
    local id = assert(handle:queue("first"):push("a", 1))
    assert(assert(handle:queue("first"):claim()):ack())
    write("id", tostring(id))
    all "asks"
    nst.sleep(0.2)
    node.server:thaw()
    readers:wait()
    local answers = {}
    for i = 1, READERS do answers[i] = read("answer" .. i) end
    assert.same({ "done", "done", "done", "done", "done", "done" }, answers)
    handle:close()
    galera.wait(nodes, 3)
  end)
end)

describe("under load, with three hosts and seven programs", function()
  local dir, hosts, pusher, crew

  local function file(name) return dir .. "/" .. name end

  -- The words of each line; numbers are numbers.
  local function lines(name)
    local found = {}
    for line in io.lines(file(name)) do
      local words = {}
      for word in line:gmatch "%S+" do words[#words + 1] = tonumber(word) or word end
      found[#found + 1] = words
    end
    return found
  end

  -- A file, and how many more lines it is to have before all "goes on".
  local WORK <const> = {
    pushed = 20, begun = 20, fed = 3, limited = 3, tree = 1, leaf = 3, task = 1, lock = 3, slots = 3,
  }

  -- How many lines a file has from that byte on, and where it ends.
  local function count(name, from)
    local found <close> = assert(io.open(file(name)))
    found:seek("set", from)
    local _, n = found:read("a"):gsub("\n", "")
    return n, found:seek "end"
  end

  -- What it waited for last is named.
  local function assert_goes_on(seconds)
    local before, waiting, last = {}, nil, nil
    for name in pairs(WORK) do before[name] = select(2, count(name, 0)) end
    local ok = pcall(eventually, function()
      waiting = {}
      for name, more in pairs(WORK) do
        if count(name, before[name]) < more then waiting[#waiting + 1] = name end
      end
      last = waiting[1] and table.concat(waiting, " ") or last
      return #waiting == 0
    end, seconds)
    assert.is_true(ok, ("not within %d s: %s"):format(seconds, last))
    return last
  end

  -- A fault of the node that writes: `break_it`, the rest goes on at another node; `mend_it`, and
  -- it joins again.
  local function round(words, limit, break_it, mend_it)
    for _ = 1, ROUNDS do
      galera.wait(nodes, 3)
      assert_goes_on(30)
      local w = assert(writer())
      local node, began = nodes[w], nst.clock()
      break_it(node)
      eventually(function() return (writer(node) or w) ~= w end, limit)
      local taken = nst.clock() - began
      local last = assert_goes_on(limit)
      print(("  %s: another node wrote after %.1f s, jobs went on after %.1f s, at last %s"):format(words, taken,
        nst.clock() - began, last))
      mend_it(node)
      galera.wait(nodes, 3)
    end
  end

  -- The longest time in which the lock was not taken, since that moment.
  local function longest_pause(since)
    local last, longest = since, 0
    for _, span in ipairs(lines "lock") do
      if span[1] > since then last, longest = span[1], math.max(longest, span[1] - last) end
    end
    return longest
  end

  -- A fault of another node: commits pause for so many seconds at most, and the doctor tells.
  local function other(words, most, break_it, mend_it)
    for _ = 1, ROUNDS do
      galera.wait(nodes, 3)
      assert_goes_on(30)
      local w = assert(writer())
      local node, began = nodes[w % 3 + 1], nst.clock()
      break_it(node)
      eventually(function() return galera.status(nodes[w], "wsrep_cluster_size") == "2" end)
      assert_goes_on(20)
      local pause = longest_pause(began)
      print(("  %s: the longest pause was %.1f s"):format(words, pause))
      assert.is_true(pause < proc.limit(most), pause)
      assert.equal(w, writer())
      local finding = diagnosis()
      assert.same({ "warn", 2 }, { finding.status, finding.value }, finding.says)
      mend_it(node)
      galera.wait(nodes, 3)
    end
  end

  local function isolate(node, how)
    node.server:sql(("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=%d'"):format(how))
  end

  local function kill(node) node.server:kill() end
  local function start(node) node.server:start() end
  local function stop(node) assert(node.server.process:signal "TERM") end -- it takes seconds to end
  local function restart(node)
    node.server.process:wait(120)
    node.server.process:forget()
    node.server:start()
  end
  local function freeze(node) node.server:freeze() end
  local function thaw(node) node.server:thaw() end
  local function cut(node) isolate(node, 1) end
  local function join(node) isolate(node, 0) end

  setup(function()
    dir = fixture.dir()
    for name in pairs(WORK) do io.open(file(name), "w"):close() end
    local handle <close> = assert(nightshift.open(URL))
    assert(handle:execute(galera.TABLE))
    assert(handle:queue("limited"):limit { running = 2 })
    local map = fixture.file("task.lua", galera.MAP)
    hosts = {}
    for i = 1, 2 do hosts[i] = host.start(URL, galera.handlers(dir), { "--workers", "4" }) end
    hosts[3] = host.start(URL, galera.handlers(dir), { "--adopt", map })
    pusher = proc.start { proc.lua, "spec/support/crew.lua", "pusher", URL, file "pushed", file "stop" }
    crew = galera.crew(URL, dir)
    assert_goes_on(60)
  end)

  it("kill -9 of the node that writes is followed", function() round("kill -9", 20, kill, start) end)

  it("a stop of the node that writes is followed", function() round("stop", 10, stop, restart) end)

  it("a frozen node that writes is followed, and may come back", function() round("frozen", 60, freeze, thaw) end)

  it("a node that writes and is cut off from the cluster is followed", function() round("cut off", 20, cut, join) end)

  -- Galera's own pause is 5 s, evs.suspect_timeout, before it leaves a node behind.
  it("kill -9 of another node costs no more than Galera's own pause, and the doctor tells", function()
    other("kill -9 of another", 8, kill, start)
  end)

  it("nor does a stop of another one", function() other("stop of another", 3, stop, restart) end)

  it("nor does a cut to another one", function() other("another cut off", 8, cut, join) end)

  -- Breaks the writer and another one. The last one is alone, and nothing is acknowledged.
  local function leave_one(break_it)
    galera.wait(nodes, 3)
    assert_goes_on(30)
    local w = assert(writer())
    local second, last = nodes[w % 3 + 1], nodes[(w + 1) % 3 + 1]
    break_it(second)
    break_it(nodes[w])
    eventually(function() return galera.status(last, "wsrep_cluster_status") == "non-Primary" end, 30)
    local function acknowledged()
      return { #lines "pushed", #lines "fed", last.server:sql(
        "SET SESSION wsrep_dirty_reads = 1; SELECT COUNT(*), MAX(finished_at) FROM nightshift_finished", "shop") }
    end
    nst.sleep(1)
    local before = acknowledged()
    nst.sleep(3)
    assert.same(before, acknowledged())
    return nodes[w], second, last
  end

  it("two nodes that are killed stop all; it goes on when one is bootstrapped", function()
    for _ = 1, ROUNDS do
      local first, second, last = leave_one(kill)
      last.server:sql "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=1'"
      assert_goes_on(60)
      start(first)
      start(second)
      galera.wait(nodes, 3)
    end
  end)

  it("two nodes that are cut off stop all; it goes on when they are back", function()
    for _ = 1, ROUNDS do
      local first, second = leave_one(cut)
      local began = nst.clock()
      join(second)
      join(first)
      assert_goes_on(60)
      print(("  two cut off: jobs went on %.1f s after they were back"):format(nst.clock() - began))
      galera.wait(nodes, 3)
    end
  end)

  it("every acknowledged push has run once, and nothing is left", function()
    io.open(file "stop", "w"):close()
    assert.equal(0, pusher:wait(60), pusher:transcript())
    crew:wait(60)
    galera.wait(nodes, 3)
    local server = nodes[writer()].server
    eventually(function() return server:sql("SELECT COUNT(*) FROM nightshift_job", "shop") == "0" end, 300)
    eventually(function() return server:sql("SELECT COUNT(*) FROM task WHERE status <> 'done'", "shop") == "0" end, 60)
    for _, h in ipairs(hosts) do host.stop(h) end
    local done = {}
    for id in server:sql("SELECT id FROM nightshift_finished WHERE outcome = 'done'", "shop"):gmatch "%d+" do
      done[math.tointeger(tonumber(id))] = true
    end
    local ids, numbers, twice = {}, {}, {}
    for _, line in ipairs(lines "begun") do
      local id, number = line[1], line[2]
      if ids[id] then twice[#twice + 1] = id end
      assert(not numbers[number] or numbers[number] == id, number .. " was pushed twice")
      ids[id], numbers[number] = true, id
    end
    for _, line in ipairs(lines "pushed") do
      assert(done[line[1]], line[1] .. " is lost")
      assert(ids[line[1]], line[1] .. " never ran")
    end
    for _, line in ipairs(lines "fed") do
      assert(line[1] == "task" or done[line[2]], table.concat(line, " ") .. " is lost")
    end
    print(("  %d pushed, %d begun, twice: %d"):format(#lines "pushed", #lines "begun", #twice))
    assert.same({}, twice)
  end)

  it("each parent has had its three children once, and each row its job once", function()
    local server = nodes[writer()].server
    assert.equal("", server:sql([[SELECT p.id, p.result, COUNT(c.id) FROM nightshift_finished p
      LEFT JOIN nightshift_finished c ON c.parent = p.id AND c.outcome = 'done' AND c.name = 'leaf'
      WHERE p.name = 'tree' GROUP BY p.id HAVING p.result <> '6' OR COUNT(c.id) <> 3]], "shop"))
    local rows, again = {}, {}
    for _, line in ipairs(lines "task") do
      if rows[line[1]] then again[#again + 1] = line[1] end
      rows[line[1]] = true
    end
    for _, line in ipairs(lines "fed") do
      assert(line[1] ~= "task" or rows[line[2]], ("row %s never ran"):format(line[2]))
    end
    print(("  %d parents, %d rows, again: %d"):format(#lines "tree", #lines "task", #again))
    assert.same({}, again)
  end)

  it("no more jobs of the limited queue than it allows have run at once, and locks have kept out", function()
    local runs, spans = {}, { limited = {}, lock = {}, slots = {} }
    for id, run in nodes[writer()].server:sql("SELECT id, run FROM nightshift_finished WHERE name = 'limited'", "shop")
      :gmatch "(%d+)\t(%d+)" do
      runs[math.tointeger(tonumber(id))] = tonumber(run)
    end
    for _, line in ipairs(lines "limited") do
      if runs[line[1]] == line[2] then table.insert(spans.limited, { line[3], line[4] }) end
    end
    for _, name in ipairs { "lock", "slots" } do spans[name] = lines(name) end
    assert.same({ 2, 1, 2 }, { galera.overlap(spans.limited), galera.overlap(spans.lock), galera.overlap(spans.slots) })
    print(("  %d limited runs, the lock %d times, slots %d times"):format(#spans.limited, #spans.lock, #spans.slots))
  end)

  it("all nodes have the same rows", function()
    local tables = nodes[1].server:sql([[SELECT GROUP_CONCAT(table_name ORDER BY table_name)
      FROM information_schema.tables
      WHERE table_schema = 'shop' AND engine = 'InnoDB' AND table_type = 'BASE TABLE']])
    eventually(function()
      local sums = {}
      for i = 1, 3 do
        sums[i] = nodes[i].server:sql("SET SESSION wsrep_sync_wait = 1; CHECKSUM TABLE " .. tables, "shop")
      end
      return sums[1] == sums[2] and sums[2] == sums[3]
    end, 10)
  end)
end)
