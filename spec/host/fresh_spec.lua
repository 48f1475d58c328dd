-- A host that has lost touch with the database starts nothing.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

-- `cut` stops its host in the middle of short jobs and turns the clock of what
-- is known of the database back: the word in front of the slots.
local SCRIPT = [[
local function cut(job)
  os.execute("kill -STOP " .. job.payload.host)
  local start, size
  for line in io.lines "/proc/self/maps" do
    local from, to = line:match "^(%x+)%-(%x+) rw%-s 0+ 00:%x+ %d+ +/dev/zero"
    from, to = tonumber(from or "0", 16), tonumber(to or "0", 16)
    if to > 0 and (not size or to - from < size) then start, size = from, to - from end -- of one worker
  end
  local memory <close> = assert(io.open("/proc/self/mem", "r+b"))
  memory:seek("set", start)
  memory:write(("i8"):pack(1))
  memory:close()
  print "cut"
end
return {
  cut = cut,
  noop = function() end,
  mark = function(job)
    local file <close> = io.open(job.payload, "a")
    file:write "started\n"
  end,
}]]

it("a job that was sent ahead waits until the host is back in touch", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local q = handle:queue "q"
  local h = host.start(url, SCRIPT, { "--workers", "1" })
  local path = fixture.dir() .. "/marks"
  io.open(path, "w"):close()
  local function marks()
    local _, n = io.open(path):read "a":gsub("\n", "")
    return n
  end
  local items = {}
  for i = 1, 1000 do items[i] = { "noop" } end -- the host learns that jobs are short
  items[1001] = { "cut", { host = h.pid } }
  for i = 1002, 1100 do items[i] = { "mark", path } end
  assert(q:push_many(items))
  h:wait_line "^cut"
  nst.sleep(0.5)
  assert.equal(0, marks())
  h:signal "CONT"
  eventually(function() return marks() == 99 end, 20)
  eventually(function() return #handle:execute "SELECT id FROM nightshift_finished" == 1100 end)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)
