-- With the strategy `transaction` a row is marked as taken, for all to see, and then
-- locked again. Whoever looked in between took it for a dead worker's: it cost an
-- attempt, and the claimer its row. In a crowd that happened to most claims.

local crew = require "spec.support.crew"
local db = require "spec.support.db"
local designs = require "spec.support.designs"
local lab = require "spec.support.lab"
local nightshift = require "nightshift"
local proxy = require "spec.support.proxy"

local a
lab.handles(1, function(handle) a = handle end)
after_each(crew.clean)

local COUNTED = { migration_task = "iteration = 1", queue_table = "attempts < 30", job_queue = "FALSE" }

-- So long it is between the mark and the lock, too.
local function slow_url()
  local slow = proxy.start(db.shared())
  slow:tell "delay 40"
  return slow:url(lab.url())
end

for name, counted in pairs(COUNTED) do
  it(("a row of %s is not taken from one who is about to lock it"):format(name), function()
    designs.create(a, name, 3)
    local map = designs.map(name, { strategy = "transaction" })
    local t = assert(a:adopt(map))
    local url, path = slow_url(), fixture.dir() .. "/claimed"
    local c = crew.fork(1, function()
      local own = assert(nightshift.open(url))
      local jobs = assert(assert(own:adopt(map)):claim_many(3))
      for _, job in ipairs(jobs) do assert(job:ack()) end
      local file <close> = assert(io.open(path, "w"))
      file:write(#jobs)
      file:close()
      own:close()
    end)
    local freed = 0
    repeat
      freed = freed + assert(t:rescue())
      local file <close> = io.open(path)
    until file or c:has_ended(1)
    assert.equal(0, c:wait_one(1, 20))
    assert.equal(0, freed)
    assert.equal("3", assert(io.open(path)):read "a")
    assert.equal(0, assert(a:execute(("SELECT COUNT(*) AS n FROM %s WHERE %s"):format(name, counted)))[1].n)
    assert.is_nil(t:claim())
  end)
end

it("a row comes back, and costs an attempt, when its claimer dies there", function()
  designs.create(a, "queue_table", 1)
  local map = designs.map("queue_table", { strategy = "transaction" })
  local t, url = assert(a:adopt(map)), slow_url()
  local c = crew.fork(1, function() assert(assert(nightshift.open(url)):adopt(map)):claim() end)
  local function is(what) return assert(a:execute("SELECT 1 FROM queue_table WHERE " .. what))[1] ~= nil end
  eventually(function() return is "status = 'in_progress'" end, 20)
  c:kill(1)
  eventually(function() return assert(t:rescue()) == 1 end)
  assert.is_true(is "status = 'queued' AND attempts = 29")
end)
