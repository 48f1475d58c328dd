--- The statements with plans that decide how fast the queue is, with values to ask
-- the server for the plan by. A plan may depend on the rows there are: a check
-- of an almost empty table says little.

local core = require "nightshift.core"

local plans = {}

--- The condition of a claim over so many lanes, and its parameters: queue 1.
---@param lanes integer
---@return string
---@return table
function plans.lanes(lanes)
  local ranges, params = {}, { 1 }
  for i = 1, lanes do
    ranges[i] = "(rank = ? AND ready_at >= ? AND ready_at < ?)"
    params[#params + 1] = 155 + i % 100
    params[#params + 1] = 0
    params[#params + 1] = math.maxinteger
  end
  params[#params + 1] = 10
  return table.concat(ranges, " OR "), params
end

local RANGES, LANE_PARAMS = plans.lanes(2)

--- Each: statement and parameters.
plans.hot = {
  { "claim_above", 1, 255 },
  { "claim_fast", table.unpack(LANE_PARAMS) },
  { "claim_skip", table.unpack(LANE_PARAMS) },
  { "claim_late", table.unpack(LANE_PARAMS) },
  { "claim_below", table.unpack(LANE_PARAMS) },
  { "claim_more", 1, 155, 0, 10, 7, 1, 10 },
  { "claim_drop", "[[1,155,100,1]]" },
  { "claim_firsts", "[1,2]" },
  { "claim_head", 1, 155, 0 },
  { "claim_busy_queues", "[1,2]" },
  { "claim_promote", 0, math.maxinteger, 10 },
  { "claim_promote_skip", 0, math.maxinteger, 10 },
  { "claim_promote_next", 0 },
  { "claim_read", "[[100,1],[101,1]]" },
  { "claim_read_again", "[[100,1],[101,1]]" },
  { "claim_upcoming", 0, 60000000, 1000 },
  { "claim_stretch", 100, 109, 1 },
  { "settle_done", 1, 100, 109, 1, 10 },
  { "settle_done_gone", 100, 109, 1, 10 },
  { "settle_done_list", 1, "[[100,1,null]]" },
  { "settle_done_ours", "[[100,1],[101,1]]" },
  { "settle_lock", "[[100,1],[101,1]]" },
  { "settle_stands", "[[100,1]]" },
  { "settle_shown", 1, '[[100,1,1,0.5,"x"]]' },
  { "settle_gone", "[100]" },
  { "settle_parked", '[["fail",1,100]]' },
  { "settle_keys", '[[0,1,"key"]]' },
  { "settle_finish", 1, '[{"i":100,"o":"done"}]' },
  { "depend_edges", "[100]" },
  { "depend_edges_between", 100, 200, 10 },
  { "depend_lock", "[100]" },
  { "depend_met", "[[1,100]]" },
  { "depend_there", "[100]" },
  { "depend_pending", 0, 1000 },
  { "depend_cut", 100, 101, 10 },
  { "edge_after", 100 },
  { "edge_children", "[100]" },
  { "edge_children_failed", "[[100,1]]" },
  { "edge_children_lock", "[100]" },
  { "edge_circle", 100, 100 },
  { "edge_circle_turn" },
  { "edge_circle_wait" },
  { "edge_followed", "[100,101]" },
  { "edge_held", "[100]" },
  { "edge_dependents", "[100]" },
  { "edge_count", 100 },
  { "edge_ended", 100 },
  { "edge_lock", 100 },
  { "edge_results", 100, 500, 0 },
  { "edge_counts", "[100]" },
  { "signal_find", 100, "go" },
  { "push_scheduled", "[100,101]" },
  { "listen_look", 99, 0 },
  { "prune_members", "[100]", 10 },
  { "prune_chosen", 3600000000, "[[100,1]]", "done" },
  { "prune_count", "done", math.maxinteger, math.maxinteger, math.maxinteger, 10 },
  { "prune_page", "done", 0, 0, 0, 3600000000, 0, 10 },
  { "prune_select", 3600000000, "done", 0, 0, 0, 3600000000, 10 },
  { "prune_siblings", 100, 0, 0, 0, 10 },
}

--- A statement of sql/query in a form that EXPLAIN takes: marks filled in, parts that EXPLAIN
-- does not know left out.
---@param name string
---@param ranges string? the condition of a claim; default: two lanes
---@return string
function plans.question(name, ranges)
  local fill = (ranges or RANGES):gsub("%%", "%%%%")
  return "EXPLAIN " .. core.sql(name):gsub("^SET STATEMENT.-FOR%s+", ""):gsub("RETURNING.*$", "")
    :gsub("/%*lanes%*/", fill):gsub("%(queues%)", "(1,2)")
    :gsub("/%*near%*/", "TRUE")
end

return plans
