-- A node of a Galera cluster was taken like any server, with a warning about locks; there
-- jobs ran twice, or were left for ever, and nothing told anybody.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local LIBRARY = "/usr/lib/galera/libgalera_smm.so"

local function there()
  local file = io.open(LIBRARY)
  return file and file:close()
end

describe("a node of a Galera cluster", function()
  local server

  -- A cluster of one. Its port is the kernel's choice of a moment before.
  setup(function()
    if not there() then return end
    server = db.server(("wsrep_on=ON\nwsrep_provider=%s\nwsrep_cluster_address=gcomm://\nbinlog_format=ROW\n"
      .. "innodb_autoinc_lock_mode=2\nwsrep_sst_method=rsync\nwsrep_node_address=127.0.0.1\n"
      .. "wsrep_provider_options=gmcast.listen_addr=tcp://127.0.0.1:0;ist.recv_addr=127.0.0.1:0\n"):format(LIBRARY))
  end)

  local function on_node(fn)
    return function()
      if server then return fn() end
      pending "no Galera library is installed (galera-4)"
    end
  end

  it("is refused at connect, and the message says what works instead", on_node(function()
    server:sql "CREATE DATABASE IF NOT EXISTS n"
    for _, open in ipairs { nightshift.open, core.open } do
      local none, message, code = open { url = server:url "n", no_schema = open == core.open or nil }
      assert.same({ nil, "SERVER" }, { none, code })
      assert.is_truthy(message:find("wsrep_on=ON", 1, true), message)
      assert.is_truthy(message:find("semi-synchronous replica", 1, true), message)
    end
  end))

  it("is refused by init, work and doctor", on_node(function()
    server:sql "CREATE DATABASE IF NOT EXISTS n"
    local url = server:url "n"
    local exit, _, err = proc.nightshift({ "init" }, url)
    assert.equal(78, exit)
    assert.is_truthy(err:find("wsrep_on=ON", 1, true), err)
    assert.equal("", server:sql "SHOW TABLES FROM n LIKE 'nightshift%'")
    exit, _, err = proc.nightshift({ "work", fixture.file("a.lua", "return { a = function() end }") }, url)
    assert.equal(78, exit)
    assert.is_truthy(err:find("wsrep_on=ON", 1, true), err)
    local out
    exit, out = proc.nightshift({ "doctor" }, url)
    assert.equal(1, exit)
    assert.is_truthy(out:find("fail  server", 1, true) and out:find("wsrep_on=ON", 1, true), out)
    assert.is_truthy(out:find("semi-synchronous replica", 1, true), out)
  end))
end)
