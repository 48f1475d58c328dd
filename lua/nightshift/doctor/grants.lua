--- The rights that a database user needs, the least that works; and checks of this account's: to
-- write, call the procedures, ring, hold named locks.
--
-- One table: a role, the statements of sql/query that it runs, and the rights that they need.
-- spec/security_spec.lua gives users exactly these rights and shows that each is needed;
-- a change to a statement changes this.
--
-- A check is a function of this table by its name; nightshift.doctor has the form of its results.

local core = require "nightshift.core"
local doctor = require "nightshift.doctor"
local units = require "nightshift.units"

local is_read_only, ask, need = doctor.is_read_only, doctor.ask, doctor.need
local routines, quoted = doctor.routines, doctor.quoted

local grants = {}

-- ------------------------------------------------------------------------- roles

--- A role: `name`, `does` (for people), `tables` {name, privileges}, `routines`, `also` (for
-- people: rights on tables of their own). `runs` tells whether a statement of sql/query is one
-- of its own.
local ROLES = {
  {
    name = "caller",
    does = "pushes and sends signals from SQL, in any language: CALL nightshift_push(…) or nightshift_signal(…),"
      .. " then nightshift_ring(); sees nothing",
    tables = {},
    routines = { "nightshift_push", "nightshift_ring", "nightshift_signal" },
    runs = function() return false end,
  },
  {
    name = "pusher",
    does = "pushes by nightshift.open(…):queue(…):push(…), also what waits for others, and sends signals; reads no"
      .. " payload, claims nothing, ends nothing: so a push after a job that has failed already is refused",
    tables = {
      { "nightshift_child", "INSERT" },
      { "nightshift_edge", "SELECT, INSERT" },
      { "nightshift_finished", "SELECT(id, nonce, outcome)" },
      { "nightshift_id", "SELECT, INSERT" },
      { "nightshift_job",
        "SELECT(id, queue_id, rank, run, due, nonce, parent, root, unmet, waits, paused, deadline, group_key), INSERT,"
          .. " UPDATE(unmet)" },
      { "nightshift_limit", "SELECT(queue_id, ordered)" },
      { "nightshift_meta", "SELECT" },
      { "nightshift_minute", "INSERT, UPDATE" },
      { "nightshift_node", "SELECT" },
      { "nightshift_queue", "SELECT, INSERT, UPDATE(removed)" },
      { "nightshift_ready", "INSERT" },
      { "nightshift_scheduled", "INSERT" },
      { "nightshift_tag", "INSERT" },
      { "nightshift_unique_key", "SELECT, INSERT, UPDATE(job_id, held, until)" },
    },
    routines = { "nightshift_ring", "nightshift_room", "nightshift_signal" },
  },
  {
    name = "worker",
    does = "nightshift work, and programs that claim: pushes, claims, settles",
    also = "on each table that it adopts: SELECT, UPDATE; for prune and --drain-into DELETE, too (prune --into:"
      .. " INSERT on the target)",
    tables = {
      { "nightshift_attempt", "SELECT(job_id, run, kind, holder), INSERT, DELETE" },
      { "nightshift_audit", "SELECT(id, jobs), INSERT, UPDATE(jobs)" },
      { "nightshift_backlog", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_child", "SELECT, INSERT" },
      { "nightshift_edge", "SELECT, INSERT, DELETE" },
      { "nightshift_expiry", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_finished",
        "SELECT(id, run, name, parent, nonce, outcome, reason, result, error, finished_at, holder), INSERT" },
      { "nightshift_grant", "SELECT, INSERT, DELETE" },
      { "nightshift_group", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_holder", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_id", "SELECT, INSERT" },
      { "nightshift_job", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_lease", "SELECT, INSERT, DELETE" },
      { "nightshift_limit", "SELECT, UPDATE, DELETE" },
      { "nightshift_met", "SELECT, INSERT, DELETE" },
      { "nightshift_mended", "SELECT, INSERT, UPDATE" },
      { "nightshift_meta", "SELECT" },
      { "nightshift_minute", "SELECT, INSERT, UPDATE" },
      { "nightshift_node", "SELECT, INSERT, UPDATE" },
      { "nightshift_notice", "SELECT, DELETE" },
      { "nightshift_on_dead", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_owed", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_past_holder", "INSERT" },
      { "nightshift_pause", "SELECT" },
      { "nightshift_paused_name", "SELECT" },
      { "nightshift_queue", "SELECT, INSERT, UPDATE(removed, limited)" },
      { "nightshift_ready", "SELECT, INSERT, DELETE" },
      { "nightshift_running", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_schedule", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_scheduled", "SELECT, INSERT, DELETE" },
      { "nightshift_served", "SELECT, INSERT, DELETE" },
      { "nightshift_signal", "SELECT, DELETE" },
      { "nightshift_slot", "SELECT, INSERT, UPDATE, DELETE" },
      { "nightshift_source", "SELECT, INSERT, UPDATE" },
      { "nightshift_tag", "SELECT, INSERT, DELETE" },
      { "nightshift_unique_key", "SELECT, INSERT, UPDATE, DELETE" },
    },
    routines = { "nightshift_listen", "nightshift_nudge", "nightshift_ring", "nightshift_room",
      "nightshift_signal", "nightshift_wake" },
  },
  {
    name = "dashboard",
    does = "status, jobs, show, why, audit and the views nightshift_jobs and nightshift_history; writes nothing",
    tables = {
      { "nightshift_attempt", "SELECT" },
      { "nightshift_audit", "SELECT" },
      { "nightshift_backlog", "SELECT" },
      { "nightshift_child", "SELECT" },
      { "nightshift_edge", "SELECT" },
      { "nightshift_finished", "SELECT" },
      { "nightshift_grant", "SELECT" },
      { "nightshift_group", "SELECT" },
      { "nightshift_history", "SELECT" },
      { "nightshift_holder", "SELECT" },
      { "nightshift_id", "SELECT" },
      { "nightshift_job", "SELECT" },
      { "nightshift_jobs", "SELECT" },
      { "nightshift_lease", "SELECT" },
      { "nightshift_limit", "SELECT" },
      { "nightshift_mended", "SELECT" },
      { "nightshift_meta", "SELECT" },
      { "nightshift_minute", "SELECT" },
      { "nightshift_node", "SELECT" },
      { "nightshift_owed", "SELECT" },
      { "nightshift_past_holder", "SELECT" },
      { "nightshift_pause", "SELECT" },
      { "nightshift_paused_name", "SELECT" },
      { "nightshift_queue", "SELECT" },
      { "nightshift_ready", "SELECT" },
      { "nightshift_retention", "SELECT" },
      { "nightshift_running", "SELECT" },
      { "nightshift_schedule", "SELECT" },
      { "nightshift_scheduled", "SELECT" },
      { "nightshift_served", "SELECT" },
      { "nightshift_signal", "SELECT(job_id, name, sent)" },
      { "nightshift_slot", "SELECT" },
      { "nightshift_source", "SELECT" },
      { "nightshift_tag", "SELECT" },
      { "nightshift_unique_key", "SELECT" },
    },
    routines = {},
  },
}

local function set(names)
  local found = {}
  for name in names:gmatch "%S+" do found[name] = true end
  return found
end

local PUSHER = set [[admission_bounds admission_room edge_circle edge_circle_wait edge_ended edge_lock
  edge_more edge_ordered edge_parent handle_ids handle_minutes handle_schema listen_ring queue_add queue_find
  queue_used report_shard server_node server_now signal_call signal_limit signal_live]]
local DASHBOARD = set [[admin_info admin_info_finished handle_schema queue_find queue_list server_node server_now
  settle_tag_list source_columns source_find source_jobs source_list]]
-- Accounts need none of these: verbs from outside, this doctor's own, the testing kit's. A worker
-- needs rights on adopted tables, but those tables are not ours to give rights on.
local OTHERS = { "^admin_", "^doctor_", "^filter_", "^prune_", "^report_", "^testing_" }

local RUNS = {
  pusher = function(name) return PUSHER[name] or name:find "^push_" end,
  dashboard = function(name) return DASHBOARD[name] or name:find "^report_" end,
  worker = function(name)
    for _, pattern in ipairs(OTHERS) do
      if name:find(pattern) then return false end
    end
    return true
  end,
}

for _, role in ipairs(ROLES) do
  role.runs = role.runs or RUNS[role.name]
  grants[role.name] = role
end

--- The names of the roles, for messages and choices.
grants.names = { "caller", "pusher", "worker", "dashboard" }

--- An account as SQL writes it, or nil and a message. Quotes and backslashes
-- are refused: how they are written depends on the session's sql_mode.
---@param text string NAME or NAME@HOST
---@return string|nil
---@return string? message
function grants.account(text)
  local name, host = text:match "^(.*)@([^@]*)$"
  name, host = name or text, host or "%"
  if name == "" or host == "" or text:find "['`\"\\%c]" then
    return nil, ("'%s' is not a user: NAME or NAME@HOST, without quotes and backslashes"):format(text)
  end
  return ("'%s'@'%s'"):format(name, host)
end

--- The statements that give `account` the privileges of a role, for the client's
-- current database.
---@param role string one of grants.names
---@param account string from grants.account
---@return string[]
function grants.statements(role, account)
  local list = {}
  for _, item in ipairs(grants[role].tables) do
    list[#list + 1] = ("GRANT %s ON %s TO %s"):format(item[2], item[1], account)
  end
  for _, routine in ipairs(grants[role].routines) do
    list[#list + 1] = ("GRANT EXECUTE ON PROCEDURE %s TO %s"):format(routine, account)
  end
  return list
end

-- -------------------------------------------------------------------- a write

-- States of a session that writes, in the server's words, and the cause that stops it.
local STALLS = {
  { "backup lock", "FLUSH TABLES WITH READ LOCK, or a backup that blocks commits, keeps all writes back",
    "as an administrator find who holds it (SHOW PROCESSLIST: a backup, or a session that sleeps), and end it" },
  { "metadata lock", "LOCK TABLES or an ALTER TABLE keeps writes back",
    "as an administrator find the session that holds or changes the table (SHOW PROCESSLIST), and end it" },
  { "semi-sync", "no replica has acknowledged it",
    "start the replica, or SET GLOBAL rpl_semi_sync_master_enabled=0" },
}
local DISK = "look at the server's disk, full, slow or lost (df, iostat), and at its error log"

--- Why a write does not come back, from its session's state; and the advice.
local function stalled(state)
  for _, stall in ipairs(STALLS) do
    if state:find(stall[1], 1, true) then return ("%s ('%s')"):format(stall[2], state), stall[3] end
  end
  return ("the server answers what is read, but does not write (it is at '%s')"):format(state), DISK
end

local LOOK_AFTER = 1 -- s of a write, and
local LOOK_EVERY = 0.3

--- A hook that looks at a session while ours waits for it. `seen.state` gets its state at most
-- looks: a wait for a lock is one of many short ones.
local function looker(seen, thread)
  local count, at = { [""] = 0 }, core.clock() + LOOK_AFTER
  seen.state = ""
  return function()
    if core.clock() < at then return end
    at = core.clock() + LOOK_EVERY
    local ok, rows = pcall(ask, seen, "holder_state", thread)
    if not ok then seen.mute = rows end
    local state = ok and rows and rows[1] and rows[1].state or ""
    count[state] = (count[state] or 0) + 1
    if count[state] > count[seen.state] then seen.state = state end
  end
end

--- Writes a row on a session of its own. Gives the seconds, and how it failed.
local function write(seen)
  local other <close>, message, code = seen.open()
  if not other then error({ skip = ("%s (%s)"):format(message, code) }, 0) end
  local rows = other:execute "@doctor_server"
  local thread, before = rows and rows[1].thread or 0, core.clock()
  debug.sethook(looker(seen, thread), "", 1000) -- runs ten times a second while it waits
  rows, message, code = other:execute "@doctor_write"
  debug.sethook()
  local took = core.clock() - before
  if rows then return took end
  if seen.mute then error(seen.mute, 0) end -- reads are not answered either
  if code == "GONE" then ask(seen, "doctor_end_session", thread) end
  return took, message, code
end

local LONG = 1 -- s, of a commit that is worth a warning

function grants.write(seen)
  local took, message, code = write(seen)
  if not message then
    local found = ("a row was written and committed in %s ms"):format(units.fixed(took * 1000, 1))
    if took < LONG then return "ok", found, nil, took end
    local why, advice = stalled(seen.state)
    return "warn", ("%s, and so is every claim, push and verdict: %s"):format(found, why), advice, took
  elseif code == "DENIED" then
    return "note", "not tried: this account may not write nightshift_running", "see nightshift doctor --grants worker"
  elseif is_read_only(message) then
    return "fail", "the server is read-only", "see writable"
  elseif code ~= "GONE" then
    return "fail", ("%s (%s)"):format(message, code), "mend what the server says"
  end
  seen.stalled = true
  local why, advice = stalled(seen.state)
  return "fail", ("a row was not written within %s s: %s"):format(units.fixed(took, 1), why), advice
end

-- ------------------------------------------------------- procedures and rights

local PROCEDURES = { "listen", "nudge", "push", "ring", "room", "signal", "wake" }

--- Calls each procedure to no effect. `absent`: procedures that are not there, as far as the
-- server tells; `orphaned`: procedures with a definer that is gone.
local function call_all(seen)
  local absent, orphaned, there = {}, {}, 0
  for _, short in ipairs(PROCEDURES) do
    local name = "nightshift_" .. short
    local _, message = ask(seen, "doctor_call_" .. short)
    local number_of = message and message:match "%((%d+)%)$"
    if number_of == "1305" then
      absent[#absent + 1] = name
      absent[name] = true
    elseif number_of == "1449" then
      orphaned[#orphaned + 1] = name
    elseif number_of ~= "1370" then
      there = there + 1
    end
  end
  return absent, orphaned, there
end

function grants.procedures(seen)
  seen.absent = {}
  local absent, orphaned, there = call_all(seen)
  seen.absent = absent
  if #absent > 0 then
    return "fail", table.concat(absent, ", ") .. " not there", "nightshift migrate makes procedures anew"
  elseif #orphaned > 0 then
    local definer = (routines(seen)[orphaned[1]] or {}).definer or "their definer"
    return "fail", ("%s belong to %s, and there is no such user any more"):format(
      table.concat(orphaned, ", "), definer),
      "nightshift migrate, by an account that stays and has CONNECTION ADMIN: it makes procedures anew"
  end
  return "ok", ("%d of %d may be called"):format(there, #PROCEDURES)
end

--- The missing rights of a role, in words: a list without repetitions.
local function lacks(seen, role, callable)
  local missing, known = {}, {}
  local function add(text)
    if not known[text] then
      known[text] = true
      missing[#missing + 1] = text
    end
  end
  for _, name in ipairs(core.statements()) do
    if role.runs(name) then
      local ok, message, code = doctor.may(seen, name)
      doctor.not_busy(seen, message, code)
      if not ok and code == "DENIED" then
        local what, object = message:match "^([%u, ]+) command denied .- table .-([%w_]+)[`'] %(%d+%)$"
        add(what and ("%s on %s"):format(what, object) or message)
      end
    end
  end
  for _, routine in ipairs(role.routines) do
    if not callable[routine] then add((seen.absent[routine] and "" or "EXECUTE on ") .. routine) end
  end
  return missing
end

function grants.grants(seen)
  local callable, able, unable = routines(seen), {}, {}
  for _, name in ipairs(grants.names) do
    local missing = lacks(seen, grants[name], callable)
    if #missing == 0 then
      able[#able + 1] = name
    else
      local more = #missing > 2 and (" and %d more"):format(#missing - 2) or ""
      unable[#unable + 1] = ("%s lacks %s%s"):format(name, table.concat(missing, ", ", 1, math.min(2, #missing)), more)
    end
  end
  local found = ("%s: enough for %s"):format(seen.server.account, #able > 0 and table.concat(able, ", ") or "nothing")
  if #unable > 0 then found = found .. "; " .. table.concat(unable, "; ") end
  if #able > 0 then return "ok", found end
  return "fail", found, "nightshift doctor --grants shows what to grant"
end

-- --------------------------------------------------------------- ring and locks

--- May this account end queries of other users? nil: we may not see that.
local function may_kill(seen, account)
  local rows = ask(seen, "doctor_user_privileges", quoted(account)) or {}
  for _, row in ipairs(rows) do
    if row.privilege == "SUPER" or row.privilege == "CONNECTION ADMIN" then return true end
  end
  if #rows > 0 then return false end
end

local function judge_ring(seen, definer, took)
  local found = ("a ring ended a listener's sleep after %s ms"):format(units.fixed(took / 1000, 1))
  if definer ~= seen.server.account then
    return "ok", ("%s, by the rights of %s"):format(found, definer), nil, took / 1e6
  end
  if may_kill(seen, definer) == false then
    return "warn", ("%s; but %s may not end the sleep of other users' listeners: their jobs wait up to 10 s"):format(
      found, definer), ("GRANT CONNECTION ADMIN ON *.* TO %s"):format(quoted(definer))
  end
  return "ok", found, nil, took / 1e6
end

function grants.ring(seen)
  local callable = routines(seen)
  local ring = callable.nightshift_ring
  if seen.absent.nightshift_ring then
    return "warn", "nightshift_ring is not there: no host wakes for a push, jobs wait up to 10 s", "see procedures"
  elseif not ring then
    return "note", "this account may not call nightshift_ring: no host wakes for its pushes, they wait up to 10 s",
      ("GRANT EXECUTE ON PROCEDURE nightshift_ring TO %s; nothing to do for an account that only reads"):format(
        quoted(seen.server.account))
  end
  local listens = callable.nightshift_listen
  local verb = listens and "ring_try" or "ring"
  local took, message, code = seen.handle[verb](seen.handle)
  if code == "BUSY" then -- one slow moment of the server is no finding
    took, message, code = seen.handle[verb](seen.handle)
  end
  if not took and message:find("(1449)", 1, true) then
    return "fail", ("nightshift_ring belongs to %s, and there is no such user any more"):format(ring.definer),
      "nightshift migrate, by an account that stays and has CONNECTION ADMIN: it makes procedures anew"
  elseif not took and is_read_only(message) then
    return "fail", "not tried, the server is read-only: who listens there cannot enter the list", "see writable"
  elseif not took then
    return "fail", ("%s (%s)"):format(message, code), "call nightshift_ring by hand and see"
  elseif not listens then
    return "ok", "nightshift_ring may be called; a worker of this account, which may not call nightshift_listen,"
      .. " is not woken: it looks every second or so"
  elseif took < 0 then
    return "fail", ("a listener slept through two seconds of rings: %s may not end its sleep"):format(ring.definer),
      ("GRANT CONNECTION ADMIN ON *.* TO %s"):format(quoted(ring.definer))
  end
  return judge_ring(seen, ring.definer, took)
end

function grants.locks(seen)
  if doctor.no_locks(seen) then
    return "warn", "named locks are switched off (nightshift_meta, named_locks)",
      "if they do serve here, take that row out: a dead host is then found at once, not after 30 s"
  end
  local name = ("nightshift-doctor:%s"):format(seen.server.thread)
  local got = ask(seen, "doctor_take_lock", name)
  local other <close>, message = seen.open()
  if not other then error({ skip = message }, 0) end
  local free = other:execute("@doctor_free_lock", name)
  local thread = need(seen, "doctor_server").thread
  if thread ~= seen.server.thread then
    return "fail", "statements of one connection run in different sessions: a proxy shares them out",
      "connect without the proxy, or have it keep one session per connection"
  elseif got and got[1].got == 1 and free and free[1].free == 0 then
    return "ok", "a named lock is held, and seen by others"
  end
  return "fail", "a named lock is not seen by other sessions: a dead host is found by its beat only, after 30 s",
    "connect without a proxy in between"
end

return grants
