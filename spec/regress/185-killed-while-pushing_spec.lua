-- A push is one statement that commits: a KILL QUERY may come before the commit, or
-- behind it, while the ring is on its way. The push that was written must not be
-- told as one that was not, nor be written again.

local nightshift = require "nightshift"
local db = require "spec.support.db"
local proc = require "spec.support.proc"

local KILLER = [[
  local nightshift = require "nightshift"
  local db = assert(nightshift.open(%q))
  print "killing"
  io.flush()
  while db:execute("KILL QUERY %d") do
    local until_ = nightshift.clock() + math.random() * 0.003
    while nightshift.clock() < until_ do end -- finer than any sleep
  end]]

describe("a push that a KILL QUERY hits", function()
  it("at any moment is written once, or not and says so", function()
    local url = db.fresh()
    local handle = assert(nightshift.open(url))
    local watch <close> = assert(nightshift.open(url))
    local q = handle:queue "mail"
    assert(q:push("first", 0))
    local thread = assert(handle:execute "SELECT CONNECTION_ID() AS n")[1].n
    local killer = proc.start { proc.lua, "-e", KILLER:format(url, thread) }
    killer:wait_line "killing"
    local told, refused = { first = true }, 0
    for i = 1, math.ceil(1000 / proc.limit(1)) do
      local name = "job-" .. i
      local id, _, code
      repeat -- GONE: nobody knows, but the same again is written once
        if i % 3 == 0 then id, _, code = q:push_many { { name, 1 }, { name, 2 } } else id, _, code = q:push(name, i) end
      until code ~= "GONE"
      if id then told[name] = true else refused = refused + 1; assert.equal("BUSY", code) end
    end
    killer:signal "KILL"
    killer:wait()
    handle:close()
    local rows = assert(watch:execute [[SELECT j.name, COUNT(DISTINCT j.id) AS jobs, COUNT(r.job_id) AS ready
      FROM nightshift_job j LEFT JOIN nightshift_ready r ON r.job_id = j.id GROUP BY j.name]])
    for _, row in ipairs(rows) do
      local n = tonumber(row.name:match "%d+") or 1
      assert.is_true(told[row.name], row.name .. " was told as refused, and is there")
      assert.equal(n % 3 == 0 and 2 or 1, row.jobs, row.name)
      assert.equal(row.jobs, row.ready, row.name)
      told[row.name] = nil
    end
    assert.is_nil(next(told), "one that was told as written is not there")
  end)
end)
