--- The runner of an adopted table in a host. It takes rows in as jobs, writes debts to rows, and
-- gives back jobs that no host is to begin.
--
-- Of all runners of a table one works, the owner of a named lock; all other runners ask for that
-- lock. Two at once would do no harm: the unique key of a row's job admits one job. The number of
-- rows taken in follows the workers' starts: enough for them, and the rest is left to other
-- programs.

local core = require "nightshift.core"
local failure = require "nightshift.failure"
local nightshift = require "nightshift"
local source = require "nightshift.source.table"
local steps = require("nightshift.source.text").steps
local work = require "nightshift.source.work"

---@class nightshift.source.Runner
---@field host table functions of the host: wait, log, workers, tell; a number: within (s); drain
---@field t nightshift.source.Table
local runner = {}
runner.__index = runner

-- Seconds.
local OWN = 5         -- between looks whether the lock is still ours
local ASK = 1         -- ... of a runner that has not got it
local TEND = 2        -- between looks at rows that other programs have taken
local RENEW = 30      -- between signs that rows are at work, at most
local SEEN = 60       -- between notes of the hosts that serve the table
local LIVE = 0.25     -- between looks at debts of other hosts, while jobs live
local REST = 0.005    -- between two rounds: rows that come meanwhile are one batch
local REFUSED = 60    -- for which a refusal counts
local SAID = 10       -- between lines on the rows that a drain waits for
local KEEP_ALIVE = 15 -- the session of a stopped process ends after that, and with it its lock

local MOST = 2000 -- rows in ready

local function ask(self, statement, ...) return steps.ask(self.t, statement, ...) end

-- ---------------------------------------------------------------- names to serve

--- The names that this host and other live ones serve, as JSON; null: any may be.
local function names_of(rows, own)
  local names = core.array {}
  rows[#rows + 1] = { lives = 1, handlers = own } -- may not be written yet
  for _, row in ipairs(rows) do
    for _, name in ipairs(row.lives == 1 and core.decode(row.handlers) or {}) do
      if name == core.null then return core.null end
      names[#names + 1] = name
    end
  end
  return core.encode(names)
end

--- Has this host the handler of the rows? Where each names its own, whatever hosts serve is taken.
local function is_served(self)
  local handler, names = self.t.map.handler, self.serves
  if not handler or names == self.names then return self.served end
  local served = false
  for _, name in ipairs(core.decode(names)) do served = served or name == handler or name == core.null end
  if not served and self.served then
    self.host.log("warn", "adopted.no_handler", "table", self.name, "handler", handler)
  end
  self.names, self.served = names, served
  return served
end

-- -------------------------------------------------------------------- the lock

--- Is this the runner that works? Asks for the lock now and then.
local function owns(self, now)
  if now < self.ask_at then return self.owner end
  local owner = ask(self, "source_own", self.t.id)[1].ours == 1
  if owner and not self.owner then
    ask(self, "source_session", KEEP_ALIVE)
    self.tend_at, self.look_at = now, now
  end
  self.owner, self.ask_at = owner, now + (owner and OWN or ASK)
  if owner and now >= self.seen_at then
    self.seen_at = now + SEEN
    ask(self, "source_turn", self.t.id, 0)
  end
  if owner and not self.t.map.handler then
    self.t.served = names_of(ask(self, "report_served"), self.serves)
  end
  return owner
end

-- -------------------------------------------------------------------- how many

--- Rows that the rate allows now; it is shared by all, as one runner takes in for all.
local function allowed(self, rate, now)
  if not rate or rate <= 0 then return MOST end
  local since = now - (self.rated_at or now)
  self.tokens = math.min((self.tokens or 1) + since * rate, math.max(1, rate / 4))
  self.rated_at = now
  return self.tokens // 1 | 0
end

--- The number of rows to take in: workers are to find twice as many as they start in a second.
-- Where they have found too few, it doubles.
local function wanted(self, ready, now)
  local least = math.min(MOST, 2 * math.max(1, self.taking))
  local target = self.target or least
  if self.more and ready <= target // 4 then target = target * 2 end
  if now >= self.counted_at then
    local started = math.max(0, self.taken - ready - self.gone)
    target = math.min(target, math.max(least, 2 * started))
    self.gone, self.counted_at = self.taken - ready, now + 1
  end
  self.target = math.max(least, math.min(MOST, target))
  return self.target - ready
end

--- Takes rows in, when there may be some.
local function take_in(self, state, now)
  local n = math.min(wanted(self, state.ready, now), allowed(self, state.rate, now))
  self.rate = state.rate and state.rate > 0 and state.rate or nil
  if n <= 0 or not (self.more or now >= self.look_at) then return end
  local taken = #work.take(self.t, n)
  self.taken, self.more = self.taken + taken, taken >= n
  if self.rate then self.tokens = self.tokens - taken end
  if not self.more then self.look_at = now + self.every end
  if taken > 0 then self.live = true end
end

-- --------------------------------------------------------------------- a round

--- Cancels, renews, resets: the work that waits for no row.
local function tend_to(self, now)
  local t = self.t
  if now < self.tend_at then return end
  local renews = now >= self.renew_at
  if renews then self.renew_at = now + math.min(RENEW, (t.map.overdue or math.huge) / 4000000) end
  work.tend(t, renews)
  work.overdue(t)
  self.tend_at = now + TEND
end

local function give_back(self)
  if work.give_back(self.t) > 0 then work.pay(self.t) end
end

--- Says once when people pause the table, and when they resume it.
local function obey(self, paused)
  if paused ~= self.paused and (paused or self.paused ~= nil) then
    if paused then self.host.log("info", "adopted.paused", "table", self.name)
    else self.host.log("info", "adopted.resumed", "table", self.name) end
  end
  self.paused = paused
end

--- The state of the queue, and whether jobs of the table live, or rows are owed something.
local function look(self)
  local t = self.t
  local state = ask(self, "source_state", t.queue, MOST, t.queue, t.id)[1]
  self.live = state.live == 1
  return state
end

--- Does one round of the owner.
local function take_turn(self, now)
  local state = look(self)
  if state.owed == 1 then work.pay(self.t) end
  obey(self, state.paused == 1)
  if state.paused ~= 1 and self.taking > 0 then
    take_in(self, state, now)
  elseif state.ready > 0 then
    give_back(self)
  end
  tend_to(self, now)
end

-- --------------------------------------------------------------------- draining

--- Seconds until a row that waits for its time may be taken; nil: none waits.
local function next_due(self)
  local seconds = self.t.texts.next and steps.run(self.t, "next")[1].seconds
  return seconds and tonumber(seconds) or nil
end

--- Says, now and then, that rows which are due soon are all that the host waits for.
local function say_awaited(self, due, now)
  if self.empties < 2 or not due or due > self.host.within or now < self.said_at then return end
  self.said_at = now + SAID
  local at = os.date("!%Y-%m-%dT%H:%M:%SZ", os.time() + math.ceil(due))
  self.host.log("info", "drain.waits", "table", self.name, "next", at)
end

--- Is there work that a drain is to do, whichever host takes rows in? The host knows the jobs that
-- run here; refused rows are not waited for.
local function is_busy(self)
  local state = look(self)
  if state.fresh == 1 or state.live == 1 and state.paused == 0 then return true end
  if state.paused ~= 0 then return false end
  self.t.whole_at = 0
  return #work.look(self.t, 1) > 0 and is_served(self)
end

--- Have two looks found nothing? Tells the host.
local function rest(self)
  local now = core.clock()
  if not self.host.drain or now < self.rest_at then return end
  self.rest_at = now + LIVE
  local busy = is_busy(self)
  self.empties = busy and 0 or self.empties + 1
  local due = not busy and next_due(self) or nil
  say_awaited(self, due, now)
  self.host.tell(self.empties >= 2, due or -1, now - self.refused_at < REFUSED)
end

-- ------------------------------------------------------------------------ life

--- When rows may be taken in again: workers may need some, or the rate lets one in.
local function next_look(self, now)
  if not self.more then return self.look_at end
  if self.rate and self.tokens < 1 then return self.rated_at + (1 - self.tokens) / self.rate end
  return now + LIVE / 5
end

--- Seconds until the next round, when the host does not wake it.
local function pause(self, now)
  if not self.owner then return self.host.drain and LIVE or ASK end
  local at = math.min(next_look(self, now), self.ask_at, self.tend_at)
  if self.live or self.host.drain then at = math.min(at, now + LIVE) end
  return math.max(REST, at - now)
end

local function disown(self)
  self.owner, self.ask_at = false, -math.huge
  ask(self, "source_disown", self.t.id)
end

local round = failure.caught(function(self)
  local now = core.clock()
  self.serves, self.taking = self.host.workers()
  if not is_served(self) then
    if self.owner then disown(self) end
  elseif owns(self, now) then
    take_turn(self, now)
  end
  rest(self)
  return pause(self, core.clock())
end)

--- Opens the rows that were not begun, and pays for the verdicts behind the last round.
local function leave(self)
  work.give_back(self.t)
  work.pay(self.t)
end

--- Works until the host ends. A session that is gone has lost the lock.
function runner:run()
  local host = self.host
  failure.rounds(function(seconds)
    core.sleep(REST)
    return host.wait(seconds)
  end, function() return round(self) end, function(text, code)
    if text then host.log("error", "adopted.error", "table", self.name, "error", text) end
    if code == "GONE" then self.owner, self.ask_at = false, -math.huge end
  end)
  if self.owner then failure.try(leave, self) end
  self.db:close()
end

--- Rows that are refused keep a host that drains from ending well.
local function logger(self)
  return function(event, row, message)
    if event == "row.refused" then self.refused_at = core.clock() end
    self.host.log("warn", event, "table", self.name, "row", row, "error", message)
  end
end

--- Opens the runner of a table; errors as of db:adopt.
---@param connection table options of nightshift.open
---@param host table
---@param mapping string as JSON
---@return nightshift.source.Runner|nil
---@return string? message
---@return string? code
function runner.open(connection, host, mapping)
  local db, message, code = nightshift.open(connection)
  if not db then return nil, message, code end
  local given = core.decode(mapping)
  local self = setmetatable({ db = db, host = host, name = given.table, taken = 0, gone = 0, empties = 0, more = true,
    owner = false, served = true, counted_at = 0, refused_at = -math.huge }, runner)
  for _, what in ipairs { "ask", "seen", "look", "tend", "renew", "rest", "said" } do
    self[what .. "_at"] = -math.huge
  end
  local t
  t, message, code = source.new(db, given, logger(self))
  if not t then
    db:close()
    return nil, message, code
  end
  local advice = t:advice()
  if advice then host.log("warn", "adopted.index", "table", self.name, "advice", advice) end
  self.t, self.every = t, (t.map.every or 1000000) / 1000000
  return self
end

return runner
