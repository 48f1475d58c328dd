-- A Galera cluster of three nodes, of which one writes: `make test-galera` runs it. Each fault is
-- made NIGHTSHIFT_ROUNDS times under load. Then what was acknowledged has run once, and all nodes
-- have the same rows.

local galera = require "spec.support.galera"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

if not galera.scripts then
  pending "a Galera cluster: `make test-galera` runs it"
  return
end

local ROUNDS = tonumber(os.getenv "NIGHTSHIFT_ROUNDS") or 1

local nodes, URL

local function url(...)
  local sockets = {}
  for i, n in ipairs { ... } do sockets[i] = nodes[n].server.socket:gsub("/", "%%2F") end
  return ("mysql://root@%s/shop"):format(table.concat(sockets, ","))
end

local function writer()
  for i = 1, 3 do
    local ok, address = pcall(nodes[i].server.sql, nodes[i].server, "SELECT address FROM nightshift_node", "shop")
    if ok and address:find "example" then return ("abc"):find(address:sub(1, 1)) end
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
    assert(job:ack())
    local none, message, code = nightshift.open { socket = nodes[2].server.socket, user = "root", database = "shop" }
    assert.same({ nil, "SERVER" }, { none, code })
    assert.is_truthy(message:find("the node that writes is a.example:3306", 1, true), message)
    local out
    exit, out = proc.nightshift({ "doctor" }, nodes[2].server:url "shop")
    assert.equal(1, exit)
    assert.is_truthy(out:find("the node that writes is a.example:3306", 1, true), out)
    assert.equal("", nodes[1].server:sql [[SELECT t.table_name FROM information_schema.tables t
      LEFT JOIN information_schema.statistics s ON s.table_schema = t.table_schema
        AND s.table_name = t.table_name AND s.index_name = 'PRIMARY'
      WHERE t.table_schema = 'shop' AND t.engine = 'InnoDB' AND t.table_type = 'BASE TABLE' AND s.index_name IS NULL]])
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
end)

describe("under load, with two hosts and a pusher", function()
  local dir, hosts, pusher

  local function file(name) return dir .. "/" .. name end

  local function lines(name)
    local found = {}
    for id, number in io.open(file(name)):read "a":gmatch "(%d+) (%d+)\n" do
      found[#found + 1] = { id = math.tointeger(tonumber(id)), number = number }
    end
    return found
  end

  local function assert_goes_on(seconds)
    local pushed, begun = #lines "pushed", #lines "begun"
    eventually(function() return #lines "pushed" > pushed + 20 and #lines "begun" > begun + 20 end, seconds)
  end

  -- A fault of the writing node: `break_it`, then the rest goes on; `mend_it`, and it joins again.
  local function round(words, break_it, mend_it)
    for _ = 1, ROUNDS do
      galera.wait(nodes, 3)
      assert_goes_on(30)
      local w = assert(writer())
      local began = nst.clock()
      break_it(nodes[w])
      assert_goes_on(40)
      print(("  %s: jobs went on after %.1f s"):format(words, nst.clock() - began))
      mend_it(nodes[w])
      galera.wait(nodes, 3)
    end
  end

  setup(function()
    dir = fixture.dir()
    for _, name in ipairs { "pushed", "begun" } do io.open(file(name), "w"):close() end
    hosts = {}
    for i = 1, 2 do hosts[i] = host.start(URL, host.telling(file "begun")) end
    pusher = proc.start { proc.lua, "spec/support/programs.lua", "pusher", URL, file "pushed", file "stop" }
    eventually(function() return #lines "begun" > 50 end, 30)
  end)

  it("kill -9 of the node that writes is followed", function()
    round("kill -9", function(node) node.server:kill() end, function(node) node.server:start() end)
  end)

  it("a stop of the node that writes is followed", function()
    round("stop", function(node) node.server:stop() end, function(node) node.server:start() end)
  end)

  it("a frozen node that writes is followed, and may come back", function()
    round("frozen", function(node) node.server:freeze() end, function(node) node.server:thaw() end)
  end)

  it("a node that is cut off from the cluster is followed", function()
    local function isolate(n)
      return function(node)
        node.server:sql(("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=%d'"):format(n))
      end
    end
    round("cut off", isolate(1), isolate(0))
  end)

  it("two nodes that are killed stop all; it goes on when they are back", function()
    for _ = 1, ROUNDS do
      galera.wait(nodes, 3)
      local w = assert(writer())
      local other = w % 3 + 1
      local last = nodes[other % 3 + 1]
      nodes[other].server:kill()
      nodes[w].server:kill()
      eventually(function() return galera.status(last, "wsrep_cluster_status") == "non-Primary" end, 30)
      local pushed = #lines "pushed"
      nst.sleep(1)
      assert.equal(pushed, #lines "pushed")
      last.server:sql "SET GLOBAL wsrep_provider_options = 'pc.bootstrap=1'"
      assert_goes_on(40)
      nodes[w].server:start()
      nodes[other].server:start()
      galera.wait(nodes, 3)
    end
  end)

  it("every acknowledged push has run once, and all nodes have the same rows", function()
    io.open(file "stop", "w"):close()
    assert.equal(0, pusher:wait(60), pusher:transcript())
    galera.wait(nodes, 3)
    local server = nodes[1].server
    eventually(function()
      return server:sql("SELECT COUNT(*) FROM nightshift_job WHERE name = 'a'", "shop") == "0"
    end, 60)
    for _, h in ipairs(hosts) do host.stop(h) end
    local done = {}
    for id in server:sql("SELECT id FROM nightshift_finished WHERE outcome = 'done'", "shop"):gmatch "%d+" do
      done[math.tointeger(tonumber(id))] = true
    end
    local ids, numbers, twice = {}, {}, {}
    for _, line in ipairs(lines "begun") do
      if ids[line.id] then twice[#twice + 1] = line.id end
      assert(not numbers[line.number] or numbers[line.number] == line.id, line.number .. " was pushed twice")
      ids[line.id], numbers[line.number] = true, line.id
    end
    for _, line in ipairs(lines "pushed") do
      assert(done[line.id], line.id .. " is lost")
      assert(ids[line.id], line.id .. " never ran")
    end
    print(("  %d pushed, %d begun, twice: %d"):format(#lines "pushed", #lines "begun", #twice))
    assert.same({}, twice)
    local tables = server:sql([[SELECT GROUP_CONCAT(table_name ORDER BY table_name) FROM information_schema.tables
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
