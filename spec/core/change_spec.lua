-- Changing jobs from outside: deleting them. Beside claims, exactly one of both has the job.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local handle, q, url, name

local function rows_of(id)
  local found = {}
  for _, where in ipairs { "job:id", "finished:id", "ready:job_id", "scheduled:job_id", "attempt:job_id",
    "signal:job_id", "child:id", "pause:id", "unique_key:job_id", "running:job_id" } do
    local tab, column = where:match "(.*):(.*)"
    local n = db.sql(("SELECT COUNT(*) FROM nightshift_%s WHERE %s = %d"):format(tab, column, id), name)
    if n ~= "0" then found[#found + 1] = tab end
  end
  return found
end

describe("delete", function()
  with_database(function(...) handle, q, url, name = ... end)
  after_each(crew.clean)

  local function refuses(code, pattern, id, opts)
    local ok, message, why = handle:delete(id, opts)
    assert.same({ nil, code }, { ok, why })
    assert.matches(pattern, message)
  end

  it("leaves nothing of a job that has ended, whatever its end", function()
    for _, ending in ipairs { "ack", "discard", "cancel", "fail" } do
      local id = assert(q:push("secret", { card = "4111" }, { unique = "k", max_attempts = 1 }))
      local job = assert(q:claim())
      job:log "card 4111"
      if ending == "cancel" then assert(handle:cancel(id)) else assert(job[ending](job, "4111")) end
      assert.is_true(handle:delete(id))
      assert.same({}, rows_of(id))
      refuses("NOT_FOUND", "no job " .. id, id)
    end
    assert.is_nil(handle:job(1))
  end)

  it("ends a live job first, from wherever it waits, and frees its key", function()
    local places = {
      ready = function() return q:push("a", 1, { unique = "k" }) end,
      scheduled = function() return q:push("a", 1, { delay = 60, unique = "k" }) end,
      waiting = function()
        return q:push("a", 1, { after = { assert(q:push("b", 1, { delay = 60 })) }, unique = "k" })
      end,
      paused = function()
        local id = q:push("a", 1, { unique = "k" })
        assert(handle:pause(id))
        return id
      end,
      signalled = function()
        local id = q:push("a", 1, { unique = "k", priority = 200 })
        assert(handle:signal(id, "early", "other"))
        assert(q:claim():wait { signal = "go", deadline = 60 })
        return id
      end,
      failed = function()
        local id = q:push("a", 1, { unique = "k", priority = 200 })
        assert(q:claim():fail "no luck")
        return id
      end,
    }
    for place, push in pairs(places) do
      local id = assert(push())
      assert.is_true(handle:delete(id), place)
      assert.is_nil((q:claim())) -- a paused job's row, which is stale, goes with the next claim
      assert.same({}, rows_of(id), place)
      local again = assert(q:push("a", 1, { unique = "k", delay = 60 }), place)
      assert(handle:delete(again))
    end
  end)

  it("refuses a job that runs, until it is cancelled", function()
    local id = assert(q:push("a", 1))
    local job = assert(q:claim())
    refuses("STATE", "is running: cancel it first", id)
    assert(handle:pause(id)) -- it runs on
    refuses("STATE", "is running: cancel it first", id)
    assert(handle:cancel(id))
    assert.is_true(handle:delete(id))
    assert.equal("STALE", select(3, job:ack()))
    assert.same({}, rows_of(id))
  end)

  it("refuses a child while its parent lives, and then takes it out of its tree", function()
    local top = assert(q:push("top", 1))
    local job = assert(q:claim())
    local kid = job:spawn("kid", 1)
    assert(job:wait())
    refuses("STATE", ("child of job %d, which has not finished"):format(top), kid)
    assert(q:claim():ack "result")
    refuses("STATE", "wait for that one's end, or cancel it", kid)
    assert(q:claim():ack())
    assert.is_true(handle:delete(kid))
    assert.same({}, rows_of(kid))
    assert.equal(1, handle:progress(top).total)
    assert.equal(1, handle:prune { done = 0 })
  end)

  it("leaves what is below it to be pruned with the tree", function()
    local top = assert(q:push("top", 1))
    local job = assert(q:claim())
    job:spawn("middle", 1)
    assert(job:ack())
    local middle = assert(q:claim())
    local leaf = middle:spawn("leaf", 1)
    assert(middle:ack())
    assert(q:claim():ack())
    assert.is_true(handle:delete(middle.id))
    assert.is_nil(handle:job(middle.id))
    assert.equal("done", handle:job(leaf).state)
    assert.equal(2, handle:prune { done = 0 })
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_child", name))
    assert.is_nil(handle:job(top))
  end)

  it("with tree takes all of a tree that has ended", function()
    local top = assert(q:push("top", 1))
    local job = assert(q:claim())
    job:spawn("kid", 1)
    assert(job:ack())
    refuses("STATE", "has not finished", top, { tree = true })
    assert(q:claim():ack())
    assert.equal(2, handle:delete(top, { tree = true }))
    refuses("NOT_FOUND", "no job", top)
  end)

  it("of a live job cancels the ones that wait for it, as its failure would", function()
    local first = assert(q:push("first", 1, { delay = 60 }))
    local cancels = assert(q:push("second", 1, { after = { first } }))
    local runs = assert(q:push("third", 1, { after = { first }, on_fail = "run" }))
    assert.is_true(handle:delete(first))
    assert.same({ "cancelled", "ready" }, { handle:job(cancels).state, handle:job(runs).state })
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_edge", name))
  end)

  it("in a transaction counts when that commits", function()
    local id = assert(q:push("a", 1))
    assert.has_error(function()
      handle:transaction(function()
        assert(handle:delete(id))
        error "no"
      end)
    end)
    assert.equal("ready", handle:job(id).state)
    assert(handle:transaction(function() return handle:delete(id) end))
    assert.is_nil(handle:job(id))
  end)

  it("by 25 connections beside 25 claimers: each job is either claimed or deleted", function()
    local items = {}
    for i = 1, 500 do items[i] = { "n", i, { delay = i % 5 == 0 and 0.3 or nil } } end
    local ids = assert(q:push_many(items))
    db.sql("CREATE TABLE told (id BIGINT, what TEXT); CREATE TABLE stop (n INT)", name)
    local function note(own, id, what) assert(own:execute("INSERT INTO told VALUES (?, ?)", id, what)) end
    local function open() -- not all are heard at once
      return eventually(function() return nightshift.open(url) end)
    end
    local claimers = crew.fork(25, function()
      local own <close> = open()
      local mine, jobs = own:queue "q", {}
      repeat
        for _, job in ipairs(assert(mine:claim_many(3, { wait = 0.02 }))) do
          jobs[#jobs + 1] = job
          note(own, job.id, "claimed")
        end
      until #assert(own:execute "SELECT 1 FROM stop") > 0 and #assert(mine:claim_many(1)) == 0
      for _, job in ipairs(jobs) do assert(job:ack()) end
    end)
    local deleters = crew.fork(25, function(i)
      local own <close> = open()
      for k = #ids - i + 1, 1, -25 do
        local ok, message, code = own:delete(ids[k])
        assert(ok or code == "STATE", message)
        note(own, ids[k], ok and "deleted" or "refused")
      end
    end)
    deleters:wait()
    db.sql("INSERT INTO stop VALUES (1)", name)
    claimers:wait()
    local both = db.sql([[SELECT GROUP_CONCAT(id) FROM (SELECT id, SUM(what <> 'refused') AS n FROM told
      GROUP BY id) t WHERE n <> 1]], name)
    assert.equal("NULL", both)
    assert.equal("500", db.sql("SELECT COUNT(DISTINCT id) FROM told WHERE what <> 'refused'", name))
    assert.equal(db.sql("SELECT COUNT(*) FROM told WHERE what = 'claimed'", name),
      db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name))
    assert.equal("0", db.sql("SELECT COUNT(*) FROM nightshift_job", name))
  end)

  it("beside a host: a deleted job never starts, and a started one is not deleted", function()
    local path = fixture.dir() .. "/ran"
    local h = host.start(url, ([[return { n = function(job)
      local file <close> = io.open(%q, "a")
      file:write(job.id, "\n")
    end }]]):format(path), { "--workers", "2", "--history", "failed" })
    local deleted = {}
    for i = 1, 100 do
      local id = assert(q:push("n", i))
      local ok, message, code = handle:delete(id)
      assert(ok or code == "STATE" or code == "NOT_FOUND", message)
      deleted[id] = ok
    end
    eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end)
    for line in io.lines(path) do assert.is_nil(deleted[math.tointeger(line)]) end
    h:signal "TERM"
    assert.equal(0, h:wait(30))
  end)
end)
