--- The rights that a database user needs: the least that works.
--
-- One table: a role, the statements of sql/query that it runs, and the rights that they need.
-- spec/security_spec.lua gives users exactly these rights and shows that each is needed;
-- a change to a statement changes this.

local grants = {}

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

return grants
