-- A host kept 182 prepared statements open and a program 26 to 40, of the 16,382 that a server
-- has for all: the 91st host or the 631st handle took them from every program of that server,
-- and ended with "bad configuration".

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local HANDLES, HOSTS = tonumber(os.getenv "NIGHTSHIFT_HANDLES") or 20, tonumber(os.getenv "NIGHTSHIFT_HOSTS") or 3
local PER_HANDLE, PER_HOST = 8, 50
local HANDLERS = [[return {
  a = function(job)
    if job.payload == "fails" and job.attempts == 0 then job:fail("once", { retry_in = 0 }) return end
    if job.payload == "parent" and job.phase == 0 then
      job:spawn("a", 1)
      return job:wait()
    end
    return job.payload
  end }]]

local server

setup(function() server = db.server "max-connections=3000\n" end)

local function status(name)
  return math.tointeger(tonumber((server:sql(("SHOW GLOBAL STATUS LIKE '%s'"):format(name)):match "%d+$")))
end

describe("the prepared statements of a server", function()
  local url, name

  before_each(function() url, name = server:fresh() end)

  it("are few of each program, which does all kinds of things", function()
    local handles = {}
    local before = status "Prepared_stmt_count"
    for i = 1, HANDLES do
      local handle = assert(nightshift.open(url))
      local q = handle:queue("q" .. i % 5)
      assert(q:push("a", i))
      assert(assert(q:claim()):ack(i))
      handles[i] = handle
    end
    local handle = handles[1]
    local q = handle:queue "q"
    assert(q:push_many { { "a", 1 }, { "a", 2, { priority = 200 } }, { "a", 3, { delay = "1h" } } })
    assert(q:push("a", 4, { unique = "u" }))
    assert(handle:execute("SELECT ? AS x", 1))
    assert(q:claim():fail "no")
    local parent = assert(q:claim())
    parent:spawn("a", 1)
    assert(parent:wait())
    assert(handle:signal(parent.id, "x"))
    assert(handle:stats())
    assert(handle:lock "l"(function() return true end))
    assert(handle:prune { done = 0 })
    local after = status "Prepared_stmt_count"
    assert.is_true(after - before <= HANDLES * PER_HANDLE, ("%d of %d handles"):format(after - before, HANDLES))
    assert.equal("1", server:sql "PREPARE s FROM 'select 1'; EXECUTE s")
    for _, h in ipairs(handles) do h:close() end
  end)

  it("stay prepared in a loop that pushes, claims and acks", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local function round(n)
      for i = 1, n do
        assert(q:push("a", i))
        assert(assert(q:claim()):ack(i))
      end
    end
    round(50)
    local before = status "Com_stmt_prepare"
    round(400)
    local more = status "Com_stmt_prepare" - before
    assert.is_true(more <= 200, more .. " prepared anew for 400 jobs")
  end)

  it("are few of each host", function()
    local before = status "Prepared_stmt_count"
    local hosts = {}
    for i = 1, HOSTS do hosts[i] = host.spawn(url, HANDLERS, { "--workers", "1" }) end
    for _, h in ipairs(hosts) do h:wait_line("host.ready", 120) end
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    for i = 1, 40 * HOSTS do assert(q:push("a", ({ "fails", "parent", "plain", i })[i % 4 + 1])) end
    eventually(function() return server:sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 60)
    local open = status "Prepared_stmt_count" - before
    assert.is_true(open <= HOSTS * PER_HOST + PER_HANDLE, ("%d of %d hosts"):format(open, HOSTS))
    assert.equal("1", server:sql "PREPARE s FROM 'select 1'; EXECUTE s")
    for _, h in ipairs(hosts) do h:signal "TERM" end
    for _, h in ipairs(hosts) do assert.equal(0, h:wait(120), h:transcript()) end
  end)

  it("that are all taken are waited for, and doctor says so", function()
    local handle <close> = assert(nightshift.open(url))
    local q = handle:queue "q"
    local id = assert(q:push("a", 1))
    local job = assert(q:claim())
    local limit = server:sql "SELECT @@max_prepared_stmt_count"
    server:sql "SET GLOBAL max_prepared_stmt_count=1"
    local none, message, code = job:fail "not yet"
    local opened, why, which = nightshift.open(url)
    local exit, json = proc.nightshift({ "doctor", "--json" }, url)
    server:sql("SET GLOBAL max_prepared_stmt_count=" .. limit)
    assert.same({ nil, "BUSY" }, { none, code }, message)
    assert.same({ nil, "BUSY" }, { opened, which }, why)
    assert.is_truthy(why:find("(1461)", 1, true), why)
    assert.equal(1, exit)
    assert.is_truthy(json:find("raise max_prepared_stmt_count", 1, true), json)
    assert(job:ack())
    assert.equal("done", handle:job(id).state)
  end)
end)
