-- The plans of the hot statements: the index they use, and nothing sorted.

local core = require "nightshift.core"
local nightshift = require "nightshift"
local plans = require "nightshift.doctor.plans"
local db = require "spec.support.db"

describe("the plan of", function()
  local url, handle, filled, parent

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
    local ids = {}
    for i = 1, 40 do ids[i] = assert(filled:queue("tops"):push("top", i)) end
    for i, top in ipairs(ids) do
      local below = {}
      for j = 1, 60 do below[j] = { "below", j, { parent = top, after = { ids[i % #ids + 1] } } } end
      assert(filled:queue("below"):push_many(below))
    end
    for _, job in ipairs(filled:queue("tops"):claim_many(20)) do assert(job:ack()) end
    for _, job in ipairs(filled:queue("below"):claim_many(600)) do assert(job:ack()) end
    parent = ids[40]
    for i = 1, 300 do assert(filled:signal(parent, i, "s" .. i)) end
    db.sql([[ANALYZE TABLE nightshift_child, nightshift_edge, nightshift_signal, nightshift_ready, nightshift_job,
      nightshift_scheduled, nightshift_finished, nightshift_slot]],
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
    for _, name in ipairs { "claim_fast", "claim_skip", "claim_skip_soon", "claim_skip_long", "claim_late" } do
      it(("%s with %d lanes is one range scan in the order of the key"):format(name, lanes), function()
        local ranges, params = plans.lanes(lanes)
        local row = explain(plans.question(name, ranges), table.unpack(params)).nightshift_ready
        assert.equal("PRIMARY", row.key)
        assert.equal("range", row.type)
        assert.is_nil(row.Extra:find "filesort")
      end)
    end
  end

  for name, params in pairs { claim_above = { 1, 200 }, claim_head = { 1, 200, 0 } } do
    it(name .. " reads one row by the key", function()
      local row = explain(plans.question(name), table.unpack(params)).nightshift_ready
      assert.equal("PRIMARY", row.key)
      assert.equal("range", row.type)
      assert.is_nil(row.Extra:find "filesort")
    end)
  end

  it("claim_prescan and claim_prescan_end read a part of a lane in its order", function()
    for name, params in pairs {
      claim_prescan = { 1, 155, 10, 0, 10, 1000, 5, 1000 },
      claim_prescan_end = { 1, 155, 10, 0, 10, 1000, 1, 155, 10, 0, 10, 1000 },
    } do
      local row = explain(plans.question(name), table.unpack(params)).nightshift_ready
      assert.same({ "PRIMARY", "range" }, { row.key, row.type })
      assert.is_nil(tostring(row.Extra):find("filesort", 1, true))
    end
  end)

  it("claim_busy_queues looks at each queue by itself", function()
    local row = explain(plans.question "claim_busy_queues", "[1,2]").r
    assert.equal("PRIMARY", row.key)
    assert.equal("DEPENDENT SUBQUERY", row.select_type)
    assert.equal("ref", row.type)
  end)

  it("claim_firsts looks at each queue by itself, and locks one row of it", function()
    local rows = explain(plans.question "claim_firsts", "[1,2]")
    assert.same({ "PRIMARY", "DEPENDENT SUBQUERY", "ref" }, { rows.f.key, rows.f.select_type, rows.f.type })
    assert.same({ "PRIMARY", "eq_ref" }, { rows.r.key, rows.r.type })
    assert.is_nil(rows.f.Extra:find "filesort")
  end)

  it("claim_drop deletes one key at a time", function()
    local row = explain(plans.question "claim_drop", "[[1,155,100,1]]").r
    assert.same({ "PRIMARY", "eq_ref" }, { row.key, row.type })
  end)

  for _, name in ipairs { "claim_promote", "claim_promote_skip" } do
    it(name .. " reads the head of scheduled", function()
      local row = explain(plans.question(name), 0, math.maxinteger, 10).nightshift_scheduled
      assert.equal("PRIMARY", row.key)
      assert.is_nil(row.Extra:find "filesort")
    end)
  end

  it("claim_upcoming reads what is due soon of scheduled, and the jobs of it by key", function()
    local within = 60 * 1000000
    local plan = explain(plans.question "claim_upcoming", 1, within, 1000)
    assert.same({ "PRIMARY", "range" }, { plan.s.key, plan.s.type })
    assert.is_true(tonumber(plan.s.rows) < 10, plan.s.rows .. " rows: all are due in an hour")
    assert.is_nil(tostring(plan.s.Extra):find("filesort", 1, true))
    assert.same({ "eq_ref", "eq_ref" }, { plan.j.type, plan.q.type })
  end)

  -- without the forced index a small table is scanned, and waits on locks
  for name, params in pairs {
    claim_read = { "[[100,1],[101,1]]" }, claim_read_again = { "[[100,1],[101,1]]" },
    settle_lock = { "[[100,1],[101,1]]" },
    settle_stands = { "[[100,1]]" }, push_scheduled = { "[100,101]" }, settle_gone = { "[100]" },
    settle_done_list = { 1, "[[100,1,null]]" }, settle_done_ours = { "[100,101]" },
    settle_finish = { 1, '[{"i":100,"o":"done"}]' }, settle_shown = { 1, '[[100,1,1,0.5,"x"]]' },
    settle_parked = { '[["fail",1,100]]' }, depend_met = { "[[1,100]]" },
  } do
    it(name .. " reads jobs one key at a time", function()
      local row = explain(plans.question(name), table.unpack(params)).j
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  for name, found in pairs {
    claim_stretch = { "j", { 100, 109, 1 } }, settle_done = { "j", { 1, 100, 109, 1, 10 } },
    settle_done_gone = { "nightshift_job", { 100, 109, 1, 10 } },
  } do
    it(name .. " reads a range of jobs, and no more", function()
      local row = explain(plans.question(name), table.unpack(found[2]))[found[1]]
      assert.same({ "PRIMARY", "range" }, { row.key, row.type })
      assert.is_true(tonumber(row.rows) <= 10, row.rows .. " rows")
      assert.is_nil(row.Extra:find "filesort")
    end)
  end

  it("dependents are found and told by key", function()
    local edges = explain(plans.question "depend_edges", "[100]").e
    assert.equal("PRIMARY ref", edges.key .. " " .. edges.type)
    local between = explain(plans.question "depend_edges_between", 100, 110, 10).nightshift_edge
    assert.equal("PRIMARY range", between.key .. " " .. between.type)
    local jobs = explain(plans.question "depend_lock", "[100]").j
    assert.equal("PRIMARY eq_ref", jobs.key .. " " .. jobs.type)
    local cut = explain(plans.question "depend_cut", 100, 101, 10).nightshift_edge
    assert.equal("PRIMARY range", cut.key .. " " .. cut.type)
  end)

  for name, found in pairs {
    report_tree_below = { "c", { "[100,101]" } }, admin_tree_children = { "c", { "[100]" } },
    report_tree_rest = { "nightshift_child", { 100, 0 } },
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

  for name, params in pairs {
    admin_tree_hold_ready = { "[[1,100,5,1],[1,100,6,2]]" }, admin_tree_hold_scheduled = { "[[1,1,1],[2,2,1]]" },
  } do
    it(name .. " locks rows one key at a time", function()
      local plan = explain(plans.question(name), table.unpack(params))
      local row = plan.r or plan.s
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  it("admin_tree_ready_at reads a lane once", function()
    local plan = explain(plans.question "admin_tree_ready_at", 1, 100, "[1,2]")
    assert.equal("PRIMARY range", plan.r.key .. " " .. plan.r.type)
    assert.is_nil(plan.r.Extra:find "join buffer")
  end)

  for name, params in pairs { admin_tree_past = { "[100]" }, admin_tree_retry = { -1, "[100]" } } do
    it(name .. " reads history one key at a time", function()
      local row = explain(plans.question(name), table.unpack(params)).f
      assert.equal("PRIMARY", row.key)
      assert.equal("eq_ref", row.type)
    end)
  end

  it("admin_tree_unlink finds edges by key", function()
    local row = explain(plans.question "admin_tree_unlink", "[100]", "[100]", "[100]").e
    assert.equal("PRIMARY", row.key)
    assert.equal("eq_ref", row.type)
  end)

  for name, params in pairs {
    report_jobs_waiting = { nightshift.null, nightshift.null, nightshift.null, nightshift.null, 10,
      nightshift.null, nightshift.null, nightshift.null, nightshift.null, 10, 10 },
    report_counts_waiting = { 10, 10 },
  } do
    it(name .. " reads no jobs for pauses while there are none", function()
      local impossible = 0
      for _, row in ipairs(assert(handle:execute("EXPLAIN " .. core.sql(name), table.unpack(params)))) do
        if (row.Extra or ""):find "Impossible WHERE" then impossible = impossible + 1 end
      end
      assert.equal(1, impossible)
    end)
  end

  for _, name in ipairs { "edge_children", "edge_children_lock" } do
    it(name .. " reads the children of each parent, and their jobs by key", function()
      local plan = explain(plans.question(name), ("[%d]"):format(parent))
      assert.same({ "PRIMARY", "PRIMARY" }, { plan.c.key, plan.j.key })
      assert.same({ "ref", "eq_ref" }, { plan.c.type, plan.j.type })
      assert.is_true(tonumber(plan.c.rows) <= 100, plan.c.rows .. " rows")
    end)
  end

  it("edge_children_failed reads the children of each parent, and history by key", function()
    assert(filled:execute "REPLACE INTO nightshift_lease (id, holder, claimed, jobs) VALUES (77, 77, 1, '[]')")
    local plan = explain(plans.question "edge_children_failed", ("[[%d,77]]"):format(parent))
    assert.same({ "PRIMARY", "PRIMARY", "PRIMARY" }, { plan.l.key, plan.c.key, plan.f.key })
    assert.same({ "eq_ref", "ref", "eq_ref" }, { plan.l.type, plan.c.type, plan.f.type })
  end)

  it("edge_held reads the edges of each parent, and their jobs by key", function()
    local plan = explain(plans.question "edge_held", ("[%d]"):format(parent))
    assert.same({ "PRIMARY", "PRIMARY" }, { plan.e.key, plan.j.key })
    assert.same({ "ref", "eq_ref" }, { plan.e.type, plan.j.type })
  end)

  it("edge_dependents looks for one row of each parent", function()
    local plan = explain(plans.question "edge_dependents", ("[%d]"):format(parent))
    for _, name in ipairs { "c", "e" } do
      assert.same({ "PRIMARY", "ref" }, { plan[name].key, plan[name].type })
    end
  end)

  it("edge_counts counts by key", function()
    local plan = explain(plans.question "edge_counts", ("[%d]"):format(parent))
    for _, name in ipairs { "e", "c", "t", "d" } do
      assert.same({ name, "PRIMARY", "ref" }, { name, plan[name].key, plan[name].type })
    end
    for _, name in ipairs { "h", "j", "k" } do
      assert.same({ name, "PRIMARY", "eq_ref" }, { name, plan[name].key, plan[name].type })
    end
  end)

  it("edge_circle goes from edge to edge by key", function()
    local plan = explain(plans.question "edge_circle", parent, parent)
    assert.same({ "PRIMARY", "PRIMARY" }, { plan.nightshift_edge.key, plan.e.key })
    assert.same({ "ref", "ref" }, { plan.nightshift_edge.type, plan.e.type })
    assert.same({ "PRIMARY", "eq_ref" }, { plan.j.key, plan.j.type })
  end)

  it("edge_results reads a page of children in their order, and each by key", function()
    local plan = explain(plans.question "edge_results", parent, 50, 10)
    local page = plan.c
    assert.same({ "PRIMARY", "ref" }, { page.key, page.type })
    assert.is_nil(page.Extra:find "filesort")
    assert.same({ "eq_ref", "eq_ref", "eq_ref" }, { plan.o.type, plan.f.type, plan.j.type })
  end)

  it("edge_after and edge_followed look up each by key", function()
    local plan = explain(plans.question "edge_followed", "[1,2]")
    assert.same({ "eq_ref", "eq_ref", "eq_ref" }, { plan.e.type, plan.f.type, plan.j.type })
    local id = assert(filled:execute "SELECT MAX(id) AS id FROM nightshift_job WHERE after_ids IS NOT NULL")[1].id
    plan = explain(plans.question "edge_after", id)
    assert.same({ "PRIMARY", "eq_ref", "eq_ref" }, { plan.w.key, plan.f.type, plan.j.type })
    plan = explain(plans.question "admin_after", id, id)
    assert.same({ "PRIMARY", "eq_ref", "eq_ref" }, { plan.nightshift_job.key, plan.f.type, plan.j.type })
  end)

  it("edge_count counts in the key", function()
    local row = explain(plans.question "edge_count", parent).c
    assert.same({ "PRIMARY", "ref" }, { row.key, row.type })
  end)

  for name, place in pairs { edge_lock = "nightshift_job", edge_ended = "nightshift_finished" } do
    it(name .. " reads one row", function()
      local id = assert(filled:execute(("SELECT MIN(id) AS id FROM %s"):format(place)))[1].id
      local row = explain(plans.question(name), id)[place]
      assert.same({ "PRIMARY", "const" }, { row.key, row.type })
    end)
  end

  it("signal_find reads two values at most", function()
    local row = explain(plans.question "signal_find", parent, "s7").nightshift_signal
    assert.same({ "PRIMARY", "range" }, { row.key, row.type })
    assert.is_true(tonumber(row.rows) <= 2, row.rows .. " rows")
  end)

  it("signal_forget reads the values of one job", function()
    local row = explain(plans.question "signal_forget", parent, 1, 0).nightshift_signal
    assert.equal("PRIMARY", row.key)
    assert.is_truthy(row.type == "ref" or row.type == "range", row.type)
  end)

  it("listen_look reads up to the first row of each queue, and locks one by its key", function()
    local plan = explain(plans.question "listen_look", 99, "[1,2]", 0)
    assert.same({ "PRIMARY", "PRIMARY", "PRIMARY" }, { plan.v.key, plan.r.key, plan.q.key })
    assert.same({ "range", "eq_ref", "eq_ref" }, { plan.v.type, plan.r.type, plan.q.type })
  end)

  it("slot_look reads the slots of one name, and their owners by key", function()
    local plan = explain(plans.question "slot_look", 1, 1, 0, "s1", "s1", 20)
    assert.same({ "PRIMARY", "PRIMARY", "PRIMARY" }, { plan.s.key, plan.j.key, plan.h.key })
    assert.same({ "range", "eq_ref", "eq_ref" }, { plan.s.type, plan.j.type, plan.h.type })
    assert.is_true(tonumber(plan.s.rows) <= 25, plan.s.rows .. " rows")
  end)

  for name, params in pairs {
    slot_release = { "s1", 7, "token" }, slot_take_over = { 1, 1, 1, nightshift.null, "s1", 7, 1 },
  } do
    it(name .. " reads one slot", function()
      if params[3] == "token" then -- one that is not there is found out before there is a plan
        local taken = assert(handle:execute "SELECT slot, token FROM nightshift_slot WHERE name = 's1' LIMIT 1")
        params[2], params[3] = taken[1].slot, taken[1].token
      end
      local row = explain(plans.question(name), table.unpack(params)).nightshift_slot
      assert.equal("PRIMARY", row.key)
      assert.equal(1, tonumber(row.rows))
    end)
  end

  -- what db:why asks finds everything by key, or in a stretch of a key
  local WHY = {
    { "ahead", { "nightshift_ready", "ref" }, { "j", "eq_ref" }, 1, 1001 },
    { "attempt", { "nightshift_attempt", "ref" }, 100 },
    { "children_count", { "nightshift_child", "ref" }, 100, 100000 },
    { "children", { "nightshift_child", "ref" }, { "j", "eq_ref" }, 100, 10000, 3 },
    { "claim", { "l", "const" }, { "o", "eq_ref" }, 100, 100 },
    { "hosts", { "s", "eq_ref" }, { "j", "eq_ref" } },
    { "job", { "j", "const" }, 100 },
    { "slots", { "s", "ref" }, { "j", "eq_ref" }, { "h", "eq_ref" }, "s1", 100 },
    { "targets", { "nightshift_edge", "const range" }, 50, 100, 100, 20000, 100, 3, 100, 20000, 100, 3, 3 },
  }
  for _, case in ipairs(WHY) do
    it("report_why_" .. case[1] .. " goes by key", function()
      local params, wanted = {}, {}
      for i = 2, #case do
        if type(case[i]) == "table" then wanted[case[i][1]] = case[i][2] else params[#params + 1] = case[i] end
      end
      db.sql([=[INSERT IGNORE INTO nightshift_edge SELECT seq, seq + 1 FROM seq_1_to_5000;
        INSERT IGNORE INTO nightshift_child SELECT seq DIV 50 + 1, 0, seq + 10000 FROM seq_1_to_5000;
        INSERT IGNORE INTO nightshift_attempt (job_id, run, kind, ended) SELECT seq, 1, 'failed', 1 FROM seq_1_to_500;
        INSERT IGNORE INTO nightshift_lease VALUES (100, 1, 1, '[[100,1]]'), (101, 1, 1, '[]');
        INSERT IGNORE INTO nightshift_holder VALUES (1, 'host', 'h', 1, '', 1, 1, 1, 1, NULL, '', 1, 0, 0, 1, 0),
          (2, 'host', 'h', 1, '', 1, 1, 1, 1, NULL, '', 1, 0, 0, 1, 0);
        INSERT IGNORE INTO nightshift_served (holder, workers, handlers) VALUES (1, 1, '[]'), (2, 1, '[]'),
          (3, 1, '[]');
        ANALYZE TABLE nightshift_edge, nightshift_child, nightshift_attempt]=], url:match "/([^/?]+)%?")
      local rows, seen = assert(handle:execute(plans.question("report_why_" .. case[1]), table.unpack(params))), {}
      for _, row in ipairs(rows) do
        if wanted[row.table] then
          seen[row.table] = true
          assert.equal("PRIMARY", row.key, row.table)
          assert.is_truthy(wanted[row.table]:find(row.type, 1, true), row.table .. ": " .. row.type)
          assert.is_nil((row.Extra or ""):find "filesort", row.table)
        end
      end
      for name in pairs(wanted) do assert.is_true(seen[name], name) end
    end)
  end

  it("prune_siblings reads on behind one of them", function()
    local rows = assert(handle:execute(plans.question "prune_siblings", parent, 1048576, 1048576, parent + 10, 10))
    assert.same({ "PRIMARY", "range" }, { rows[1].key, rows[1].type })
    for _, row in ipairs(rows) do
      assert.equal("PRIMARY", row.key, row.table)
      assert.is_nil((row.Extra or ""):find "filesort", row.table)
    end
  end)

  it("prune_select reads the oldest of one outcome", function()
    local row = explain(plans.question "prune_select", 3600000000, "done", 0, 0, 0, 3600000000, 10).f
    assert.equal("outcome", row.key)
    assert.is_nil(row.Extra:find "filesort")
  end)
end)
