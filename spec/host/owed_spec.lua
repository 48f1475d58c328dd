-- A handler has ended, and the database does not take its verdict: people see that, of
-- this job and of no other.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local SCRIPT = [[
local function wait(name, path)
  print(name .. " holds")
  while not io.open(path) do require "nightshift.core".sleep(0.01) end
end
return {
  ends = function() wait("ends", %q) return 1 end,
  fails = function() wait("fails", %q) error "no" end,
  breaks = function() wait("breaks", %q) error "no" end,
  runs = function() wait("runs", %q) end,
}]]

describe("a verdict that the database does not take", function()
  local server, url, handle, locker, ends, stays, h
  setup(function() server = db.server "" end)
  before_each(function()
    url = server:fresh()
    handle, locker = assert(nightshift.open(url)), assert(nightshift.open(url))
    ends, stays = fixture.dir() .. "/go", fixture.dir() .. "/go"
    h = host.start(url, SCRIPT:format(ends, ends, ends, stays))
  end)
  after_each(function()
    handle:close()
    locker:close()
  end)

  local function go(path) assert(io.open(path, "w")):close() end

  --- Ids of jobs of these names; all of them run.
  local function started(...)
    local ids = {}
    for i, name in ipairs { ... } do
      ids[i] = assert(handle:queue "q":push(name, nil, { backoff = "1h" }))
      h:wait_line("^" .. name .. " holds")
    end
    return table.unpack(ids)
  end

  local function owed(id)
    return eventually(function()
      local text, fact = handle:why(id)
      return fact.kind == "unsettled" and { text = text, fact = fact }
    end)
  end

  local function ended(id, state)
    go(stays)
    eventually(function() return handle:job(id).state == state end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  it("is told of while nothing can be written, and of no job that runs", function()
    local id, other = started("ends", "runs")
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    go(ends)
    local got = owed(id)
    assert.is_true(got.fact.waited > 1e6 and got.fact.waited < proc.limit(20) * 1e6, got.fact.waited)
    assert.equal("Waiting for backup lock", got.fact.server)
    assert.matches(("^#%d 'ends' has run for %%S+ on %%S+ %%(pid %d%%), and its verdict has waited for [%%d.]+s, "
      .. "for the database does not take it: Waiting for backup lock$"):format(id, h.pid), got.text)
    for _ = 1, 20 do
      assert.equal("running", (select(2, handle:why(other)).kind))
      assert.equal("unsettled", (select(2, handle:why(id)).kind))
    end
    local late = handle:stats().holders[1].unsettled
    assert.same({ 1, "Waiting for backup lock" }, { late.n, late.server })
    assert.is_true(late.oldest >= got.fact.waited / 1e6)
    local _, out = proc.nightshift({ "status" }, url)
    assert.matches("\nthe database does not take 1 verdict of holder %d+, the oldest for [%d.]+s: "
      .. "Waiting for backup lock\n", out)
    _, out = proc.nightshift({ "status", "--json" }, url)
    assert.equal(1, nightshift.decode(out).holders[1].unsettled.n)
    assert(locker:execute "UNLOCK TABLES")
    eventually(function() return handle:job(id).state == "done" end)
    assert.equal("running", (select(2, handle:why(other)).kind))
    eventually(function() return not handle:stats().holders[1].unsettled end)
    _, out = proc.nightshift({ "status" }, url)
    assert.is_nil(out:find("does not take", 1, true))
    ended(other, "done")
  end)

  it("is told of whatever it is", function()
    local one, two = started("fails", "breaks")
    assert(locker:execute "LOCK TABLES nightshift_attempt WRITE")
    go(ends)
    eventually(function() return (handle:stats().holders[1].unsettled or {}).n == 2 end)
    owed(one)
    owed(two)
    assert(locker:execute "UNLOCK TABLES")
    eventually(function() return handle:job(two).state == "scheduled" end)
    ended(one, "scheduled")
  end)

  it("is told of while somebody holds its job's row", function()
    local id = started "ends"
    assert(locker._handle:begin())
    assert(locker:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id))
    go(ends)
    assert.is_true(owed(id).fact.waited > 1e6)
    assert(locker._handle:rollback())
    ended(id, "done")
  end)

  it("is nothing that an account knows that does not see the host's sessions", function()
    local id = started "ends"
    local weak <close> = assert(nightshift.open(server:user(url, "SELECT, INSERT, UPDATE, DELETE, EXECUTE")))
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    go(ends)
    owed(id)
    assert.equal("running", (select(2, weak:why(id)).kind))
    assert.is_nil(weak:stats().holders[1].unsettled)
    assert(locker:execute "UNLOCK TABLES")
    ended(id, "done")
  end)
end)
