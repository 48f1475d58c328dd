--- Has every host the places of all its workers, after all that it went through? Jobs that
-- last until they are told are pushed, more than hosts claim ahead; each host has to run as
-- many of them at once as it has workers.

local nst = require "nst"
local burst = require "spec.torture.burst"
local journal = require "spec.torture.journal"
local proc = require "spec.support.proc"

local places = {}

local AHEAD <const> = 70 -- jobs per worker: more than one is ever sent

-- Jobs that are held, by the name of the host.
local function held(folder)
  local by = {}
  for w in journal.lines(folder, "runs") do
    if w[1] == "holds" then by[w[5]] = (by[w[5]] or 0) + 1 end
  end
  return by
end

-- A host that has fewer, or more; nil: none. Those that were told to end do not count, but
-- who takes their places does.
local function wrong(cast)
  local by = held(cast.folder)
  for _, host in ipairs(cast:all "host") do
    if not host.expected and by[host.name] ~= cast.workers then return host, by[host.name] or 0 end
  end
end

--- Looks for `seconds` at most; calls cast:found for who has less, or more.
-- @tparam Cast cast only hosts work any more, and nothing breaks
function places.check(cast, seconds)
  local stop = nst.clock() + proc.limit(seconds)
  local n = AHEAD * #cast:all "host" * cast.workers
  while not burst.push(cast, "place", n, "a") and nst.clock() < stop do nst.sleep(0.2) end -- all may take these
  local short, runs
  repeat
    nst.sleep(0.2)
    cast:tend()
    short, runs = wrong(cast)
  until not short or nst.clock() > stop
  if short then
    cast:found("places", "%s runs %d jobs at once, and has %d workers", short.name, runs, cast.workers)
  end
  assert(io.open(cast.folder .. "/go", "w")):close()
end

return places
