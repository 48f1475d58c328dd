--- The pages of several databases: one about all of them, a list of their jobs, and the pages of each
-- below /shard/N.
--
-- Each database has a site of its own (init.lua), made when it is first asked for. All share the
-- server, the token's sessions, and the address that browsers know.
--
-- Invariant: a database that is away costs its own pages; the page about all says so.

local filter = require "nightshift.filter"
local layout = require "nightshift.web.layout"
local number = require "nightshift.sharded.shards"
local web = require "nightshift.web"

local shards = {}

local ROWS <const> = 50 -- jobs of a page
local KINDS <const>, LOOKED <const> = 10, 2000 -- kinds of errors, of so many jobs of each database

-- ------------------------------------------------------------------------ pages

local function first_line(text) return layout.cut(text:match "[^\n]*", 200) end

local function load_all(context)
  local stats, message, code = context.db:stats()
  if not stats then return nil, message, code end
  local kinds
  kinds, message, code = context.db:errors { since = "1d", look = LOOKED, limit = KINDS }
  if not kinds then return nil, message, code end
  local list = table.move(stats.shards, 1, #stats.shards, 1, {})
  for _, one in ipairs(stats.missing or {}) do
    list[#list + 1] = { shard = one.shard, place = one.place, away = one.message }
  end
  table.sort(list, function(a, b) return (a.shard or number.LAST + 1) < (b.shard or number.LAST + 1) end)
  return { stats = stats, kinds = kinds, list = list, first_line = first_line }
end

local ALL <const> = [[
<section class="panel" aria-labelledby="shards-title"><h2 id="shards-title">Databases</h2>
<div data-live="shards"><table class="table cards"><thead><tr><th scope="col">Database</th>
<th scope="col" class="number">Shard</th><th scope="col" class="number">Ready</th>
<th scope="col" class="number">Holders</th><th scope="col">State</th></tr></thead><tbody>
# for _, row in ipairs(list) do
<tr data-row><th scope="row">
# if row.shard then
$(h.link({ "shard", row.shard }, nil, row.place))
# else
$(row.place)
# end
</th><td class="number" data-label="Shard">$(row.shard or "–")</td>
<td class="number" data-label="Ready">$(h.count(row.ready))</td>
<td class="number" data-label="Holders">$(h.count(row.holders))</td>
<td data-label="State">
# if row.away then
<span class="state is-dead">away</span> <span class="dim">$(row.away)</span>
# else
<span class="state is-ok">answers</span>
# end
</td></tr>
# end
</tbody></table></div></section>
<section class="panel" aria-labelledby="queues-title"><h2 id="queues-title">Queues of all databases</h2>
<div data-live="queues">
# if #stats.queues == 0 then
$(h.empty("There is no queue so far.", "nightshift push QUEUE NAME JSON --key KEY"))
# else
<table class="table cards"><thead><tr><th scope="col">Queue</th><th scope="col" class="number">Ready</th>
<th scope="col" class="number">Scheduled</th><th scope="col" class="number">Running</th>
<th scope="col" class="number">Waiting</th><th scope="col" class="number">Dead</th></tr></thead><tbody>
# for _, row in ipairs(stats.queues) do
# local more = row.approximate or {}
<tr data-row><th scope="row">$(h.queue(row.name))
# if row.paused then
$(h.state("paused"))
# end
</th>
# for _, state in ipairs { "ready", "scheduled", "running", "waiting", "dead" } do
<td class="number" data-label="$(state)">$(h.atleast(row[state], more[state]))</td>
# end
</tr>
# end
</tbody></table>
# end
</div></section>
<section class="panel" aria-labelledby="errors-title"><h2 id="errors-title">Failures of the last day</h2>
<div data-live="errors">
# if #kinds == 0 then
<p class="dim">No job has failed.</p>
# else
<table class="table cards"><thead><tr><th scope="col">Error</th><th scope="col">Job</th><th scope="col">Queue</th>
<th scope="col" class="number">Dead</th><th scope="col" class="number">Retrying</th>
<th scope="col">Last</th></tr></thead><tbody>
# for _, row in ipairs(kinds) do
<tr data-row><th scope="row">$(h.link({ "shard", row.shard, "jobs", row.id }, nil, first_line(row.error)))</th>
<td data-label="Job">$(row.name)</td><td data-label="Queue">$(h.queue(row.queue))</td>
<td class="number" data-label="Dead">$(h.count(row.dead))</td>
<td class="number" data-label="Retrying">$(h.count(row.retrying))</td>
<td data-label="Last">$(h.time(row.last))</td></tr>
# end
</tbody></table>
# end
</div></section>
]]

local STATES <const> = { "ready", "scheduled", "running", "waiting", "done", "dead", "cancelled" }

--- The ids of "1,2,3"; nil: they are none.
local function ids_of(text)
  local list = {}
  for part in (text or ""):gmatch "[^,]+" do
    list[#list + 1] = part:find "^%d+$" and math.tointeger(tonumber(part)) or nil
  end
  return #list > 0 and list or nil
end

local function load_jobs(context, request)
  local given = { limit = ROWS, after = ids_of(request.query.after) }
  for _, key in ipairs { "state", "queue", "name" } do
    local value = request.query[key]
    if value and value ~= "" then
      local good, message = filter.CONDITIONS[key](value, key)
      if good == nil then return nil, 400, message end
      given[key] = value
    end
  end
  local rows, more, code = context.db:jobs(given)
  if not rows then return nil, more, code end
  return { rows = rows, given = given, states = STATES, missing = rows.missing or {},
    more = more and { more = { after = table.concat(more.after, ",") } } or nil }
end

local JOBS <const> = [[
<form class="toolbar" method="get" action="$(h.url("/jobs"))">
<div class="field"><label for="state">State</label><select id="state" name="state"><option value="">all</option>
# for _, state in ipairs(states) do
<option
# if given.state == state then
selected
# end
>$(state)</option>
# end
</select></div>
<div class="field"><label for="queue">Queue</label><input id="queue" name="queue" value="$(given.queue or "")"></div>
<div class="field"><label for="name">Name</label><input id="name" name="name" value="$(given.name or "")"></div>
<button class="button main">Show</button>
</form>
# for _, one in ipairs(missing) do
<p class="error" role="status">$(one.message)</p>
# end
# if #rows == 0 then
$(h.empty("No job is like this."))
# else
<div data-live="jobs"><table class="table cards"><thead><tr><th scope="col" class="number">Job</th>
<th scope="col" class="number">Shard</th><th scope="col">Queue</th><th scope="col">Name</th><th scope="col">State</th>
<th scope="col">Pushed</th></tr></thead><tbody>
# for _, row in ipairs(rows) do
<tr data-row><th scope="row" class="number">$(h.link({ "shard", row.shard, "jobs", row.id }, nil, row.id))</th>
<td class="number" data-label="Shard">$(row.shard)</td><td data-label="Queue">$(row.queue)</td>
<td data-label="Name">$(row.name)</td><td data-label="State">$(h.state(row.state))</td>
<td data-label="Pushed">$(h.time(row.created))</td></tr>
# end
</tbody></table></div>
# end
$(h.pager(request, more))
]]

local PAGES <const> = {
  { { path = "/", title = "All databases", nav = "all", load = load_all, body = ALL }, "o" },
  { { path = "/jobs", title = "Jobs of all databases", entry = "Jobs", nav = "jobs", load = load_jobs, body = JOBS },
    "j" },
}

-- ----------------------------------------------------------------------- sites

local All = {}
All.__index = All

--- The site of one database; nil: it is away, or not in the list.
function All:child(found)
  if self.children[found] then return self.children[found] end
  local db, message, code = self.db:shard(found)
  if not db then return nil, message, code end
  local given = {}
  for key, value in pairs(self.given) do given[key] = value end
  given.db, given.prefix = db, ("%s/shard/%d"):format(self.given.prefix, found)
  local child = web.site(given)
  child.guard, child.csrf = self.top.guard, self.top.guard.csrf
  child.database = ("%s, shard %d"):format(child.database or "", found)
  table.insert(child.entries, 1, { url = self.given.prefix .. "/", path = "/", title = "All", key = "d" })
  local all = self.db
  function child.connect(site) -- one that is away is not asked each time
    local now, why, kind = all:_ask(found, function(own) return own._handle:now() end)
    if not now then return nil, why, kind end
    site.now = now / 1000000
    return site.db
  end
  self.children[found] = child
  return child
end

--- The number in a path below our prefix.
function All:number_in(path)
  local prefix = self.given.prefix
  local text = path:sub(1, #prefix) == prefix and path:sub(#prefix + 1):match "^/shard/(%d%d?)%f[/\0]"
  return text and math.tointeger(tonumber(text))
end

function All:answer(request)
  -- a proxy has cut the prefix off
  if request.path:find "^/shard/%d" then request.path = self.given.prefix .. request.path end
  local found = self:number_in(request.path)
  local child = found and self:child(found)
  return (child or self.top):answer(request)
end

--- Lets pages change, and long actions of any database go on; is one left?
function All:turn()
  for _, child in pairs(self.children) do child.live:tick() end
  return self.top:turn() or (next(self.children) ~= nil and select(2, next(self.children)):turn())
end

-- What the server's loop asks of all streams.
local Live = {}
Live.__index = Live

function Live:tick() self.all.top.live:tick() end

function Live:wait()
  local least = self.all.top.live:wait()
  for _, child in pairs(self.all.children) do least = math.min(least, child.live:wait()) end
  return least
end

--- The site about all: a missing page may be one of a database that is away.
local function make_top(self)
  local top = web.site(self.given)
  local show, find = top.show, top.find
  function top.show(site, request)
    local found = request.segments[1] == "shard" and math.tointeger(tonumber(request.segments[2]))
    if not found then return show(site, request) end
    local _, message, code = self:child(found)
    return site:problem(code == "GONE" and 503 or 404, message or "There is no such page.")
  end
  function top.find(site, request)
    local id = (request.query.q or ""):match "^%s*(%d+)%s*$"
    id = id and math.tointeger(tonumber(id))
    if not id then return find(site, request) end
    local to = site.h.url { "shard", number.of(id), "jobs", id }
    return 303, { Location = to, ["Content-Type"] = "text/plain; charset=utf-8" }, "see " .. to .. "\n"
  end
  function top.sign(site)
    local db, message = site:connect()
    if not db then return nil, message end
    local work, settings = {}, {}
    for i, row in ipairs(db._handle:execute "@report_sign" or {}) do
      work[i], settings[i] = row.work .. "/" .. row.settings, row.settings
    end
    return table.concat(work, " "), nil, table.concat(settings, " ")
  end
  top.database = ("%d databases"):format(#self.db._list)
  return top
end

--- A site of several databases, as web.serve takes it.
---@param given table as of web.site; db is of nightshift.sharded
function shards.site(given)
  local self = setmetatable({ given = given, db = given.db, server = given.server, children = {} }, All)
  given.pages = PAGES
  self.top = make_top(self)
  given.pages = nil
  self.live, self.complain = setmetatable({ all = self }, Live), self.top.complain
  return self
end

return shards
