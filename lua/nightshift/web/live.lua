--- Pages that change while they are looked at: streams of events, and when a page is rendered anew.
--
-- One statement a second asks whether anything has changed, as long as a stream is open. Each
-- watched URL is rendered at most once a second, whatever the number of its streams. The elements
-- with a data-live key that differ are sent. Every REFRESH seconds the page that was rendered longest
-- ago is rendered without a change, for ages grow; one page, however many are watched.
--
-- Where more than FEW different pages are watched, a page of a single job waits until a setting or a
-- job on it has changed. A second statement tells that of all these jobs.
--
-- Invariant: without a stream nothing is asked. A slow page takes its turn: after BUDGET seconds of
-- rendering requests are answered first.

local core = require "nightshift.core"

local live = {}

local EVERY <const> = 1 -- s between two looks
local REFRESH <const> = 10 -- s
local BEAT <const> = 15 -- s between two signs of life, which find closed connections
local BUDGET <const> = 0.3 -- s
local FEW <const> = 5 -- pages
local IDLE <const> = 3600 -- s to wait without a stream
local PARTS <const> = 400000 -- bytes of HTML in an event; a stream takes a mebibyte of JSON

--- The elements with a data-live key: {key = the HTML inside}. Values of attributes have no "<" or
-- ">", for they are escaped; an element inside another one goes with that.
---@param html string
---@return table<string, string>
function live.fragments(html)
  local found, at = {}, 1
  while true do
    local _, head, tag, key = html:find('<(%w+)[^<>]-%sdata%-live="([^"]*)"[^<>]*>', at)
    if not head then return found end
    local depth, from, last = 1, head + 1, nil
    while depth > 0 do
      local first, to, slash = html:find("<(/?)" .. tag .. "%f[%W][^>]*>", from)
      if not first then return found end
      depth = depth + (slash == "/" and -1 or 1)
      from, last = to + 1, first - 1
    end
    found[key] = html:sub(head + 1, last)
    at = from
  end
end

--- An event as it is sent.
local function event(name, value)
  return ("event: %s\ndata: %s\n\n"):format(name, core.encode(value, math.maxinteger))
end

--- The event of changed parts. Parts beyond PARTS bytes are left out, and so is one that is longer:
-- they are as they are until a reload.
local function change(parts)
  local taken, left = {}, PARTS
  for key, text in pairs(parts) do
    if #text <= left then taken[key], left = text, left - #text end
  end
  return event("change", taken)
end

--- The ids of the jobs that a page of one job shows: its own, and the jobs that it links to.
local function jobs_of(target, html)
  local own = target:match "^/jobs/(%d+)"
  if not own then return nil end
  local seen, list = { [own] = true }, { own }
  for id in html:gmatch '/jobs/(%d+)"' do
    if not seen[id] then seen[id], list[#list + 1] = true, id end
  end
  return list
end

local Live = {}
Live.__index = Live

--- A stream is to be told of changes of a page.
---@param stream integer
---@param target string path and query
function Live:open(stream, target)
  local watch = self.watches[target]
  if not watch then
    watch = { target = target, streams = {}, new = {}, shown = {}, rendered = -REFRESH, signs = {},
      jobs = jobs_of(target, "") }
    self.watches[target] = watch
  end
  watch.new[#watch.new + 1] = stream
end

--- Sends a text to some streams; gives the ones that are open still.
local function send_all(self, streams, text)
  local open = {}
  for _, stream in ipairs(streams) do
    if self.server:send(stream, text) then open[#open + 1] = stream end
  end
  return open
end

local function send_everywhere(self, text)
  for target, watch in pairs(self.watches) do
    watch.streams, watch.new = send_all(self, watch.streams, text), send_all(self, watch.new, text)
    if #watch.streams + #watch.new == 0 then self.watches[target] = nil end
  end
end

--- Renders a watched page and sends the parts that differ. New streams get all of it, for their
-- page may be older than the last rendering.
local function render(self, watch, now)
  watch.rendered = now
  local html = self.render(watch.target)
  watch.jobs = html and jobs_of(watch.target, html)
  if not html then
    watch.streams, watch.new = send_all(self, watch.streams, event("gone", {})), {}
    return
  end
  local fragments, changed = live.fragments(html), {}
  for key, text in pairs(fragments) do
    if watch.shown[key] ~= text then changed[key] = text end
  end
  watch.shown = fragments
  if next(changed) then watch.streams = send_all(self, watch.streams, change(changed)) end
  if #watch.new > 0 then
    local open = send_all(self, watch.new, change(fragments))
    watch.streams, watch.new = table.move(open, 1, #open, #watch.streams + 1, watch.streams), {}
  end
end

--- Marks pages of single jobs stale where a job of theirs has changed; nil and a message.
local function look_at_jobs(self)
  local ids, seen = {}, {}
  for _, watch in pairs(self.watches) do
    for _, id in ipairs(watch.jobs or {}) do
      if not seen[id] then seen[id], ids[#ids + 1] = true, id end
    end
  end
  if #ids == 0 then return true end
  local signs, message = self.signs("[" .. table.concat(ids, ",") .. "]")
  if not signs then return nil, message end
  for _, watch in pairs(self.watches) do
    local now = {}
    for _, id in ipairs(watch.jobs or {}) do
      now[id] = signs[math.tointeger(tonumber(id))] or ""
      watch.stale = watch.stale or (watch.signs[id] or now[id]) ~= now[id]
    end
    watch.signs = now
  end
  return true
end

--- The watches that are to be rendered, the longest wait first.
local function due(self, changed, set, now)
  local list, oldest, n, fresh = {}, nil, 0, false
  for _, watch in pairs(self.watches) do n, fresh = n + 1, fresh or #watch.new > 0 end
  local apart = n > FEW
  if apart and (changed or fresh) and not look_at_jobs(self) then apart = false end
  for _, watch in pairs(self.watches) do
    watch.stale = watch.stale or #watch.new > 0 or changed and (set or not apart or not watch.jobs)
    if watch.stale then list[#list + 1] = watch end
    if not oldest or watch.rendered < oldest.rendered then oldest = watch end
  end
  if oldest and not oldest.stale and now - math.max(oldest.rendered, self.refreshed) >= REFRESH then
    self.refreshed, list[#list + 1] = now, oldest
  end
  table.sort(list, function(a, b) return a.rendered < b.rendered end)
  return list
end

--- Looks whether anything has changed; nil: the database is away. Also whether a setting has.
local function look(self)
  local sign, message, settings = self.sign()
  if not sign then
    if not self.away then send_everywhere(self, event("away", { says = message })) end
    self.away = true
    return nil
  end
  if self.away then send_everywhere(self, event("back", {})) end
  local changed, set = sign ~= self.last or self.away, settings ~= self.settings or self.away
  self.last, self.settings, self.away = sign, settings, false
  return changed, set
end

--- To be called after each step of the server.
function Live:tick()
  local now = core.clock()
  if not next(self.watches) or now - self.ticked < EVERY then return end
  self.ticked = now
  if now - self.beaten >= BEAT then
    self.beaten = now
    send_everywhere(self, ": still here\n\n")
  end
  local changed, set = look(self)
  if changed == nil then return end
  for _, watch in ipairs(due(self, changed, set, now)) do
    if core.clock() - now > BUDGET then break end
    watch.stale = false
    render(self, watch, now)
    if #watch.streams + #watch.new == 0 then self.watches[watch.target] = nil end
  end
end

--- Seconds until the next tick is of use.
function Live:wait()
  if not next(self.watches) then return IDLE end
  return math.max(0, self.ticked + EVERY - core.clock())
end

--- server: of host.listen. render(target): the HTML of a page's body; nil: it is gone. sign(): a text
-- that changes with the database, nil, and one that changes with hosts and settings; or nil and a
-- message. signs("[id,…]"): {[id] = a text that changes with that job}; or nil and a message.
---@param given {server: userdata, render: function, sign: function, signs: function}
function live.new(given)
  return setmetatable({ server = given.server, render = given.render, sign = given.sign, signs = given.signs,
    watches = {}, ticked = -EVERY, refreshed = -REFRESH, beaten = core.clock() }, Live)
end

return live
