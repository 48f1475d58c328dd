-- A verdict that the server refused because of what was in the row, as for a unique index
-- of the table's people, was tried again for ever, and with it all that were settled
-- together: their rows stayed claimed, and the host did not end.

local host = require "spec.support.host"
local lab = require "spec.support.lab"

local db
lab.handles(1, function(handle) db = handle end)

local function count(where) return assert(db:execute("SELECT COUNT(*) AS n FROM once WHERE " .. where))[1].n end

for _, column in ipairs { "claimed_by = 'who',", "" } do
  it("holds up nobody else" .. (column == "" and ", where grips say whose a row is" or ""), function()
    assert(db:execute "DROP TABLE IF EXISTS once")
    assert(db:execute [[CREATE TABLE once (id INT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(9) DEFAULT 'open',
      payment INT NULL, who VARCHAR(64) NULL, UNIQUE (state, payment))]])
    assert(db:execute "INSERT INTO once (payment, state) VALUES (7, 'done')")
    assert(db:execute "INSERT INTO once (payment) VALUES (7), (NULL), (8), (NULL)")
    local map = fixture.file("map.lua", ([[return { table = "once", strategy = "skip_locked", %s
      status = { column = "state", open = "open", processing = "busy", done = "done" } }]]):format(column))
    local h = host.start(lab.url(), "return { once = function() end }", { "--adopt", map, "--workers", "4" })
    eventually(function() return count "state = 'done'" == 4 end)
    h:wait_line("job.refused id=2 code=DUPLICATE", 10)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
    assert.equal(1, count "id = 2 AND state = 'open'")
  end)
end

it("is told to a program, which may say something else", function()
  assert(db:execute "UPDATE once SET state = 'open' WHERE id = 2")
  local t = assert(db:adopt { table = "once", strategy = "skip_locked", claimed_by = "who",
    status = { column = "state", open = "open", processing = "busy", done = "done" } })
  local job = assert(t:claim())
  local ok, message, code = job:ack()
  assert.same({ nil, "DUPLICATE" }, { ok, code })
  assert.is_truthy(message:find("done-7", 1, true), message)
  assert.is_true((job:fail("paid before", { retry_in = 0 })))
end)
