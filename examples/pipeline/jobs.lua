-- A pipeline as for video. A large file is split, the pieces are encoded side by side, joined
-- when the last of them is ready, checked and published.
--
--   film.publish ─┬─ film.split                         then, when that is done,
--                 ├─ film.encode  film.encode  …        one job per piece,
--                 ├─ film.join                          after all of them,
--                 └─ film.check                         after the join
--
-- Splitting, encoding and joining are processes of their own, which jobs start
-- and poll. Every step may be repeated: workers and hosts may die at any moment.
-- All files are in a folder beside the result, which appears whole or not at all.
local nightshift = require "nightshift"

local HERE = debug.getinfo(1, "S").source:match "^@(.*/)" or "./"
-- A person may kill our workers to see what happens.
local STURDY = { max_crashes = 100 }

local function quote(value) return "'" .. tostring(value):gsub("'", "'\\''") .. "'" end

-- A command with its $names replaced by quoted values.
local function fill(command, values)
  return (command:gsub("%$(%l+)", function(name) return values[name] and quote(values[name]) end))
end

-- Asks the encoder, which starts the command if it has not. It gives "running", "busy" and for
-- how many seconds, "finished" and its output, or "failed" and why.
local function ask_encoder(operation, try, command)
  local pipe = assert(io.popen(fill("sh $encoder $operation $try $command",
    { encoder = HERE .. "encoder", operation = operation, try = try, command = command })))
  local answer = pipe:read "a"
  assert(pipe:close())
  return answer:match "^(%l+)%s*(.-)%s*$"
end

-- A job that runs a command outside and ends as it ends. The operation has the key of the job
-- as its name. So it is found again, not started again, when a worker dies and the job is
-- repeated. When it has failed, the poll fails with it, and its next attempt is another try.
local function outside(command)
  return nightshift.background {
    start = function(job)
      local operation = job.payload.work .. "/" .. job.key
      local said, text = ask_encoder(operation, 1, fill(command, job.payload))
      if said == "busy" then return job:again { retry_after = text } end
      return operation
    end,
    poll = function(job, operation)
      local said, text = ask_encoder(operation, job.attempt, fill(command, job.payload))
      if said == "finished" then return text end
      if said == "failed" then
        return job:fail(job.payload.what .. ": " .. (text ~= "" and text or "it was killed"), { retry_in = "1s" })
      end
      return job:again { retry_after = said == "busy" and text or nil } -- running: at the pace below
    end,
    every = 0.1, growth = 1.5, max_every = 5, deadline = "2h", max_attempts = 3, max_crashes = 100,
    wait = true, -- the job is done when the command is, and `after` it means just that
  }
end

-- $work, $file, … are of the payload. A file that is there is complete: it is
-- written under another name and renamed.
local SPLIT = [[cd $work && rm -rf parts.tmp && mkdir parts.tmp &&
  split -b $size -d -a 5 $file parts.tmp/ && { [ -e parts ] || mv parts.tmp parts; } && ls parts | wc -l]]
local ENCODE = [[cd $work/parts && ${ENCODE:-gzip -9n} <$part >$part.tmp && sync $part.tmp && mv $part.tmp $part.gz]]
local JOIN = [[cd $work/parts && cat *.gz >../joined.tmp && cd .. && sync joined.tmp && mv joined.tmp joined &&
  sha256sum <joined]]

-- Unpacks what was joined and compares. This takes long and happens in the
-- worker: so it shows how far it is, and stops when its job is cancelled.
local function check(job)
  local BLOCK = 1 << 20
  local original <close> = assert(io.open(job.payload.file, "rb"))
  local size, seen = original:seek "end", 0
  original:seek "set"
  local pipe <close> = assert(io.popen(fill("gzip -dc <$work/joined", job.payload)))
  repeat
    local a, b = original:read(BLOCK), pipe:read(BLOCK)
    if a ~= b then return job:discard(("what was joined differs from the original after %d bytes"):format(seen)) end
    seen = seen + #(a or "")
    job:progress(seen / size, ("%d of %d MB"):format(seen // 1000000, size // 1000000))
  until not a or job:cancelled()
end

local function exists(path)
  local file <close> = io.open(path)
  return file ~= nil
end

-- Parks the job until its children from the first to the last have ended.
local function wait(job, first, last)
  return job:wait { on_fail = "continue", state = { first = first, last = last } }
end

-- What became of them. Those of earlier phases are in job.results as well.
local function children(job)
  local list = {}
  for _, child in ipairs(job.results) do
    if child.id >= job.state.first and child.id <= job.state.last then list[#list + 1] = child end
  end
  return list
end

-- The first that failed, in words; nil: none.
local function failure(list)
  for _, child in ipairs(list) do
    if child.outcome ~= "done" then
      return ("%s (job %d): %s"):format(child.name, child.id, child.error or child.reason)
    end
  end
end

-- Probe: is there something to do? Then split it.
local function split(job, film)
  local file <close> = io.open(film.file, "rb")
  local size = file and file:seek "end"
  if not size or size == 0 then return job:discard("nothing to read in " .. film.file) end
  assert(os.execute(fill("mkdir -p $work", film)))
  film.what = "splitting"
  local id = assert(job:spawn("film.split", film, STURDY))
  return wait(job, id, id)
end

-- A job per piece, one that waits for them all, and one that waits for that.
local function encode(job, film, done)
  local n = math.tointeger(tonumber(done[1].result))
  local pieces = {}
  for i = 1, n do
    local piece = { work = film.work, part = ("%05d"):format(i - 1), what = ("piece %d of %d"):format(i, n) }
    pieces[i] = assert(job:spawn("film.encode", piece, STURDY))
  end
  film.what = "joining"
  local joined = assert(job:spawn("film.join", film, { after = pieces, max_crashes = 100 }))
  local checked = assert(job:spawn("film.check", film, { after = { joined }, max_crashes = 100 }))
  return wait(job, pieces[1], checked)
end

-- The whole result gets its name, in one step. When it is not there any more, a
-- worker has done that already, and died.
local function publish(_, film, done)
  local joined = film.work .. "/joined"
  if exists(joined) then assert(os.rename(joined, film.out)) end
  assert(os.execute(fill("rm -rf $work", film)))
  return { pieces = #done - 2, sha256 = done[#done - 1].result:match "%x+" }
end

local PHASES = { [0] = split, encode, publish } -- by how often the job has waited

return {
  -- payload: {file = path, out = path, size = bytes of a piece}
  ["film.publish"] = function(job)
    local film = job.payload
    film.work = film.out .. ".work-" .. job.key
    local done = job.phase > 0 and children(job) or {}
    local failed = failure(done)
    if not failed then return PHASES[job.phase](job, film, done) end
    assert(os.execute(fill("rm -rf $work", film)))
    return job:discard(failed)
  end,
  ["film.split"] = outside(SPLIT),
  ["film.encode"] = outside(ENCODE),
  ["film.join"] = outside(JOIN),
  ["film.check"] = check,
}
