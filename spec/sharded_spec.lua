-- Several databases as one: the numbers of shards, ids, and keys. Verbs find their database, lists
-- are of all, and a database that is away stops its own jobs alone. Three servers, each with
-- a database: the one of all specs, and two that are stopped.

local db = require "spec.support.db"
local http = require "socket.http"
local ltn12 = require "ltn12"
local nightshift = require "nightshift"
local nst = require "nst"
local number = require "nightshift.sharded.shards"
local proc = require "spec.support.proc"

describe("sharded:", function()
  local NUMBERS <const> = { 0, 1, 7 }
  local servers, urls, names = {}, {}, {}
  local list -- URLs with their numbers
  local all

  local function run(argv, url) return proc.nightshift(argv, url) end

  local function says(text, whole) assert.is_truthy(tostring(whole):find(text, 1, true), whole) end

  --- A key that goes to a shard.
  local function key_of(shard, from)
    for i = from or 1, math.huge do
      if number.pick("k" .. i, NUMBERS) == shard then return "k" .. i end
    end
  end

  setup(function()
    list = {}
    for i, shard in ipairs(NUMBERS) do
      servers[i] = i == 1 and db.shared() or db.server()
      urls[i], names[i] = servers[i]:empty()
      local exit, out, err = run({ "init", "--shard", tostring(shard) }, urls[i])
      assert.equal(0, exit, out .. err)
      list[i] = urls[i] .. ("&connect_timeout=1&shard=%d"):format(shard)
    end
    all = assert(nightshift.sharded(list))
  end)
  teardown(function()
    if all then all:close() end
    for i = 2, #servers do servers[i]:remove() end
  end)

  -- ------------------------------------------------------------------- numbers

  describe("the number of a database", function()
    it("is what its ids begin with", function()
      for i, shard in ipairs(NUMBERS) do
        local one <close> = assert(nightshift.open(urls[i]))
        local id = assert(one:queue "ids":push("x"))
        assert.equal(shard, id // 100000000000000)
        assert.is_true(id < 2 ^ 53)
        assert.equal(id, nightshift.decode(nightshift.encode { id })[1])
        assert(one:delete(id))
        assert(one:execute "CALL nightshift_push('ids', 'x', '1', NULL)")
        assert.equal(shard, assert(one:execute "SELECT @nightshift_id AS id")[1].id // 100000000000000)
        assert.same({ found = 1, changed = 1, refused = 0 }, assert(one:delete { state = "ready", queue = "ids" }))
      end
    end)

    it("is given once, and to a database without ids alone", function()
      local exit, _, err = run({ "init", "--shard", "7" }, urls[3])
      assert.same({ 0, "" }, { exit, err })
      exit, _, err = run({ "init", "--shard", "3" }, urls[3])
      assert.equal(1, exit)
      says("this database is shard 7 and cannot be shard 3: it was given that number (STATE)", err)
      exit, _, err = run({ "init", "--shard", "3" }, urls[1])
      assert.equal(1, exit)
      says("this database is shard 0 and cannot be shard 3: it has given ids already", err)
      exit, _, err = run({ "init", "--shard", "90" }, urls[1])
      assert.equal(2, exit)
      says("--shard must be a whole number from 0 to 89, got 90", err)
    end)

    it("is in the SQL of init --print, and doctor knows it", function()
      local _, out = run({ "init", "--print", "--shard", "5" })
      local url, name = servers[1]:empty()
      servers[1]:sql(out, name)
      local one <close> = assert(nightshift.open(url .. "&shard=5"))
      assert.equal(500000000000000, assert(one:queue "q":push("x")))
      local _, text = run({ "doctor", "--json" }, url)
      for _, check in ipairs(nightshift.decode(text).findings) do
        if check.name == "ids" then
          assert.equal("ok", check.status)
          says("shard 5: block", check.says)
        end
      end
      servers[1]:sql("SELECT SETVAL(nightshift_id, 5999999999999)", name)
      local other <close> = assert(nightshift.open(url))
      assert.same({ nil, "SQL" }, { (other:queue "q":push("x")), select(3, other:queue "q":push("x")) })
    end)

    it("is checked when a URL has one", function()
      local one, message, code = nightshift.open(urls[1] .. "&shard=2")
      assert.same({ nil, "STATE" }, { one, code })
      says("is shard 0, and its URL says shard=2", message)
      one, message, code = nightshift.open(urls[1] .. "&shard=x")
      assert.same({ nil, "INVALID" }, { one, code })
      says("shard must be a number from 0 to 89, got 'x'", message)
      one, message = nightshift.open(urls[1] .. " " .. urls[2])
      assert.is_nil(one)
      says("there are 2, and open takes one; nightshift.sharded() opens them all", message)
      one, message, code = nightshift.sharded { urls[2] .. "&shard=1", urls[1] .. "&shard=1" }
      assert.same({ nil, "INVALID" }, { one, code })
      says("are both shard 1", message)
      one, message, code = nightshift.sharded { urls[2], urls[2] }
      assert.same({ nil, "INVALID" }, { one, code })
      says("are both shard 1", message)
      local wrong <close> = assert(nightshift.sharded { urls[1] .. "&shard=3" })
      says("the list says so, but the database is shard 0", select(2, wrong:ping()))
    end)
  end)

  -- ---------------------------------------------------------------------- keys

  describe("a key", function()
    it("goes to the same number on every machine, in every release", function()
      local picked = {}
      for i, key in ipairs { "tenant:1", "tenant:2", "tenant:3", "", "bühne", "42" } do
        picked[i] = number.pick(key, { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 })
      end
      assert.same({ 4, 3, 1, 3, 6, 9 }, picked)
      assert.equal(number.pick("tenant:1", { 7, 0, 1 }), number.pick("tenant:1", { 1, 7, 0 }))
    end)

    it("moves to a new shard or stays, and one in n + 1 moves", function()
      local before, after, moved, per = { 0, 1, 2, 3 }, { 4, 3, 2, 1, 0 }, 0, {}
      for i = 1, 10000 do
        local old, new = number.pick("tenant:" .. i, before), number.pick("tenant:" .. i, after)
        per[old] = (per[old] or 0) + 1
        if old ~= new then
          moved = moved + 1
          assert.equal(4, new)
        end
      end
      assert.is_true(moved > 1800 and moved < 2200, moved)
      for _, n in pairs(per) do assert.is_true(n > 2300 and n < 2700, n) end
    end)

    it("says which database a job goes to", function()
      local q = all:queue "keys"
      for _, shard in ipairs(NUMBERS) do
        local id = assert(q:push("x", { shard = shard }, { key = key_of(shard), priority = 7 }))
        assert.equal(shard, number.of(id))
        local job = assert(all:job(id))
        assert.same({ shard, 7 }, { job.payload.shard, job.priority })
        assert.equal(job.id, assert(all:of_key(key_of(shard)):job(id)).id)
      end
      assert.equal(number.of(assert(q:push("x", 1, { key = 42 }))), number.of(assert(q:push("x", 1, { key = "42" }))))
      assert.has_error(function() q:push("x", 1, { key = true }) end,
        "nightshift: push: key must be a text or a whole number, got boolean")
      assert(all:cancel { queue = "keys" })
    end)

    it("is not needed: jobs then go from database to database", function()
      local counts = {}
      for _ = 1, 6 do
        local shard = number.of(assert(all:queue "keys":push("x")))
        counts[shard] = (counts[shard] or 0) + 1
      end
      assert.same({ [0] = 2, [1] = 2, [7] = 2 }, counts)
      assert.same({ found = 6, changed = 6, refused = 0 }, assert(all:delete { state = "ready", queue = "keys" }))
    end)
  end)

  -- ------------------------------------------------------------ verbs on one job

  it("verbs by id find their database", function()
    local q, ids = all:queue "verbs", {}
    for i, shard in ipairs(NUMBERS) do ids[i] = assert(q:push("x", i, { key = key_of(shard), delay = 3600 })) end
    local id = ids[3]
    assert.is_true(all:update(id, { payload = { 3 } }))
    assert.same({ 3 }, all:job(id).payload)
    assert.is_true(all:run_now(id))
    assert.equal("ready", all:job(id).state)
    assert.is_true(all:reprioritise(id, 9))
    assert.is_true(all:deadline(id, "1h"))
    assert.equal(1, all:pause(id))
    says("paused", (all:why(id)))
    assert.equal(1, all:resume(id))
    assert.same({ 1, 1 }, { all:progress(id).total, all:progress(id).ready })
    assert.is_true(all:signal(id, 1))
    local job <close> = assert(all:shard(7):queue "verbs":claim())
    assert.equal(id, job.id)
    assert(job:ack "fine")
    assert.same({ "done", "fine" }, { all:wait(id, 5) })
    assert.is_true(all:retry(id))
    assert.is_true(all:cancel(id, { reason = "enough" }))
    assert.is_true(all:cancel(ids[1]))
    assert.is_true(all:cancel(ids[2]))
    local ends = assert(all:wait_all({ ids[2], ids[3], ids[1] }, 5))
    assert.same({ ids[2], ids[3], ids[1] }, { ends[1].id, ends[2].id, ends[3].id })
    assert.equal("enough", ends[2].reason)
    for _, one in ipairs(ids) do assert.is_true(all:delete(one)) end
    assert.equal("NOT_FOUND", select(3, all:job(id)))
    local none, message, code = all:job(2500000000000000)
    assert.same({ nil, "NOT_FOUND" }, { none, code })
    assert.equal("job 2500000000000000 is of shard 25, and the list has no such shard", message)
    assert.has_error(function() all:job "x" end, "nightshift: job: the id must be an integer, got a string")
  end)

  -- ------------------------------------------------- what stays within a database

  describe("within one database stay", function()
    it("trees: a push goes to its parent, and is refused where the key is elsewhere", function()
      local q = all:queue "trees"
      local first = assert(q:push("x", 1, { key = key_of(7) }))
      assert.equal(7, number.of(assert(q:push("x", 1, { after = { first } }))))
      assert.equal(7, number.of(assert(q:push("x", 1, { parent = first }))))
      assert.equal(7, number.of(assert(q:push("x", 1, { parent = first, key = key_of(7) }))))
      local id, message, code = q:push("x", 1, { after = { first }, key = key_of(1) })
      assert.same({ nil, "INVALID" }, { id, code })
      says(("a job that it waits for, job %d, is of shard 7"):format(first), message)
      says(("and the key '%s' is of shard 1"):format(key_of(1)), message)
      says("a tree stays within one database", message)
      local second = assert(q:push("x", 1, { key = key_of(0) }))
      id, message = q:push("x", 1, { after = { first, second } })
      assert.is_nil(id)
      says("a tree stays within one database", message)
      id, message = q:push("x", 1, { after = { 2500000000000000 } })
      assert.is_nil(id)
      says("is of shard 25, and the list has no such shard", message)
      local root, ids = assert(all:flow { name = "a", queue = "trees", key = key_of(1),
        children = { { name = "b", unique = "u" }, { name = "c" } } })
      assert.same({ 1, 1 }, { number.of(root), number.of(ids.children[1].id or ids.children[1]) })
      root, message = all:flow { name = "a", children = { { name = "b", after = { first } } }, key = key_of(1) }
      assert.is_nil(root)
      says("a tree stays within one database", message)
      assert(all:cancel { queue = "trees" })
    end)

    it("unique keys: they go where a key of their text would", function()
      local q = all:queue "unique"
      local id = assert(q:push("x", 1, { unique = "welcome:42" }))
      assert.equal(number.pick("welcome:42", NUMBERS), number.of(id))
      local none, _, code, holder = q:push("x", 1, { unique = { key = "welcome:42" } })
      assert.same({ nil, "DUPLICATE", id }, { none, code, holder })
      local other = key_of(number.of(id) == 0 and 1 or 0)
      local second = assert(q:push("x", 1, { unique = "welcome:42", key = other }))
      local problem
      none, problem, code = q:push("x", 1, { unique = "welcome:42", parent = second })
      assert.same({ nil, "INVALID" }, { none, code })
      says("give a key, which then says where", problem)
      assert(all:cancel { queue = "unique" })
    end)

    it("locks, transactions, claims and SQL", function()
      local taken = assert(all:lock "report":acquire(0))
      local held = all:shard(number.pick("report", NUMBERS)):slots()
      assert.equal("report", held[1].name)
      assert.equal(1, #all:slots())
      assert(taken)
      all:shard(number.pick("report", NUMBERS)):close()
      all:close()
      all = assert(nightshift.sharded(list))
      assert.has_error(function() all:transaction(function() end) end,
        "nightshift: transaction is of one database: write db:of_key(key):transaction(fn)")
      assert.has_error(function() all:queue "q":claim() end,
        "nightshift: claim: jobs are claimed from one database: db:shard(n):queue(name):claim(…)")
      assert.is_true(all:of_key("tenant:7"):transaction(function() end))
    end)
  end)

  -- --------------------------------------------------------------- many and lists

  it("push_many is one transaction in each database", function()
    local items = {}
    for i = 1, 30 do items[i] = { "x", i, { key = key_of(NUMBERS[i % 3 + 1]) } } end
    local ids = assert(all:queue "many":push_many(items))
    for i = 1, 30 do
      assert.equal(NUMBERS[i % 3 + 1], number.of(ids[i]))
      assert.equal(i, all:job(ids[i]).payload)
    end
    items[5][3] = { key = key_of(1), priority = 300 }
    local none, message, code = all:queue "many":push_many(items)
    assert.same({ nil, "INVALID" }, { none, code })
    says("priority", message)
    assert.has_error(function() all:queue "many":push_many { 1 } end)
    assert(all:cancel { queue = "many" })
  end)

  it("limits are set in all, each counts its own jobs, and a group's jobs are of one", function()
    local q, jobs = all:queue "limits", {}
    assert.is_true(q:limit { running = 2, group = { running = 1 } })
    for i = 1, 6 do
      local group = "tenant:" .. i
      for _ = 1, 2 do
        assert.equal(number.pick(group, NUMBERS), number.of(assert(q:push("x", i, { group = group }))))
      end
    end
    local elsewhere = number.pick("tenant:1", NUMBERS) == 1 and 7 or 1
    assert.equal(elsewhere, number.of(assert(q:push("x", 7, { group = "tenant:1", key = key_of(elsewhere) }))))
    for _, shard in ipairs(NUMBERS) do
      local list_of = assert(all:shard(shard):queue "limits":claim_many(9))
      assert.is_true(#list_of <= 2)
      table.move(list_of, 1, #list_of, #jobs + 1, jobs)
    end
    assert.is_true(#jobs >= 3)
    local use = assert(q:limits())
    assert.same({ 2, 1, #jobs, 13 - #jobs, 3 },
      { use.running, use.group.running, use.counts.running, use.counts.waiting, #use.shards })
    local rows = {}
    for _, row in ipairs(assert(all:limits())) do
      if row.queue == "limits" then rows[#rows + 1] = row.shard end
    end
    assert.same(NUMBERS, rows)
    local many = table.concat(list, " ")
    local exit, out, err = run({ "limit", "limits", "--running", "5", "--json" }, many)
    assert.same({ 0, "" }, { exit, err })
    assert.equal(5, nightshift.decode(out)[3].running)
    out = select(2, run({ "limits", "limits" }, many))
    for i, shard in ipairs(NUMBERS) do says(("shard %d (localhost/%s):"):format(shard, names[i]), out) end
    assert.equal("INVALID", select(3, q:limit { running = 0 }))
    assert.equal(5, q:limits().running)
    for _, job in ipairs(jobs) do assert(job:ack()) end
    assert.is_true(q:limit(nil))
    assert.is_nil((q:limits()))
    assert(all:delete { state = "done", queue = "limits" })
    assert(all:cancel { queue = "limits" })
  end)

  it("lists are merged, the newest first, page by page", function()
    local q, pushed = all:queue "lists", {}
    for i = 1, 23 do pushed[i] = assert(q:push("x", i)) end
    local seen, after, pages = {}, nil, 0
    repeat
      local rows, more = assert(all:jobs { queue = "lists", limit = 5, after = after })
      for _, row in ipairs(rows) do
        assert.equal(number.of(row.id), row.shard)
        seen[#seen + 1] = row.id
      end
      after, pages = more and more.after, pages + 1
    until not after
    local expected = {}
    for i = 1, 23 do expected[i] = pushed[24 - i] end
    assert.same(expected, seen)
    assert.is_true(pages <= 6, pages)
    local row
    for _, one in ipairs(all:stats().queues) do row = one.name == "lists" and one or row end
    assert.same({ 23, 23 }, { row.ready, q:stats().ready })
    for _, shard in ipairs(NUMBERS) do
      local job = assert(all:shard(shard):queue "lists":claim())
      assert(job:discard(("disk 12%d is full"):format(shard)))
    end
    local kinds = assert(all:errors { queue = "lists" })
    assert.same({ 1, 3, 3 }, { #kinds, kinds[1].count, kinds[1].dead })
    local dead = assert(all:jobs { state = "dead", queue = "lists", limit = 2 })
    assert.same({ 7, 1 }, { dead[1].shard, dead[2].shard })
    assert(all:schedule { name = "nightly", cron = "0 3 * * *", push = { "x", {}, { queue = "lists" } } })
    local ticks = assert(all:schedules())
    assert.same({ 1, "nightly", number.pick("nightly", NUMBERS) }, { #ticks, ticks[1].name, ticks[1].shard })
    assert.is_truthy(all:schedule_pause "nightly")
    assert.is_true(all:schedules()[1].paused)
    assert.is_truthy(all:schedule_remove "nightly")
    assert.equal("NOT_FOUND", select(3, all:schedule_remove "nightly"))
    assert(q:pause())
    assert.is_true(q:stats().paused)
    assert(q:resume())
    assert.is_true(all:pause_all())
    assert.is_truthy(all:stats().paused.all)
    assert.is_true(all:resume_all())
    assert.is_true(#assert(all:audit { limit = 4 }) == 4)
    assert.equal(60, #assert(all:series()))
    assert(all:cancel { queue = "lists" })
  end)

  -- ------------------------------------------------------------------ the shell

  describe("the shell, with several URLs,", function()
    local many
    setup(function() many = table.concat(list, " ") end)

    local function shell(...)
      local exit, out, err = run({ ... }, many)
      return { exit = exit, out = out, err = err, json = out:find "^[%[{]" and nightshift.decode(out) or nil }
    end

    it("pushes by a key, and line by line", function()
      for _, shard in ipairs(NUMBERS) do
        local id = math.tointeger(tonumber((shell("push", "shell", "x", "1", "--key", key_of(shard)).out)))
        assert.equal(shard, number.of(id))
      end
      local lines = {}
      for i = 1, 9 do lines[i] = ('{"name": "x", "payload": %d, "key": "%s"}'):format(i, key_of(NUMBERS[i % 3 + 1])) end
      lines[10] = '{"name": "x", "keey": 1}'
      local got = proc.run { proc.program, "push", "shell", "--lines", "--json", "--skip-bad",
        stdin = table.concat(lines, "\n"), env = { NIGHTSHIFT_URL = many } }
      assert.equal(1, got)
      local rows = assert(all:jobs { queue = "shell", limit = 20 })
      assert.equal(12, #rows)
      for _, row in ipairs(rows) do
        local i = all:job(row.id).payload
        local created_by_line = row.created > rows[12].created and i > 1
        if created_by_line then assert.equal(NUMBERS[i % 3 + 1], row.shard) end
      end
      assert.same({ 0, 1, 7 }, { number.of(rows[12].id), number.of(rows[11].id), number.of(rows[10].id) })
    end)

    it("shows all of them, and goes on page by page", function()
      local status = shell("status", "--json")
      assert.equal(0, status.exit, status.err)
      for i, shard in ipairs(NUMBERS) do assert.equal(shard, status.json.shards[i].shard) end
      for _, row in ipairs(status.json.queues) do
        if row.name == "shell" then assert.equal(12, row.ready) end
      end
      local text = shell "status"
      says("SHARD  DATABASE", text.out)
      says("# 3 dead: disk # is full", text.out)
      local page = shell("jobs", "--queue", "shell", "--limit", "5")
      local after = page.err:match "%-%-after ([%d,]+) goes on"
      local rest = shell("jobs", "--queue", "shell", "--json", "--after", after)
      assert.equal(7, #rest.json)
      local first = shell("jobs", "--queue", "shell", "--limit", "5", "--json").json
      for _, row in ipairs(rest.json) do
        for _, one in ipairs(first) do assert.not_equal(one.id, row.id) end
      end
    end)

    it("finds the database of an id, and runs other commands on each", function()
      local rows = assert(all:jobs { queue = "shell" })
      local ids = { tostring(rows[12].id), tostring(rows[10].id) }
      local shown = shell("show", ids[2], "--json").json
      assert.equal(rows[10].id, shown.id)
      local cancelled = shell("cancel", ids[1], ids[2], "--json").json
      assert.same({ { 0, true }, { 7, true } },
        { { cancelled[1].shard, cancelled[1].ok }, { cancelled[2].shard, cancelled[2].ok } })
      assert.equal(1, shell("wait", ids[1], ids[2]).exit)
      assert.equal(0, shell("retry", ids[1], ids[2]).exit)
      assert.equal("ready", all:job(rows[10].id).state)
      local before = shell("cancel", "--queue", "shell")
      assert.equal(2, before.exit)
      says("shard 7 (localhost/" .. names[3] .. "): 4 jobs would be cancelled; add --yes", before.err)
      local done = shell("cancel", "--queue", "shell", "--yes", "--json")
      assert.same({ 4, 4, 4 }, { done.json[1].changed, done.json[2].changed, done.json[3].changed })
      assert.equal(0, shell("pause", "shell").exit)
      for i, shard in ipairs(NUMBERS) do
        assert.is_true(all:shard(shard):queue "shell":stats().paused, i)
      end
      assert.equal(0, shell("resume", "shell").exit)
      local one = shell("--shard", "1", "status", "--json")
      assert.is_nil(one.json.shards)
      local none = shell("show", "2500000000000000")
      assert.equal(78, none.exit)
      says("job 2500000000000000 is of shard 25, and the list of databases has no such shard", none.err)
      none = shell("work", "x.lua")
      assert.equal(2, none.exit)
      says("work takes one of the 3 databases: --shard N says which; start one for each database", none.err)
      assert.equal(0, shell("init").exit)
      says("--shard names shard 5, and the list", shell("--shard", "5", "status").err)
    end)

    it("runs a host of one of them, by its number", function()
      local id = assert(all:queue "host":push("x", 1, { key = key_of(7) }))
      local file = fixture.file("jobs.lua", "return { x = function() return 1 end }")
      local ran = shell("--shard", "7", "work", file, "--workers", "1", "--drain")
      assert.equal(0, ran.exit, ran.err)
      assert.equal("done", all:job(id).state)
    end)
  end)

  -- ------------------------------------------------------------------- the page

  local page -- its address

  local function start_page()
    local p = proc.start { proc.program, "web", "--listen", "127.0.0.1:0", "--prefix", "/p",
      env = { NIGHTSHIFT_URL = table.concat(list, " ") } }
    page = p:wait_line "the pages are at http://([^%s]+)/"
  end

  --- Status, body and headers of a page, or of a form that is sent.
  local function ask(path, form)
    local parts, headers = {}, { ["content-type"] = "application/x-www-form-urlencoded" }
    headers["content-length"] = form and #form or nil
    local _, status, got = http.request { url = "http://" .. page .. path, method = form and "POST" or "GET",
      headers = form and headers or nil, source = form and ltn12.source.string(form) or nil,
      sink = ltn12.sink.table(parts), redirect = false }
    return status, table.concat(parts), got
  end

  describe("the page", function()
    it("shows all databases, and the pages of each", function()
      start_page()
      local id = assert(all:queue "page":push("looked.at", 1, { key = key_of(7) }))
      local status, body = ask "/"
      assert.equal(200, status)
      says("<h1>All databases</h1>", body)
      for i, shard in ipairs(NUMBERS) do
        says(('<a href="/p/shard/%d">localhost/%s</a>'):format(shard, names[i]), body)
      end
      says('<a href="/p/jobs?queue=page">page</a>', body)
      says(('href="/p/shard/7/jobs/%d"'):format(id), select(2, ask "/jobs?queue=page&state=ready"))
      says("looked.at", select(2, ask(("/shard/7/jobs/%d"):format(id))))
      local cut = page:gsub("/p$", "") -- a proxy may do that, and there was no such page then
      says("looked.at", (http.request(("http://%s/shard/7/jobs/%d"):format(cut, id))))
      assert.equal(404, (ask(("/shard/1/jobs/%d"):format(id))))
      assert.equal(404, (ask "/shard/5"))
      local found, _, got = ask("/find?q=" .. id)
      assert.same({ 303, ("/p/shard/7/jobs/%d"):format(id) }, { found, got.location })
      assert.is_truthy(got["content-security-policy"]:find("default-src 'none'", 1, true))
      body = select(2, ask "/shard/7/queues")
      says('<a href="/p/" data-key="d"', body)
      local csrf = body:match 'name="csrf" value="(%x+)"'
      assert.equal(303, (ask("/shard/7/queues/pause", "queue=page&csrf=" .. csrf)))
      assert.is_true(all:shard(7):queue "page":stats().paused)
      assert.is_false(all:shard(0):queue "page":stats().paused)
      assert.equal(403, (ask("/shard/0/queues/pause", "queue=page&csrf=1")))
      assert(all:cancel { queue = "page" })
    end)
  end)

  -- ---------------------------------------------------------------- one is away

  describe("a database that is away", function()
    local function took(fn, ...)
      local began = nst.clock()
      local given = table.pack(fn(...))
      return nst.clock() - began, table.unpack(given, 1, given.n)
    end

    it("stops its own jobs alone, and comes back by itself", function()
      local q = all:queue "away"
      local mine = assert(q:push("x", 1, { key = key_of(1) }))
      local other = assert(q:push("x", 1, { key = key_of(7) }))
      start_page()
      assert.equal(200, (ask "/shard/1/jobs"))
      servers[2]:kill()
      local status, body = ask "/"
      assert.equal(200, status)
      says("is away", body)
      assert.equal(503, (ask "/shard/1/jobs"))
      assert.equal(200, (ask "/shard/0/jobs"))
      local id, message, code, _ = q:push("x", 1, { key = key_of(1) })
      assert.same({ nil, "GONE" }, { id, code })
      says("shard 1 (localhost/" .. names[2] .. ") is away: ", message)
      assert.same({ nil, "GONE" }, { (all:job(mine)), select(3, all:job(mine)) })
      assert.equal(other, all:job(other).id)
      assert.is_true(all:cancel(other))
      for _ = 1, 6 do assert.not_equal(1, number.of(assert(q:push("x")))) end
      local rows = assert(all:jobs { queue = "away", state = "ready" })
      assert.equal(6, #rows)
      assert.same({ 1, 1 }, { #rows.missing, rows.missing[1].shard })
      says("is away", rows.missing[1].message)
      assert.equal(1, all:stats().missing[1].shard)
      local counts = assert(all:cancel { queue = "away", state = "ready" })
      assert.same({ 6, 1 }, { counts.changed, counts.missing[1].shard })
      id, message, code = all:pause_name "x"
      assert.same({ nil, "GONE" }, { id, code })
      says("done in the databases that answer; shard 1", message)
      id, _, code = q:push_many { { "x", 1, { key = key_of(7) } }, { "x", 1, { key = key_of(1) } } }
      assert.same({ nil, "GONE" }, { id, code })
      assert.equal(0, q:stats().ready)
      local exit, out, err = run({ "jobs", "--queue", "away", "--json" }, table.concat(list, " "))
      assert.equal(69, exit)
      assert.is_true(#nightshift.decode(out) >= 6)
      says("shard 1 (localhost/" .. names[2] .. ") is away: ", err)
      assert.equal(69, run({ "show", tostring(mine) }, table.concat(list, " ")))
      assert.equal(0, run({ "show", tostring(other) }, table.concat(list, " ")))
      local fresh <close> = assert(nightshift.sharded(list))
      assert.equal(0, number.of(assert(fresh:queue "away":push("x", 1, { key = key_of(0) }))))
      local blind <close> = assert(nightshift.sharded { urls[1], urls[2], urls[3] })
      id, message, code = blind:queue "away":push("x", 1, { key = key_of(0) })
      assert.same({ nil, "GONE" }, { id, code })
      says("its number is not known: write shard=N into its URL", message)
      assert(blind:queue "away":push("x"))
      servers[2]:start()
      eventually(function() return all:job(mine) end, 10)
      eventually(function() return ask "/shard/1/jobs" == 200 end, 10)
      assert(all:resume_name "x")
      assert.is_nil(all:jobs { queue = "away" }.missing)
      assert(all:cancel { queue = "away" })
    end)

    it("that does not answer keeps one call for connect_timeout, and the next ones not at all", function()
      servers[3]:freeze()
      local fresh <close> = assert(nightshift.sharded(list))
      local q = fresh:queue "frozen"
      local first, id, message, code = took(q.push, q, "x", 1, { key = key_of(7) })
      local second = took(q.push, q, "x", 1, { key = key_of(7) })
      local third, rows = took(fresh.jobs, fresh, { queue = "frozen" })
      servers[3]:thaw()
      assert.same({ nil, "GONE" }, { id, code })
      says("shard 7", message)
      assert.is_true(first < 2.5, first)
      assert.is_true(second < 0.1, second)
      assert.is_true(third < 1, third)
      assert.equal(7, rows.missing[1].shard)
    end)
  end)
end)
