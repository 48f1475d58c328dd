--- A Galera cluster of three nodes on this machine, for `make test-galera`. Clients use unix
-- sockets; the nodes use TCP ports of 127.0.0.1 among themselves, which were free a moment before.
--
--     local nodes = galera.cluster()
--     nodes[2].server:kill()
--     galera.start(nodes, 2)

local db = require "spec.support.db"
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

return galera
