--- Listings of jobs by a filter, kinds of errors, and a job with all jobs below it; read-only.
--
-- Where no key leads to the wanted jobs alone, a listing looks at a bounded number of them. So it
-- costs the same however many jobs there are. Of each job of a tree the first children are read,
-- and the rest are counted by state.
--
-- Invariant: a reading of a tree is bounded by its levels and, where that is asked for, by its
-- jobs. A job with `inner` has children that were not read.

local core = require "nightshift.core"
local filter = require "nightshift.filter"
local options = require "nightshift.options"
local units = require "nightshift.units"

local jobs = {}

local LOOK = 20000 -- jobs that a listing looks at when no key leads to the wanted ones alone
local GLANCE = 1000 -- and first at so many, which may be enough
local PASS = 5 -- times as many are looked at, where rows of other queues are passed by in the key
local EVERY = math.maxinteger

--- The filter of db:jobs. `look`: jobs that are looked at, LOOK unless told.
jobs.FILTER = filter.with {
  limit = options.integer(1, 1 << 31),
  after = options.integer(1, math.maxinteger),
  look = options.integer(1, 1 << 31),
}

-- One function per listing: the core handle, then the bound filter and limit.
local listings = {}

--- Adds the rows of a second statement, with a limit as its last parameter, up to `limit` in all.
local function and_then(handle, rows, limit, statement, ...)
  if #rows >= limit then return rows end
  local params = table.pack(...)
  params[params.n + 1] = limit - #rows
  local more, message, code = filter.call(handle, statement, table.unpack(params, 1, params.n + 1))
  if not more then return nil, message, code end
  return table.move(more, 1, #more, #rows + 1, rows)
end

-- First jobs in ready, then those of limited queues, then due jobs that were not yet moved there.
function listings.ready(handle, wanted, limit)
  local first, behind = 0, 0x7FFFFFFF
  if wanted.queue ~= core.null then first, behind = wanted.queue, wanted.queue + 1 end
  local rows, message, code = filter.call(handle, "report_jobs_ready", first, behind, wanted, limit)
  if not rows then return nil, message, code end
  rows, message, code = and_then(handle, rows, limit, "report_jobs_backlog", first, behind, wanted)
  if not rows then return nil, message, code end
  return and_then(handle, rows, limit, "report_jobs_due", wanted)
end

function listings.scheduled(handle, wanted, limit)
  return filter.call(handle, "report_jobs_scheduled", wanted, limit)
end

-- A batch names its jobs until the last is settled, so many claims may be of jobs that have
-- gone on. Then all are looked at, unless `look` was told: by id is how to go on then.
function listings.running(handle, wanted, limit, look)
  local rows, message, code
  for _, most in ipairs { math.max(limit, look or LOOK), not look and EVERY or nil } do
    rows, message, code = filter.call(handle, "report_jobs_running", most, wanted, limit)
    if not rows or #rows >= limit then return rows, message, code end
  end
  if not look then return rows end
  local more, last
  more, message, code = handle:execute("@report_jobs_claims", math.max(limit, look))
  if not more then return nil, message, code end
  last, message, code = handle:execute "@filter_last"
  if not last then return nil, message, code end
  return rows, more[1] and { after = last[1].id + 1, looked = look } or nil
end

-- First jobs that wait for other jobs, then jobs that wait for a signal.
function listings.waiting(handle, wanted, limit, look)
  local rows, message, code = filter.call(handle, "report_jobs_waiting", wanted, limit, limit)
  if not rows then return nil, message, code end
  return and_then(handle, rows, limit, "report_jobs_awaiting", look or LOOK, wanted)
end

-- Claims are unfolded where they decide which jobs are listed: those of leases that may have jobs of
-- the page. Else only claims of listed jobs are looked for.
local BY_CLAIM <const> = { ready = true, running = true }

--- Gives rows of live jobs that are claimed their state.
function jobs.mark_claimed(handle, rows)
  local maybe, of, low, high = {}, {}, math.maxinteger, 0
  for _, row in ipairs(rows) do
    if row.run and (row.state == "ready" or row.state == "waiting" and row.paused) then
      maybe[#maybe + 1], of[row.id] = ("[%d,%d]"):format(row.id, row.run), row
      low, high = math.min(low, row.id), math.max(high, row.id)
    end
  end
  if #maybe == 0 then return true end
  local claimed, message, code = handle:execute("@report_jobs_claimed", filter.claims(low, high),
    "[" .. table.concat(maybe, ",") .. "]")
  if not claimed then return nil, message, code end
  for _, claim in ipairs(claimed) do
    local row = of[claim.id]
    row.state = "running"
  end
  return true
end

--- Gives rows that may be claimed their state; rows that were listed as waiting, and run, go.
local function mark_claimed(handle, rows, state)
  local ok, message, code = jobs.mark_claimed(handle, rows)
  if not ok then return nil, message, code end
  if not state then return rows end
  local kept = {}
  for _, row in ipairs(rows) do
    if row.state == state then kept[#kept + 1] = row end
  end
  return kept
end

local function every_state(handle, wanted, limit)
  local rows, message, code = filter.call(handle, "report_jobs_all", wanted, limit, wanted, limit, limit)
  if not rows then return nil, message, code end
  return mark_claimed(handle, rows)
end

--- The ends of pages with so many live and ended jobs, or all that are left: ids, 0 for all.
-- nil for jobs that cannot have the state. newest: the first live job, 0 for none.
local function page_ends(handle, state, after, look)
  local rows, message, code = handle:execute("@report_jobs_from", after, look - 1, after, after, look - 1)
  if not rows then return nil, message, code end
  return { live = not filter.ENDED[state] and (rows[1].live or 0) or nil,
    ended = (not state or filter.ENDED[state]) and (rows[1].ended or 0) or nil, newest = rows[1].newest or 0 }
end

--- Live and ended jobs of two statements, newest id first: `limit` at most. `ask` runs one of them.
-- Also whether there may be more of them.
local function by_id(handle, state, limit, ask)
  local list = {}
  for _, kind in ipairs { "live", "ended" } do
    if not state or (kind == "ended") == (filter.ENDED[state] == true) then
      local rows, message, code = ask(kind)
      if not rows then return nil, message, code end
      table.move(rows, 1, #rows, #list + 1, list)
    end
  end
  table.sort(list, function(a, b) return a.id > b.id end)
  while #list > limit do list[#list] = nil end
  local last = #list >= limit and list[#list].id or nil
  if not BY_CLAIM[state] then
    local message, code
    list, message, code = mark_claimed(handle, list, state)
    if not list then return nil, message, code end
  end
  return list, last
end

--- The parameters of a statement of listings by id, which are of jobs from one id to another.
local function params_of(kind, state, low, high, ...)
  if kind == "ended" then return ... end
  if not BY_CLAIM[state] then low, high = 1, 0 end
  return low, high, filter.claims(low, high), ...
end

--- Below which id jobs of a state are listed. Claims were unfolded up to the newest id. A job that
-- was pushed and claimed since then is left out, as it is not known to be claimed.
local function below(state, after, newest)
  return BY_CLAIM[state] and math.min(after, newest + 1) or after
end

--- Jobs by id, newest first, below `after`: as many as are found among `look` live ones and as many
-- ended ones. Then how to go on, if there are more to look at.
local function page(handle, ends, wanted, state, after, limit, look)
  local s = state or core.null
  local list, last, code = by_id(handle, state, limit, function(kind)
    return filter.call(handle, "report_jobs_page_" .. kind, params_of(kind, state, ends[kind], ends.newest,
      kind == "live" and below(state, after, ends.newest) or after, ends[kind], s, s, wanted, limit))
  end)
  if not list then return nil, last, code end
  local down = math.max(ends.live or 0, ends.ended or 0)
  if last and last >= down then return list, { after = last } end
  while #list > 0 and list[#list].id < down do list[#list] = nil end
  return list, down > 0 and { after = down, looked = look } or nil
end

--- Children of a job, by id, newest first: as many as are found among `look`.
local function children(handle, given, wanted, after, limit, look)
  local s = given.state or core.null
  local rows, message, code = handle:execute("@report_jobs_children_from", given.parent, after, look)
  if not rows then return nil, message, code end
  if not rows[1].id then return {} end
  rows, message, code = handle:execute("@report_jobs_children", given.parent, after, rows[1].id, look)
  if not rows then return nil, message, code end
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  local text, list, last = "[" .. table.concat(ids, ",") .. "]"
  list, last, code = by_id(handle, given.state, limit, function(kind)
    if kind == "ended" then return filter.call(handle, "report_jobs_child_ended", text, s, s, wanted, limit) end
    return filter.call(handle, "report_jobs_child_live", text, params_of(kind, given.state, ids[#ids] or 1, ids[1] or 0,
      s, s, wanted, limit))
  end)
  if not list then return nil, last, code end
  if last then return list, { after = last } end
  return list, #ids == look and { after = ids[look], looked = look } or nil
end

--- Jobs with a tag, by id, newest first: as many as are found among `look`.
local function tagged(handle, given, wanted, after, limit, look)
  local s, state = given.state or core.null, given.state
  local rows, message, code = handle:execute("@report_jobs_tagged_from", given.tag, after, look)
  if not rows then return nil, message, code end
  local found, list, last = rows[1]
  if found.n == 0 then return {} end
  local down = found.last
  list, last, code = by_id(handle, state, limit, function(kind)
    return filter.call(handle, "report_jobs_tagged_" .. kind, params_of(kind, state, down, found.newest, given.tag,
      below(state, after, found.newest), down, s, s, wanted, limit))
  end)
  if not list then return nil, last, code end
  if last then return list, { after = last } end
  return list, found.n == look and { after = down, looked = look } or nil
end

--- Jobs among the `most` that ended last.
local function among_last(listed, last_of, wanted, limit, most)
  for _, look in ipairs { math.max(limit, math.min(GLANCE, most)), most } do
    local list, message, code = listed(wanted.since, core.null, look)
    if not list then return nil, message, code end
    if #list >= limit then return list, { after = list[#list].id } end
    if look >= most then
      local rows
      rows, message, code = last_of(look)
      if not rows then return nil, message, code end
      return list, rows[1] and { after = rows[1].id, looked = look } or nil
    end
  end
end

--- Jobs of a queue among the `look` that ended last, and then among `most`: others are passed by in
-- the key.
local function of_queue(listed, last_of, wanted, limit, look, most)
  local rows, message, code = last_of(look)
  if not rows then return nil, message, code end
  local last, list = rows[1]
  list, message, code = listed(last and last.finished_at or wanted.since, wanted.queue, limit)
  if not list then return nil, message, code end
  while last and #list > 0 and list[#list].finished_at == last.finished_at and list[#list].id < last.id do
    list[#list] = nil -- many end at one instant
  end
  if #list >= limit then return list, { after = list[#list].id } end
  if last and look < most then return of_queue(listed, last_of, wanted, limit, most, most) end
  return list, last and { after = last.id, looked = look } or nil
end

--- Jobs of one outcome, the last that ended first, behind `after`.
local function ended(handle, given, wanted, limit, look)
  local state, at, id = given.state, math.maxinteger, given.after or math.maxinteger
  local rows, list, message, code
  if given.after then
    rows, message, code = handle:execute("@report_jobs_ended_at", id, state)
    if not rows then return nil, message, code end
    if not rows[1] then
      return nil, ("job %d, which the list is to go on behind, is not %s any more"):format(id, state), "NOT_FOUND"
    end
    at = rows[1].finished_at
  end
  local function listed(from, queue, most)
    return filter.call(handle, "report_jobs_finished", state, from, at, at, id, queue, queue, most, wanted, limit)
  end
  local function last_of(most)
    return handle:execute("@report_jobs_ended_from", state, wanted.since, at, at, id, most - 1)
  end
  if given.name or given.error or given.group then
    return among_last(listed, last_of, wanted, limit, math.max(look, limit))
  end
  if given.queue then return of_queue(listed, last_of, wanted, limit, GLANCE, look * PASS) end
  list, message, code = listed(wanted.since, core.null, limit)
  if not list then return nil, message, code end
  return list, #list >= limit and { after = list[#list].id } or nil
end

--- Does a key lead to the wanted live jobs?
local function has_key(given)
  if given.after then return false end
  if not filter.restricts(given) or given.state == "running" then return true end
  return given.state == "ready" and given.queue and not (given.name or given.error or given.group or given.since)
end

--- Lists jobs; a queue that does not exist has none. Where no key leads to the wanted jobs they
-- are looked for by id. If there are many, the second value says how to go on.
---@param handle userdata core handle
---@param given nightshift.JobFilter checked
---@return table[]? rows
---@return {after: integer, looked: integer?}|string|nil more
---@return string? code
function jobs.list(handle, given)
  local state, limit, after = given.state, given.limit or 50, given.after or math.maxinteger
  local look = given.look or LOOK
  local wanted, message, code = filter.bind(handle, given)
  if not wanted then return wanted == false and {} or nil, message, code end
  if given.parent then return units.rows(children(handle, given, wanted, after, limit, look)) end
  if given.tag then return units.rows(tagged(handle, given, wanted, after, limit, look)) end
  if filter.ENDED[state] then return units.rows(ended(handle, given, wanted, limit, look)) end
  local paused
  if state == "waiting" then
    paused, message, code = handle:execute "@report_pauses" -- no key leads to paused jobs
    if not paused then return nil, message, code end
    paused = paused[1] ~= nil
  end
  if paused or not has_key(given) then
    local ends
    ends, message, code = page_ends(handle, state, after, look)
    if not ends then return nil, message, code end
    if paused or given.after or (ends.live or 0) > 0 or (ends.ended or 0) > 0 then
      return units.rows(page(handle, ends, wanted, state, after, limit, look))
    end
  end
  if state then return units.rows(listings[state](handle, wanted, limit, given.look)) end
  local rows
  rows, message, code = every_state(handle, wanted, limit)
  if not rows then return nil, message, code end
  if #rows < limit then return units.rows(rows) end
  return units.rows(rows, { after = rows[#rows].id })
end

-- --------------------------------------------------------------------- errors

--- The options of db:errors.
jobs.ERRORS = {
  queue = filter.CONDITIONS.queue, name = filter.CONDITIONS.name, since = filter.CONDITIONS.since,
  limit = options.integer(1, 1 << 31),
  look = options.integer(1, 1 << 31),
}

--- Adds kinds of errors to the kinds that were found; `count` has the number.
local function add_kinds(kinds, by_error, rows, count)
  for _, row in ipairs(rows) do
    local kind = by_error[row.error]
    if not kind then
      kind = { error = row.error, count = 0, dead = 0, retrying = 0, first = row.first, last = row.last, id = row.id }
      by_error[row.error], kinds[#kinds + 1] = kind, kind
    end
    if row.last > kind.last then kind.id = row.id end
    kind[count], kind.count = row.n, kind.count + row.n
    kind.first, kind.last = math.min(kind.first, row.first), math.max(kind.last, row.last)
  end
end

--- Adds queue and name of the job that stands for each kind.
local function add_jobs(handle, kinds)
  local ids, kind_of = {}, {}
  for i, kind in ipairs(kinds) do
    ids[i] = kind.id
    kind_of[kind.id] = kind
  end
  local list = "[" .. table.concat(ids, ",") .. "]"
  local rows, message, code = handle:execute("@report_errors_jobs", list, list)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    local kind = kind_of[row.id]
    kind.queue, kind.name = row.queue, row.name
  end
  return kinds
end

--- Kinds of errors of dead jobs, and of jobs that wait for another attempt: the most frequent
-- first. `looked`: it has looked at so many jobs of either, and there are more.
---@param handle userdata core handle
---@param given table checked
---@return nightshift.ErrorKind[]? kinds
---@return {looked: integer}|string|nil more
---@return string? code
function jobs.errors(handle, given)
  local wanted, message, code = filter.bind(handle, given)
  if not wanted then return wanted == false and {} or nil, message, code end
  local queue, name, look, limit = wanted.queue, given.name or core.null, given.look or LOOK, given.limit or 50
  local kinds, by_error, rows, more = {}, {}
  rows, message, code = handle:execute("@report_errors_dead", wanted.since, look, queue, queue, name, name)
  if not rows then return nil, message, code end
  add_kinds(kinds, by_error, rows, "dead")
  rows, message, code = handle:execute("@report_errors_scheduled", look, queue, queue, name, name, wanted.since)
  if not rows then return nil, message, code end
  add_kinds(kinds, by_error, rows, "retrying")
  more, message, code = handle:execute("@report_errors_more", wanted.since, look, look)
  if not more then return nil, message, code end
  table.sort(kinds, function(a, b)
    if a.count ~= b.count then return a.count > b.count end
    return a.error < b.error
  end)
  while #kinds > limit do kinds[#kinds] = nil end
  kinds, message, code = add_jobs(handle, kinds)
  if not kinds then return nil, message, code end
  return units.rows(kinds, (more[1].dead or more[1].scheduled) and { looked = look } or nil)
end

-- ------------------------------------------------------------------------ trees

local DEPTH <const> = 64 -- levels that are read, unless told

--- A job of a tree.
---@class nightshift.Node
---@field id integer
---@field name string? nil: it is gone
---@field state string
---@field paused integer?
---@field progress number?
---@field status string?
---@field reason string?
---@field error string? its first 300 characters
---@field run integer? of a live one
---@field attempts integer? of a live one
---@field max_attempts integer?
---@field inner true? it has children that were not read
---@field children nightshift.Node[]?
---@field more table<string, integer>|true|nil how many children more there are, by state; true: there are more
---@field estimated true? those numbers are of a sample

local function node_of(row)
  return {
    id = row.id, name = row.name, state = row.state, paused = row.paused, progress = row.progress,
    status = row.status, reason = row.reason, error = row.error, inner = row.inner_node ~= nil or nil,
    attempts = row.attempts, max_attempts = row.max_attempts, run = row.run,
  }
end

--- Adds the jobs below a node.
local function add_below(node, list)
  for _, child in ipairs(node.children or {}) do
    list[#list + 1] = child
    add_below(child, list)
  end
  return list
end

--- Gives the claimed jobs below a node their state.
local function mark_below(handle, top)
  local ok, message, code = jobs.mark_claimed(handle, add_below(top, {}))
  if not ok then return nil, message, code end
  return top
end

local STATES <const> = { "done", "dead", "cancelled", "running", "waiting", "scheduled", "ready" }
local EXACT <const> = 10000 -- children that are looked at one by one
local SAMPLE <const> = 2500 -- of more
local MOST <const> = 100000 -- and of no more
local DIVISOR <const> = 11 -- of the ids that are read of more than EXACT; ids come in blocks of 100

--- A list of about SAMPLE of the ids "1,2,…", evenly.
local function sample_of(text)
  local ids, list = {}, {}
  for id in text:gmatch "%d+" do ids[#ids + 1] = id end
  for i = 1, #ids, math.max(1, math.ceil(#ids / SAMPLE)) do list[#list + 1] = ids[i] end
  return table.concat(list, ",")
end

-- States of jobs that may run.
local CLAIMABLE <const> = { ready = true, waiting = true }

--- How many of these children are in which state. Claims are looked at where one may have any.
local function states_of(handle, ids)
  local rows, message, code = handle:execute("@report_tree_children", ids, 0)
  if not rows then return nil, message, code end
  for _, row in ipairs(rows) do
    if CLAIMABLE[row.state] then return handle:execute("@report_tree_children", ids, 1) end
  end
  return rows
end

--- How many children a job has, by state, and `total`. Of more than EXACT the total is exact, and the
-- states are those of a sample: `estimated`. A total of MOST may be larger: `more`.
---@param handle userdata core handle
---@param id integer
---@return nightshift.Children|nil
---@return string? message
---@return string? code
function jobs.children(handle, id)
  local rows, message, code = handle:execute("@report_tree_ids", 1, id, EXACT + 1)
  if not rows then return nil, message, code end
  local estimated = rows[1].n > EXACT
  if estimated then
    rows, message, code = handle:execute("@report_tree_ids", DIVISOR, id, MOST + 1)
    if not rows then return nil, message, code end
  end
  local total, ids = math.min(rows[1].n, MOST), rows[1].ids or ""
  local counts = { total = total, more = rows[1].n > MOST or nil, estimated = estimated or nil }
  for _, state in ipairs(STATES) do counts[state] = 0 end
  if ids == "" then return counts end
  rows, message, code = states_of(handle, "[" .. (estimated and sample_of(ids) or ids) .. "]")
  if not rows then return nil, message, code end
  local seen = 0
  for _, row in ipairs(rows) do seen = seen + row.n end
  for _, row in ipairs(rows) do
    counts[row.state] = estimated and (row.n * total + seen // 2) // seen or row.n
  end
  return counts
end

--- The counts without these children; nil: there are no more.
local function rest_of(counts, shown)
  local rest, left = {}, false
  for _, row in ipairs(shown) do
    if counts[row.state] then counts[row.state] = math.max(0, counts[row.state] - 1) end
  end
  for state, n in pairs(counts) do
    if type(n) == "number" and n > 0 and state ~= "total" then rest[state], left = n, true end
  end
  return left and rest or nil
end

local function add_children(handle, node, limits, depth)
  node.inner = nil
  local limit = math.min(limits.children, limits.jobs)
  local rows, message, code = handle:execute("@report_tree_rows", node.id, limits.counted and limit or limit + 1)
  if not rows then return nil, message, code end
  if #rows > limit then node.more, rows[#rows] = true, nil end
  limits.jobs = limits.jobs - #rows
  local list = {}
  for i, row in ipairs(rows) do list[i] = node_of(row) end
  if limits.counted then
    local ok
    ok, message, code = mark_below(handle, { children = list })
    if not ok then return nil, message, code end
  end
  for _, child in ipairs(list) do
    if child.inner and depth < limits.depth and limits.jobs > 0 then
      local ok
      ok, message, code = add_children(handle, child, limits, depth + 1)
      if not ok then return nil, message, code end
    end
  end
  node.children = list
  if #rows < limit or not limits.counted then return true end
  local counts
  counts, message, code = jobs.children(handle, node.id)
  if not counts then return nil, message, code end
  if counts.total > #rows then node.more, node.estimated = rest_of(counts, list), counts.estimated end
  return true
end

--- Reads a job, without the jobs below it.
---@param handle userdata core handle
---@param id integer
---@return nightshift.Node|nil
---@return string? message
---@return string? code
function jobs.node(handle, id)
  local rows, message, code = handle:execute("@report_tree_job", id)
  if not rows then return nil, message, code end
  if rows[1] then return node_of(rows[1]) end
  return nil, ("there is no job %d, live or in the history"):format(id), "NOT_FOUND"
end

--- The parents of a job, from the root on: at most so many, the nearest ones. One that is not in the
-- history any more has the state "gone".
---@param handle userdata core handle
---@param parent integer? of that job
---@param limit integer
---@return nightshift.Node[]|nil
---@return boolean|string more are there more above these? Or the message
---@return string? code
function jobs.parents(handle, parent, limit)
  local list = {}
  while parent and #list < limit do
    local node, message, code = jobs.node(handle, parent)
    if not node and code ~= "NOT_FOUND" then return nil, message, code end
    table.insert(list, 1, node or { id = parent, state = "gone" })
    local rows
    rows, message, code = handle:execute("@report_tree_up", parent, parent)
    if not rows then return nil, message, code end
    parent = rows[1] and rows[1].parent
  end
  return list, parent ~= nil
end

--- Reads a job and the jobs below it.
---@param handle userdata core handle
---@param id integer
---@param limits {children: integer, depth: integer?, jobs: integer?} children of one job, levels, jobs in all. With
---`jobs` children that are not read are not counted either
---@return nightshift.Node|nil
---@return string? message
---@return string? code
function jobs.tree(handle, id, limits)
  local top, message, code = jobs.node(handle, id)
  if not top or not top.inner then return top, message, code end
  local left = { children = limits.children, depth = limits.depth or DEPTH, jobs = limits.jobs or math.maxinteger,
    counted = not limits.jobs }
  local ok
  ok, message, code = add_children(handle, top, left, 1)
  if not ok then return nil, message, code end
  if left.counted then return top end
  return mark_below(handle, top)
end

return jobs
