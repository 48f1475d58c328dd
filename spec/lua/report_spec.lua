-- Listings, counts and series: their contents, and that listings read as many rows as they show.

local host = require "spec.support.host"
local lab = require "spec.support.db".lab
local nightshift = require "nightshift"
local nst = require "nst"
local report = require "nightshift.report"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

describe("among thousands:", function()
  local db, q

  local MANY = 3000

  setup(function()
    db = assert(nightshift.open { url = (server.fresh()), max_children = 10000 })
    q = db:queue "many"
    local ready, scheduled = {}, {}
    for i = 1, MANY do
      ready[i] = { "a", i }
      scheduled[i] = { "a", i, { delay = 3600 + i } }
    end
    assert(q:push_many(ready))
    assert(q:push_many(scheduled))
    local parent = db:queue "parents"
    parent:push("p", 1)
    local job = parent:claim()
    for i = 1, MANY do assert(job:spawn("child", i)) end
    job:again(3600) -- the children wait
    local dead = db:queue "dead"
    assert(dead:push_many(ready))
    for _, claimed in ipairs(dead:claim_many(200)) do claimed:discard "x" end
    assert(db:execute "ANALYZE TABLE nightshift_job, nightshift_ready, nightshift_scheduled, nightshift_edge")
  end)

  teardown(function() db:close() end)

  -- Rows the server reads for what `fn` does on a handle.
  local function rows_read(fn, handle)
    handle = handle or db
    assert(handle:execute "FLUSH STATUS")
    fn()
    local sum = 0
    for _, row in ipairs(handle:execute "SHOW SESSION STATUS LIKE 'Handler_read%'") do
      sum = sum + tonumber(row.Value)
    end
    return sum
  end

  describe("a job that is due, and that nobody has moved into ready", function()
    it("is ready in every listing and count", function()
      local place = db:queue "due"
      local id = assert(place:push("late", 1, { delay = 0.001 }))
      assert(db:execute("DO SLEEP(0.01)"))
      assert.equal("ready", db:job(id).state)
      assert.equal("ready", db:jobs({ queue = "due" })[1].state)
      assert.equal(id, db:jobs({ queue = "due", state = "ready" })[1].id)
      assert.same({}, db:jobs { queue = "due", state = "scheduled" })
      assert.equal("ready", db:execute("SELECT state FROM nightshift_jobs WHERE id = ?", id)[1].state)
      local stats = place:stats()
      assert.same({ 1, 0 }, { stats.ready, stats.scheduled })
      assert.is_true(stats.oldest > 0)
    end)
  end)

  describe("a running job behind old batches of jobs that have gone on", function()
    it("is listed", function()
      local handle <close> = assert(nightshift.open((server.fresh())))
      local place = handle:queue "long"
      local id = assert(place:push("long", 1))
      local job = assert(place:claim())
      assert(handle:execute [=[INSERT INTO nightshift_lease (id, holder, claimed, jobs)
        SELECT 1 + seq, (SELECT MIN(id) FROM nightshift_holder), 1,
          CONCAT('[', REPEAT(CONCAT('[', 900000000 + seq, ',1],'), 999), '[1,1]]') FROM seq_1_to_25]=])
      for _, filter in ipairs { { state = "running" }, { state = "running", queue = "long" } } do
        assert.equal(id, assert(handle:jobs(filter)[1], "none").id)
      end
      assert(job:ack())
    end)
  end)

  -- All claims were unfolded, wherever their jobs were.
  describe("jobs that decide by their claims", function()
    it("are told without a look at claims of ids far away", function()
      local handle <close> = assert(nightshift.open((server.fresh())))
      local place, claimed = handle:queue "near", {}
      for i = 1, 20 do assert(place:push("near", i)) end
      for i = 1, 3 do claimed[i] = assert(place:claim()) end
      assert(handle:execute [=[INSERT INTO nightshift_lease (id, holder, claimed, jobs)
        SELECT 1 + seq, (SELECT MIN(id) FROM nightshift_holder), 1,
          CONCAT('[', REPEAT(CONCAT('[', 900000000 + seq, ',1],'), 999), '[800000000,1]]') FROM seq_1_to_25]=])
      local n = rows_read(function()
        for state, many in pairs { ready = 17, running = 3 } do
          assert.equal(many, #assert(handle:jobs { state = state, name = "near", after = 1 << 40, look = 2000 }))
        end
        assert.equal(20, #assert(handle:jobs()))
      end, handle)
      assert.is_true(n < 2000, n .. " rows")
      for _, job in ipairs(claimed) do assert(job:ack()) end
    end)

    it("are found whatever the ids are", function()
      local filter = require "nightshift.filter"
      local edges, texts = { 0, 1, 9, 10, 11, 99, 100, 101, 999, 1000, 5049, 5150, 123456, 4611686018427387904 }, {}
      for _, low in ipairs(edges) do
        for _, high in ipairs(edges) do
          for _, id in ipairs { low, (low + high) // 2, high } do
            if low <= high and id > 0 then
              local what = ("%d in %d to %d"):format(id, low, high)
              texts[#texts + 1] = { ("[[7,1],[%d,12]]"):format(id), filter.claims(low, high), what }
            end
          end
        end
      end
      local missed = assert(db:execute([[SELECT v.what FROM JSON_TABLE(?, '$[*]' COLUMNS (text VARCHAR(60) PATH '$[0]',
        pattern VARCHAR(300) PATH '$[1]', what VARCHAR(90) PATH '$[2]')) v WHERE NOT v.text REGEXP v.pattern]],
        nightshift.encode(texts)))
      assert.same({}, missed)
      local one = assert(db:execute("SELECT '[[50500,1]]' REGEXP ? AS far, '[[5050,1]]' REGEXP ? AS near",
        filter.claims(5000, 5100), filter.claims(5000, 5100)))[1]
      assert.same({ 0, 1 }, { one.far, one.near })
    end)
  end)

  describe("a listing of ten jobs", function()
    for _, state in ipairs { "ready", "scheduled", "waiting", "dead" } do
      it("reads a few rows of the " .. state .. " ones", function()
        local n = rows_read(function() assert.equal(10, #db:jobs { state = state, limit = 10 }) end)
        assert.is_true(n < 200, n .. " rows")
      end)
    end

    it("reads a few rows when a queue is named", function()
      local n = rows_read(function() assert.equal(10, #db:jobs { state = "ready", queue = "many", limit = 10 }) end)
      assert.is_true(n < 200, n .. " rows")
    end)

    it("reads a few rows over all states", function()
      local n = rows_read(function() assert.equal(10, #db:jobs { limit = 10 }) end)
      assert.is_true(n < 400, n .. " rows")
    end)
  end)

  describe("a job that waits", function()
    it("is listed once and counted once", function()
      local rows = db:jobs { state = "waiting", limit = 10000 }
      assert.equal(MANY, #rows)
      assert.equal(1, rows[1].unmet)
      assert.equal(1000, db:queue("parents"):stats().waiting)
      local parent = db:jobs({ queue = "parents", state = "scheduled" })[1]
      assert.equal(5, #report.waiters(db._handle, parent.id, 5))
    end)
  end)

  describe("a job parked for a signal", function()
    local id, other, place

    setup(function()
      place = db:queue "approvals"
      id = assert(place:push("form", 1))
      assert(place:claim():wait { signal = "approved" })
      other = assert(place:push("form", 2))
      assert(place:claim():wait { signal = "approved", deadline = "1h" })
      assert(place:push("later", 3, { delay = 60 }))
    end)

    local function ids(filter)
      filter.queue = "approvals"
      local found = {}
      for i, row in ipairs(assert(db:jobs(filter))) do found[i] = row.id end
      return found
    end

    it("is waiting, not scheduled, in every listing", function()
      assert.same({ id, other }, ids { state = "waiting" })
      assert.equal(1, #ids { state = "scheduled" })
      assert.equal("later", db:jobs({ queue = "approvals", state = "scheduled" })[1].name)
      for _, row in ipairs(db:jobs { queue = "approvals" }) do
        assert.equal(row.name == "form" and "waiting" or "scheduled", row.state)
        assert.equal(row.name == "form" and "approved" or nil, row.awaits)
      end
      local rows = db:execute "SELECT id, name, state, awaits FROM nightshift_jobs WHERE queue = 'approvals'"
      for _, row in ipairs(rows) do
        assert.equal(db:job(row.id).state, row.state)
        assert.equal(row.name == "form" and "approved" or nil, row.awaits)
      end
    end)

    it("says what it waits for", function()
      assert.equal("approved", db:jobs({ queue = "approvals", state = "waiting" })[1].awaits)
      assert.equal("approved", db:job(id).awaits)
    end)

    it("is counted with those that wait", function()
      local stats = place:stats()
      assert.same({ 2, 1, 0 }, { stats.waiting, stats.scheduled, stats.ready })
    end)

    it("is ready with its signal", function()
      assert(db:signal(other, true))
      assert.equal("ready", db:job(other).state)
      assert.same({ id }, ids { state = "waiting" })
      assert.equal(1, #ids { state = "scheduled" })
    end)
  end)

  describe("counts", function()
    it("look at every job of small queues", function()
      local place = db:queue "small"
      local first = assert(place:push("a", 1))
      for i = 1, 9 do place:push("a", i) end
      db:cancel(first)
      local stats = place:stats()
      assert.same({ 9, 0, 0, 0 }, { stats.ready, stats.scheduled, stats.running, stats.dead })
      assert.is_nil(stats.approximate)
    end)

    it("stop at a thousand", function()
      local stats = q:stats()
      assert.same({ 1000, 1000 }, { stats.ready, stats.scheduled })
      assert.same({ ready = true, scheduled = true }, stats.approximate)
      assert.is_true(stats.oldest > 0 and stats.next > 3500)
      local waits = db:queue "parents":stats()
      assert.equal(1000, waits.waiting)
      assert.is_true(waits.approximate.waiting)
    end)

    it("say what a prune would take", function()
      assert.same({ done = 0, dead = 200, cancelled = 1 }, report.prunable(db._handle, 0, 0, 0))
      assert.same({ done = 0, dead = 0, cancelled = 0 }, report.prunable(db._handle, -1, -1, -1))
    end)
  end)

  describe("a listing by name among 45,000 jobs", function()
    local many, place, first

    setup(function()
      many = server.fresh()
      local handle <close> = assert(nightshift.open(many))
      place = handle:queue "q"
      first = assert(place:push("rare", 1))
      local batch = {}
      for i = 1, 1000 do batch[i] = { "common", i } end
      for _ = 1, 25 do assert(place:push_many(batch)) end
      assert(handle:execute [[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, run,
        attempts, polls, crashes, lost, max_attempts, max_crashes, backoff, timeout,
        created, finished_at, on_fail, nonce)
      SELECT 1000000000 + seq, 1, 'ended', '1', 100, 'done', 1, 0, 0, 0, 0, 10, 5, 1, 1, 1, 1, 'cancel', 1
      FROM seq_1_to_20000]])
    end)

    it("looks at 20,000, and says how to go on", function()
      local handle <close> = assert(nightshift.open(many))
      for _, filter in ipairs { { name = "rare" }, { name = "rare", state = "ready" } } do
        local pages, list, more = 1, handle:jobs(filter)
        while #list == 0 do
          assert.equal(20000, more.looked)
          filter.after, pages = more.after, pages + 1
          list, more = handle:jobs(filter)
        end
        assert.equal(first, list[1].id)
        assert.equal(filter.state and 2 or 3, pages)
      end
      local list, more = handle:jobs { name = "common", state = "ready", limit = 10 }
      assert.equal(10, #list)
      assert.same({ after = list[10].id }, more)
      assert.is_true(handle:jobs({ name = "common", state = "ready", limit = 10,
        after = more.after })[1].id < more.after)
      assert.same({}, (handle:jobs { name = "none", state = "done" }))
    end)

    -- All jobs with the tag were read, however many there are: a second for 100,000.
    it("looks at 20,000 jobs of a tag, and says how to go on", function()
      local handle <close> = assert(nightshift.open(many))
      assert(handle:execute("INSERT INTO nightshift_tag VALUES (?, 'many')", first))
      assert(handle:execute("UPDATE nightshift_job SET tagged = 1 WHERE id = ?", first))
      assert(handle:execute "INSERT INTO nightshift_tag SELECT id, 'many' FROM nightshift_finished")
      local list, more = handle:jobs { tag = "many", name = "rare" }
      assert.same({ 0, { looked = 20000, after = 1000000001 } }, { #list, more })
      list, more = handle:jobs { tag = "many", name = "rare", after = more.after }
      assert.same({ first, nil }, { list[1].id, more })
      list, more = handle:jobs { tag = "many", limit = 7 }
      assert.same({ 7, { after = 1000019994 } }, { #list, more })
    end)

    -- With a queue it looked at 20,000 jobs of all queues, and found none of a quiet one.
    it("finds the ended jobs of a queue behind 100,000 of others, each once", function()
      local handle <close> = assert(nightshift.open(many))
      local quiet = assert(handle._handle:queue_id("quiet", true))
      assert(handle:execute([[INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason,
        run, attempts, polls, crashes, lost, max_attempts, max_crashes, backoff, timeout,
        created, finished_at, on_fail, nonce)
      SELECT 2000000000 + seq, IF(seq <= 30 OR seq = 59990, ?, 1), 'ended', '1', 100, 'dead', 'failed', 1, 0, 0, 0, 0,
        10, 5, 1, 1, 1, 1 + seq DIV 60000, 'cancel', 1 FROM seq_1_to_100020]], quiet))
      local filter, seen = { queue = "quiet", state = "dead", limit = 20 }, {}
      local more
      repeat
        local list
        list, more = handle:jobs(filter)
        for _, row in ipairs(list) do seen[#seen + 1] = row.id - 2000000000 end
        filter.after = more and more.after
      until not more
      local expected = { 59990 }
      for i = 30, 1, -1 do expected[#expected + 1] = i end
      assert.same(expected, seen)
    end)

    it("says so on the command line", function()
      local exit, out, err = proc.nightshift({ "jobs", "--name", "rare", "--state", "ready" }, many)
      assert.same({ 0, "no such jobs\n" }, { exit, out })
      local after = err:match "^nightshift: looked at 20000 jobs, down to id (%d+); %-%-after %1 goes on\n$"
      assert.is_truthy(after, err)
      exit, out, err = proc.nightshift({ "jobs", "--name", "rare", "--state", "ready", "--after", after, "--json" },
        many)
      assert.same({ 0, "" }, { exit, err })
      assert.is_truthy(out:find(tostring(first), 1, true))
      exit, out = proc.nightshift({ "cancel", "--name", "rare", "--yes" }, many)
      assert.same({ 0, "1 job cancelled\n" }, { exit, out })
    end)
  end)
end)

describe("states:", function()
  local ids_of = lab.ids_of

  local db
  lab.handles(1, function(handle) db = handle end)

  local function fresh_queue() return lab.queue(db) end

  describe("listings", function()
    it("show each state in its own order", function()
      local q = fresh_queue()
      local low = q:push("low", 1, { priority = 1 })
      local high = q:push("high", 1, { priority = 201 })
      local later = q:push("later", 1, { delay = "2h" })
      local soon = q:push("soon", 1, { delay = "1h" })
      local function list(state) return ids_of(db:jobs { state = state, queue = q.name }) end
      assert.same({ high, low }, list "ready")
      assert.same({ soon, later }, list "scheduled")
      local job = q:claim()
      assert.same({ high }, list "running")
      assert.same({ low }, list "ready")
      job:ack()
      q:claim():discard "no"
      db:cancel(soon, { reason = "not needed" })
      assert.same({ { high }, { low }, { soon }, {}, {} },
        { list "done", list "dead", list "cancelled", list "ready", list "running" })
      assert.same({ soon, later, high, low }, list())
      local states = {}
      for _, row in ipairs(db:jobs { queue = q.name }) do states[row.id] = row.state end
      assert.same({ [low] = "dead", [high] = "done", [soon] = "cancelled", [later] = "scheduled" }, states)
      assert.equal("not needed", db:job(soon).reason)
      db:cancel(later)
    end)

    it("filter by name and stop at the limit", function()
      local q = fresh_queue()
      for i = 1, 5 do q:push(i % 2 == 0 and "even" or "odd", i) end
      assert.equal(2, #db:jobs { queue = q.name, name = "even" })
      assert.equal(3, #db:jobs { queue = q.name, name = "odd", state = "ready" })
      assert.equal(4, #db:jobs { queue = q.name, limit = 4 })
      assert.same({}, db:jobs { queue = "no such queue" })
      for job in q:jobs() do job:ack() end
    end)

    --- Dead jobs, one of each error, and the ids.
    local function dead_of(q, errors)
      local ids = {}
      for i in ipairs(errors) do ids[i] = q:push("job", i) end
      for i in ipairs(errors) do q:claim():discard(errors[i]) end
      return ids
    end

    it("filter by error: its text, its first line, its kind", function()
      local q = fresh_queue()
      local FIRST = "jobs.lua:12: order 17 of 'ann' at 0x55aa: 3f2504e0-4f89-41d3-9a0c-0305e82c3301 can't"
      local KIND = "jobs.lua:#: order # of # at #: # can't"
      local dead = dead_of(q, { FIRST .. "\nat line 12", "jobs.lua:13: order 2 of 'bob' at 0x1: "
        .. "beefbeef-beef-beef-beef-beefbeefbeef can't", "another", "%", "jobs.lua:12: order 17 of" })
      local function of(text) return ids_of(db:jobs { queue = q.name, state = "dead", error = text }) end
      assert.same({ dead[1] }, of(FIRST .. "\nat line 12"))
      assert.same({ dead[1] }, of(FIRST))
      assert.same({ dead[2], dead[1] }, of(KIND))
      assert.same({ dead[4] }, of "%")
      assert.same({}, of "jobs.lua:%")
      assert.same({ dead[2], dead[1] }, ids_of(db:jobs { queue = q.name, error = KIND }))
      local id = q:push("job", 1, { backoff = 60 })
      q:claim():fail "disk 7 is full"
      for _, state in ipairs { "scheduled", false } do
        local list = db:jobs { queue = q.name, state = state or nil, error = "disk # is full" }
        assert.same({ id }, ids_of(list))
      end
      assert(db:cancel(id, { reason = "no 1" }))
      assert.same({ id }, ids_of(db:jobs { queue = q.name, state = "cancelled", error = "no #" }))
    end)

    it("filter by time: the end of ended jobs, the push of live ones", function()
      local q = fresh_queue()
      local old = dead_of(q, { "a", "b" })
      assert(db:execute("UPDATE nightshift_finished SET finished_at = finished_at - 7200000000 WHERE id = ?", old[1]))
      local live = { q:push("a", 1), q:push("a", 2) }
      assert(db:execute("UPDATE nightshift_job SET created = created - 7200000000 WHERE id = ?", live[1]))
      local function since(state, at) return ids_of(db:jobs { queue = q.name, state = state, since = at }) end
      assert.same({ old[2] }, since("dead", "1h"))
      assert.same({ old[2], old[1] }, since("dead", "3h"))
      assert.same({ live[2], old[2] }, since(nil, "1h"))
      assert.same({ live[2] }, since("ready", "1h"))
      local at = assert(db:job(old[2])).finished_at
      assert.same({ old[2] }, since("dead", at))
      assert.same({}, since("dead", at + 1))
      assert.same({ old[2] }, since("dead", os.date("!%Y-%m-%dT%H:%M:%SZ", at // 1 | 0)))
      assert.same({ old[2] }, since("dead", os.date("!%Y-%m-%d %H:%M", at // 1 | 0)))
      for _, bad in ipairs { 3600, "yesterday", "2026-13-01", "2026-11-26T25:00", "" } do
        assert.equal("INVALID", select(3, db:jobs { since = bad }), bad)
      end
      for job in q:jobs() do job:ack() end
    end)

    it("of one outcome go on behind a job, as long as that has it", function()
      local q = fresh_queue()
      local dead = dead_of(q, { "a", "b", "c", "b", "a" })
      local function list(given, after)
        given.queue, given.state, given.after = q.name, "dead", after
        local rows, more = assert(db:jobs(given))
        return { ids_of(rows), more and more.after }
      end
      assert.same({ { dead[5], dead[4] }, dead[4] }, list { limit = 2 })
      assert.same({ { dead[3], dead[2] }, dead[2] }, list({ limit = 2 }, dead[4]))
      assert.same({ { dead[1] } }, list({ limit = 2 }, dead[2]))
      assert.same({ { dead[2] } }, list({ error = "b" }, dead[4]))
      assert(db:execute("UPDATE nightshift_finished SET finished_at = 1 WHERE id = ?", dead[5]))
      assert.same({ { dead[4] }, dead[4] }, list { limit = 1 })
      assert.same({ { dead[1], dead[5] } }, list({}, dead[2]))
      assert(db:retry(dead[4]))
      local none, message, code = db:jobs { state = "dead", after = dead[4] }
      assert.same({ "NOT_FOUND", ("job %d, which the list is to go on behind, is not dead any more"):format(dead[4]) },
        { code, message }, none)
      q:claim():ack()
    end)

    it("filter by parent, and page through its children", function()
      local q = fresh_queue()
      local top, children = q:push("top", 1), {}
      for i = 1, 5 do children[i] = q:push(i % 2 == 0 and "even" or "odd", i, { parent = top, delay = 60 }) end
      assert(db:cancel(children[1]))
      assert.same({ children[5], children[4], children[3], children[2], children[1] }, ids_of(db:jobs { parent = top }))
      assert.same({ children[5], children[3] }, ids_of(db:jobs { parent = top, name = "odd", state = "scheduled" }))
      assert.same({ children[1] }, ids_of(db:jobs { parent = top, state = "cancelled" }))
      local _, more = db:jobs { parent = top, limit = 2 }
      assert.same({ after = children[4] }, more)
      local list
      list, more = db:jobs { parent = top, limit = 3, after = more.after }
      assert.same({ children[3], children[2], children[1] }, ids_of(list))
      assert.same({}, (db:jobs { parent = top, after = more.after }))
      assert.same({}, (db:jobs { parent = children[1] }))
      assert.equal("INVALID", select(3, db:jobs { parent = 0 }))
    end)

    it("show who waits for whom, and leave out what a cancel removed", function()
      local q = fresh_queue()
      local one, two = q:push("a", 1), q:push("a", 2)
      db:cancel(one)
      assert.same({ two }, ids_of(db:jobs { state = "ready", queue = q.name }))
      assert.equal(1, q:stats().ready)
      q:claim():ack()
    end)

    it("refuse what they do not know", function()
      assert.error_matches(function() db:jobs { sate = "dead" } end,
        "jobs: unknown option 'sate'; did you mean 'state'")
      local none, message, code = db:jobs { state = "deceased" }
      assert.same({ nil, "INVALID" }, { none, code })
      assert.is_truthy(message:find("one of scheduled, ready, running", 1, true), message)
      assert.equal("INVALID", select(3, db:jobs { limit = 0 }))
    end)
  end)

  describe("errors", function()
    local function kinds(given)
      local list, more = assert(db:errors(given))
      local found = {}
      for i, kind in ipairs(list) do
        found[i] = { kind.error, kind.count, kind.dead, kind.retrying, kind.id, kind.queue, kind.name }
      end
      return found, list, more
    end

    it("are counted by their kinds, of dead jobs and of those that are tried again", function()
      local q, ids = fresh_queue(), {}
      for i, text in ipairs { "disk 1 is full\nat 7", "no route to 'a'", "disk 2 is full", "no route to 'b'" } do
        ids[i] = q:push("job" .. i, i, { max_attempts = i == 4 and 2 or 1, backoff = 60 })
        q:claim():fail(text)
      end
      assert(db:retry(q:push("fine", 1) and ids[1])) -- a job that is retried is not failing
      for job in q:jobs() do
        if job.id == ids[1] then job:fail "disk 77 is full" else job:ack() end
      end
      local found, list, more = kinds { queue = q.name }
      assert.same({ { "disk # is full", 2, 2, 0, ids[3], q.name, "job3" },
        { "no route to #", 2, 1, 1, ids[4], q.name, "job4" } }, found)
      assert.is_nil(more)
      assert.is_true(list[1].first <= list[1].last and list[1].last <= os.time() + 1)
      assert.same({ found[1] }, (kinds { queue = q.name, limit = 1 }))
      assert.equal(1, kinds({ queue = q.name, name = "job2" })[1][2])
      assert.same({ {}, {} }, { (kinds { queue = q.name, since = os.time() + 3600 }), (kinds { queue = "none" }) })
      assert.same({ looked = 1 }, select(2, db:errors { queue = q.name, look = 1 }))
      assert.equal("INVALID", select(3, db:errors { look = 0 }))
      for _, kind in ipairs(list) do
        assert.equal(kind.dead, assert(db:retry { queue = q.name, error = kind.error }).changed)
        assert.equal(kind.retrying, assert(db:run_now { queue = q.name, error = kind.error }).changed)
      end
      for job in q:jobs() do job:ack() end
      assert.same({}, (kinds { queue = q.name }))
    end)

    it("leave out what differs from job to job, whatever the text", function()
      local q = fresh_queue()
      local found = {}
      for text, kind in pairs {
        ["f.lua:1: it's 5 o'clock"] = "f.lua:#: it's # o'clock",
        ['key "a" and \'b c\''] = "key # and #",
        ["id 3f2504e04f8941d3, at 0xdeadbeef"] = "id #, at #",
        ["user beef of cafe"] = "user beef of cafe",
        ["job12 v2"] = "job# v#",
        [""] = "failed",
        ["\nsecond"] = "",
        ["100% _ \\ `x`; DROP TABLE t; -- ' "] = "#% _ \\ `x`; DROP TABLE t; -- ' ",
        [("é"):rep(300)] = ("é"):rep(200),
        ["\u{202e}#1"] = "\u{202e}##",
      } do
        local id = q:push("job", 1, { max_attempts = 1 })
        q:claim():fail(text)
        found[kind] = id
        local one = db:jobs { queue = q.name, error = kind, state = "dead" }
        assert.same({ id }, ids_of(one), kind)
      end
      q:push "job"
      q:claim():ack() -- it is of no error, not of an empty one
      assert.same({ found[""] }, ids_of(db:jobs { queue = q.name, error = "" }))
      for _, kind in ipairs(assert(db:errors { queue = q.name })) do
        assert.equal(found[kind.error], kind.id, kind.error)
        found[kind.error] = nil
      end
      assert.same({}, found)
    end)
  end)

  describe("stats", function()
    it("count per queue", function()
      local q = fresh_queue()
      q:push("a", 1)
      q:push("a", 2)
      q:push("a", 3, { delay = 60 })
      local job = q:claim()
      local stats = q:stats()
      assert.same({ 1, 1, 1, 0, 0, false },
        { stats.ready, stats.scheduled, stats.running, stats.waiting, stats.dead, stats.paused })
      assert.is_true(stats.oldest >= 0 and stats.oldest < 60)
      assert.is_true(stats.next > 50 and stats.next <= 60)
      job:discard "x"
      assert.equal(1, q:stats().dead)
      assert.equal(0, db:queue("never used"):stats().ready)
    end)

    it("name the holders", function()
      local q = fresh_queue()
      q:push("a", 1)
      local job = q:claim()
      local mine
      local all = db:stats()
      for _, holder in ipairs(all.holders) do
        if holder.leases > 0 then mine = holder end
      end
      assert.equal("handle", mine.kind)
      assert.is_true(all.counters.claimed >= 1)
      job:ack()
    end)
  end)
end)

-- What happens in queues, by minutes. What is counted is shown when its minute has been over for a
-- while; here its rows are moved back, by twice their own length.
describe("series:", function()
  local db, url
  setup(function()
    url = server.fresh()
    db = assert(nightshift.open(url))
  end)
  teardown(function() db:close() end)

  local function rows(queue)
    return assert(db:execute([[SELECT m.minutes, m.pushed, m.done, m.runs FROM nightshift_minute m
      JOIN nightshift_queue q ON q.id = m.queue_id WHERE q.name = ? ORDER BY m.minutes]], queue))
  end

  --- The sums of a queue's series, which all spans have.
  local function summed(queue)
    assert(db:execute [[UPDATE nightshift_minute SET at = at - 2 * minutes * 60000000
      WHERE minutes > 0 ORDER BY minutes, at]])
    local sums
    for span, n in pairs { ["1h"] = 60, ["1d"] = 96, [604800] = 84 } do
      local list, sum = assert(db:series { span = span, queue = queue }), { wait_max = 0, run_max = 0 }
      assert.equal(n, #list)
      for i, bucket in ipairs(list) do
        assert.equal(0, bucket.at % 60)
        if i > 1 then assert.equal(list[2].at - list[1].at, bucket.at - list[i - 1].at) end
        assert.same({ bucket.runs > 0, bucket.runs > 0 }, { bucket.run ~= nil, bucket.wait ~= nil })
        for key, value in pairs(bucket) do
          if key:find "_max" then sum[key] = math.max(sum[key], value) else sum[key] = (sum[key] or 0) + value end
        end
      end
      sum.at, sum.run, sum.wait = nil, nil, nil
      sums = sums or sum
      assert.same(sums, sum, span)
    end
    return sums
  end

  it("have what a program did in a queue, and nothing that was rolled back", function()
    local h = assert(nightshift.open(url))
    local q = h:queue "program"
    assert(q:push "done")
    assert(q:push_many { { "parent" }, { "dead", nil, { max_attempts = 1 } } })
    local id = assert(q:push("late", nil, { delay = 60 }))
    assert(h:transaction(function(tx)
      assert(tx:queue("program"):push "kept")
      tx:try(function()
        assert(tx:queue("program"):push "undone")
        return nil, "no"
      end)
      return true
    end))
    assert.is_nil(h:transaction(function(tx)
      assert(tx:queue("program"):push "lost")
      return nil, "no"
    end))
    assert.is_nil(q:push("known", nil, { unique = "k" }) and q:push("known", nil, { unique = "k" }))
    nst.sleep(0.05)
    local first = assert(q:claim())
    nst.sleep(0.05)
    assert(first:ack())
    local parent = assert(q:claim())
    parent:spawn("child", 1)
    assert(parent:ack { 1 })
    assert(assert(q:claim()):fail "no")
    local joined = assert(q:claim())
    assert(h:transaction(function(tx) return tx:ack(joined) end))
    assert(h:cancel(id))
    assert.same({}, rows "program")
    h:close()
    assert.same({ 0, 1, 15, 120 }, (function()
      local minutes = {}
      for i, row in ipairs(rows "program") do minutes[i] = row.minutes end
      return minutes
    end)())
    local sums, rate = summed "program", nil
    for _, row in ipairs(assert(db._handle:execute("@report_rates", 5))) do
      if row.queue == "program" then rate = row.ended end
    end
    assert.equal(5, rate)
    assert.is_true(sums.wait_max >= 0.05 and sums.wait_max < 60, sums.wait_max)
    assert.is_true(sums.run_max >= 0.05 and sums.run_max < 60, sums.run_max)
    sums.wait_max, sums.run_max = nil, nil
    assert.same({ done = 3, failed = 1, dead = 1, cancelled = 1, pushed = 7, runs = 4 }, sums)
    assert.equal(7, summed().pushed)
    assert.equal(0, summed("never used").pushed)
  end)

  for _, when in ipairs { "before", "after" } do
    it("count once what was cut at its commit: " .. when, function()
      local proxy = proc.proxy.start(server.shared())
      local h = assert(nightshift.open(proxy:url(url)))
      local q = h:queue("cut " .. when)
      proxy:tell("commit " .. when .. " 1")
      assert(q:push "a")
      assert.equal("yes", proxy:tell "fired")
      local job = assert(q:claim())
      proxy:tell("commit " .. when .. " 1")
      assert(job:ack())
      assert.equal("yes", proxy:tell "fired")
      h:close()
      assert.same({ minutes = 0, pushed = 1, done = 1, runs = 1 }, rows(q.name)[1])
    end)
  end

  it("have what a host did, though it has ended", function()
    local q = db:queue "host"
    assert(q:push_many { { "ok" }, { "ok" }, { "ok" }, { "fails", nil, { max_attempts = 2, backoff = 0 } },
      { "again" }, { "gone" } })
    assert.equal(3, (host.drain(url, [[return {
      ok = function(job) return job.id end,
      fails = function() error "no" end,
      again = function(job) if job.polls == 0 then return job:again(0) end require "nightshift.core".sleep(0.06) end,
      gone = function(job) job:spawn("ok") return job:discard "no" end,
    }]]))) -- 3: jobs of other queues are left
    local sums = summed "host"
    assert.is_true(sums.run_max >= 0.06 and sums.run_max < 60, sums.run_max)
    sums.wait_max, sums.run_max, sums.pushed = nil, nil, nil
    assert.same({ done = 4, failed = 2, dead = 2, cancelled = 0, runs = 8 }, sums)
  end)

  it("cost a handle that does nothing nothing, and one that does no more than a statement a minute", function()
    local h = assert(nightshift.open(url))
    local q = h:queue "seldom"
    assert.equal(0, h._handle:tell())
    assert(q:push "a")
    assert.equal(0, h._handle:tell())
    assert.equal(1, rows("seldom")[1].pushed)
    assert(q:push "b")
    local left = h._handle:tell()
    assert.is_true(left > 0 and left <= 60000000, left)
    assert.equal(1, rows("seldom")[1].pushed)
    h:close()
    assert.equal(2, rows("seldom")[1].pushed)
  end)

  it("wait for no lock, and forget what could not be written when the handle is closed", function()
    local h, locker <close> = assert(nightshift.open(url)), assert(nightshift.open(url))
    assert(h:queue("locked"):push "a")
    assert(locker:transaction(function(tx)
      assert(tx:execute "SELECT * FROM nightshift_minute FOR UPDATE")
      local begun = nst.clock()
      assert.is_true(h._handle:tell() > 0)
      assert(h:queue("locked"):push "b")
      h:close()
      assert.is_true(nst.clock() - begun < proc.limit(2), nst.clock() - begun)
      return true
    end))
    assert.same({}, rows "locked")
  end)

  it("count a hundred queues of a handle apart, and all of them together", function()
    local h, id = assert(nightshift.open(url)), db:execute("SELECT MAX(id) AS id FROM nightshift_queue")[1].id
    local function number(condition)
      return db:execute("SELECT MAX(pushed) AS pushed, COUNT(*) AS n FROM nightshift_minute WHERE " .. condition)[1]
    end
    local before = number("minutes = 0 AND queue_id = 0").pushed or 0
    for i = 1, 130 do assert(h:queue("named" .. i):push("a", i)) end
    h:close()
    assert.equal(100, number("minutes = 15 AND queue_id > " .. id).n)
    assert.equal(before + 130, number("minutes = 0 AND queue_id = 0").pushed)
  end)

  it("are pruned with the history, but for the sums of all time", function()
    local day = "86400000000"
    assert(db:execute("DELETE FROM nightshift_minute"))
    assert(db:execute((([[INSERT INTO nightshift_minute
      SELECT m.minutes, UNIX_TIMESTAMP() * 1000000 - d.us, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1
      FROM (SELECT 1 AS minutes UNION SELECT 15 UNION SELECT 120) m,
        (SELECT 0 AS us UNION SELECT 0.9 * D UNION SELECT 1.1 * D UNION SELECT 7.9 * D UNION SELECT 8.1 * D) d
      UNION ALL SELECT 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]]):gsub("D", day))))
    assert(db:prune())
    local left = {}
    for _, row in ipairs(db:execute "SELECT minutes, COUNT(*) AS n FROM nightshift_minute GROUP BY minutes") do
      left[row.minutes] = row.n
    end
    assert.same({ [0] = 1, [1] = 2, [15] = 4, [120] = 4 }, left)
  end)

  it("refuse spans that there are not", function()
    local none, message, code = db:series { span = "2h" }
    assert.same({ nil, "series: span must be an hour, a day or 7 days", "INVALID" }, { none, message, code })
    assert.error_matches(function() db:series { spam = "1h" } end, "unknown option 'spam'; did you mean 'span'")
    local figures = require "nightshift.report.figures"
    assert.error_matches(function() figures.series(db, 60) end, "the span is 3600, 86400 or")
  end)
end)

-- What an autoscaler asks. Minutes and hosts are rows that are written here, so that all numbers are
-- known.
describe("scale:", function()
  local db, keeper, url
  local HOST = 77 -- its id, below all others

  setup(function()
    url = server.fresh()
    db, keeper = assert(nightshift.open(url)), assert(nightshift.open(url))
    assert(keeper:execute("SELECT GET_LOCK(CONCAT('nightshift:', MD5(DATABASE()), ':', ?), 0)", HOST)) -- so it lives
  end)
  teardown(function()
    keeper:close()
    db:close()
  end)

  local function id_of(name) return db:execute("SELECT id FROM nightshift_queue WHERE name = ?", name)[1].id end

  local function push(name, n)
    local list = {}
    for i = 1, n do list[i] = { "a", i } end
    assert(db:queue(name):push_many(list))
    assert(db:execute "DELETE FROM nightshift_minute")
  end

  --- 300 pushed, 500 done and 100 dead in one of the last five minutes; 1,200 runs of half a second.
  local function lived(name)
    assert(db:execute([[INSERT INTO nightshift_minute
      VALUES (1, UNIX_TIMESTAMP() DIV 60 * 60000000 - 180000000, ?, 500, 600, 100, 40, 300, 0, 0, 0, 1200, 600000000,
        1)]], id_of(name)))
  end

  --- A host with four workers, two of them busy.
  local function host_of(queues, reserves)
    assert(db:execute [[REPLACE INTO nightshift_holder
      (id, kind, host, pid, boot_id, connection, started, beat, version, workers, busy)
      VALUES (77, 'host', 'h', 1, '', 0, 1, UNIX_TIMESTAMP() * 1000000, '', 4, 2)]])
    assert(db:execute([[REPLACE INTO nightshift_served (holder, workers, queues, handlers, reserves)
      VALUES (77, 4, ?, '[]', ?)]], queues, reserves))
  end

  local function near(expected, value) assert.is_true(math.abs(value - expected) < 0.01 * expected, value) end

  local function row_of(name, target) return assert(db:scale { queues = { name }, target = target }).queues[1] end

  it("counts few jobs exactly, and says so of what is not known", function()
    push("few", 5)
    local jobs = db:jobs { queue = "few" }
    assert(db:cancel(jobs[1].id))
    assert(db:queue("few"):push("a", 1, { delay = "1h" }))
    assert(db:queue("few"):push("a", 1, { after = { jobs[2].id } }))
    nst.sleep(0.01)
    local found = assert(db:scale { queues = { "few" } })
    local row = found.queues[1]
    assert.is_true(row.oldest_age >= 0.01 and row.oldest_age < 60, row.oldest_age)
    row.oldest_age = 0
    local expected = { name = "few", paused = false, ready = 4, counted_ago = 0, scheduled = 1, running = 0,
      waiting = 1, oldest_age = 0, rate_in = 0, rate_out = 0, workers = 0, busy = 0, wanted = 1 }
    assert.same(expected, row)
    assert.equal(60, found.target)
    expected.name, expected.paused = nil, nil
    found.total.oldest_age = 0
    assert.same(expected, found.total)
  end)

  it("counts many jobs once, for all who ask in the next time", function()
    push("many", 1200)
    local row = row_of "many"
    assert.same({ 1200, 0 }, { row.ready, row.counted_ago })
    local name = "ready:" .. id_of "many"
    assert.matches("^1200,%d+,%d+$", db:execute("SELECT value FROM nightshift_meta WHERE name = ?", name)[1].value)
    local function remember(age, took)
      assert(db:execute([[UPDATE nightshift_meta SET value = CONCAT('4711,', UNIX_TIMESTAMP() * 1000000 - ?, ',', ?)
        WHERE name = ?]], age * 1000000, took * 1000000, name))
    end
    remember(90, 1)
    local other <close> = assert(nightshift.open(url))
    row = assert(other:scale { queues = { "many" } }).queues[1]
    assert.equal(4711, row.ready)
    assert.is_true(row.counted_ago >= 89 and row.counted_ago < 100, row.counted_ago)
    remember(110, 1)
    assert.equal(1200, assert(other:scale()).total.ready - 4)
  end)

  -- It was 1,001 then, and so was the number of workers for millions of jobs.
  it("supposes how many jobs there are, where counting them takes too long", function()
    local slow = setmetatable({}, { __index = function(_, verb)
      return function(_, what, ...)
        if what == "@report_scale_ready_all" then return nil, "interrupted (1969)", "BUSY" end
        return db._handle[verb](db._handle, what, ...)
      end
    end })
    assert(db:execute "DELETE FROM nightshift_meta WHERE name LIKE 'ready:%'")
    assert(db:execute "ANALYZE TABLE nightshift_ready")
    local row = assert(require("nightshift.report.scale").look(slow, { queues = { "many" } })).queues[1]
    assert.is_true(row.approximate.ready)
    assert.is_true(row.ready > 1001 and row.ready <= 2400, row.ready)
  end)

  it("reckons with what workers did, with those that are idle, and with the target", function()
    push("mail", 1000)
    lived "mail"
    host_of(nil, nil)
    local row = row_of "mail"
    near(1, row.rate_in) -- 300 in five minutes
    near(2, row.rate_out)
    near(0.5, row.run)
    assert.same({ 4, 2 }, { row.workers, row.busy })
    near(1000 / 2, row.drain_seconds) -- a job takes two runs: an idle worker ends one a second
    assert.equal(math.ceil(1 + 1000 / 60), row.wanted)
    assert.equal(101, row_of("mail", "10s").wanted)
    host_of('["other"]', nil)
    row = row_of "mail"
    assert.same({ 0, nil, 18 }, { row.workers, row.drain_seconds, row.wanted })
    host_of('["mail","other"]', '[["other",1]]')
    assert.equal(3, row_of("mail").workers)
    host_of(nil, nil)
    local claimed = db:queue("mail"):claim_many(4)
    assert(claimed[4])
    near(996 / (2 + 2), row_of("mail").drain_seconds) -- and a busy one, too
    for _, job in ipairs(claimed) do job:release() end
    assert(db:queue("mail"):pause())
    row = row_of "mail"
    assert.same({ true, nil, 0 }, { row.paused, row.drain_seconds, row.wanted })
    assert(db:queue("mail"):resume())
    assert(db:execute "DELETE FROM nightshift_holder WHERE id = 77")
  end)

  it("goes by the limits of a queue, and counts its backlog", function()
    push("limited", 600)
    lived "limited"
    host_of(nil, nil)
    local id = id_of "limited"
    assert(db:execute([[INSERT INTO nightshift_limit (queue_id, running, rate, rate_span)
      VALUES (?, 3, 1, 1000000)]], id))
    assert(db:execute([[INSERT INTO nightshift_backlog SELECT queue_id, '', `rank`, ready_at, job_id, run, alone, kind
      FROM nightshift_ready WHERE queue_id = ? AND job_id > 0 ORDER BY job_id LIMIT 400]], id))
    assert(db:execute([[DELETE r FROM nightshift_ready r JOIN nightshift_backlog b ON b.job_id = r.job_id
      AND b.queue_id = r.queue_id AND b.rank = r.rank AND b.ready_at = r.ready_at]]))
    local row = row_of "limited"
    assert.equal(600, row.ready)
    near(600, row.drain_seconds)
    assert.equal(1, row.wanted) -- one start a second, of a job that takes one second
    assert(db:execute("UPDATE nightshift_limit SET rate = NULL, rate_span = NULL WHERE queue_id = ?", id))
    assert.equal(3, row_of("limited").wanted)
    assert(db:execute("DELETE FROM nightshift_limit WHERE queue_id = ?", id))
    assert(db:execute("DELETE FROM nightshift_backlog WHERE queue_id = ?", id))
    assert(db:execute "DELETE FROM nightshift_holder WHERE id = 77")
  end)

  it("wants nothing for nothing, one for little, and keeps workers while it does not know", function()
    assert(db:queue("soon"):push("a", 1, { delay = "50s" }))
    assert.same({ 1, 0 }, { row_of("soon").wanted, row_of("soon", "5s").wanted })
    assert.equal(0, row_of("soon", 5).drain_seconds)
    push("new", 1)
    host_of('["new"]', nil)
    local row = row_of "new"
    assert.same({ nil, nil, 4 }, { row.run, row.drain_seconds, row.wanted })
    assert(db:execute "UPDATE nightshift_holder SET beat = beat - 60000000 WHERE id = 77")
    assert.same({ 0, 1 }, { row_of("new").workers, row_of("new").wanted })
    assert(db:execute "DELETE FROM nightshift_holder WHERE id = 77")
  end)

  it("adds up, without the queues that were removed", function()
    assert(db:queue("gone"):push("a", 1))
    assert(db:cancel(db:jobs({ queue = "gone" })[1].id))
    assert(db:remove_queue "gone")
    local all = assert(db:scale())
    local names, ready = {}, 0
    for i, row in ipairs(all.queues) do names[i], ready = row.name, ready + row.ready end
    assert.same({ "few", "limited", "mail", "many", "new", "soon" }, names)
    assert.equal(ready, all.total.ready)
    assert.equal(2, #assert(db:scale { queues = { "new", "few" } }).queues)
    assert.is_true(all.total.wanted >= 1)
  end)

  it("refuses queues that there are not, and targets that are none", function()
    assert.same({ nil, "there is no queue 'mall'", "NOT_FOUND" }, { db:scale { queues = { "mall" } } })
    assert.same({ nil, "scale: target must be a second at least", "INVALID" }, { db:scale { target = 0 } })
    assert.error_matches(function() db:scale { queues = "mail" } end, "scale: queues must be a list of names")
    assert.error_matches(function() db:scale { queues = { 1 } } end, "got a number")
    assert.error_matches(function() db:scale { queue = {} } end, "unknown option 'queue'; did you mean 'queues'")
  end)
end)
