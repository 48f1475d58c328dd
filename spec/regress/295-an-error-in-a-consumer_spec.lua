-- An error that left the block of `local job <close> = q:claim()`, or a loop over q:jobs(),
-- gave its job back untouched: 1,299 runs in two seconds, no attempt spent, no error kept,
-- never dead. A loop that went on without a verdict kept all its jobs claimed.

local handle, q

with_database(function(opened, queue)
  handle, q = opened, queue
end)

local function info(id)
  local job = assert(handle:job(id))
  return { job.state, job.attempts, job.error }
end

local function attempt(id)
  return handle:execute("SELECT kind, error FROM nightshift_attempt WHERE job_id = ?", id)[1]
end

describe("an error that leaves the block of a claim", function()
  it("is an attempt that failed, with its error and its back-off", function()
    local id = assert(q:push("a", nil, { max_attempts = 2, backoff = 0 }))
    for _ = 1, 2 do
      local ok, err = pcall(function()
        local job <close> = assert(q:claim { wait = 5 })
        assert.equal(id, job.id)
        error { code = 5 }
      end)
      assert.same({ false, { code = 5 } }, { ok, err })
    end
    assert.is_nil(q:claim())
    assert.same({ "dead", 2, '{"code":5}' }, info(id))
    assert.same({ kind = "failed", error = '{"code":5}' }, attempt(id))
  end)

  it("changes nothing of a job that has its verdict, or a handle that is closed", function()
    local id = assert(q:push "a")
    assert.is_false(pcall(function()
      local job <close> = assert(q:claim())
      assert(job:ack "r")
      error "too late"
    end))
    assert.same({ "done", 0 }, info(id))
    local other = assert(require "nightshift".open((require "spec.support.db".fresh())))
    assert(other:queue "q":push "a")
    assert.error_matches(function()
      local job <close> = assert(other:queue "q":claim())
      other:close()
      error(job.name .. " is over", 0)
    end, "a is over")
  end)

  it("gives the job back when nothing was wrong", function()
    local id = assert(q:push "a")
    do
      local job <close> = assert(q:claim())
      assert.equal(id, job.id)
    end
    assert.same({ "ready", 0 }, info(id))
  end)
end)

describe("a loop over q:jobs()", function()
  it("fails a job that it goes on without a verdict of", function()
    local ids = assert(q:push_many { { "a" }, { "b" } })
    local seen = 0
    for job in q:jobs() do
      seen = seen + 1
      if job.name == "b" then assert(job:ack()) end
    end
    assert.equal(2, seen)
    assert.same({ "scheduled", 1 }, { table.unpack(info(ids[1]), 1, 2) })
    assert.same({ kind = "failed", error = "no verdict" }, attempt(ids[1]))
    assert.same({ "done", 0 }, info(ids[2]))
  end)

  it("fails the job that an error leaves it with, and gives one back on break", function()
    local id = assert(q:push "a")
    for _ in q:jobs() do break end -- luacheck: ignore 512
    assert.same({ "ready", 0 }, info(id))
    assert.error_matches(function()
      for _ in q:jobs() do error("boom", 0) end
    end, "boom")
    assert.same({ "scheduled", 1 }, { table.unpack(info(id), 1, 2) })
    assert.equal("boom", attempt(id).error)
  end)

  it("does the same with rows of an adopted table", function()
    assert(handle:execute [[CREATE TABLE mails (id INT PRIMARY KEY AUTO_INCREMENT, state VARCHAR(20) NOT NULL,
      token VARCHAR(60) NULL, tries INT NOT NULL DEFAULT 0) ENGINE=InnoDB]])
    assert(handle:execute "INSERT INTO mails (state) VALUES ('new'), ('new')")
    local t = assert(handle:adopt { table = "mails", name = "mail.send", claimed_by = "token", attempts = "tries",
      max_attempts = 1,
      status = { column = "state", open = "new", done = "sent", failed = "failed", processing = "busy" } })
    local n = 0
    for job in t:jobs() do
      n = n + 1
      if n == 2 then assert(job:ack()) end
    end
    local states = {}
    for i, row in ipairs(assert(handle:execute "SELECT state FROM mails ORDER BY id")) do states[i] = row.state end
    table.sort(states)
    assert.same({ "failed", "sent" }, states)
  end)
end)
