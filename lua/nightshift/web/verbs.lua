--- Verbs on jobs of a page: on ticked ones, and on all jobs of a filter. And that filter.
--
-- An action on a filter is first a page that counts these jobs. Its form begins a
-- run, which is done in slices: see runs.lua. Ticked jobs are done at once, one after the other.
--
-- Invariant: a count stops at the first page of rows that ends after COUNTING seconds, unless it is
-- the last one, and says so.

local core = require "nightshift.core"
local change = require "nightshift.change"
local filter = require "nightshift.filter"
local layout = require "nightshift.web.layout"
local options = require "nightshift.options"
local runs = require "nightshift.web.runs"

local verbs = { MOST = 200 } -- ticked jobs

local KEYS <const> = { "state", "queue", "name", "tag", "group", "error", "since", "parent" }
local COUNTING <const>, COUNTING_ON <const> = 0.015, 0.8 -- seconds, and when more is asked for
local TOLD <const> = 3 -- failures of ticked jobs that are told
local SINGLE <const> = 25 -- jobs of a batch, where each is a transaction

local function set(...)
  local found = {}
  for _, word in ipairs { ... } do found[word] = true end
  return found
end

local LIVE <const> = set("running", "ready", "scheduled", "waiting")

--- The verbs. `states`: of jobs that it is for. `default`: the states of a filter without one.
-- `core`: that of filter.lua. `field`: of the form, a value that it needs. `done` is said of jobs,
-- and `label` is on the button.
local VERBS <const> = {
  retry = { label = "Run again", core = "retry", states = filter.ENDED, default = "dead", done = "will run again",
    about = "They get fresh attempts and the payload that they have." },
  run_now = { label = "Run now", core = "run_now", states = set "scheduled", default = "scheduled",
    done = "made ready" },
  reprioritise = { label = "Change priority", core = "reprioritise", states = LIVE, default = "live",
    field = "priority", done = "have another priority" },
  move = { label = "Move to a queue", core = "move", field = "to", done = "moved",
    states = set("scheduled", "waiting", "ready", "done", "dead", "cancelled"),
    default = "scheduled, ready and waiting" },
  due = { label = "Change due time", core = "update", field = "due", done = "have another due time",
    states = set("scheduled", "waiting", "ready", "dead", "cancelled"), default = "scheduled, ready and waiting" },
  cancel = { label = "Cancel", core = "cancel", states = LIVE, default = "live", field = "reason", class = "danger",
    done = "cancelled", about = "They end as cancelled. Running ones are told, and stopped if they do not listen." },
  delete = { label = "Delete", core = "delete", class = "danger", done = "deleted",
    states = set("scheduled", "waiting", "ready", "done", "dead", "cancelled"), default = "done, dead and cancelled",
    about = "They go with payload, result, errors and log. That cannot be undone." },
  signal = { label = "Send a signal", field = "value", states = set "waiting", done = "told" }, -- of ticked jobs only
}
local ORDER <const> = { "retry", "run_now", "reprioritise", "move", "due", "cancel", "delete" }

-- -------------------------------------------------------------------- filter

--- A field of a form or query; nil: it is empty.
function verbs.text_of(fields, key)
  local value = fields[key]
  if type(value) ~= "string" or value == "" then return nil end
  return value
end

function verbs.whole(text) return text and text:find "^%d+$" and math.tointeger(tonumber(text)) end

--- The conditions among the fields, as db:jobs takes them.
---@return table|nil given
---@return string? message
function verbs.filter_of(fields)
  local given = {}
  for _, key in ipairs(KEYS) do
    local value = verbs.text_of(fields, key)
    if value and key == "parent" then
      value = verbs.whole(value)
      if not value or value < 1 then return nil, "The parent must be a job's id, which is a number" end
    end
    if value then
      if type(value) == "string" and not utf8.len(value) then return nil, key .. " is not valid UTF-8" end
      local ok, message = filter.CONDITIONS[key](value, key)
      if ok == nil then return nil, message end
      given[key] = value
    end
  end
  return given
end

--- The filter in words: "dead jobs of the queue 'mail' with the error '…'".
local function in_words(given, kind)
  local text = (given.state or kind or "") .. " jobs"
  if given.queue then text = ("%s of the queue '%s'"):format(text, given.queue) end
  if given.name then text = ("%s named '%s'"):format(text, given.name) end
  if given.tag then text = ("%s with the tag '%s'"):format(text, given.tag) end
  if given.group then text = ("%s of the group '%s'"):format(text, given.group) end
  if given.error then text = ("%s with the error '%s'"):format(text, given.error) end
  if given.parent then text = ("%s that are children of job %d"):format(text, given.parent) end
  if given.since then text = ("%s since %s"):format(text, given.since) end
  return text:gsub("^ ", "")
end

--- A copy with more, or other, fields; "" takes one away.
function verbs.with(fields, more)
  local all = {}
  for key, value in pairs(fields) do all[key] = value end
  for key, value in pairs(more) do all[key] = value ~= "" and value or nil end
  return all
end

--- The verbs that can be done to jobs of a filter, in their order.
function verbs.verbs_for(given)
  local list = {}
  for _, key in ipairs(ORDER) do
    local verb = VERBS[key]
    if not given.state or verb.states[given.state] then
      list[#list + 1] = { key = key, label = verb.label, class = verb.class }
    end
  end
  return list
end

-- ------------------------------------------------------------------- counting

--- How many jobs a verb would be done to, as far as the time allows.
---@return integer|nil n
---@return boolean|string at_least there may be more; or the message
local function count(context, verb, given, seconds)
  local ran, checked, message = pcall(filter.read, verb.core, verbs.with(given, verb.core == "move" and { to = "x" }
    or verb.core == "reprioritise" and { priority = 0 } or {}))
  if not ran or not checked then return nil, ran and message or checked end
  local n, stop, late, enough = 0, core.clock() + seconds, false, {}
  function checked.told(found)
    if late then error({ message = enough }, 0) end -- there was more to read than by then
    n, late = found, core.clock() > stop
  end
  local all, problem = filter.count(context.db._handle, verb.core, checked)
  if all then return all, false end
  if problem ~= enough then return nil, problem end
  return n, true
end

--- The page that asks whether it is to be done.
function verbs.confirm(context, query, given, data)
  local verb = VERBS[query.verb]
  if not verb or not verb.core then return nil, 404, "There is no such action on the jobs of a filter." end
  if next(given) == nil then
    data.trouble = "An action on many jobs wants a filter with at least one condition."
    return data
  end
  if given.state and not verb.states[given.state] then
    data.trouble = ("'%s' cannot be done to %s jobs."):format(verb.label, given.state)
    return data
  end
  local n, at_least = count(context, verb, given, query.on and COUNTING_ON or COUNTING)
  if not n then
    data.trouble = at_least
    return data
  end
  data.verb, data.asks, data.n, data.at_least = query.verb, verb, n, at_least
  data.words = in_words(given, verb.default)
  data.count_on = at_least and not query.on and verbs.with(given, { verb = query.verb, on = "1" }) or nil
  data.heading = verb.label .. "?"
  return data
end

-- -------------------------------------------------------------------- actions

--- The value that a verb needs, from a form: a table with that field.
---@return table|nil
---@return string? message
local function needs_of(verb, form)
  local key = verb.field
  local text = key and verbs.text_of(form, key)
  if not key or key == "reason" then return { reason = key and text or nil } end
  if key == "value" then
    local value, message = core.decode(text or "null")
    if value == nil then return nil, "the value of the signal is not JSON: " .. message end
    return { value = value, signal = verbs.text_of(form, "signal") }
  end
  if not text then return nil, ("'%s' needs a value: the field is empty"):format(verb.label) end
  local value, check, what = text, options.UPDATE[key], key
  if key == "priority" then
    value = verbs.whole(text)
    if not value then
      return nil, ("the priority must be a number from 0 to 255, got '%s'"):format(options.shown(text))
    end
  end
  if key == "to" then
    local ok, message = options.name("the queue's name", text, options.MAX_QUEUE)
    if not ok then return nil, message end
    return { to = text }
  end
  local good, message = check(value, what)
  if good == nil then return nil, message end
  return { [key] = value }
end

--- A sentence about the outcome of a run.
local function sentence(verb, counts)
  local said = ("%d job%s %s."):format(counts.changed, counts.changed == 1 and "" or "s", verb.done)
  if counts.refused > 0 then
    said = ("%s %d are as before: another live job has their unique key."):format(said, counts.refused)
  end
  local left = counts.found - counts.changed - counts.refused
  if left > 0 then said = ("%s %d had gone on meanwhile."):format(said, left) end
  return said
end

local actions = {}
verbs.actions = actions

--- Begins a verb on all jobs of a filter.
function actions.begin(context, request)
  local form = request.form
  local verb = VERBS[form.verb]
  if not verb or not verb.core then return nil, "there is no such action on the jobs of a filter", "INVALID" end
  local given, message = verbs.filter_of(form)
  if not given then return nil, message, "INVALID" end
  if next(given) == nil then return nil, "an action on many jobs wants a filter", "INVALID" end
  local needs
  needs, message = needs_of(verb, form)
  if not needs then return nil, message, "INVALID" end
  local asked, values = given, nil
  if verb.core == "update" then values = change.read(needs) else asked = verbs.with(given, needs) end
  local checked, code
  checked, message, code = filter.read(verb.core, asked)
  if not checked then return nil, message, code end
  if values then checked.change = { values = values } end
  checked.batch = (verb.core == "update" or verb.core == "delete") and SINGLE or nil
  local handle = context.db._handle
  return runs.begin {
    title = ("%s: %s"):format(verb.label, in_words(given, verb.default)), noun = "jobs",
    total = verbs.whole(form.total),
    path = "/jobs", query = given,
    work = function(told)
      checked.told = told
      local counts, problem, kind = filter.run(handle, verb.core, checked)
      if not counts then return nil, problem, kind end
      return sentence(verb, counts)
    end,
  }
end

--- One job each: the verbs on ticked jobs.
local ONE <const> = {
  retry = function(db, id) return db:retry(id) end,
  run_now = function(db, id) return db:run_now(id) end,
  reprioritise = function(db, id, needs) return db:reprioritise(id, needs.priority) end,
  move = function(db, id, needs) return db:update(id, { queue = needs.to }) end,
  due = function(db, id, needs) return db:update(id, { due = needs.due }) end,
  cancel = function(db, id, needs) return db:cancel(id, { reason = needs.reason }) end,
  delete = function(db, id) return db:delete(id) end,
  signal = function(db, id, needs) return db:signal(id, needs.value, needs.signal) end,
}

--- Does a verb to ticked jobs; their checkboxes are named job_ID.
function actions.ticked(context, request)
  local form = request.form
  local verb, ids = VERBS[form.verb], {}
  if not verb then return nil, "press the button of what is to be done: Enter in a field does nothing", "INVALID" end
  for key in pairs(form) do
    local id = verbs.whole(key:match "^job_(%d+)$")
    if id and #ids < verbs.MOST then ids[#ids + 1] = id end
  end
  if #ids == 0 then return nil, "no job was ticked", "INVALID" end
  local needs, message = needs_of(verb, form)
  if not needs then return nil, message, "INVALID" end
  table.sort(ids)
  local done, failures = 0, {}
  for _, id in ipairs(ids) do
    local ok, problem = ONE[form.verb](context.db, id, needs)
    if ok then done = done + 1 else failures[#failures + 1] = ("job %d: %s"):format(id, problem) end
  end
  local said = ("%d job%s %s."):format(done, done == 1 and "" or "s", verb.done)
  if #failures > 0 then
    said = ("%s %d not: %s"):format(said, #failures, table.concat(failures, "; ", 1, math.min(#failures, TOLD)))
  end
  return { said = said, to = "/jobs" .. layout.query_of(verbs.filter_of(form) or {}) }
end

return verbs
