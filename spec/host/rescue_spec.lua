-- Hosts that die, stop, or lose their connection: their jobs run elsewhere.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

describe("a host that", function()
  local url, trace, script, handle, q

  with_database(function(...)
    handle, q, url = ...
    trace = fixture.file("trace", "")
    script = fixture.file("jobs.lua", ([[
      local function note(what, job)
        local f <close> = io.open(%q, "a")
        f:write(what, " ", job.id, " ", job.run, " ", (require "nightshift".clock()), "\n")
      end
      return {
        long = function(job)
          note("start", job)
          if job.run == 1 then
            for i = 1, 3000 do
              require "nightshift.core".sleep(0.02)
              if job:cancelled() then note("told", job) error "told" end
            end
          end
          note("finish", job)
        end,
        quick = function(job) note("finish", job) end,
      }]]):format(trace))
  end)

  local function sql(text) return db.sql(text, url:match "/([^/?]+)%?") end

  local function lines(pattern)
    local n, last = 0, nil
    for line in io.lines(trace) do
      if line:find(pattern) then n, last = n + 1, line end
    end
    return n, last
  end

  local function start(...) return host.start(url, script, { "--workers", "4", ... }) end

  -- A host with a long job in hand, and another one to take over.
  local function pair()
    local first = start()
    local id = assert(q:push("long"))
    eventually(function() return lines "^start" == 1 end)
    local second = start()
    return first, second, id
  end

  local function connections(h)
    local list = {}
    for id in sql(("SELECT connection FROM nightshift_holder WHERE pid = %d"):format(h.pid)):gmatch "%d+" do
      list[#list + 1] = id
    end
    return list
  end

  it("is killed with -9 loses its jobs to another one at once", function()
    local first, second, id = pair()
    local killed = nightshift.clock()
    first:signal "KILL"
    eventually(function() return assert(handle:job(id)).state == "done" end)
    local _, line = lines(("^start %d 2"):format(id))
    assert.is_true(tonumber(line:match "[%d.]+$") - killed < proc.limit(9)) -- by the round: 10 s
    local attempts = sql("SELECT kind FROM nightshift_attempt WHERE job_id = " .. id)
    assert.equal("lost", attempts)
    second:signal "TERM"
    assert.equal(0, second:wait())
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
  end)

  it("is stopped is given up with its connection; later its verdict is refused and its handler told", function()
    local first, second, id = pair()
    first:signal "STOP"
    for _, thread in ipairs(connections(first)) do sql("KILL " .. thread) end -- as the server does after 30 s
    eventually(function() return assert(handle:job(id)).state == "done" end, 40)
    first:signal "CONT"
    eventually(function() return lines(("^told %d 1"):format(id)) == 1 end, 20)
    first:wait_line "event=holder.lost"
    local after = assert(q:push("quick"))
    second:signal "TERM"
    assert.equal(0, second:wait())
    eventually(function() return assert(handle:job(after)).state == "done" end) -- it works on, under a new name
    first:signal "TERM"
    assert.equal(0, first:wait())
    assert.equal(2, (lines(("^start %d"):format(id))))
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
  end)

  it("lives but loses its connection comes back before anybody takes its jobs", function()
    local first, second, id = pair()
    for _ = 1, 3 do
      local before = connections(first)[1]
      sql("KILL " .. before)
      eventually(function() return connections(first)[1] ~= before end)
    end
    nightshift.open(url):close()
    assert.is_nil(first:transcript():find "holder.lost")
    assert.equal("running", assert(handle:job(id)).state)
    assert.equal(1, assert(handle:job(id)).run)
    assert(handle:cancel(id))
    for _, h in ipairs { first, second } do
      h:signal "TERM"
      assert.equal(0, h:wait())
    end
  end)

  it("runs a job that is cancelled tells its handler", function()
    local h = start()
    local id = assert(q:push("long"))
    eventually(function() return lines "^start" == 1 end)
    local asked = nightshift.clock()
    assert(handle:cancel(id))
    eventually(function() return lines "^told" == 1 end)
    assert.is_true(nightshift.clock() - asked < proc.limit(9)) -- by the round: 10 s
    h:signal "TERM"
    assert.equal(0, h:wait())
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_notice")
  end)

  it("has prefetched innocent jobs does not condemn them when one of them kills it", function()
    local killer = fixture.file("killer.lua", [[
      local function stat(pid)
        local f <close> = io.open(("/proc/%s/stat"):format(pid))
        local name, parent = f:read "a":match "%((.-)%) %a (%d+)"
        return parent, name
      end
      local function host()
        local pid = stat "self"
        while select(2, stat(pid)) ~= "nightshift" do pid = stat(pid) end
        return pid
      end
      return {
        killer = function()
          os.execute("kill -9 " .. host())
          os.execute "sleep 5"
        end,
        innocent = function() os.execute "sleep 0.01" end,
      }]])
    local items = {}
    for i = 1, 200 do items[i] = { "innocent", i, { max_crashes = 1 } } end
    items[50] = { "killer", 0, { max_crashes = 3 } }
    local ids = assert(q:push_many(items))
    local deaths = 0
    while assert(handle:job(ids[50])).state ~= "dead" and deaths < 12 do
      local h = host.spawn(url, killer, { "--workers", "4", "--drain-within", "2s" })
      if h:wait(60) == 0 then break end
      deaths = deaths + 1
      eventually(function() -- the server hears of its end a moment later
        return handle:rescue() and sql "SELECT COUNT(*) FROM nightshift_lease" == "0"
      end)
    end
    host.drain(url, killer, { "--drain-within", "2s" })
    local job = assert(handle:job(ids[50]))
    assert.equal("poison", job.reason)
    assert.equal(5, deaths)
    assert.equal("199", sql "SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'")
    assert.equal("0", sql "SELECT COUNT(*) FROM nightshift_lease")
  end)
end)
