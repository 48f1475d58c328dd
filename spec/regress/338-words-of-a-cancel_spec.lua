-- The reason of a cancel was kept as an error, and the log of the host said that the claim was
-- lost; why counted the attempts of a job that crashes.

local db = require "spec.support.db"
local host = require "spec.support.host"

local handle, q, url

with_database(function(...) handle, q, url = ... end)

describe("the reason of a cancel", function()
  it("is kept as it was said, whatever it is", function()
    for _, text in ipairs { "too slow", "dependency", "a\nb", ("ä"):rep(255), "\0" } do
      local id = assert(q:push "a")
      assert(handle:cancel(id, { reason = text }))
      assert.same({ "cancelled", text }, { handle:job(id).state, handle:job(id).reason })
      assert.is_nil(handle:job(id).error)
    end
  end)

  it("is whole in the error when it is long", function()
    local id, text = assert(q:push "a"), ("äö"):rep(400)
    assert(handle:cancel(id, { reason = text }))
    assert.same({ text:sub(1, 510), text }, { handle:job(id).reason, handle:job(id).error })
  end)

  it("is none when nothing was said", function()
    for _, opts in ipairs { {}, { reason = "" } } do
      local id = assert(q:push "a")
      assert(handle:cancel(id, opts))
      assert.same({ "cancelled" }, { handle:job(id).reason, handle:job(id).error })
      assert.matches("ago: cancelled$", (handle:why(id)))
    end
  end)

  it("is in the host's log, for all of a tree, and in what the handler sees", function()
    local h = host.start(url, [[return {
      parent = function(job)
        if job.phase == 0 then job:spawn "kid" return job:wait() end
      end,
      kid = function()
        print "runs"
        local ok, err = pcall(function() while true do os.execute "sleep 0.02" end end)
        print(err)
      end,
    }]])
    local id = assert(q:push "parent")
    h:wait_line "^runs"
    assert(handle:cancel(id, { tree = true, reason = "wrong file" }))
    h:wait_line "^cancelled: stopped at"
    local stop = host.events(select(2, h:text()), "job.stop")
    assert.equal(1, #stop)
    h:wait_line 'job.stop .*why="cancelled: wrong file"'
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)
end)

it("why tells how many crashes a job has left", function()
  local id = assert(q:push("dies", nil, { delay = "1h" }))
  local name = url:match "/([^/?]+)%?"
  db.sql("UPDATE nightshift_job SET crashes = 2, run = 3 WHERE id = " .. id, name)
  db.sql("UPDATE nightshift_scheduled SET run = 3 WHERE job_id = " .. id, name)
  db.sql(([[INSERT INTO nightshift_attempt (job_id, run, kind, ended, error)
    VALUES (%d, 2, 'crashed', 1, 'killed by signal 9')]]):format(id), name)
  local text, fact = handle:why(id)
  assert.matches("is to be tried again in 59m%d+s, after it crashed, 2 of 5 crashes: killed by signal 9$", text)
  assert.same({ 2, 5 }, { fact.crashes, fact.max_crashes })
end)
