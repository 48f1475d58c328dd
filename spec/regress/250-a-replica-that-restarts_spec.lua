-- The list of those who listen is in memory, and was replicated row by row: a replica that
-- was restarted, or seeded by a copy of files, had none of its rows, and stopped for good at
-- the first one that left (error 1032); nothing of any database of that server came after it.

local core = require "nightshift.core"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proxy = require "spec.support.proxy"

local HANDLERS = [[return { a = function(job) return job.payload end }]]
local BINLOG = "log-bin=bin\nserver-id=%d\nbinlog-format=%s\nlog-slave-updates\ngtid-strict-mode=1\n"
  .. "relay-log=relay\n"

local function status(server)
  local handle <close> = assert(core.open { url = server:url "mysql", no_schema = true })
  local row = assert(handle:execute "SHOW SLAVE STATUS")[1]
  return { row.Slave_SQL_Running, row.Last_SQL_Error, row.Last_IO_Error }
end

local function done(handle) return assert(handle:execute "SELECT COUNT(*) AS n FROM nightshift_finished")[1].n end

-- Replicas connect by TCP alone, so the way leads through a proxy's port.
local function follow(replica, way, gtid)
  replica:sql(("SET GLOBAL gtid_slave_pos='%s'; CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, "
    .. "MASTER_USER='repl', MASTER_PASSWORD='repl', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1; START SLAVE")
    :format(gtid, way.port))
end

local function caught_up(from, to)
  local gtid = from:sql "SELECT @@gtid_binlog_pos"
  local waited = to:sql(("SELECT MASTER_GTID_WAIT('%s', 20)"):format(gtid))
  assert.same({ "Yes", "", "" }, status(to))
  assert.equal("0", waited)
end

-- Both have the same rows of all our tables but the one in memory.
local function assert_same(from, to, name)
  caught_up(from, to)
  local tables = from:sql(("SELECT GROUP_CONCAT(table_name) FROM information_schema.tables WHERE table_schema = '%s' "
    .. "AND table_type = 'BASE TABLE' AND engine = 'InnoDB' AND table_name NOT LIKE '%%_holder'"):format(name))
  local sums = "CHECKSUM TABLE " .. tables
  assert.equal(from:sql(sums, name), to:sql(sums, name))
end

for _, format in ipairs { "ROW", "MIXED" } do
  describe("a replica, binlog_format=" .. format .. ",", function()
    local from, to, way, url, name, h

    before_each(function()
      from, to = db.server(BINLOG:format(1, format)), db.server(BINLOG:format(2, format))
      from:sql "CREATE USER repl@'%' IDENTIFIED BY 'repl'; GRANT REPLICATION SLAVE ON *.* TO repl@'%'"
      way = proxy.start(from, "tcp")
    end)

    local function work()
      h = host.start(url, HANDLERS)
      local handle = assert(nightshift.open(url))
      for i = 1, 5 do
        local id = assert(handle:queue("q"):push("a", i))
        eventually(function() return handle:job(id).state == "done" end)
        nst.sleep(0.05) -- so that the host falls asleep, and is rung
      end
      return handle
    end

    it("goes on after its restart, with hosts asleep at that time", function()
      follow(to, way, from:sql "SELECT @@gtid_binlog_pos")
      url, name = from:fresh()
      local handle <close> = work()
      caught_up(from, to)
      to:stop()
      to:start()
      for i = 1, 3 do assert(handle:queue("q"):push("a", i)) end
      eventually(function() return done(handle) == 8 end)
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert_same(from, to, name)
    end)

    it("goes on from a copy of files, taken while hosts sleep", function()
      url, name = from:fresh()
      local handle <close> = work()
      local gtid = from:sql "SELECT @@gtid_binlog_pos"
      to:stop()
      from:sql "SET GLOBAL innodb_fast_shutdown=1"
      h:signal "STOP"
      from:stop()
      assert(os.execute(("rm -rf '%s/data' && cp -r '%s/data' '%s/data' && rm -f '%s'/data/bin.* '%s'/data/relay*"
        .. " '%s'/data/*.info"):format(to.folder, from.folder, to.folder, to.folder, to.folder, to.folder)))
      from:start()
      to:start()
      h:signal "CONT"
      follow(to, way, gtid)
      for i = 1, 3 do
        eventually(function() return (handle:queue("q"):push("a", i)) end)
      end
      eventually(function() return done(handle) == 8 end, 30)
      h:signal "TERM"
      assert.equal(0, h:wait())
      assert_same(from, to, name)
    end)
  end)
end
