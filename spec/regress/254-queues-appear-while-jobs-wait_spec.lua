-- Jobs borrowed the name of their queue from an array that grew when another queue was met:
-- those that waited in a host, in another thread, were left with the name in freed memory.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local HANDLERS = [[
  local nst = require "nst"
  return { quick = function()  end, hold = function(job)
    while not io.open(%q) do nst.sleep(0.001) end
    return job.queue
  end }]]

it("jobs that wait in a host keep their queue's name while queues appear", function()
  local url, name = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local go = fixture.dir() .. "/go"
  local h = host.start(url, HANDLERS:format(go), { "--workers", "2", "--reserve", "extra=1" },
    { GLIBC_TUNABLES = "glibc.malloc.perturb=165:glibc.malloc.arena_max=1" }) -- what is freed is written over
  local q, warm, held = handle:queue "the first of all", {}, {}
  for i = 1, 1000 do warm[i] = { "quick" } end -- jobs are claimed ahead of quick handlers only
  assert(q:push_many(warm))
  eventually(function() return db.sql("SELECT COUNT(*) FROM nightshift_job", name) == "0" end, 30)
  for i = 1, 200 do held[i] = { "hold" } end
  local ids = assert(q:push_many(held))
  eventually(function()
    return tonumber(db.sql("SELECT COALESCE(SUM(JSON_LENGTH(jobs)), 0) FROM nightshift_lease", name)) > 1
  end)
  for step = 1, 4 do -- the host reads the queues again, for one that has a worker of its own
    db.sql(("INSERT INTO nightshift_queue (name, created) SELECT CONCAT('q-%d-', seq), 1 FROM seq_1_to_%d"):format(step,
      10 * 4 ^ step), name)
    local extra = assert(handle:queue("extra"):push "quick")
    eventually(function() return handle:job(extra).state == "done" end)
  end
  io.open(go, "w"):close()
  eventually(function() return handle:job(ids[#ids]).state == "done" end, 20)
  for _, id in ipairs(ids) do assert.equal("the first of all", handle:job(id).result) end
  h:signal "TERM"
  assert.equal(0, h:wait())
end)
