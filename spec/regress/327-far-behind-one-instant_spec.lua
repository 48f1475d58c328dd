-- A claim of some names looks ahead a few thousand rows, so that it never goes through all
-- that lies there for others. While many jobs of one instant were worked off it looked
-- further and further ahead, and the claim behind the last of them went through it all. With
-- nothing but others' rows ahead a claim failed with BUSY, and looked below them all again
-- and again.

local handle, q
with_database(function(...) handle, q = ... end)

local OWN <const>, OTHERS <const> = 40000, 80000

local function reads()
  return tonumber(assert(handle:execute "SHOW SESSION STATUS LIKE 'Handler_read_next'")[1].Value)
end

it("jobs of one instant are claimed without a look at all that lies behind them", function()
  local items = {}
  for i = 1, 1000 do items[i] = { "own" } end
  for _ = 1, OWN // #items do assert(q:push_many(items)) end
  assert(handle:execute "UPDATE nightshift_ready SET ready_at = 1000 WHERE job_id > 0")
  assert(handle:execute(([[INSERT INTO nightshift_ready (queue_id, `rank`, ready_at, job_id, run, kind)
    SELECT queue_id, `rank`, 1000 + seq, %d + seq, 1, 4711 FROM seq_1_to_%d,
      (SELECT DISTINCT queue_id, `rank` FROM nightshift_ready WHERE job_id > 0) v]]):format(1 << 40, OTHERS)))
  local claimed, looks, last = 0, 0
  repeat
    local before = reads()
    local jobs = assert(q:claim_many(1000, { names = { "own" } }))
    last = reads() - before
    looks = looks + (last > 4000 and 1 or 0)
    claimed = claimed + #jobs
  until #jobs == 0
  assert.equal(OWN, claimed)
  assert.is_true(looks <= 3, looks) -- two, and the one that found no more
  assert.is_true(last <= 5 * OTHERS, last)
end)
