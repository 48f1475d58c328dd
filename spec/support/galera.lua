--- A Galera cluster of three nodes on this machine, for `make test-galera`. Clients use unix
-- sockets; the nodes use TCP ports of 127.0.0.1 among themselves, which were free a moment before.
-- And the programs that work on it while nodes are broken, with the handlers of its hosts. Each of
-- them appends what it does to a file of its own.
--
--     local nodes = galera.cluster()
--     nodes[2].server:kill()
--     galera.wait({ nodes[1], nodes[3] }, 2)

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local socket = require "socket"

local galera = {}

--- The folder with the scripts that copy a node's data; nil: another target runs these specs.
galera.scripts = os.getenv "NIGHTSHIFT_GALERA"

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
  nst.setenv("PATH", galera.scripts .. ":" .. os.getenv "PATH")
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
  return crew.fork(6, function(i)
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

return galera
