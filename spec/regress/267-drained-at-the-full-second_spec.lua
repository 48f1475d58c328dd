-- `work --drain` ended with 0, "nothing left to do", while rows of an adopted table were
-- open: a claim had looked just before they were due, at the full second, and the question
-- what comes due later was asked just after it. Slow answers make that moment long. And
-- where answers take more than 3 ms it never ended once jobs of a queue had come back: when
-- the next look for late commits was to be counted as a job that is due soon.

local db = require "spec.support.db"
local designs = require "spec.support.designs"
local host = require "spec.support.host"
local proxy = require "spec.support.proxy"

local handle, q, url
with_database(function(...) handle, q, url = ... end)

local SLOW <const> = 25 -- ms for each answer of the server
local RETURNS <const> = 5 -- of each row

-- Each job comes back a second later until it has run often enough.
local function script(folder)
  return ([[
    local function run(job)
      local path = %q .. "/" .. (job.payload and job.payload.tag or job.id)
      local file <close> = assert(io.open(path, "a+"))
      local n = select(2, file:read("a"):gsub("x", ""))
      file:write "x"
      file:flush()
      if n < %d then return job:again(1) end
    end
    return { queue_table = run, resize = run }]]):format(folder, RETURNS)
end

local function drain(...)
  local way = proxy.start(db.shared())
  way:tell("delay " .. SLOW)
  local h = host.spawn(way:url(url), script(fixture.dir()), { "--drain", ... })
  local status = h:wait(120)
  return status, (select(2, h:text()))
end

describe("a drain", function()
  it("ends when all rows are done that came due while it looked", function()
    designs.create(handle, "queue_table", 2)
    local status, log = drain("--adopt", designs.file "queue_table")
    assert.equal(0, status, log)
    local rows = assert(handle:execute "SELECT status, COUNT(*) AS n FROM queue_table GROUP BY status")
    assert.same({ { status = "processed", n = 2 } }, rows, log)
  end)

  it("ends when all jobs of a queue are done that did", function()
    for i = 1, 2 do assert(q:push("resize", { tag = "job" .. i })) end
    local status, log = drain()
    assert.equal(0, status, log)
    assert.equal(2, #assert(handle:jobs { state = "done" }), log)
  end)
end)
