-- A host whose log is read slowly dropped at its end what was not written yet. The line that
-- says how much was lost as well, because the pipe was full, or it told of the same lines that
-- another line had told of: nobody learned how many there were.

local proc = require "spec.support.proc"

local url, _, q
with_database(function(...) _, q, url = ... end)

local JOBS <const>, LINES <const> = 100, 20 -- of 1500 bytes: three times what is kept for a reader

local SCRIPT = ([[return { log = function(job) for _ = 1, %d do job:log(("x"):rep(1500)) end end }]]):format(LINES)

it("a host that ends says what its slow reader will never see", function()
  local pipe = fixture.dir() .. "/pipe"
  assert(os.execute("mkfifo " .. pipe))
  local reader = proc.start { proc.lua, proc.root .. "/spec/torture/reader.lua", pipe }
  for i = 1, JOBS do assert(q:push("log", i)) end
  local h = proc.start { "sh", "-c", 'exec "$@" 2>' .. pipe, "sh", proc.program, "work",
    fixture.file("jobs.lua", SCRIPT), "--workers", "2", "--drain", env = { NIGHTSHIFT_URL = url } }
  assert.equal(0, h:wait(60))
  reader:wait(20)
  local log, dropped = reader:text(), 0
  for n in log:gmatch "event=log.dropped lines=(%d+)" do dropped = dropped + tonumber(n) end
  local told = select(2, log:gsub("event=job.log ", "")) + dropped
  assert.is_true(told >= JOBS * LINES and told <= JOBS * LINES + 3, told) -- the host's ready, drain and end
end)
