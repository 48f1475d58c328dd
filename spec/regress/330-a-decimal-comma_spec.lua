-- In a program whose locale has a decimal comma a handle that waited sent thousands of
-- statements a second, progress was stored as 0, and adopted rows with a number of type
-- DOUBLE failed.

local locale = require "spec.support.locale"

local handle, q

with_database(function(...) handle, q = ... end)

local function statements()
  return tonumber(assert(handle:execute "SHOW GLOBAL STATUS LIKE 'Questions'")[1].Value)
end

describe("a decimal comma", function()
  it("lets who waits sleep", function()
    local before = statements()
    locale.comma(function() assert.is_nil((q:claim { wait = 1.5 })) end)
    assert.is_true(statements() - before < 60, statements() - before)
  end)

  it("stores progress as it was told", function()
    local id = assert(q:push "a")
    local job = assert(q:claim())
    locale.comma(function() assert(job:progress(0.25, "half")) end)
    local info = assert(handle:job(id))
    assert.equal(0.25, info.progress)
    assert.equal("half", info.status)
    assert(job:ack())
  end)

  it("brings adopted rows with fractions whole", function()
    assert(handle:execute [[CREATE TABLE measures (id INT AUTO_INCREMENT PRIMARY KEY, size DOUBLE NOT NULL,
      state ENUM('open', 'busy', 'done', 'failed') NOT NULL DEFAULT 'open')]])
    assert(handle:execute "INSERT INTO measures (size) VALUES (0.5), (1e300)")
    local t = assert(handle:adopt {
      table = "measures", name = "measure", max_attempts = 1,
      status = { column = "state", open = "open", processing = "busy", done = "done", failed = "failed" },
    })
    local sizes = {}
    locale.comma(function()
      for _ = 1, 2 do
        local job = assert(t:claim())
        sizes[#sizes + 1] = job.payload.size
        assert(job:ack())
      end
    end)
    assert.same({ 0.5, 1e300 }, sizes)
    assert.equal(2, assert(handle:execute "SELECT COUNT(*) AS n FROM measures WHERE state = 'done'")[1].n)
  end)
end)
