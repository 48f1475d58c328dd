-- Under TLS, too, a wait ends at Ctrl-C, and a program whose server is frozen ends. There the
-- library reads more than it is asked for, so what has been read is not waited for.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local START = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open{ host = "127.0.0.1", port = %d, user = "u", password = "hunter2", database = %q,
    tls = "trust" })
  assert(assert(db:execute "SHOW STATUS LIKE 'Ssl_cipher'")[1].Value ~= "")
  local q = db:queue "q"
  local function waits() io.stdout:write "waits\n" io.stdout:flush() end
]]

local function read(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

describe("under TLS", function()
  local server, port, name

  setup(function()
    local folder = fixture.dir()
    local status, _, err = proc.run { "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
      "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder .. "/key.pem", "-out", folder .. "/cert.pem",
      "-days", "2", "-subj", "/CN=spec" }
    assert.equal(0, status, err)
    port = proc.free_port()
    server = db.server(([[
skip-networking=0
bind-address=127.0.0.1
port=%d
ssl-cert=FOLDER/cert.pem
ssl-key=FOLDER/key.pem
]]):format(port), { ["cert.pem"] = read(folder .. "/cert.pem"), ["key.pem"] = read(folder .. "/key.pem") })
    local _
    _, name = server:fresh()
    server:sql(("CREATE USER u IDENTIFIED BY 'hunter2'; GRANT ALL ON `%s`.* TO u"):format(name))
  end)
  teardown(function() server:remove() end)
  after_each(function() server:thaw() end)

  local function start(program)
    local p = proc.start { proc.lua, "-e", START:format(port, name) .. program }
    p:wait_line("^waits", 20)
    return p
  end

  local function sleeps(what)
    eventually(function()
      return server:sql(("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '%s' AND %s"):format(name,
        what)) ~= "0"
    end)
  end

  local function ends(p, within)
    local since = nightshift.clock()
    p:signal "INT"
    p:wait()
    local took = nightshift.clock() - since
    local _, err = p:text()
    assert.is_truthy(err:find("interrupted!", 1, true), err)
    assert.is_true(took < proc.limit(within), took)
  end

  it("waits end at Ctrl-C", function()
    local p = start "waits() q:claim{ wait = 60 }"
    sleeps "state = 'User lock'"
    ends(p, 6)
    p = start "waits() db:execute 'DO SLEEP(60)'"
    sleeps "info LIKE 'DO SLEEP%'"
    ends(p, 6)
  end)

  it("large answers, batches and pushes in pieces come whole", function()
    local handle <close> = assert(nightshift.open { host = "127.0.0.1", port = port, user = "u", password = "hunter2",
      database = name, tls = "trust" })
    local q = handle:queue "large"
    local items = {}
    for i = 1, 200 do items[i] = { "a", ("x"):rep(i * 300) } end
    assert(q:push_many(items))
    for _ = 1, 4 do
      local jobs = assert(q:claim_many(50))
      assert.equal(50, #jobs)
      for _, job in ipairs(jobs) do assert(job:ack { n = #job.payload }) end
    end
    assert.equal(3000000, #assert(handle:execute "SELECT REPEAT('x', 3000000) AS x")[1].x)
  end)

  it("a program ends while the server is frozen", function()
    for _, wait in ipairs { "", "q:claim{ wait = 0.1 }" } do
      local p = start(wait .. "assert(q:push 'a') local job = assert(q:claim()) waits() os.execute 'sleep 0.7'")
      server:freeze()
      local since = nightshift.clock()
      p:wait(20)
      local took = nightshift.clock() - since
      server:thaw()
      assert.is_true(took < proc.limit(15), took)
    end
  end)

  it("a wait ends at Ctrl-C while the server is frozen", function()
    local p = start "waits() db:queue 'none':claim{ wait = 60 }"
    sleeps "state = 'User lock'"
    server:freeze()
    ends(p, 15)
  end)
end)
