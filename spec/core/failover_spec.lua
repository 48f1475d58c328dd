-- A list of servers: connecting takes the one that can write, and a promotion is followed. The
-- commands are those of doc/failover.md, which run here as they stand there, but for addresses.
-- NIGHTSHIFT_ROUNDS says how many promotions there are.

local core = require "nightshift.core"
local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local http = require "socket.http"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proc".proxy

local ROUNDS = tonumber(os.getenv "NIGHTSHIFT_ROUNDS") or 2

local page
do
  local file <close> = assert(io.open "doc/failover.md")
  page = file:read "a"
end

-- The block of the page that has these words.
local function block(words, kind)
  for found, text in page:gmatch "\n```(%l+)\n(.-)\n```" do
    if found == (kind or "sh") and text:find(words, 1, true) then return text end
  end
  error("doc/failover.md has no block with " .. words)
end

-- ------------------------------------------------------------------------ two servers

local pair -- servers and the ways of replicas to them, which are TCP
local URL  -- of both

local function encoded(server) return (server.socket:gsub("/", "%%2F")) end

local function settings(id)
  return (block("init-rpl-role", "ini"):gsub("^%[mariadbd%]", ""):gsub("server%-id = 1", "server-id = " .. id)) .. "\n"
end

-- Runs a block; `a` and `b` are numbers of servers.
local function run(words, a, b)
  local text = block "--host=a.example" .. "\n" .. block(words)
  for name, i in pairs { a = a, b = b } do
    text = text:gsub("mariadb %-%-host=" .. name .. "%.example %-%-user=admin",
      ("mariadb --no-defaults --socket=%s --user=root"):format(pair[i].server.socket))
    text = text:gsub("MASTER_HOST='" .. name .. "%.example'",
      ("MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_CONNECT_RETRY=1"):format(pair[i].way.port))
  end
  text = text:gsub("a%.example,b%.example", function()
    return encoded(pair[1].server) .. "," .. encoded(pair[2].server)
  end)
  local status, out, err = proc.run { "sh", "-e", "-c", text, timeout = 100,
    env = { PATH = proc.build .. "/bin:" .. db.path, NIGHTSHIFT_URL = false } }
  assert(status == 0, ("%s\n%s%s"):format(text, out, err))
  return out
end

local function is_semi_sync(i)
  return pair[i].server:sql("SHOW STATUS LIKE 'Rpl_semi_sync_master_%'"):find "clients\t1.*status\tON"
end

setup(function()
  pair = {}
  for i = 1, 2 do
    local server = db.server(settings(i))
    pair[i] = { server = server, way = proxy.start(server, "tcp") }
  end
  run("REPLICATION SLAVE", 1, 2)
  eventually(function() return is_semi_sync(1) end, 20)
  run("nightshift init", 1, 2)
  URL = ("mysql://shop:Shop-1@%s,%s/shop"):format(encoded(pair[1].server), encoded(pair[2].server))
end)

local function open(options) return assert(nightshift.open(options or URL)) end

local function server_of(handle) return assert(handle:execute "SELECT @@server_id AS id")[1].id end

describe("a list of servers", function()
  it("has its first job where the page has pushed it, on both", function()
    for i = 1, 2 do
      eventually(function() -- the view itself arrives later on the other one
        local ok, name = pcall(pair[i].server.sql, pair[i].server, "SELECT name FROM nightshift_jobs", "shop")
        return ok and name == "hello.say"
      end)
    end
  end)

  it("is read in order; what does not answer and what cannot write is passed over", function()
    local first, second = encoded(pair[1].server), encoded(pair[2].server)
    for _, list in ipairs { second .. "," .. first, "%2Fnone%2Fs.sock," .. first, "127.0.0.1:1,[::1]:1," .. first } do
      local handle <close> = open(("mysql://shop:Shop-1@%s/shop"):format(list))
      assert.equal(1, server_of(handle))
    end
    for _, list in ipairs { { pair[2].server.socket, pair[1].server.socket }, { pair[1].server.socket } } do
      local handle <close> = open { host = list, user = "shop", password = "Shop-1", database = "shop" }
      assert.equal(1, server_of(handle))
    end
  end)

  it("that has none to write says what is wrong with each", function()
    local none, message, code = nightshift.open(("mysql://shop:Shop-1@127.0.0.1:1,%s/shop")
      :format(encoded(pair[2].server)))
    assert.same({ nil, "GONE" }, { none, code })
    assert.is_truthy(message:find("no server of the list can be used: 127.0.0.1: cannot connect", 1, true), message)
    assert.is_truthy(message:find("s.sock: it is read-only", 1, true), message)
    none, message, code = nightshift.open(("mysql://shop:no@%s,%s/shop")
      :format(encoded(pair[1].server), encoded(pair[2].server)))
    assert.same({ nil, "DENIED" }, { none, code }, message)
  end)

  it("a server that is cut off delays the next by a second at most", function()
    local frozen <close> = assert(core.open { url = pair[2].server:url "mysql", no_schema = true })
    assert.is_true(frozen:is_open())
    pair[2].server:freeze()
    local began = nst.clock()
    local handle = nightshift.open(("mysql://shop:Shop-1@%s,%s/shop"):format(encoded(pair[2].server),
      encoded(pair[1].server)))
    local took = nst.clock() - began
    pair[2].server:thaw()
    assert.equal(1, server_of(assert(handle)))
    handle:close()
    assert.is_true(took < proc.limit(2), took)
  end)

  it("the doctor asks that the primary waits before it shows what it has committed", function()
    local function replication()
      local _, out = proc.nightshift({ "doctor", "--json" }, (URL:gsub("shop:Shop%-1", "root")))
      for _, check in ipairs(nightshift.decode(out).findings) do
        if check.name == "replication" then return check end
      end
    end

    assert.equal("ok", replication().status)
    pair[1].server:sql "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_COMMIT"
    local check = replication()
    pair[1].server:sql "SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC"
    assert.equal("warn", check.status)
    assert.is_truthy(check.says:find("AFTER_COMMIT: hosts see what the replica may never get", 1, true), check.says)
  end)

  it("is a table of names", function()
    for _, bad in ipairs { {}, { "a,b" }, { 1 }, { "" } } do
      assert.has_error(function() nightshift.open { host = bad, database = "x" } end)
    end
  end)
end)

-- --------------------------------------------------------------------- following

local dir
local function file(name) return dir .. "/" .. name end

-- The lines of a file: numbers by id, and how many there are.
local function lines(name)
  local found, n = {}, 0
  for id, number in io.open(file(name)):read "a":gmatch "(%d+) (%d+)\n" do
    n = n + 1
    found[n] = { id = math.tointeger(tonumber(id)), number = number }
  end
  return found
end

local function assert_follows()
  local pushed, begun = #lines "pushed", #lines "begun"
  eventually(function() return #lines "pushed" > pushed + 10 and #lines "begun" > begun + 10 end, 3)
end

describe("a promotion", function()
  local h, pusher
  local primary, replica = 1, 2

  local function change_roles() primary, replica = replica, primary end

  setup(function()
    dir = fixture.dir()
    for _, name in ipairs { "pushed", "begun" } do io.open(file(name), "w"):close() end
    h = host.start(URL, host.telling(file "begun"))
    pusher = proc.start { proc.lua, "spec/support/programs.lua", "pusher", URL, file "pushed", file "stop" }
    eventually(function() return #lines "begun" > 50 end, 30)
  end)

  it("after kill -9 of the primary loses nothing, doubles nothing, and is followed in 3 s", function()
    for _ = 1, ROUNDS do
      eventually(function() return is_semi_sync(primary) end, 20)
      local before = #lines "begun"
      eventually(function() return #lines "begun" > before + 30 end, 20)
      pair[primary].server:kill()
      run("Gtid_IO_Pos", primary, replica)
      assert_follows()
      pair[primary].server:start()
      run("gtid_current_pos", primary, replica)
      change_roles()
    end
  end)

  it("that was planned is followed by handles, hosts and pages in 3 s", function()
    local handle <close> = open()
    local web = proc.start { proc.program, "web", "--listen", "127.0.0.1:0", env = { NIGHTSHIFT_URL = URL } }
    local at = web:wait_line "the pages are at (http://[^%s]+)"
    local function is_seen(text)
      return (http.request(at .. "jobs?queue=other") or ""):find(text, 1, true)
    end
    assert.equal(primary, server_of(handle))
    assert.is_nil(is_seen "after.change")
    eventually(function() return is_semi_sync(primary) end, 20)
    run("written=", primary, replica)
    local began = nst.clock()
    assert_follows()
    assert(pair[replica].server:sql([[CALL nightshift_push('other', 'after.change', '1', NULL)]], "shop"))
    eventually(function() return handle:queue("other"):stats().ready == 1 end, 3)
    eventually(function() return is_seen "after.change" end, 3)
    assert.is_true(nst.clock() - began < proc.limit(3))
    assert.equal(replica, server_of(handle))
    web:forget()
    run("gtid_current_pos", primary, replica)
    change_roles()
  end)

  -- It used to stay for half a minute: its process lived.
  it("frees a lock of a handle that is closed before it", function()
    local holder, other <close> = open(), open()
    local held = assert(holder:lock("closed"):acquire())
    local server = pair[primary].server
    server:sql "SET GLOBAL read_only = ON"
    local none, _, code = held:release()
    assert.same({ nil, "GONE" }, { none, code })
    local later = crew.fork(1, function()
      nst.sleep(0.3)
      server:sql "SET GLOBAL read_only = OFF"
    end)
    holder:close()
    later:wait()
    assert(other:lock("closed"):acquire(5)):release()
  end)

  it("leaves every acknowledged push done once, or live", function()
    io.open(file "stop", "w"):close()
    assert.equal(0, pusher:wait(30), pusher:transcript())
    local server = pair[primary].server
    eventually(function()
      return server:sql("SELECT COUNT(*) FROM nightshift_job WHERE name = 'a'", "shop") == "0"
    end, 30)
    host.stop(h)
    local done = {}
    for id in server:sql("SELECT id FROM nightshift_finished WHERE outcome = 'done'", "shop"):gmatch "%d+" do
      done[math.tointeger(tonumber(id))] = true
    end
    local ids, numbers = {}, {}
    for _, line in ipairs(lines "begun") do
      assert(not ids[line.id], line.id .. " ran twice")
      assert(not numbers[line.number], line.number .. " was pushed twice")
      ids[line.id], numbers[line.number] = true, true
    end
    for _, line in ipairs(lines "pushed") do
      assert(done[line.id], line.id .. " is lost")
      assert(ids[line.id], line.id .. " never ran")
    end
  end)
end)
