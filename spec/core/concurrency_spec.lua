-- Many claimers at once: each job exactly once, and no deadlock that a caller
-- sees. The same detector is shown to catch a queue that is wrong.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

-- 20,000 jobs with NIGHTSHIFT_LONG.
local CLAIMERS, JOBS = 200, os.getenv "NIGHTSHIFT_LONG" and 20000 or 4000
local PROGRAMS = proc.root .. "/spec/support/programs/"

-- Starts n programs, lets them go together, waits; returns id -> how often.
local function run(program, url, n)
  local folder = fixture.dir()
  local started = {}
  os.execute("mkfifo " .. folder .. "/go")
  for i = 1, n do
    started[i] = proc.start { "/bin/sh", "-c", ("exec %s %s '%s' %s/ids.%d < %s/go")
      :format(proc.lua, PROGRAMS .. program, url, folder, i, folder) }
  end
  local go = assert(io.open(folder .. "/go", "w"))
  for _, p in ipairs(started) do p:wait_line("ready", 120) end
  go:write(("\n"):rep(n))
  go:close()
  for _, p in ipairs(started) do assert.equal(0, p:wait(300), p:transcript()) end
  local seen = {}
  for i = 1, n do
    for line in io.lines(("%s/ids.%d"):format(folder, i)) do seen[line] = (seen[line] or 0) + 1 end
  end
  return seen
end

local function twice(seen)
  local n = 0
  for _, times in pairs(seen) do
    if times > 1 then n = n + 1 end
  end
  return n
end

describe("concurrent claimers", function()
  it("each with its own connection take each of thousands of jobs exactly once", function()
    local url, name = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local items = {}
    for i = 1, JOBS do items[i] = { "x", i } end
    local ids = assert(handle:queue("load"):push_many(items))
    local seen = run("claimer.lua", url, CLAIMERS)
    for _, id in ipairs(ids) do assert.equal(1, seen[tostring(id)], "job " .. id) end
    assert.equal(0, twice(seen))
    assert.equal(tostring(JOBS), (db.sql("SELECT COUNT(*) FROM nightshift_finished WHERE outcome = 'done'", name)))
    for _, left in ipairs { "job", "lease", "holder" } do
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), left)
    end
  end)

  it("that select and update in separate transactions are caught by the same detector", function()
    local url, name = db.empty()
    db.sql([[CREATE TABLE naive (id INT PRIMARY KEY, state INT NOT NULL, KEY (state, id));
      INSERT INTO naive SELECT seq, 0 FROM seq_1_to_2000]], name)
    assert.is_true(twice(run("naive.lua", url, 50)) > 0)
  end)
end)
