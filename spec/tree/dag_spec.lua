-- Graphs of jobs. Every state of a parent, every way for its child to end, every policy; and whole
-- trees pushed as one.
-- Random graphs with random ends: every job finishes, none starts before the jobs it waits for,
-- and each cancelled job had a reason. With two hosts, where every process is killed at random,
-- and the server, too: make test-dags SECONDS=600. SEED=n repeats the run that a failure names.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local nst = require "nst"

-- Who waits, and what for: every state of a parent, every way for its child to
-- end, every policy. What is to come of each is a rule, not a list; and in the end
-- nothing is left that waits.
describe("policies:", function()
  local url, name, handle, kids

  with_database(function(opened, _, at, database)
    handle, url, name = opened, at, database
    kids = handle:queue "kids"
  end)

  local function state(id) return handle:job(id).state end

  local function nothing_left()
    for _, left in ipairs { "job", "edge", "lease", "signal" } do
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), left)
    end
  end

  -- ------------------------------------------------------------- the child's ends

  -- options: of its push. Then either `verdict`, of its holder, so many
  -- `times`, or `outside`, or it is lost with its holder, or only a host finds it out.
  local ENDS = {
    done = { verdict = function(job) return job:ack "fine" end, state = "done" },
    ["failed for good"] = {
      options = { max_attempts = 1 }, verdict = function(job) return job:fail "broken" end,
      state = "dead", reason = "failed",
    },
    discarded = { verdict = function(job) return job:discard "no use" end, state = "dead", reason = "discarded" },
    ["cancelled from outside"] = {
      outside = function(id) return handle:cancel(id) end, state = "cancelled", reason = "cancelled",
    },
    ["polled too often"] = {
      options = { max_polls = 1 }, verdict = function(job) return job:again(0) end, times = 2,
      state = "dead", reason = "poll deadline",
    },
    ["polled too long"] = {
      options = { deadline = 0.000001, max_polls = 1000 }, verdict = function(job) return job:again(0) end,
      state = "dead", reason = "poll deadline",
    },
    poison = { lost = true, options = { max_crashes = 1 }, state = "dead", reason = "poison" },
    ["without a handler"] = { host = true, state = "dead", reason = "no handler" },
  }

  -- The claims of all run out; as twice before, which tells nothing of a job.
  local function lose(ids)
    db.sql("UPDATE nightshift_job SET lost = 2 WHERE name = 'kid'", name)
    assert.equal(#ids, #kids:claim_many(#ids, { lease = 0.05 }))
    for _, id in ipairs(ids) do
      eventually(function()
        assert(handle:rescue())
        return state(id) == "dead"
      end)
    end
  end

  -- As those without a handler for long.
  local function find_no_handler(ids)
    db.sql("UPDATE nightshift_job SET missed = 9, missing_since = 1 WHERE name = 'kid';"
      .. "UPDATE nightshift_ready SET kind = 0", name) -- of a program that writes no kinds
    local h = host.start(url, "return { other = function() end }", { "--queues", "kids" })
    for _, id in ipairs(ids) do
      eventually(function() return state(id) == "dead" end)
    end
    h:signal "TERM"
    assert.equal(0, h:wait())
  end

  -- Brings children to their end.
  local function come_to_end(ids, how)
    for _ = 1, how.verdict and how.times or 1 do
      local jobs = how.verdict and assert(kids:claim_many(#ids)) or {}
      assert.equal(how.verdict and #ids or 0, #jobs)
      for _, job in ipairs(jobs) do assert(how.verdict(job)) end
    end
    if how.outside then
      for _, id in ipairs(ids) do assert(how.outside(id)) end
    elseif how.lost then
      lose(ids)
    elseif how.host then
      find_no_handler(ids)
    end
    for _, id in ipairs(ids) do
      local info = handle:job(id)
      assert.same({ how.state, how.reason }, { info.state, info.reason })
    end
  end

  -- ------------------------------------------------------------------ the parents

  -- Each makes a parent in a queue of its own. `kid` is a function that pushes its child (or,
  -- given a job, spawns it). `cell` remembers it.
  local function push_parent(cell, options)
    cell.id = assert(cell.q:push("parent", nil, options))
    return cell.id
  end

  local function run_parent(cell)
    push_parent(cell, { max_attempts = 1 })
    cell.job = assert(cell.q:claim())
    return cell.job
  end

  local function park(cell)
    cell.kid = cell.spawn(run_parent(cell))
    assert(cell.job:wait { on_fail = cell.policy })
  end

  local PARENTS = {
    ready = function(cell) cell.push(push_parent(cell)) end,
    scheduled = function(cell) cell.push(push_parent(cell, { delay = 3600 })) end,
    running = function(cell) cell.push(run_parent(cell).id) end,
    ["running, then polling"] = function(cell)
      cell.push(run_parent(cell).id)
      assert(cell.job:again(3600))
    end,
    parked = park,
    ["parked, with another child"] = function(cell)
      run_parent(cell)
      cell.other = cell.job:spawn("other", nil, { queue = "others" })
      cell.kid = cell.spawn(cell.job)
      assert(cell.job:wait { on_fail = cell.policy })
    end,
    ["parked for a child of an earlier run"] = function(cell)
      cell.kid = cell.spawn(run_parent(cell))
      assert(cell.job:again(0))
      assert(cell.q:claim():wait { on_fail = cell.policy })
    end,
    ["parked for a child that came late"] = function(cell)
      run_parent(cell)
      cell.other = cell.job:spawn("other", nil, { queue = "others" })
      assert(cell.job:wait { on_fail = cell.policy })
      cell.push(cell.id)
    end,
    ["parked, cancelled, retried and parked again"] = function(cell)
      park(cell)
      assert(handle:cancel(cell.id))
      assert(handle:retry(cell.id))
      assert(cell.q:claim():wait { on_fail = cell.policy })
    end,
    ["parked in a paused queue"] = function(cell)
      park(cell)
      assert(cell.q:pause())
    end,
    ["parked for a signal"] = function(cell)
      cell.push(run_parent(cell).id)
      assert(cell.job:wait { signal = "go" })
    end,
    ["waiting for another"] = function(cell)
      cell.other = assert(handle:queue "others":push "other")
      cell.push(push_parent(cell, { after = { cell.other } }))
    end,
    ["retried after a failure"] = function(cell)
      cell.push(run_parent(cell).id)
      assert(cell.job:fail "oh")
      assert(handle:retry(cell.id))
    end,
    done = function(cell)
      cell.push(run_parent(cell).id)
      assert(cell.job:ack())
    end,
    dead = function(cell)
      cell.push(run_parent(cell).id)
      assert(cell.job:discard "no")
    end,
    cancelled = function(cell)
      cell.push(push_parent(cell))
      assert(handle:cancel(cell.id))
    end,
  }

  local PARKED = {
    parked = true, ["parked, with another child"] = true, ["parked for a child of an earlier run"] = true,
    ["parked for a child that came late"] = true, ["parked, cancelled, retried and parked again"] = true,
    ["parked in a paused queue"] = true,
  }

  -- The rule: the end of a child touches its parent only while that waits for it.
  -- A failure ends it if it says so; else it is ready when no other child lives.
  local function expected(cell, before, failed)
    if not PARKED[cell.state] then return before end
    if failed and cell.policy == "fail" then return "dead" end
    return cell.other and "waiting" or "ready"
  end

  -- The rule of a parent that waits after that. A child with a failure that came while it ran
  -- counts, one that it knew of before does not.
  local function in_the_end(cell, now, failed)
    if now == "done" or now == "dead" or now == "cancelled" then return now end
    return cell.state == "running" and failed and cell.policy == "fail" and "dead" or "done"
  end

  local function make(how, policy, parent, i)
    local options = { queue = "kids" }
    for key, value in pairs(how.options or {}) do options[key] = value end
    local cell = { state = parent, policy = policy, q = handle:queue("parents-" .. i) }
    function cell.push(id)
      options.parent, options.queue = id, nil
      cell.kid = assert(kids:push("kid", nil, options))
    end
    function cell.spawn(job) return job:spawn("kid", nil, options) end
    PARENTS[parent](cell)
    cell.before = state(cell.id)
    return cell
  end

  -- Whatever it waits for comes; and each parent that has not waited yet waits.
  local function go_on(cell, how)
    assert(cell.q:resume())
    if handle:job(cell.id).state == "scheduled" then assert(handle:run_now(cell.id)) end
    if cell.state == "parked for a signal" then assert(handle:signal(cell.id, true, "go")) end
    local other = cell.other and handle:queue "others":claim()
    if other then assert(other:ack()) end
    local job = cell.state == "running" and cell.job or cell.q:claim()
    local waited = PARKED[cell.state]
    while job do
      if waited then
        local seen
        for _, child in ipairs(job.results) do
          if child.id == cell.kid then seen = child end
        end
        assert.same({ how.state, how.reason }, { seen.outcome, seen.reason })
        assert(job:ack())
      else
        assert(job:wait { on_fail = cell.policy })
        waited = true
      end
      job = cell.q:claim()
    end
  end

  local function check(cell, wanted)
    local info = handle:job(cell.id)
    local label = ("%s, on_fail %s: "):format(cell.state, cell.policy)
    assert.equal(label .. wanted, label .. info.state)
    if wanted == "dead" and cell.state ~= "dead" then
      assert.same({ "child failed", ("its child, job %d, failed"):format(cell.kid) }, { info.reason, info.error })
    end
  end

  local function sorted(map)
    local list = {}
    for key in pairs(map) do list[#list + 1] = key end
    table.sort(list)
    return list
  end

  describe("a child that ends", function()
    for _, ending in ipairs(sorted(ENDS)) do
      it((": %s: does to its parent, in any state, what the policy says"):format(ending), function()
        local how, cells, ids = ENDS[ending], {}, {}
        for _, policy in ipairs { "fail", "continue" } do
          for _, parent in ipairs(sorted(PARENTS)) do
            local cell = make(how, policy, parent, #cells + 1)
            cells[#cells + 1], ids[#ids + 1] = cell, cell.kid
          end
        end
        come_to_end(ids, how)
        local failed = how.state ~= "done"
        for _, cell in ipairs(cells) do
          local now = expected(cell, cell.before, failed)
          check(cell, now)
          cell.now = now
        end
        for _, cell in ipairs(cells) do go_on(cell, how) end
        for _, cell in ipairs(cells) do check(cell, in_the_end(cell, cell.now, failed)) end
        nothing_left()
      end)
    end
  end)

  -- --------------------------------------------------------------- the dependents

  -- Each makes a job that waits for `on`, and says what it is when that is met.
  local DEPENDENTS = {
    waiting = function(q, on, policy) return q:push("d", nil, { after = { on }, on_fail = policy }), "ready" end,
    ["waiting, and then scheduled"] = function(q, on, policy)
      return q:push("d", nil, { after = { on }, on_fail = policy, delay = 3600 }), "scheduled"
    end,
    ["waiting for two"] = function(q, on, policy)
      local other = assert(handle:queue "others":push "other")
      return q:push("d", nil, { after = { other, on }, on_fail = policy }), "waiting"
    end,
    ["waiting twice for the same"] = function(q, on, policy)
      return q:push("d", nil, { after = { on, on }, on_fail = policy }), "ready"
    end,
    ["in a paused queue"] = function(q, on, policy)
      local id = q:push("d", nil, { after = { on }, on_fail = policy })
      assert(q:pause())
      return id, "ready"
    end,
    ["with a unique key"] = function(q, on, policy)
      return q:push("d", nil, { after = { on }, on_fail = policy, unique = "key" }), "ready"
    end,
    ["another's child"] = function(q, on, policy)
      local parent = assert(handle:queue "others":push "other")
      return q:push("d", nil, { after = { on }, on_fail = policy, parent = parent }), "ready"
    end,
    cancelled = function(q, on, policy)
      local id = q:push("d", nil, { after = { on }, on_fail = policy })
      assert(handle:cancel(id))
      return id, "cancelled"
    end,
    ["cancelled and retried"] = function(q, on, policy)
      local id = q:push("d", nil, { after = { on }, on_fail = policy })
      assert(handle:cancel(id))
      assert(handle:retry(id))
      return id, "ready"
    end,
  }

  local FREE = { cancelled = true, ["cancelled and retried"] = true }

  describe("a job that others wait for, and that ends", function()
    for _, ending in ipairs(sorted(ENDS)) do
      it((": %s: lets them run, or cancels them, as their policy says"):format(ending), function()
        local how, cells, ids = ENDS[ending], {}, {}
        local failed = how.state ~= "done"
        for _, policy in ipairs { "cancel", "run" } do
          for _, kind in ipairs(sorted(DEPENDENTS)) do
            local cell = { state = kind, policy = policy, q = handle:queue("q-" .. #cells + 1) }
            local options = {}
            for key, value in pairs(how.options or {}) do options[key] = value end
            cell.on = assert(kids:push("kid", nil, options))
            cell.id, cell.met = DEPENDENTS[kind](cell.q, cell.on, policy)
            assert(cell.id, kind)
            cells[#cells + 1], ids[#ids + 1] = cell, cell.on
          end
        end
        come_to_end(ids, how)
        local ends = {}
        for _, cell in ipairs(cells) do
          local info, label = handle:job(cell.id), ("%s, on_fail %s: "):format(cell.state, cell.policy)
          local dropped = failed and cell.policy == "cancel" and not FREE[cell.state]
          assert.equal(label .. (dropped and "cancelled" or cell.met), label .. info.state)
          if dropped then
            assert.same({ "dependency", ("job %d, which it waited for, failed"):format(cell.on) },
              { info.reason, info.error })
            if cell.state == "with a unique key" then assert(cell.q:push("d", nil, { unique = "key" })) end
          end
          ends[cell.id] = (dropped or cell.state == "cancelled") and "cancelled" or "done"
        end
        for job in handle:queue "others":jobs { wait = 0 } do assert(job:ack()) end
        for _, cell in ipairs(cells) do
          cell.q:resume()
          if state(cell.id) == "scheduled" then assert(handle:run_now(cell.id)) end
          for job in cell.q:jobs { wait = 0 } do assert(job:ack()) end
          assert.equal(ends[cell.id], state(cell.id))
        end
        nothing_left()
      end)
    end
  end)

  -- ---------------------------------------------------------- the verdicts of a run

  -- The state of a child that a run has spawned, by the run's verdict (nil: it was dropped).
  -- Then its state when the parent has come to a good or a bad end.
  local VERDICTS = {
    { "done", function(job) return job:ack() end, "ready" },
    { "wait", function(job) return job:wait() end, "ready" },
    { "again", function(job) return job:again(0) end, "waiting", "ready", "cancelled" },
    { "fail", function(job) return job:fail("oh", { retry_in = 0 }) end },
    { "discard", function(job) return job:discard "oh" end },
    { "release", function(job) return job:release() end },
  }

  describe("a child that is spawned by a run that ends with", function()
    for _, case in ipairs(VERDICTS) do
      local verdict, settle, child, good, bad = table.unpack(case, 1, 5)
      for _, ending in ipairs { "ack", "discard" } do
        it(("%s, and its parent with %s"):format(verdict, ending), function()
          local q = handle:queue "q"
          local parent = assert(q:push "parent")
          local job = q:claim()
          local id = job:spawn("kid", 1, { queue = "kids" })
          local sibling = job:spawn("kid", 2, { queue = "kids", after = { id } })
          assert.is_nil(handle:job(id))
          assert(settle(job))
          local info = handle:job(id)
          assert.equal(child, info and info.state)
          if child == "ready" then
            assert.equal("waiting", state(sibling))
            assert.equal(id, kids:claim():ack() and id)
            assert.equal(sibling, kids:claim().id)
          end
          job = q:claim()
          if job then
            assert.equal(parent, job.id)
            assert(job[ending](job, "x"))
          end
          if child == "waiting" then
            local after = ending == "ack" and good or bad
            assert.same({ after, after == "ready" and "waiting" or after }, { state(id), state(sibling) })
          elseif not child then
            assert.is_nil(handle:job(id))
            assert.is_nil(handle:job(sibling))
          end
        end)
      end
    end

    it("raise, or a crash of its worker: it is dropped, and who waits for it is told", function()
      local q = handle:queue "q"
      local waiting = {}
      for _, how in ipairs { "raise", "crash" } do
        local id = assert(q:push(how, nil, { max_attempts = 1, max_crashes = 1 }))
        waiting[assert(q:push("next", nil, { after = { id } }))] = id
      end
      local status, log = host.drain(url, [[return {
      raise = function(job) job:spawn("kid", 1) error "oh" end,
      crash = function(job) job:spawn("kid", 1) os.execute "kill -9 $PPID" end,
    }]])
      assert.equal(0, status, log)
      assert.equal(2, #handle:jobs { state = "dead" })
      for id, how in pairs(waiting) do
        local info = handle:job(id)
        assert.same({ "cancelled", ("job %d, which it waited for, failed"):format(how) }, { info.state, info.error })
      end
      assert.equal("4", (db.sql("SELECT COUNT(*) FROM nightshift_finished", name)))
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_child", name)))
      nothing_left()
    end)
  end)

  -- --------------------------------------------------------------- larger figures

  describe("jobs that wait for jobs that wait", function()
    local q

    before_each(function() q = handle:queue "q" end)

    local function after(ids, options)
      options = options or {}
      options.after = ids
      return assert(q:push("job", nil, options))
    end

    it("are all cancelled, each for the one before it, down to the first that runs anyway", function()
      local a = assert(q:push "job")
      local b = after { a }
      local c = after { b }
      local d = after({ c }, { on_fail = "run" })
      local e = after { d }
      assert(q:claim():discard "no")
      for id, on in pairs { [b] = a, [c] = b } do
        local info = handle:job(id)
        assert.same({ "cancelled", "dependency", ("job %d, which it waited for, failed"):format(on) },
          { info.state, info.reason, info.error })
      end
      assert.same({ "ready", "waiting" }, { state(d), state(e) })
      assert(q:claim():ack())
      assert.equal("ready", state(e))
      assert(q:claim():ack())
      nothing_left()
    end)

    it("in a diamond: the last runs once, after both sides; or is cancelled once", function()
      for _, verdict in ipairs { "ack", "discard" } do
        local top = assert(q:push "job")
        local left, right = after { top }, after { top }
        local bottom = after { left, right }
        local job = q:claim()
        assert(job[verdict](job, "x"))
        if verdict == "ack" then
          assert(q:claim():ack())
          assert.equal("waiting", state(bottom))
          assert(q:claim():ack())
          job = assert(q:claim())
          assert.equal(bottom, job.id)
          assert.is_nil(q:claim())
          assert(job:ack())
        else
          assert.same({ "cancelled", "cancelled", "cancelled" }, { state(left), state(right), state(bottom) })
        end
        nothing_left()
      end
    end)

    it("for two, of which one fails and one lives: cancelled at once, and the other goes on", function()
      local a = assert(q:push "job")
      local b = assert(q:push("job", nil, { priority = 1 }))
      local c = after { a, b }
      assert(q:claim():discard "no")
      assert.same({ "ready", "cancelled" }, { state(b), state(c) })
      assert(q:claim():ack())
      nothing_left()
    end)

    it("a child whose sibling fails takes its parent down, and a flow up to its root", function()
      local root, ids = assert(handle:flow { name = "root", queue = "q", children = {
        { name = "left", children = { { name = "leaf", as = "leaf" }, { name = "next", after = { "leaf" } } } },
      } })
      assert(q:claim():discard "no")
      local left = ids.children[1]
      for _, id in ipairs { left.children[2].id, left.id, root } do assert.equal("cancelled", state(id)) end
      nothing_left()
    end)

    it("a parent that dies for its child takes with it who waits for it, and its own parent", function()
      local top = assert(q:push("top", nil, { priority = 200 }))
      local job = q:claim()
      local mid = job:spawn("mid", 1)
      assert(job:wait())
      local dependent = after { mid }
      job = q:claim()
      local leaf = job:spawn("leaf", 1)
      assert(job:wait())
      assert(q:claim():discard "no")
      assert.equal(("its child, job %d, failed"):format(leaf), handle:job(mid).error)
      assert.equal(("its child, job %d, failed"):format(mid), handle:job(top).error)
      assert.same({ "dead", "dead", "cancelled" }, { state(mid), state(top), state(dependent) })
      nothing_left()
    end)

    it("after ended jobs: met, or the policy; after an unknown one: NOT_FOUND, and nothing is pushed", function()
      local good, bad, gone = assert(q:push "job"), assert(q:push "job"), assert(q:push "job")
      assert(q:claim():ack())
      assert(q:claim():discard "no")
      assert(handle:cancel(gone))
      assert.equal("ready", state(after { good }))
      for _, id in ipairs { bad, gone } do
        local info = handle:job(after { good, id })
        assert.same({ "cancelled", ("job %d, which it waited for, failed"):format(id) }, { info.state, info.error })
        assert.equal("ready", state(after({ good, id }, { on_fail = "run" })))
      end
      local before = db.sql("SELECT COUNT(*) FROM nightshift_job", name)
      local ids, message, code = q:push_many { { "x" }, { "y", nil, { after = { good, 4711 } } } }
      assert.same({ nil, "NOT_FOUND" }, { ids, code })
      assert.matches("job 4711", message)
      assert.equal(before, (db.sql("SELECT COUNT(*) FROM nightshift_job", name)))
    end)

    it("a parent that is retried after its child failed starts anew, and may retry the child, too", function()
      local parent = assert(q:push("parent", nil, { priority = 200 }))
      local job = q:claim()
      local child = job:spawn("child", 1)
      assert(job:wait())
      assert(q:claim():discard "no")
      assert.equal("dead", state(parent))
      assert(handle:retry(child))
      assert(handle:retry(parent))
      job = q:claim()
      assert.same({ parent, 0, 1 }, { job.id, job.phase, #job.results })
      assert(job:wait())
      assert.same({ "waiting", "ready" }, { state(parent), state(child) })
      assert(q:claim():ack "well")
      job = q:claim()
      assert.same({ 1, "done", "well" }, { job.phase, job.results[1].outcome, job.results[1].result })
      assert(job:ack())
      nothing_left()
    end)

    it("a child that is retried while its parent still waits for others is not waited for", function()
      local parent = assert(q:push("parent", nil, { priority = 200 }))
      local job = q:claim()
      for i = 1, 2 do job:spawn("child", i) end
      assert(job:wait { on_fail = "continue" })
      job = q:claim()
      assert(job:discard "no")
      assert(handle:retry(job.id))
      local next_one = q:claim()
      assert(next_one:ack())
      assert.equal("ready", state(parent))
      job = q:claim()
      assert.equal(parent, job.id)
      assert(job:wait())
      assert.equal("waiting", state(parent))
      assert(q:claim():ack())
      assert(q:claim():ack())
      nothing_left()
    end)
  end)
end)

-- Whole trees pushed as one.
describe("flows:", function()
  local url, handle

  with_database(function(opened, _, at) handle, url = opened, at end)

  describe("a flow", function()
    it("runs children before their parents, at any depth, and what waits for others after them", function()
      local root, ids = assert(handle:flow {
        name = "note", payload = "root", queue = "q",
        children = {
          { name = "note", payload = "left", as = "left", children = { { name = "note", payload = "leaf" } } },
          { name = "note", payload = "right", after = { "left" } },
        },
      })
      assert.equal(root, ids.id)
      assert.equal(2, #ids.children)
      local status, log = host.drain(url, [[return { note = function(job)
      io.stderr:write("ran ", job.payload, "\n")
      local seen = {}
      for _, one in ipairs(job.results) do seen[#seen + 1] = (one.after and "after " or "") .. one.result end
      return job.payload .. "(" .. table.concat(seen, ",") .. ")"
    end }]])
      assert.equal(0, status, log)
      local order = {}
      for name in log:gmatch "ran (%a+)" do order[#order + 1] = name end
      assert.same({ "leaf", "left", "right", "root" }, order)
      assert.equal("root(left(leaf()),right(after left(leaf())))", handle:job(root).result)
      assert.equal(root, handle:job(ids.children[1].children[1].id).root)
    end)

    it("with a circle is refused with the way around, and nothing is written", function()
      assert.error_matches(function()
        handle:flow { name = "a", as = "a", children = { { name = "b", as = "b", after = { "c" } },
          { name = "c", as = "c", after = { "b" } } } }
      end, "'b' waits for 'c' waits for 'b'")
      assert.error_matches(function()
        handle:flow { name = "a", as = "a", children = { { name = "b", after = { "a" } } } }
      end, "'a' waits for 'b' waits for 'a'")
      assert.equal(0, #handle:jobs())
    end)

    it("may have more jobs than ids are taken at a time", function()
      local children = {}
      for i = 1, 10500 do children[i] = { name = "leaf", payload = i } end
      local root, ids = assert(handle:flow { name = "root", queue = "wide", children = children })
      assert.equal(10500, #ids.children)
      assert.equal(10500, handle:execute("SELECT COUNT(*) AS n FROM nightshift_edge WHERE job_id = ?", root)[1].n)
    end)

    it("names what is wrong", function()
      assert.error_matches(function() handle:flow { name = "a", children = { { name = 5 } } } end,
        "the flow, child 1: the job's name must be a string, got number")
      assert.error_matches(function() handle:flow { name = "a", children = { { name = "b", queue = 5 } } } end,
        "the flow, child 1: 'queue' must be a string, got number")
      assert.error_matches(function() handle:flow { name = "a", after = { "x" } } end, "no node of that name")
      assert.error_matches(function() handle:flow { name = "a", as = "x", children = { { name = "b", as = "x" } } } end,
        "'x' stands twice")
      assert.error_matches(function() handle:flow { name = "a", color = 1 } end, "unknown option 'color'")
    end)

    it("is cancelled upwards when a child fails", function()
      local root, ids = assert(handle:flow { name = "a", queue = "q", children = { { name = "b" }, { name = "c" } } })
      local job = assert(handle:queue "q":claim())
      assert.equal(ids.children[1].id, job.id)
      assert(job:discard "no")
      assert.equal("cancelled", handle:job(root).state)
      assert.equal("ready", handle:job(ids.children[2].id).state)
    end)
  end)

  describe("many flows", function()
    it("are pushed at once, each with its own root, names and queue", function()
      local function report(queue)
        return { name = "report", queue = queue, children = { { name = "one", as = "one" },
          { name = "two", after = { "one" } } } }
      end
      local ids, shapes = assert(handle:flow_many { report "a", report "b", { name = "alone" } })
      assert.equal(3, #ids)
      for i, id in ipairs(ids) do assert.equal(id, shapes[i].id) end
      for i, queue in ipairs { "a", "b", "default" } do assert.equal(queue, handle:job(ids[i]).queue) end
      for i = 1, 2 do
        assert.equal(2, handle:job(ids[i]).unmet)
        assert.equal(ids[i], handle:job(shapes[i].children[2].id).parent)
      end
      local status, log = host.drain(url, [[local function run(job)
      io.stderr:write("ran " .. job.queue .. ":" .. job.name .. "\n")
    end
    return { report = run, one = run, two = run, alone = run }]])
      assert.equal(0, status, log)
      for _, queue in ipairs { "a", "b" } do
        local order = {}
        for name in log:gmatch("ran " .. queue .. ":(%a+)") do order[#order + 1] = name end
        assert.same({ "one", "two", "report" }, order)
      end
      for _, id in ipairs(ids) do assert.equal("done", handle:job(id).state) end
    end)

    it("are all written, or none", function()
      assert.error_matches(function()
        handle:flow_many { { name = "good" }, { name = "a", children = { { name = 5 } } } }
      end, "flow 2, child 1: the job's name must be a string, got number")
      local flows, message, code = handle:flow_many { { name = "good" }, { name = "bad", unique = "" } }
      assert.same({ nil, "INVALID" }, { flows, code })
      assert.matches("'bad'", message)
      assert.error_matches(function() handle:flow_many { { name = "a" }, nil, { name = "b" } } end, "item 2 is nil")
      assert.error_matches(function() handle:flow_many "a" end, "a list of flows")
      assert.equal(0, #handle:jobs())
      assert.same({}, handle:flow_many {})
    end)
  end)
end)

-- ----- random graphs

-- Random graphs of jobs with ends that are known beforehand, whatever is killed while they run.
-- What each job is to do stands in its payload.
--
--     local graph = dags.make(200)
--     dags.push(handle, graph)
--     ... hosts run dags.HANDLERS, with DAG_LOG in their environment ...
--     dags.check(handle, graph, log)
local dags = {}

--- The handler file. Each run writes `start TAG ID RUN PHASE` and, right before
-- its verdict, `end TAG ID RUN PHASE`; a line is one write with O_APPEND.
dags.HANDLERS = [[
local nightshift = require "nightshift"

local function note(kind, job)
  local file <close> = assert(io.open(os.getenv "DAG_LOG", "ab"))
  file:setvbuf "full"
  assert(file:write(kind, " ", job.payload.tag, " ", job.id, " ", job.run, " ", job.phase, "\n"))
end

local function spawn(job)
  local ids = {}
  for i, kid in ipairs(job.payload.kids) do
    local after = {}
    for _, k in ipairs(kid.after) do after[#after + 1] = ids[k] end
    kid.by = job.run
    ids[i] = job:spawn("node", kid, { after = #after > 0 and after or nil, on_fail = kid.on_fail,
      max_attempts = kid.max_attempts, backoff = 0, max_crashes = 1000, priority = kid.priority })
  end
end

local plans = {}
function plans.done(job) return job.payload.tag end
function plans.fail() error("planned", 0) end
function plans.discard(job) return job:discard "planned" end
function plans.retry(job)
  if job.attempt == 1 then error("planned", 0) end
  return job.payload.tag
end
function plans.again(job)
  assert((job.state or 0) == job.polls, "a state that is not the last one")
  if job.polls < job.payload.polls then return job:again(0, job.polls + 1) end
  return job.payload.tag
end
function plans.spawn(job)
  spawn(job)
  return job.payload.tag
end
function plans.wait(job)
  if job.phase == 0 then
    spawn(job)
    return job:wait { on_fail = job.payload.policy }
  end
  assert(#job.results - #job.after == #job.payload.kids, "children that are missing, or too many")
  for _, child in ipairs(job.results) do assert(child.outcome or child.after, "a child that lives") end
  return job.payload.tag
end
return { node = function(job)
  note("start", job)
  require "nightshift.core".sleep(job.payload.takes)
  local result
  local ok, why = pcall(function() result = table.pack(plans[job.payload.plan](job)) end)
  note("end", job)
  if not ok then error(why, 0) end
  return table.unpack(result, 1, result.n)
end }
]]

local PLANS = {
  { "done", 8 }, { "fail", 2 }, { "discard", 1 }, { "retry", 3 }, { "again", 3 }, { "spawn", 2 }, { "wait", 4 },
}

local function pick_plan(depth)
  local list = {}
  for _, item in ipairs(PLANS) do
    if depth < 2 or item[1] ~= "spawn" and item[1] ~= "wait" then
      for _ = 1, item[2] do list[#list + 1] = item[1] end
    end
  end
  return list[math.random(#list)]
end

-- One job: `after` are places among those before it in the same list.
local function random_node(tag, depth, place)
  local n = {
    tag = tag, plan = pick_plan(depth), after = {}, on_fail = math.random(3) == 1 and "run" or "cancel",
    priority = 90 + math.random(20), takes = math.random() ^ 4 * 0.02,
  }
  for _ = 1, math.random(4) == 1 and 0 or math.random(3) do
    local at = place - math.ceil(math.random() ^ 2 * math.min(place, 40))
    if at >= 1 then n.after[at] = true end
  end
  local list = {}
  for at in pairs(n.after) do list[#list + 1] = at end
  n.after = list
  n.max_attempts = n.plan == "fail" and 2 or 50
  if n.plan == "again" then n.polls = math.random(4) end
  if n.plan == "spawn" or n.plan == "wait" then
    n.kids, n.policy = {}, math.random(2) == 1 and "continue" or "fail"
    for i = 1, math.random(n.plan == "wait" and 1 or 0, 6) do n.kids[i] = random_node(tag .. "." .. i, depth + 1, i) end
  end
  return n
end

--- A graph of n jobs, besides their children; from math.random.
function dags.make(n)
  local graph = {}
  for i = 1, n do graph[i] = random_node(tostring(i), 0, i) end
  return graph
end

--- Pushes it in one transaction.
function dags.push(handle, graph)
  assert(handle:transaction(function(tx)
    for _, n in ipairs(graph) do
      local after = {}
      for _, at in ipairs(n.after) do after[#after + 1] = graph[at].id end
      n.id = assert(tx:queue "q":push("node", n, { after = #after > 0 and after or nil, on_fail = n.on_fail,
        max_attempts = n.max_attempts, backoff = 0, max_crashes = 1000, priority = n.priority }))
    end
    return true
  end))
end

-- ------------------------------------------------------------------ the model

local REASONS = { fail = "failed", discard = "discarded" }

local foresee

-- A list of jobs, each after some of the list.
local function foresee_all(list, into)
  for _, n in ipairs(list) do
    local dropped = false
    for _, at in ipairs(n.after) do dropped = dropped or list[at].outcome ~= "done" end
    if dropped and n.on_fail == "cancel" then
      n.outcome, n.reason = "cancelled", "dependency"
    else
      foresee(n, into)
    end
    into[n.tag] = n
  end
end

-- What comes of one that runs, and of its children.
function foresee(n, into)
  n.outcome, n.reason = "done", nil
  if REASONS[n.plan] then n.outcome, n.reason = "dead", REASONS[n.plan] end
  if not n.kids then return end
  foresee_all(n.kids, into)
  for _, kid in ipairs(n.kids) do
    kid.above = n
    if n.plan == "wait" and n.policy == "fail" and kid.outcome ~= "done" then
      n.outcome, n.reason = "dead", "child failed"
    end
  end
end

-- ------------------------------------------------------------------ the checks

local function wrong(format, ...) error(format:format(...), 0) end

-- Lines of a log: of each tag its first start, the first start after a wait, and
-- of each run its last line.
local function read_log(path)
  local log = {}
  local at = 0
  for line in io.lines(path) do
    at = at + 1
    local kind, tag, _, run, phase = line:match "^(%a+) (%S+) (%d+) (%d+) (%d+)$"
    local of = log[tag] or { runs = {}, ends = {} }
    log[tag] = of
    if kind == "start" then
      of.first = of.first or at
      if phase ~= "0" then of.joined = of.joined or at end
    else
      of.ends[tonumber(run)] = at
    end
    of.runs[tonumber(run)] = at
  end
  return log
end

-- The last line of the run by which a job ended; 0: it never ran.
local function over(log, n)
  local of = log[n.tag]
  return of and of.runs[n.row.run] or 0
end

local ATTEMPTS = { fail = 2, retry = 1 }

local function check_row(n, row)
  n.row = row
  if row.outcome ~= n.outcome or row.reason ~= n.reason then
    wrong("job %s (%s) is %s, %s, %s; expected %s, %s", n.tag, n.plan, row.outcome, row.reason, row.error, n.outcome,
      n.reason)
  end
  if n.outcome == "done" and row.result ~= '"' .. n.tag .. '"' then
    wrong("job %s has the result %s", n.tag, row.result)
  end
  if n.outcome ~= "cancelled" then
    -- each verdict counted once; one that reads results fails while the server is away
    if n.plan ~= "wait" and row.attempts ~= (ATTEMPTS[n.plan] or 0) then
      wrong("job %s (%s) has %d attempts", n.tag, n.plan, row.attempts)
    end
    if row.polls ~= (n.polls or 0) then wrong("job %s has polled %d times", n.tag, row.polls) end
  end
end

-- The error of one that was dropped names one that failed.
local function check_error(n, ids)
  local culprit = (n.reason == "dependency" or n.reason == "child failed")
    and math.tointeger(tonumber((n.row.error or ""):match "job (%d+)"))
  if culprit and not (ids[culprit] and ids[culprit].outcome ~= "done") then
    wrong("job %s blames %s", n.tag, n.row.error)
  elseif culprit == nil then
    wrong("job %s blames nobody: %s", n.tag, n.row.error)
  end
end

local function check_order(n, list, log)
  local of = log[n.tag]
  if n.outcome == "cancelled" then
    if of then wrong("job %s was cancelled and ran", n.tag) end
    return
  end
  if not of then wrong("job %s is %s and never ran", n.tag, n.outcome) end
  for _, at in ipairs(n.after) do
    if over(log, list[at]) > of.first then wrong("job %s started before %s had ended", n.tag, list[at].tag) end
  end
  for _, kid in ipairs(n.kids or {}) do
    local first = log[kid.tag] and log[kid.tag].first
    if kid.row.by == nil then wrong("job %s was spawned by nobody", kid.tag) end
    if first and first < (of.ends[kid.row.by] or math.huge) then
      wrong("job %s started before the run that spawned it had ended", kid.tag)
    end
    if of.joined and n.plan == "wait" and over(log, kid) > of.joined then
      wrong("job %s went on before its child %s had ended", n.tag, kid.tag)
    end
  end
  if n.plan == "wait" and n.outcome == "done" and not of.joined then wrong("job %s never went on", n.tag) end
  if n.kids then
    for _, kid in ipairs(n.kids) do
      if kid.row.by ~= n.kids[1].row.by then wrong("children of two runs of job %s", n.tag) end
      check_order(kid, n.kids, log)
    end
  end
end

--- Raises when the jobs did not end as they had to.
function dags.check(handle, graph, path)
  local expected, ids, count = {}, {}, 0
  foresee_all(graph, expected)
  for _ in pairs(expected) do count = count + 1 end
  local rows = assert(handle:execute [[SELECT id, run, outcome, reason, result, error, attempts, polls,
    JSON_VALUE(payload, '$.tag') AS tag, CAST(JSON_VALUE(payload, '$.by') AS INT) AS `by` FROM nightshift_finished]])
  for _, row in ipairs(rows) do
    local n = expected[row.tag]
    if not n then wrong("job %s was not to be", row.tag) end
    if n.row then wrong("job %s is there twice", row.tag) end
    check_row(n, row)
    ids[row.id] = n
  end
  if #rows ~= count then
    for tag, n in pairs(expected) do
      if not n.row then wrong("job %s is missing", tag) end
    end
  end
  for _, n in pairs(expected) do check_error(n, ids) end
  local log = read_log(path)
  for _, n in ipairs(graph) do check_order(n, graph, log) end
  for _, left in ipairs { "job", "edge", "lease" } do
    local n = assert(handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. left))[1].n
    if n ~= 0 then wrong("%d rows of %s are left", n, left) end
  end
  return #rows
end

local LONG = os.getenv "NIGHTSHIFT_LONG"
local GRAPHS, JOBS = LONG and 12 or 2, 60
local seed = math.tointeger(tonumber(os.getenv "SEED" or "")) or os.time() % 100000
local seconds = tonumber(os.getenv "DAG_SECONDS" or "")

local function pick(n) return math.random(n) end

-- Jobs that wait for up to four earlier ones; what each is to come to.
local function push_graph(q)
  local graph = {}
  for i = 1, JOBS do
    local node = { after = {}, on_fail = pick(3) == 1 and "run" or "cancel", plan = pick(10) }
    for _ = 1, i > 1 and pick(5) - 1 or 0 do node.after[graph[pick(i - 1)].id] = true end
    local after = {}
    for id in pairs(node.after) do after[#after + 1] = id end
    node.id = assert(q:push("node", { plan = node.plan }, {
      after = #after > 0 and after or nil, on_fail = node.on_fail, max_attempts = 2, backoff = 0, priority = pick(3),
    }))
    graph[i], graph[node.id] = node, node
  end
  return graph
end

local function check_start(graph, job)
  local node = graph[job.id]
  for id in pairs(node and node.after or {}) do
    local other = graph[id]
    assert(other.ended, ("job %d started before %d had ended"):format(job.id, id))
    assert(other.ended == "done" or node.on_fail == "run", ("job %d started although %d failed"):format(job.id, id))
  end
  if node then
    assert(not node.ended, ("job %d started after its end"):format(job.id))
    node.started = true
  end
end

-- What a job does, and whether it has ended with that.
local function act(job, node)
  local plan = job.payload.plan
  if plan == 1 then
    assert(job:discard "planned")
    return "dead"
  elseif plan == 2 then
    local _, dead = assert(job:fail "planned")
    return dead and "dead"
  elseif plan == 3 and job.polls < 3 then
    assert(job:again(0))
  elseif plan == 4 and job.attempt == 1 and not node.released then
    node.released = true
    assert(job:release())
  elseif plan <= 6 and job.phase == 0 then
    node.kids = pick(4) - 1
    for _ = 1, node.kids do assert(job:spawn("kid", { plan = pick(8) + 2 })) end
    if node.kids == 0 then
      assert(job:ack(job.id))
      return "done"
    end
    assert(job:wait { on_fail = "continue" })
  else
    if job.phase > 0 then
      assert.equal(node.kids, #job.results - #job.after)
      for _, child in ipairs(job.results) do assert.is_truthy(child.outcome or child.after) end
    end
    assert(job:ack(job.id))
    return "done"
  end
end

-- Those that wait for what has failed are cancelled with it.
local function note_cancelled(handle, graph)
  for _, row in ipairs(assert(handle:execute "SELECT id FROM nightshift_finished WHERE outcome = 'cancelled'")) do
    local node = graph[row.id]
    if node and not node.ended then
      node.ended = "cancelled"
      assert(not node.started, ("job %d was cancelled after its start"):format(node.id))
      local why
      for id in pairs(node.after) do
        local state = handle:job(id).state
        why = why or state == "dead" or state == "cancelled"
      end
      assert(why, ("job %d was cancelled for no reason"):format(node.id))
    end
  end
end

describe("a random graph of jobs", function()
  it("finishes, in order, whatever its jobs do", function()
    math.randomseed(seed)
    local url, name = db.fresh()
    local handles = { assert(nightshift.open(url)), assert(nightshift.open(url)) }
    for _ = 1, GRAPHS do
      local graph, kids = push_graph(handles[1]:queue "q"), {}
      local idle = 0
      while idle < 3 do
        local jobs = handles[pick(2)]:queue "q":claim_many(pick(8), { wait = 0.01 })
        idle = #jobs == 0 and idle + 1 or 0
        for _, job in ipairs(jobs) do
          check_start(graph, job)
          kids[job.id] = kids[job.id] or {}
          local ended = act(job, graph[job.id] or kids[job.id])
          if graph[job.id] and ended then graph[job.id].ended = ended end
        end
        note_cancelled(handles[1], graph)
      end
      for i = 1, JOBS do assert.is_truthy(graph[i].ended, "seed " .. seed .. ": job " .. graph[i].id .. " hangs") end
    end
    for _, left in ipairs { "job", "edge", "lease" } do
      assert.equal("0", (db.sql("SELECT COUNT(*) FROM nightshift_" .. left, name)), "seed " .. seed .. ": " .. left)
    end
    for _, handle in ipairs(handles) do handle:close() end
  end)
end)

-- ------------------------------------------------------------- under kills

-- A server, two hosts on it, and what can be done to them.
local World = {}
World.__index = World

local function world(server)
  local self = setmetatable({ server = server, hosts = {} }, World)
  self.url = server:fresh()
  self.log = fixture.file("log", "")
  for i = 1, 2 do self:start(i) end
  self.handle = assert(nightshift.open(self.url))
  return self
end

function World:start(i)
  self.hosts[i] = host.start(self.url, dags.HANDLERS, { "--workers", "3" }, { DAG_LOG = self.log })
end

local STRIKES = {}

function STRIKES.worker(self)
  local workers = host.members(self.hosts[math.random(2)].pid)
  if #workers > 0 then nst.kill(workers[math.random(#workers)], "KILL") end
end

function STRIKES.host(self)
  local i = math.random(2)
  self.hosts[i]:signal "KILL"
  self.hosts[i]:wait()
  self.hosts[i]:forget()
  self:start(i)
end

function STRIKES.server(self)
  self.server:kill()
  nst.sleep(math.random() * 0.5)
  self.server:start()
end

function World:left()
  local rows = self.handle:execute "SELECT COUNT(*) AS n FROM nightshift_job"
  return rows and rows[1].n or math.huge
end

-- What a stuck graph looks like.
function World:describe()
  local list = {}
  for _, job in ipairs(self.handle:jobs { limit = 20 } or {}) do
    list[#list + 1] = ("%d %s %s"):format(job.id, job.state, job.payload.tag)
  end
  return table.concat(list, "; ")
end

-- One graph to its end; `strikes` is a list of names, each struck at a random moment.
function World:run(n, strikes, patience)
  local graph = dags.make(n)
  dags.push(self.handle, graph)
  for _, name in ipairs(strikes) do
    local stop = nst.clock() + math.random() * 0.8
    while nst.clock() < stop and self:left() > 0 do nst.sleep(0.02) end
    if self:left() == 0 then break end
    STRIKES[name](self)
  end
  local ok = pcall(eventually, function() return self:left() == 0 end, patience)
  assert(ok, ok or "left: " .. self:describe())
  eventually(function() -- the last leases go with the next cycle
    return assert(self.handle:execute "SELECT COUNT(*) AS n FROM nightshift_lease")[1].n == 0
  end)
  return dags.check(self.handle, graph, self.log)
end

function World:close()
  self.handle:close()
  for _, h in ipairs(self.hosts) do
    h:signal "TERM"
    assert.equal(0, h:wait(60))
    h:forget()
  end
end

-- What other programs may do to jobs meanwhile. What it comes to is another matter.
local MEDDLING = {
  function(self, id) return self.handle:cancel(id) end,
  function(self, id) return self.handle:retry(id) end,
  function(self, id) return self.handle:reprioritise(id, math.random(0, 255)) end,
  function(self, id) return self.handle:run_now(id) end,
  function(self, id)
    pcall(self.handle.transaction, self.handle, function(tx)
      tx:execute("SELECT id FROM nightshift_job WHERE id = ? FOR UPDATE", id)
      nst.sleep(math.random() * 0.2)
      self.handle:cancel(id)
      if math.random(2) == 1 then error "rolled back" end
      return true
    end)
  end,
  function(self, id) return self.handle:queue "q":push("node", { tag = "x", plan = "done", takes = 0, after = {} },
    { parent = id }) end,
}

-- Does that for some seconds, and says which of the jobs are left behind.
function World:meddle(n, seconds_of_it)
  local graph = dags.make(n)
  dags.push(self.handle, graph)
  local stop = nst.clock() + seconds_of_it
  while nst.clock() < stop do
    local from = math.random(3) == 1 and "finished" or "job"
    local rows = assert(self.handle:execute(("SELECT id FROM nightshift_%s ORDER BY RAND() LIMIT 1"):format(from)))
    if rows[1] then MEDDLING[math.random(#MEDDLING)](self, rows[1].id) end
  end
  local ok = pcall(eventually, function() return self:left() == 0 end, 120)
  assert(ok, ok or "left: " .. self:describe())
  for _, left in ipairs { "edge", "met", "lease", "signal", "unique_key" } do
    eventually(function()
      return assert(self.handle:execute("SELECT COUNT(*) AS n FROM nightshift_" .. left))[1].n == 0
    end, 20)
  end
end

local function one(server, s, n, strikes, patience)
  math.randomseed(s)
  local w = world(server)
  local ok, why = pcall(w.run, w, n, strikes, patience)
  if not ok then error(("SEED=%d: %s"):format(s, why), 0) end
  w:close()
  return why
end

local function pick_strikes(kinds, n)
  local list = {}
  for i = 1, n do list[i] = kinds[math.random(#kinds)] end
  return list
end

describe("a random graph of jobs on two hosts", function()
  it("ends as it has to, though workers and hosts are killed", function()
    one(db.shared(), seed, LONG and 250 or 100, { "worker", "host", "worker", "host", "worker" }, 120)
  end)

  it("ends as it has to, though the server is killed", function()
    one(db.spare(), seed + 1, LONG and 150 or 80, { "worker", "server", "worker" }, 120)
  end)

  it("ends, whatever is cancelled, retried, held and added meanwhile", function()
    math.randomseed(seed + 2)
    local w = world(db.shared())
    local ok, why = pcall(w.meddle, w, LONG and 300 or 120, 2)
    if not ok then error(("SEED=%d: %s"):format(seed, why), 0) end
    w:close()
  end)

  if seconds then
    it("ends as it has to, time and again", function()
      local server = db.spare()
      local stop, n, jobs, s = nst.clock() + seconds, 0, 0, seed
      while nst.clock() < stop do
        math.randomseed(s)
        local kinds = { "worker", "worker", "worker", "worker", "host", "host", "server" }
        jobs = jobs + one(server, s, math.random(500), pick_strikes(kinds, math.random(0, 12)), 120)
        n, s = n + 1, s + 1
        io.write(("%d graphs, %d jobs, seed %d\n"):format(n, jobs, s - 1))
        io.flush()
      end
    end)
  end
end)
