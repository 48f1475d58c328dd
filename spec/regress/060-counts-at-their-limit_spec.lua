-- A job whose row said run = 4294967295, which a pusher's account could write,
-- could not be given back: the next run does not fit. Nor could a job come back
-- whose polls, losses or missing handlers had reached their column's limit.

local core = require "nightshift.core"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local MAX = 4294967295

describe("a count at its limit", function()
  local url, name, handle, q

  with_database(function(...) handle, q, url, name = ... end)

  local function set(what) db.sql("UPDATE nightshift_job SET " .. what, name) end
  local function value(what) return db.sql("SELECT " .. what .. " FROM nightshift_job", name) end

  --- As the rescue does: its holder is nobody known.
  local function lose(job)
    db.sql(("DELETE FROM nightshift_ready WHERE job_id = %d"):format(job.id), name)
    db.sql(("INSERT INTO nightshift_lease VALUES (7, 7, 1, '[[%d,%d]]')"):format(job.id, job.run), name)
    return proc.nightshift({ "rescue" }, url) == 0
  end

  --- Gives the job back through the C module, which knows every other kind.
  local function settle(kind, prepare)
    if prepare then set(prepare) end
    if kind == "lost" then
      local id, run = value "id, run":match "(%d+)\t(%d+)"
      return lose { id = tonumber(id), run = tonumber(run) }
    end
    local h <close> = assert(core.open { url = url })
    local claimed = assert(h:claim("q", 1, 0))[1]
    return h:settle { id = claimed.id, run = claimed.run, lease = claimed.lease, kind = kind }
  end

  it("of runs is not one that a pusher can write", function()
    assert(q:push("a", 1))
    local ok, message = handle:execute "UPDATE nightshift_job SET run = 4000000001"
    assert.is_nil(ok)
    assert.is_truthy(message:find("job_run_counts", 1, true), message)
  end)

  for _, kind in ipairs { "release", "again", "fail", "crash", "missing", "lost" } do
    it("of runs ends the job that would go beyond it: " .. kind, function()
      assert(q:push("a", 1))
      set "run = 4000000000"
      db.sql("UPDATE nightshift_ready SET run = 4000000000 WHERE job_id > 0", name)
      assert(settle(kind))
      assert.equal("", value "id")
      assert.equal("dead\ttoo many runs\t4000000000", db.sql(
        "SELECT outcome, reason, run FROM nightshift_finished", name))
    end)
  end

  for count, kind in pairs { polls = "again", lost = "lost", missed = "missing" } do
    it("of " .. count .. " stays there", function()
      assert(q:push("a", 1))
      set "max_polls = NULL"
      local also = count == "missed" and ", missing_since = UNIX_TIMESTAMP(NOW(6)) * 1000000" or ""
      assert(settle(kind, ("%s = %d%s"):format(count, MAX, also)))
      assert.equal(("%d\t2"):format(MAX), value(count .. ", run"))
    end)
  end

  it("of polls is kept in the history", function()
    assert(q:push("a", 1))
    local job = assert(q:claim())
    set(("polls = %d, max_polls = %d"):format(MAX, MAX))
    assert(job:again(0))
    assert.equal(("poll deadline\t%d"):format(MAX), db.sql("SELECT reason, polls FROM nightshift_finished", name))
  end)

  it("of microseconds is the longest delay there is", function()
    assert(q:push("a", 1))
    local job = assert(q:claim())
    set "backoff = 9223372036854775807"
    assert(job:again())
    local years = tonumber(value "(due - created) / 1000000 / 86400 / 365.25")
    assert.is_true(years > 99 and years < 101, years)
  end)
end)
