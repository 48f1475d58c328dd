-- A claim that had marked its rows and could not read them, as their table had just been
-- altered, forgot them: they stayed taken for as long as whoever claimed lived.

local host = require "spec.support.host"
local lab = require "spec.support.lab"

local db
lab.handles(1, function(handle) db = handle end)

local function all(sql) return assert(db:execute(sql)) end

local function count(where) return all("SELECT COUNT(*) AS n FROM em WHERE " .. where)[1].n end

for _, strategy in ipairs { "update_limit", "skip_locked", "named_lock" } do
  local map = ([[{ table = "em", attempts = "n", claimed_by = "cb", strategy = %q,
    status = { column = "st", open = "o", processing = "p", done = "d" } }]]):format(strategy)

  before_each(function()
    all "DROP TABLE IF EXISTS em"
    all [[CREATE TABLE em (id INT AUTO_INCREMENT PRIMARY KEY, st VARCHAR(9) NOT NULL DEFAULT 'o', cb VARCHAR(64) NULL,
      n INT NOT NULL DEFAULT 0)]]
  end)

  it("comes with the next claim by " .. strategy, function()
    all "INSERT INTO em () VALUES (), (), ()"
    local t = assert(db:adopt(assert(load("return " .. map))()))
    all "ALTER TABLE em CHANGE n nn INT NOT NULL DEFAULT 0"
    for _ = 1, 2 do
      local job, _, code = t:claim()
      assert.same({ nil, "SQL" }, { job, code })
    end
    all "ALTER TABLE em CHANGE nn n INT NOT NULL DEFAULT 0"
    for id = 1, 3 do
      local job = assert(t:claim())
      assert.equal(id, job.id)
      assert.is_true((job:ack()))
    end
    assert.equal(3, count "st = 'd'")
  end)

  it("is run by a host by " .. strategy, function()
    local h = host.start(lab.url(), "return { em = function() end }",
      { "--adopt", fixture.file("map.lua", "return " .. map), "--workers", "2" })
    all "INSERT INTO em () VALUES ()"
    eventually(function() return count "st = 'd'" == 1 end)
    all "ALTER TABLE em CHANGE n nn INT NOT NULL DEFAULT 0"
    all "INSERT INTO em () VALUES (), (), (), (), (), ()"
    h:wait_line("adopted.error", 20)
    all "ALTER TABLE em CHANGE nn n INT NOT NULL DEFAULT 0"
    eventually(function() return count "st = 'd'" == 7 end, 30)
    h:signal "TERM"
    assert.equal(0, h:wait(20))
  end)
end
