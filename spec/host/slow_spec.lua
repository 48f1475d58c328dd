-- A database that answers slowly is told of in the log while it lasts, and so is one that
-- answers nothing. Commits wait for a replica that is not there: reads are answered, writes
-- are not.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"
local proxy = require "spec.support.proxy"

local LATE = "SET GLOBAL rpl_semi_sync_master_timeout=600000; SET GLOBAL rpl_semi_sync_master_enabled=1"
local PROMPT = "SET GLOBAL rpl_semi_sync_master_enabled=0"

describe("a slow database", function()
  local server, url, handle
  setup(function()
    server = db.server("log-bin\nlog-bin-trust-function-creators=1\n"
      .. "rpl-semi-sync-master-wait-point=AFTER_SYNC\n")
  end)
  before_each(function()
    url = server:fresh()
    handle = assert(nightshift.open(url))
  end)
  after_each(function()
    handle:close()
    server:sql(PROMPT)
  end)

  --- A host whose job has run up to its verdict; `go` lets it end.
  local function started()
    local go = fixture.dir() .. "/go"
    local h = host.start(url, host.holding(go), { "--log", "json" })
    local id = assert(handle:queue("q"):push "hold")
    h:wait_line "^holds"
    return h, id, function() assert(io.open(go, "w")):close() end
  end

  local function ends_well(h, id)
    eventually(function() return handle:job(id).state == "done" end)
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  it("is told of while a commit lasts, and when it is over", function()
    local h, id, go = started()
    server:sql(LATE)
    go()
    h:wait_line '"db.slow"'
    local line = host.logged(h, "db.slow")[1]
    assert.same({ "no", "verdicts of 1 job", "COMMIT", "Waiting for semi-sync ACK from slave" },
      { line.over, line.what:sub(1, 17), line.statement, line.server })
    local seconds = tonumber(line.seconds)
    assert.is_true(seconds >= 1 and seconds < proc.limit(3), line.seconds)
    assert.equal("running", handle:job(id).state)
    server:sql(PROMPT)
    h:wait_line('"db.slow".*"over":"yes"')
    ends_well(h, id)
    local lines = host.logged(h, "db.slow")
    assert.equal(2, #lines)
    assert.is_true(tonumber(lines[2].seconds) >= seconds)
  end)

  it("is told of once in ten seconds, however many answers are slow", function()
    local p = proxy.start(server)
    local h = host.start(p:url(url), "return { a = function() end }", { "--log", "json" })
    p:tell "delay 1050"
    assert(handle:queue("q"):push "a")
    h:wait_line('"db.slow".*"more":', 40)
    p:tell "delay 0"
    local lines = host.logged(h, "db.slow")
    assert.is_true(#lines <= 4, #lines)
    local last = lines[#lines]
    assert.is_true(last.more >= 5 and tonumber(last.worst) >= 1.05, last.more)
  end)

  it("is counted by a program's handle", function()
    assert(handle:queue("q"):push "a")
    assert.equal(0, handle:stats().counters.slow)
    local locker <close> = assert(nightshift.open(url))
    local program = proc.start { proc.lua, "-e", ([[
      local db = assert(require "nightshift".open(%q))
      assert(db:queue "q":push "a")
      local c = db:stats().counters
      assert(c.slow == 1 and c.slowest > 1e6, c.slow)
      assert(db:execute "DO SLEEP(1.1)")
      assert(db:stats().counters.slow == 1, "that of the program's own")]]):format(url) }
    assert(locker:execute "FLUSH TABLES WITH READ LOCK")
    eventually(function()
      return program:ended() or server:sql([[SELECT COUNT(*) FROM information_schema.processlist
        WHERE time_ms > 1200 AND state = 'Waiting for backup lock']]) == "1"
    end)
    assert(locker:execute "UNLOCK TABLES")
    assert.equal(0, program:wait(), select(2, program:text()))
  end)

  it("is not a frozen one", function()
    local h, id, go = started()
    server:freeze()
    go()
    local ok, err = pcall(h.wait_line, h, '"db.frozen"')
    server:thaw()
    assert(ok, err)
    local line = host.logged(h, "db.frozen")[1]
    assert.same({ "error", "no" }, { line.level, line.over })
    assert.is_truthy(line.advice:find("answers nothing", 1, true))
    for _, slow in ipairs(host.logged(h, "db.slow")) do assert.equal("yes", slow.over) end -- said when it answers again
    ends_well(h, id)
  end)
end)
