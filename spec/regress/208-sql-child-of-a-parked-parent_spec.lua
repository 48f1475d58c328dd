-- CALL nightshift_push with a parent that was parked for its children: it did not
-- wait for the new one, which was then in its results without an outcome.

local core = require "nightshift.core"
local db = require "spec.support.db"
local nightshift = require "nightshift"

for _, within in ipairs { "in autocommit", "in a transaction" } do
  describe("CALL nightshift_push below a parent that waits for its children, " .. within, function()
    local handle, q, parent

    before_each(function()
      handle = assert(nightshift.open((db.fresh())))
      q = handle:queue "q"
      parent = assert(q:push "parent")
    end)
    after_each(function() handle:close() end)

    local function call(options)
      local h = handle._handle
      if within == "in a transaction" then assert(h:begin()) end
      local ok, message = h:execute("CALL nightshift_push('q', 'late', '1', ?)", (assert(core.encode(options))))
      local id = assert(h:execute "SELECT @nightshift_id AS id")[1].id
      if within == "in a transaction" then assert(h:commit()) end
      if not ok then return nil, message end
      return id
    end

    local function park(policy)
      local job = assert(q:claim())
      job:spawn("child", 1)
      assert(job:wait { on_fail = policy })
    end

    local function unmet() return handle:job(parent).unmet end

    it("is waited for, too", function()
      park()
      local late = assert(call { parent = parent })
      assert.equal(2, unmet())
      assert(q:claim():ack "child")
      assert.equal("waiting", handle:job(parent).state)
      local job = q:claim()
      assert.equal(late, job.id)
      assert(job:ack "late")
      job = q:claim()
      assert.same({ parent, 2, "late" }, { job.id, #job.results, job.results[2].result })
    end)

    it("and is cancelled at once: as its policy says", function()
      local bad = assert(q:push("bad", nil, { priority = 200 }))
      assert(q:claim():discard "no")
      for policy, expected in pairs { fail = "dead", continue = "ready" } do
        park(policy)
        local late = assert(call { parent = parent, after = { bad } })
        assert.equal("cancelled", handle:job(late).state)
        assert(handle:rescue()) -- as hosts do every second: the parent is told
        assert(q:claim():ack())
        assert.equal(expected, handle:job(parent).state)
        if policy == "continue" then
          local job = assert(q:claim())
          assert.same({ parent, "cancelled" }, { job.id, job.results[2].outcome })
          assert(job:ack())
        end
        parent = assert(q:push "parent")
      end
    end)

    it("does not wait for that parent, nor for what waits for it", function()
      park()
      local third = assert(q:push("third", nil, { after = { parent } }))
      local late = assert(call { parent = parent, after = { parent } })
      assert.equal("ready", handle:job(late).state)
      local id, message = call { parent = parent, after = { third } }
      assert.is_nil(id)
      assert.matches("would wait for itself", message, 1, true)
      assert.equal(2, unmet())
      for _ = 1, 2 do assert(q:claim():ack()) end
      local job = assert(q:claim())
      assert.same({ parent, 2 }, { job.id, #job.results })
    end)

    it("is not waited for by a parent that waits for a signal, or runs", function()
      local job = assert(q:claim())
      assert(call { parent = parent })
      assert(job:wait { signal = "go" })
      assert(call { parent = parent })
      assert.equal(0, unmet())
      assert.same({}, handle:execute "SELECT * FROM nightshift_edge")
    end)
  end)
end
