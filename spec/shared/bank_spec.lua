-- The bank account: 200 workers withdraw from one balance, 100,000 times in
-- all, by get and then set. Under the mutex not one is lost; without it some
-- are, so the test would notice a mutex that does nothing.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local WORKERS, JOBS, EACH = 200, 1000, 100

-- The pause between get and set makes room for others to come between.
local SCRIPT = [[
  local nightshift = require "nightshift"
  local shared, clock = nightshift.shared, nightshift.clock
  local account = nightshift.mutex "account"
  local function withdraw()
    local balance = shared:get "balance"
    local till = clock() + 5e-6
    repeat until clock() >= till
    assert(shared:set("balance", balance - 1))
    return balance
  end
  local function run(job, each)
    shared:add("balance", 100000)
    for _ = 1, job.payload do assert(each()) end
    if shared:incr "ended" == 1000 then return shared:get "balance" end
  end
  return {
    guarded = function(job) return run(job, function() return account(withdraw) end) end,
    unguarded = function(job) return run(job, withdraw) end,
  }]]

-- The balance at the end.
local function withdraw_all(name)
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local jobs = {}
  for i = 1, JOBS do jobs[i] = { name, EACH, { max_attempts = 1 } } end
  assert(handle:queue("bank"):push_many(jobs))
  local status, log = host.drain(url, SCRIPT, { "--workers", WORKERS, "--drain-within", "0" })
  assert.equal(0, status, log)
  local rows = assert(handle:execute [[
    SELECT outcome, COUNT(*) AS jobs, MAX(result) AS balance FROM nightshift_finished GROUP BY outcome]])
  assert.same({ 1, "done", JOBS }, { #rows, rows[1].outcome, rows[1].jobs })
  return nightshift.decode(rows[1].balance)
end

describe("100,000 withdrawals by 200 workers", function()
  it("leave exactly nothing under the mutex", function() assert.equal(0, withdraw_all "guarded") end)

  it("leave too much without it", function() assert.is_true(withdraw_all "unguarded" > 0) end)
end)
