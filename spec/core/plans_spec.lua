-- The plans of the hot statements: the index they use, and nothing sorted.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local plans = require "nightshift.plans"
local db = require "spec.support.db"

describe("the plan of", function()
  local url, handle, filled

  setup(function()
    url = db.fresh()
    filled = assert(nightshift.open(url))
    for queue = 1, 3 do
      local items = {}
      for i = 1, 400 do items[i] = { "x", i, { priority = i % 100, delay = i % 2 * 3600 } } end
      assert(filled:queue("q" .. queue):push_many(items))
    end
    local done = {}
    for i = 1, 500 do done[i] = { "x", i } end
    assert(filled:queue("done"):push_many(done))
    for _, job in ipairs(filled:queue("done"):claim_many(500)) do assert(job:ack()) end
    for i = 1, 200 do filled:semaphore("s" .. i % 4, 100):acquire(0) end
    db.sql("ANALYZE TABLE nightshift_ready, nightshift_job, nightshift_scheduled, nightshift_finished, nightshift_slot",
      url:match "/([^/?]+)%?")
    handle = assert(core.open { url = url })
  end)
  teardown(function()
    handle:close()
    filled:close()
  end)

  local function explain(question, ...)
    local rows = assert(handle:execute(question, ...))
    local by_table = {}
    for _, row in ipairs(rows) do by_table[row.table or "-"] = row end
    return by_table
  end

  for _, lanes in ipairs { 1, 32, 100 } do
    for _, name in ipairs { "claim_fast", "claim_skip" } do
      it(("%s with %d lanes is one range scan in the order of the key"):format(name, lanes), function()
        local ranges, params = plans.lanes(lanes)
        local row = explain(plans.question(name, ranges), table.unpack(params)).nightshift_ready
        assert.equal("PRIMARY", row.key)
        assert.equal("range", row.type)
        assert.is_nil(row.Extra:find "filesort")
      end)
    end
  end

  for _, name in ipairs { "claim_sweep", "claim_sweep_skip" } do
    it(name .. " reads the queue in the order of the key", function()
      local row = explain(plans.question(name), 1, 10).nightshift_ready
      assert.equal("PRIMARY", row.key)
      assert.is_nil(row.Extra:find "filesort")
    end)
  end

  it("claim_stirring looks at each queue by itself", function()
    local row = explain(plans.question "claim_stirring", "[1,2]").r
    assert.equal("PRIMARY", row.key)
    assert.equal("DEPENDENT SUBQUERY", row.select_type)
    assert.equal("ref", row.type)
  end)

  for _, name in ipairs { "claim_promote", "claim_promote_skip" } do
    it(name .. " reads the head of scheduled", function()
      local row = explain(plans.question(name), 0, 10).nightshift_scheduled
      assert.equal("PRIMARY", row.key)
      assert.is_nil(row.Extra:find "filesort")
    end)
  end

  -- without the forced index a small table is scanned, and waits on locks
  for name, params in pairs {
    claim_read = { "[[100,1],[101,1]]" }, settle_lock = { "[[100,1],[101,1]]" },
    settle_stands = { "[[100,1]]" }, push_scheduled = { "[100,101]" }, settle_gone = { "[100]" },
    settle_finish = { 1, '[{"i":100,"o":"done"}]' },
  } do
    it(name .. " reads jobs one key at a time", function()
      local row = explain(plans.question(name), table.unpack(params)).j
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  it("dependents are found and told by key", function()
    local edges = explain(plans.question "depend_edges", "[100]").e
    assert.equal("PRIMARY ref", edges.key .. " " .. edges.type)
    local jobs = explain(plans.question "depend_lock", "[100]").j
    assert.equal("PRIMARY eq_ref", jobs.key .. " " .. jobs.type)
    local cut = explain(plans.question "depend_cut", 100, 101).nightshift_edge
    assert.equal("PRIMARY range", cut.key .. " " .. cut.type)
  end)

  for name, found in pairs {
    report_tree_below = { "c", { "[100,101]" } }, admin_tree_brood = { "c", { "[100]" } },
    report_tree_rest = { "v", { 100, 0 } },
  } do
    it(name .. " reads children by their parent", function()
      local row = explain(plans.question(name), table.unpack(found[2]))[found[1]]
      assert.equal("PRIMARY", row.key)
      assert.is_true(row.type == "ref" or row.type == "range", row.type)
    end)
  end

  for name, params in pairs {
    admin_tree_lock = { "[100,101]" }, report_tree_states = { "[100,101]" },
    admin_tree_after = { "[100,101]" },
  } do
    it(name .. " reads jobs one key at a time", function()
      local row = explain(plans.question(name), table.unpack(params)).j
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  for name, params in pairs { admin_tree_past = { "[100]" }, admin_tree_retry = { -1, "[100]" } } do
    it(name .. " reads history one key at a time", function()
      local row = explain(plans.question(name), table.unpack(params)).f
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  it("admin_tree_unlink finds edges by key", function()
    local row = explain(plans.question "admin_tree_unlink", "[100]", "[100]").e
    assert.equal("PRIMARY", row.key)
    assert.equal("eq_ref", row.type)
  end)

  for name, params in pairs {
    report_jobs_waiting = { nightshift.null, nightshift.null, nightshift.null, nightshift.null, 10,
      nightshift.null, nightshift.null, nightshift.null, nightshift.null, 10, 10 },
    report_stats_waiting = { 10, 10 },
  } do
    it(name .. " reads no jobs for pauses while there are none", function()
      local impossible = 0
      for _, row in ipairs(assert(handle:execute("EXPLAIN " .. core.sql(name), table.unpack(params)))) do
        if (row.Extra or ""):find "Impossible WHERE" then impossible = impossible + 1 end
      end
      assert.equal(1, impossible)
    end)
  end

  it("listen_wait reads up to the first row of each queue", function()
    local row = explain(plans.question "listen_wait", 99, 0, "[0]", 0, 0, "[]").nightshift_ready
    assert.equal("PRIMARY", row.key)
    assert.equal("range", row.type)
  end)

  it("slot_look reads the slots of one name, and their owners by key", function()
    local plan = explain(plans.question "slot_look", 1, 1, 0, "s1", "s1", 20)
    assert.same({ "PRIMARY", "PRIMARY", "PRIMARY" }, { plan.s.key, plan.j.key, plan.h.key })
    assert.same({ "range", "eq_ref", "eq_ref" }, { plan.s.type, plan.j.type, plan.h.type })
    assert.is_true(tonumber(plan.s.rows) <= 25, plan.s.rows .. " rows")
  end)

  for name, params in pairs {
    slot_release = { "s1", 7, 1 }, slot_take_over = { 1, 1, 1, nightshift.null, "s1", 7, 1 },
  } do
    it(name .. " reads one slot", function()
      local row = explain(plans.question(name), table.unpack(params)).nightshift_slot
      assert.equal("PRIMARY", row.key)
      assert.equal(1, tonumber(row.rows))
    end)
  end

  it("prune_select reads the oldest of one outcome", function()
    local row = explain(plans.question "prune_select", 3600000000, "done", 0, 0, 0, 3600000000, 10).f
    assert.equal("outcome", row.key)
    assert.is_nil(row.Extra:find "filesort")
  end)
end)
