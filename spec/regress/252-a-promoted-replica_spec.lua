-- The primary dies under load, with one host and one program beside it, and its semi-synchronous
-- replica takes its place behind a forwarder. What was acknowledged is there, and nothing that
-- was done runs again; a minute later no row of nightshift_holder is left of who had died.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

local BINLOG = "log-bin=bin\nserver-id=%d\nbinlog-format=ROW\nlog-slave-updates\ngtid-strict-mode=1\n"
  .. "relay-log=relay\nsync-binlog=1\n"
local PRIMARY = "rpl-semi-sync-master-wait-point=AFTER_SYNC\nrpl-semi-sync-master-timeout=600000\n"
local REPLICA = "rpl-semi-sync-slave-enabled=ON\n"

-- Each says what it was told, in a file that is only appended to.
local HANDLERS = [[
  local file
  return { a = function(job)
    file = file or assert(io.open(%q, "ab"))
    file:setvbuf "no"
    file:write(job.id .. "\n")
    require "nst".sleep(0.003)
  end }]]
local PUSHER = [[
  local url, queue, path, stop = table.unpack(arg)
  local handle = assert(require "nightshift".open(url))
  local file = assert(io.open(path, "ab"))
  file:setvbuf "no"
  while not io.open(stop) do
    local id, why, code = handle:queue(queue):push("a", 1)
    if id then file:write(id .. "\n") else assert(code == "GONE" or code == "BUSY", why) end
  end]]
local CLAIMER = [[
  local nst = require "nst"
  local url, begun, acked, hold, stop = table.unpack(arg)
  local handle = assert(require "nightshift".open(url))
  local starts, ends = assert(io.open(begun, "ab")), assert(io.open(acked, "ab"))
  starts:setvbuf "no"
  ends:setvbuf "no"
  while true do
    local job, why, code = handle:queue "e":claim { wait = 0.2 }
    if job then
      starts:write(job.id .. "\n")
      while hold ~= "" and io.open(hold) do nst.sleep(1) end
      local ok
      repeat ok, why, code = job:ack() until ok or code ~= "GONE" and code ~= "BUSY"
      if ok then ends:write(job.id .. "\n") else print(job.id, why, code) end
    else
      assert(not why or code == "GONE" or code == "BUSY", why)
      if not why and io.open(stop) then break end
    end
  end
  handle:close()]]

local function lines(path)
  local list = {}
  for id in io.open(path):read "a":gmatch "(%d+)\n" do list[#list + 1] = math.tointeger(tonumber(id)) end
  return list
end

local function follow(replica, way)
  replica:sql(("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='repl', "
    .. "MASTER_PASSWORD='repl', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1; START SLAVE"):format(way.port))
end

local function promote(replica)
  local handle <close> = assert(core.open { url = replica:url "mysql", no_schema = true })
  replica:sql "STOP SLAVE IO_THREAD"
  local read = assert(handle:execute "SHOW SLAVE STATUS")[1].Gtid_IO_Pos
  assert.equal("0", replica:sql(("SELECT MASTER_GTID_WAIT('%s', 20)"):format(read)))
  replica:sql "STOP SLAVE; RESET SLAVE ALL"
end

-- Of jobs, as a set; where: words of SQL.
local function ids(server, name, where)
  local set = {}
  for id in server:sql("SELECT id FROM " .. where, name):gmatch "%d+" do set[math.tointeger(tonumber(id))] = true end
  return set
end

it("a promoted replica has all that was acknowledged, and the dead leave", function()
  local from, to = db.server(BINLOG:format(1) .. PRIMARY), db.server(BINLOG:format(2) .. REPLICA)
  from:sql [[CREATE USER repl@'%' IDENTIFIED BY 'repl'; GRANT REPLICATION SLAVE ON *.* TO repl@'%';
    SET GLOBAL rpl_semi_sync_master_enabled=ON]]
  follow(to, proxy.start(from, "tcp"))
  local url, name = from:fresh()
  eventually(function() return from:sql "SHOW STATUS LIKE 'Rpl_semi_sync_master_status'":find "ON" end)
  local dir = fixture.dir()
  local function file(which) return dir .. "/" .. which end
  local function program(text, ...) return proc.start { proc.lua, "-e", text, "/dev/null", ... } end
  local function lead_to(server) assert(os.execute(("ln -sfn '%s' '%s'"):format(server.socket, file "way"))) end
  lead_to(from)
  url = proxy.start({ socket = file "way" }):url(url)
  for _, which in ipairs { "pushed", "begun", "first", "acked", "hold" } do io.open(file(which), "w"):close() end
  local hosts = { host.start(url, HANDLERS:format(file "first")), host.start(url, HANDLERS:format(file "begun")) }
  local pushers = {}
  for i, queue in ipairs { "q", "e" } do pushers[i] = program(PUSHER, url, queue, file "pushed", file "stop") end
  local holding = program(CLAIMER, url, file "first", file "acked", file "hold", file "idle")
  local claimer = program(CLAIMER, url, file "begun", file "acked", "", file "idle")
  eventually(function() return #lines(file "acked") > 100 and #lines(file "begun") > 200 end, 60)

  local pushed, acked = lines(file "pushed"), lines(file "acked")
  from:kill()
  for _, p in ipairs { hosts[1], holding } do
    p:signal "KILL"
    p:wait(10)
  end
  promote(to)
  local done, live = ids(to, name, "nightshift_finished WHERE outcome = 'done'"), ids(to, name, "nightshift_job")
  for _, id in ipairs(acked) do assert(done[id], id .. " was acknowledged and is lost") end
  for _, id in ipairs(pushed) do assert(done[id] or live[id], id .. " was pushed and is lost") end
  local before, more = #lines(file "begun"), #lines(file "pushed")
  lead_to(to)
  eventually(function() return #lines(file "pushed") > more + 100 and #lines(file "begun") > before + 200 end, 60)
  io.open(file "stop", "w"):close()
  for _, p in ipairs(pushers) do assert.equal(0, p:wait(60)) end
  eventually(function() return to:sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 60)
  eventually(function()
    return to:sql("SELECT pid FROM nightshift_holder ORDER BY pid", name)
      == table.concat({ math.min(hosts[2].pid, claimer.pid), math.max(hosts[2].pid, claimer.pid) }, "\n")
  end, 60)
  io.open(file "idle", "w"):close()
  assert.equal(0, claimer:wait(60))
  assert.equal("", (claimer:text()))
  hosts[2]:signal "TERM"
  assert.equal(0, hosts[2]:wait(20))

  local twice, ended = {}, ids(to, name, "nightshift_finished WHERE outcome = 'done'")
  for i, id in ipairs(lines(file "begun")) do
    assert(not twice[id], id .. " ran twice")
    assert(i <= before or not done[id], id .. " was done and ran again")
    twice[id] = true
  end
  for _, which in ipairs { "pushed", "acked" } do
    for _, id in ipairs(lines(file(which))) do assert(ended[id], id .. " is lost: " .. which) end
  end
end)
