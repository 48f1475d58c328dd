--- Long actions in slices: a verb on all jobs of a filter, or the drain of an adopted table.
--
-- A run is a coroutine. The function that it tells its progress yields when the slice is over, and
-- no transaction is open there. So no request takes longer than a slice, whatever the number of
-- jobs. The server gives runs a turn between requests, and the page of a run gives it one, too.
--
-- Invariant: runs live in this process alone. The end of one leaves a part of it done, and
-- the same action goes on from there.

local core = require "nightshift.core"
local guard = require "nightshift.web.guard"
local layout = require "nightshift.web.layout"

local runs = {}

local SLICE <const> = 0.3 -- seconds of a request
local TURN <const> = 0.1 -- seconds between two requests
local ALIVE <const> = 8 -- runs that are not over, at once
local KEPT <const> = 50 -- runs that are known, ended ones among them

---@class nightshift.web.Run
---@field id string
---@field title string
---@field noun string "jobs": they are counted
---@field total integer? nil: it is not known
---@field found integer so far
---@field path string of the page to go on with
---@field query table? of that page
---@field said string? its outcome
---@field failed boolean?
---@field thread thread
---@field stop number when the slice is over

local known, order = {}, {} ---@type table<string, nightshift.web.Run>, nightshift.web.Run[]

local function is_over(run) return run.said ~= nil end

--- Lets a run go on for so many seconds.
local function advance(run, seconds)
  if is_over(run) then return end
  run.stop = core.clock() + seconds
  local ran, said, message, code = coroutine.resume(run.thread)
  if not ran then
    run.said, run.failed = "it was ended by an error: " .. tostring(said), true
  elseif coroutine.status(run.thread) == "dead" then
    run.failed = said == nil
    run.said = said or (code and ("%s (%s)"):format(message, code) or tostring(message))
  end
end

--- Forgets ended runs that are too many; how many are not over.
local function tidy()
  local alive, kept = 0, {}
  for i, run in ipairs(order) do
    if not is_over(run) then alive = alive + 1 end
    if is_over(run) and #order - i >= KEPT then known[run.id] = nil else kept[#kept + 1] = run end
  end
  order = kept
  return alive
end

--- Begins a run. A short one is over at once, and its outcome is said on the page of `path`.
---@param given table title, noun, total or nil, path, query of a nightshift.web.Run; work(told) gives
---a sentence about its outcome, or nil, a message, a code
---@return {said: string?, to: string}|nil
---@return string? message
---@return string? code
function runs.begin(given)
  if tidy() >= ALIVE then
    return nil, ("%d long actions are under way; wait until one of them is over"):format(ALIVE), "BUSY"
  end
  local run = { id = guard.random(16), title = given.title, noun = given.noun, total = given.total, path = given.path,
    query = given.query, found = 0 }
  run.thread = coroutine.create(function()
    return given.work(function(n)
      run.found = n
      if core.clock() >= run.stop then coroutine.yield() end
    end)
  end)
  advance(run, SLICE)
  if is_over(run) and run.failed then return nil, run.said, "INVALID" end
  if is_over(run) then return { said = run.said, to = run.path .. layout.query_of(run.query) } end
  known[run.id], order[#order + 1] = run, run
  return { to = "/runs/" .. run.id }
end

--- Lets the oldest run go on; is one left that is not over?
---@return boolean
function runs.turn()
  for _, run in ipairs(order) do
    if not is_over(run) then
      advance(run, TURN)
      return true
    end
  end
  return false
end

local function load(_, request)
  local run = known[request.args.id]
  if not run then
    return nil, 404, "This action is not known here any more: the server was started anew since. "
      .. "What was done stays done. Begin it again, and it goes on with the rest."
  end
  advance(run, SLICE)
  return { run = run, over = is_over(run), heading = run.title, refresh = not is_over(run) and 1 or nil }
end

local BODY <const> = [==[
<section class="panel run" aria-live="polite">
# if over and run.failed then
<p class="error" role="alert">It was stopped after $(h.count(run.found)) $(run.noun): $(run.said)</p>
# elseif over then
<p class="said">$(run.said)</p>
# else
<p>$(h.count(run.found))
# if run.total then
of about $(h.count(run.total))
# end
$(run.noun) so far. The action goes on when this page is closed.</p>
# if run.total then
<progress max="$(run.total)" value="$(math.min(run.found, run.total))" aria-label="How far it is"></progress>
# else
<progress aria-label="It goes on"></progress>
# end
$(h.form("/runs/" .. run.id .. "/stop", {}, "Stop", { class = "button danger" }))
# end
<p><a href="$(h.url(run.path, run.query))">Back</a></p>
</section>
]==]

return {
  path = "/runs/{id}",
  title = function(data) return data.heading end,
  nav = "jobs",
  load = load,
  body = BODY,
  actions = {
    stop = function(_, request)
      local run = known[request.args.id]
      if not run then return nil, "this action is not known here any more", "NOT_FOUND" end
      if not is_over(run) then
        coroutine.close(run.thread)
        run.said, run.failed = "it was stopped on this page", true
      end
      return { said = "Stopped; what was done stays done." }
    end,
  },
  begin = runs.begin,
  turn = runs.turn,
}
