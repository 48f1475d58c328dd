-- Connections that go silent, or are lost: what is waited for and how long, and what becomes
-- of the session that the server still has.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

local function sessions(name)
  return tonumber((db.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE db = '" .. name .. "'")))
end

describe("a handle with a read_timeout", function()
  local url, name, p, handle

  before_each(function()
    url, name = db.fresh()
    p = proxy.start(db.shared())
    handle = assert(nightshift.open(p:url(url) .. "&read_timeout=3s&connect_timeout=3s"))
    assert(handle:queue("q"):push "first")
  end)
  after_each(function()
    p:tell "thaw"
    handle:close()
  end)

  it("does not wait for a silent server for ever, and works again when it is back", function()
    p:tell "freeze"
    local started = nightshift.clock()
    local none, _, code = handle:queue("q"):push "second"
    assert.same({ nil, "GONE" }, { none, code })
    assert.is_true(nightshift.clock() - started < proc.limit(25)) -- its own: 30 s and more
    p:tell "thaw"
    assert(handle:queue("q"):push "second")
    assert.equal("2", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
  end)

  it("reconnects past a connection that went silent, and ends the session it left", function()
    local job = assert(handle:queue("q"):claim())
    local before = sessions(name)
    p:tell "strand" -- the server is there, only this connection is not
    assert(job:ack "done")
    eventually(function() return sessions(name) == before end)
    assert.equal("done", db.sql("SELECT outcome FROM nightshift_finished", name))
    p:tell "thaw"
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
  end)

  it("takes back its locks from the session that went silent inside a transaction", function()
    assert.has_error(function()
      assert(handle:transaction(function(tx)
        assert(tx:queue("q"):push("second", 1, { unique = "k" }))
        p:tell "strand"
        assert(tx:execute "SELECT 1")
      end))
    end)
    assert(handle:queue("q"):push("second", 1, { unique = "k" }))
    assert.equal(0, handle:stats().counters.lock_waits, "it waited for a lock of its own")
    eventually(function() return sessions(name) == 1 end)
  end)

  it("kills nobody after the server was started again, though ids repeat", function()
    local server = db.server()
    local its = server:fresh()
    local q <close> = assert(nightshift.open(its))
    local id = assert(q:execute "SELECT CONNECTION_ID() AS id")[1].id
    nst.sleep(1.1) -- starts are told apart by the second
    server:kill()
    server:start()
    local others = {}
    repeat -- somebody else has that id now
      others[#others + 1] = assert(nightshift.open(its))
      local now = assert(others[#others]:execute "SELECT CONNECTION_ID() AS id")[1].id
    until now >= id
    assert(q:execute "SELECT 1")
    for _, other in ipairs(others) do
      assert.is_true(other:transaction(function(tx) return assert(tx:execute "SELECT 1") and true end))
      assert.equal(0, other:stats().counters.reconnects)
      other:close()
    end
  end)

  it("takes durations above zero only", function()
    for _, bad in ipairs { "soon", "0" } do
      local none, message, code = nightshift.open(url .. "&read_timeout=" .. bad)
      assert.same({ nil, "INVALID" }, { none, code })
      assert.is_truthy(message:find("read_timeout", 1, true), message)
    end
  end)
end)

describe("a connection over TCP", function()
  it("is watched by the kernel: a machine that vanishes is noticed within half a minute", function()
    local p = proxy.start(db.shared(), "tcp")
    local handle <close> = assert(nightshift.open(p:url((db.fresh()))))
    assert(handle:execute "SELECT 1")
    local far = (":%04X "):format(p.port)
    local timers = {}
    for line in io.lines "/proc/net/tcp" do
      local remote, timer, left = line:match "^%s*%d+: %x+:%x+ (%x+:%x+ )01 %x+:%x+ (%x+):(%x+)"
      if remote and remote:find(far, 1, true) then timers[#timers + 1] = { timer, tonumber(left, 16) } end
    end
    assert.equal(1, #timers)
    assert.equal("02", timers[1][1], "keepalive")
    assert.is_true(timers[1][2] <= 1500, timers[1][2] .. " hundredths of a second")
  end)
end)

describe("the caller's own SQL", function()
  local url, name, handle

  with_database(function(opened, _, at, database) handle, url, name = opened, at, database end)

  local function lose()
    for id in db.sql("SELECT id FROM information_schema.processlist WHERE db = '" .. name .. "'"):gmatch "%d+" do
      pcall(db.sql, "KILL " .. id) -- it may be gone by now
    end
    eventually(function() return sessions(name) == 0 end)
  end

  it("works after its connection was lost while idle", function()
    lose()
    assert.equal(2, assert(handle:execute "SELECT 1 + 1 AS n")[1].n)
    lose()
    assert(handle:execute "INSERT INTO nightshift_meta VALUES ('x', 'y')")
    assert.equal("1", db.sql("SELECT COUNT(*) FROM nightshift_meta WHERE name = 'x'", name))
  end)

  it("says GONE when its transaction is cut at the commit, and all or nothing of it stands", function()
    for when, there in pairs { before = "0", after = "1" } do
      local p = proxy.start(db.shared())
      local cut <close> = assert(nightshift.open(p:url(url)))
      assert(cut:queue(when))
      local none, _, code = cut:transaction(function(tx)
        assert(tx:queue(when):push("job"))
        assert(tx:execute("INSERT INTO nightshift_meta VALUES (?, 'x')", when))
        p:tell("commit " .. when .. " 1")
        return true
      end)
      assert.same({ nil, "GONE" }, { none, code })
      assert.equal(there, db.sql("SELECT COUNT(*) FROM nightshift_meta WHERE name = '" .. when .. "'", name))
      assert.equal(there == "1", cut:queue(when):claim() ~= nil)
    end
  end)

  it("does not go on in another session when its transaction is lost", function()
    local none, message, code = handle:transaction(function(tx)
      assert(tx:execute "INSERT INTO nightshift_meta VALUES ('x', 'y')")
      lose()
      return tx:execute "INSERT INTO nightshift_meta VALUES ('z', 'y')"
    end)
    assert.is_nil(none)
    assert.is_truthy(code == "GONE" or code == "BUSY", message)
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_meta WHERE name IN ('x', 'z')", name))
    assert(handle:execute "SELECT 1")
  end)
end)

describe("opening", function()
  it("names the file that is missing", function()
    local url = db.fresh()
    for key, what in pairs { ca = "ca file", cert = "cert file", key = "key file", file = "file" } do
      local none, message, code = nightshift.open { url = url, [key] = "/no/such.pem" }
      assert.same({ nil, "INVALID" }, { none, code })
      assert.equal(("cannot read the %s '/no/such.pem': No such file or directory"):format(what), message)
    end
  end)

  it("never shows the password, however it fails", function()
    local p = proxy.start(db.shared(), "tcp")
    local url = db.user((db.fresh()), "SELECT"):gsub("Pass%-word_1", "s3cret-Wrong")
    local messages = {}
    local function note(where)
      local none, message = nightshift.open(where)
      assert.is_nil(none)
      messages[#messages + 1] = message
    end
    note(url)
    note(p:url(url))
    note((url:gsub("unix_socket=.*", "unix_socket=/no/such.sock")))
    note((url:gsub("@localhost/.*", "@127.0.0.1:1/x?tls=off")))
    note((url:gsub("@localhost/.*", "@no.such.host.invalid/x?tls=off&connect_timeout=1s")))
    p:tell "refuse"
    note(p:url(url))
    p:tell "admit"
    p:tell "freeze"
    note(p:url(url) .. "&connect_timeout=1s")
    p:tell "thaw"
    assert.equal(7, #messages)
    for _, message in ipairs(messages) do assert.is_nil(message:find("s3cret", 1, true), message) end
  end)
end)

-- A handle whose connection was lost while it was idle said GONE once for each
-- verb that did not begin with a transaction, though the server was there.
describe("a handle whose connection was lost while it was idle", function()
  local handle, name

  before_each(function()
    local url
    url, name = db.fresh()
    handle = assert(nightshift.open(url))
    assert(handle:queue("q"):push("job", 1))
  end)
  after_each(function() handle:close() end)

  local verbs = {
    push = function() return handle:queue("new"):push("job", 1) end,
    claim = function() return handle:queue("q"):claim() end,
    job = function() return handle:job(assert(handle:queue("q"):push("job", 1))) end,
    pause = function() return handle:queue("q"):pause() end,
    transaction = function() return handle:transaction(function(tx) return tx:queue("q"):push("job", 1) end) end,
  }
  for verb, call in pairs(verbs) do
    it("connects again: " .. verb, function()
      for id in db.sql("SELECT id FROM information_schema.processlist WHERE db = '" .. name .. "'"):gmatch "%d+" do
        db.sql("KILL " .. id)
      end
      assert.is_truthy(assert(call()))
    end)
  end
end)

-- A handler that asked for the results of its children when a KILL met its connection got an
-- error raised, and the attempt had failed. A read of our own is asked again.
describe("a read that a KILL cuts:", function()
  --- In its second phase it waits until the file is there before it asks.
  local SCRIPT <const> = [[return {
  parent = function(job)
    if job.phase == 0 then
      job:spawn "child"
      return job:wait()
    end
    print "asks"
    while not io.open %q do require "nightshift.core".sleep(0.02) end
    return job.results[1].result
  end,
  child = function() return "told" end,
}]]

  for _, kill in ipairs { "KILL QUERY", "KILL" } do
    it("results are asked for again after a " .. kill, function()
      local url, name = db.fresh()
      local handle <close> = assert(nightshift.open(url))
      local go = fixture.dir() .. "/go"
      local h = host.start(url, SCRIPT:format(go), { "--workers", "1" })
      local id = assert(handle:queue("q"):push "parent")
      h:wait_line("asks", 20)
      local other <close> = assert(nightshift.open(url))
      assert(other:execute "LOCK TABLES nightshift_finished WRITE")
      assert(io.open(go, "w")):close()
      local waiting = eventually(function()
        local list = db.sql([[SELECT id FROM information_schema.processlist
        WHERE state LIKE 'Waiting for table%' AND info LIKE '%nightshift_child c FORCE%']], name)
        return list ~= "" and list
      end)
      db.sql(kill .. " " .. waiting, name)
      assert(other:execute "UNLOCK TABLES")
      eventually(function() return handle:job(id).state == "done" end)
      assert.equal("told", handle:job(id).result)
      assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_attempt", name))
      h:signal "TERM"
      assert.equal(0, h:wait())
    end)
  end
end)
