-- Many programs at one table, some of which are killed in the middle of a row: each
-- row is done once in the end, and no two programs have it at the same time.

local crew = require "spec.support.crew"
local designs = require "spec.support.designs"
local lab = require "spec.support.lab"
local ledger = require "spec.support.ledger"
local proc = require "spec.support.proc"

setup(lab.fresh)

-- Claims until all is done. A row that is claimed is a folder for as long: who finds
-- it there shares the row. usage: URL DESIGN STRATEGY FOLDER KILL, the round in
-- which to die
local WORKER = [[
  local nst = require "nst"
  local designs = require "spec.support.designs"
  local db = assert(require "nightshift".open(arg[1]))
  local name, folder, last = arg[2], arg[4], tonumber(arg[5])
  local t = assert(db:adopt(designs.map(name, { strategy = arg[3], max_attempts = 30 })))
  local acks = assert(io.open(folder .. "/acks", "ab"))
  acks:setvbuf "no"
  local round = 0
  local function open()
    return assert(db:execute("SELECT COUNT(*) AS n FROM " .. name .. " WHERE " .. arg[6]))[1].n > 0
  end
  while open() do
    for _, job in ipairs(assert(t:claim_many(3, { wait = 1 }))) do
      local at = ("%s/row-%d"):format(folder, job.id)
      local mine = assert(io.open(at .. "." .. (nst.ids()), "wb"))
      mine:close()
      nst.sleep(0.005)
      local seen = io.popen("ls " .. at .. ".*")
      local n = 0
      for _ in seen:lines() do n = n + 1 end
      seen:close()
      round = round + 1
      if n > 1 then acks:write("shared " .. job.id .. "\n") end
      if round == last then
        os.remove(at .. "." .. (nst.ids()))
        nst.kill((nst.ids()), "KILL")
      end
      os.remove(at .. "." .. (nst.ids()))
      if round % 7 == 0 then assert(job:fail("now and then", { retry_in = 0 }))
      elseif job:ack() then acks:write("done " .. job.id .. "\n") end
    end
  end
  db:close()]]

local LEFT = {
  migration_task = "status <> 'complete'", job_queue = "state <> 'DONE'", queue_table = "status <> 'processed'",
  worker_queue = "NOT is_done", checkout = "done_at IS NULL",
}

local ROWS, PROGRAMS = 60, 6

for _, name in ipairs(designs.names) do
  for _, strategy in ipairs(designs[name].strategies) do
    it(("share %s by %s, and all of it is done once"):format(name, strategy), function()
      local db <close> = lab.open()
      designs.create(db, name, ROWS)
      local folder, program = fixture.dir(), fixture.file("worker.lua", WORKER)
      local function start(last)
        return proc.start { proc.lua, program, lab.url(), name, strategy, folder, last, LEFT[name], env = {
          LUA_PATH = proc.root .. "/?.lua;" .. proc.root .. "/lua/?.lua;" .. proc.root .. "/lua/?/init.lua;;",
        } }
      end
      local doomed, others = { start(1), start(2) }, {}
      for _, p in ipairs(doomed) do assert.equal("signal 9", p:wait(120), p:transcript()) end
      for i = 1, PROGRAMS do others[i] = start(0) end
      for _, p in ipairs(others) do assert.equal(0, p:wait(120), p:transcript()) end
      local done, total = {}, 0
      for line in io.lines(folder .. "/acks") do
        local id = tonumber(line:match "^done (%d+)$")
        assert(id, line)
        assert.is_nil(done[id], line)
        done[id], total = true, total + 1
      end
      assert.equal(ROWS, total)
      assert.equal(0, assert(db:execute("SELECT COUNT(*) AS n FROM " .. name .. " WHERE " .. LEFT[name]))[1].n)
      assert.equal(0, assert(db:execute "SELECT COUNT(*) AS n FROM nightshift_grip")[1].n)
    end)
  end
end

-- All at once: no verdict is refused, and nobody who lives loses a row, which would cost
-- an attempt.
describe("a crowd, with a connection each,", function()
  local UNTOUCHED = { migration_task = "iteration = 0", queue_table = "attempts = 30" }
  local CROWD_ROWS, CLAIMERS = 400, 120

  after_each(crew.clean)

  for name, strategies in pairs {
    migration_task = { "update_limit" }, queue_table = { "skip_locked", "named_lock", "transaction" },
  } do
    for _, strategy in ipairs(strategies) do
      it(("has each row of %s once by %s"):format(name, strategy), function()
        local db <close> = lab.open()
        designs.create(db, name, 1)
        designs.fill(db, name, CROWD_ROWS - 1)
        local folder = fixture.dir()
        local path, gate = folder .. "/ledger", folder .. "/gate"
        assert(os.execute("mkfifo " .. gate))
        local c = crew.start(CLAIMERS, lab.url(), designs.map(name, { strategy = strategy }), ledger.script(path)
          .. "return function(job) begin(job.id) done(job.id) end", { gate = gate })
        eventually(function() return ledger.count(gate .. ".ready") == CLAIMERS end, 120)
        local opened = assert(io.open(gate, "w"))
        c:wait(120)
        opened:close()
        local found = ledger.read(path)
        for id = 1, CROWD_ROWS do assert.same({ 1, 1 }, { found.begun[id], found.done[id] }) end
        assert.equal(CROWD_ROWS, assert(db:execute(("SELECT COUNT(*) AS n FROM %s WHERE %s"):format(name,
          UNTOUCHED[name])))[1].n)
      end)
    end
  end
end)
