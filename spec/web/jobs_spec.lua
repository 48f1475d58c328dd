-- The pages of jobs, one job, errors, schedules, adopted tables and hosts. Requests go to a real
-- `nightshift web` on a real database.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local http = require "socket.http"
local ltn12 = require "ltn12"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

http.TIMEOUT = proc.limit(20)

local SECRET <const> = "hunter2-is-no-secret"

--- Starts a server of pages; it has `at`, the address.
local function start(url, ...)
  local p = proc.start { proc.program, "web", "--listen", "127.0.0.1:0", "--redact", "card, password", ...,
    env = { NIGHTSHIFT_URL = url } }
  p.at = p:wait_line("http://(127%.0%.0%.1:%d+)", 30)
  return p
end

--- One request; no redirect is followed.
local function request(p, method, path, body)
  local parts, headers = {}, {}
  if body then
    headers["content-type"], headers["content-length"] = "application/x-www-form-urlencoded", #body
    headers.origin = "http://" .. p.at
  end
  local _, status, answer = http.request { url = "http://" .. p.at .. path, method = method, redirect = false,
    headers = headers, source = body and ltn12.source.string(body), sink = ltn12.sink.table(parts) }
  return status, table.concat(parts), answer
end

local function encode(text)
  return (tostring(text):gsub("[^%w]", function(c) return ("%%%02X"):format(c:byte()) end))
end

local function form_of(fields)
  local parts = {}
  for key, value in pairs(fields) do parts[#parts + 1] = encode(key) .. "=" .. encode(value) end
  return table.concat(parts, "&")
end

--- The text of HTML: entities are characters, tags are gone.
local function text_of(html)
  return (html:gsub("<[^>]*>", " "):gsub("&lt;", "<"):gsub("&gt;", ">"):gsub("&quot;", '"'):gsub("&#39;", "'")
    :gsub("&amp;", "&"):gsub("%s+", " "))
end

describe("pages of nightshift web:", function()
  local url, db, name, web

  setup(function()
    url, name = server.fresh()
    db = assert(nightshift.open(url))
    assert(db:queue "first":push("first", {})) -- a list without jobs has no form
    web = start(url)
  end)

  teardown(function() db:close() end)

  --- A page that is there; its HTML and its text.
  local function get(path, p)
    local status, html = request(p or web, "GET", path)
    assert(status == 200, ("%s: %s %s"):format(path, status, html))
    return html, text_of(html)
  end

  local function has(path, ...)
    local html, text = get(path)
    for _, words in ipairs { ... } do
      assert(text:find(words, 1, true), ("%s lacks '%s': %s"):format(path, words, text))
    end
    return html, text
  end

  local function post(path, fields)
    web.csrf = web.csrf or get("/jobs"):match 'name="csrf" value="(%x+)"'
    fields.csrf = web.csrf
    return request(web, "POST", path, form_of(fields))
  end

  --- Does an action, and gives the text of the page behind it.
  local function act(path, fields)
    local status, html, headers = post(path, fields or {})
    assert(status == 303, ("%s: %s %s"):format(path, status, text_of(html)))
    return get((headers.location:gsub("^http://[^/]*", ""))), headers.location
  end

  local function said(html) return text_of(html:match '<p class="said[^"]*" role="status">(.-)</p>' or "") end

  --- The ids of the rows of a list.
  local function ids_of(html)
    local ids = {}
    for id in html:gmatch 'data%-label="ID"><a href="/jobs/(%d+)"' do ids[#ids + 1] = tonumber(id) end
    return ids
  end

  local names = 0
  local function fresh_queue()
    names = names + 1
    return db:queue("web" .. names), "web" .. names
  end

  --- Jobs that are dead.
  local function dead(q, n, message)
    local ids = {}
    for i = 1, n do ids[i] = assert(q:push("breaks", { i = i })) end
    for _, job in ipairs(assert(q:claim_many(n))) do assert(job:discard(message)) end
    return ids
  end

  -- ------------------------------------------------------------------ the list

  describe("the list of jobs", function()
    it("says so when there is nothing", function()
      has("/jobs?queue=nothing-is-here", "No jobs are like this now")
    end)

    it("has the jobs of each condition of the filter, and no other", function()
      local q, queue = fresh_queue()
      local a = assert(q:push("one.thing", {}, { tags = { "red" } }))
      local b = assert(q:push("other.thing", {}, { delay = 3600, group = "tenant:7" }))
      local parent = assert(q:push("above", {}))
      local child = assert(q:push("below", {}, { parent = parent }))
      local d = dead(db:queue(queue .. "x"), 1, "broke on 7 of 9")[1]
      local function list(query) return ids_of((get("/jobs?" .. query))) end
      assert.same({ a }, list("queue=" .. queue .. "&name=one.thing"))
      assert.same({ a }, list "tag=red")
      assert.same({ b }, list "group=tenant:7")
      has("/jobs/" .. b, "tenant:7")
      assert.same({ b }, list("queue=" .. queue .. "&state=scheduled"))
      assert.same({ child }, list("parent=" .. parent))
      assert.same({ d }, list("state=dead&error=broke+on+7+of+9"))
      assert.same({ d }, list("state=dead&since=1h&queue=" .. queue .. "x"))
      assert.same({ child, parent, b, a }, list("queue=" .. queue))
      assert.same({ a }, list("id=" .. a))
    end)

    it("says what is wrong with a condition, and keeps the form", function()
      local html = has("/jobs?state=odd&queue=q", "state must be one of")
      assert.truthy(html:find('value="q"', 1, true))
      has("/jobs?since=sometimes", "since must be an instant")
      has("/jobs?parent=me", "The parent must be a job's id")
      has("/jobs?id=me", "A job's id is a number")
      has("/jobs?id=987654321", "987654321")
    end)

    it("has all jobs on its pages, each once", function()
      local q, queue = fresh_queue()
      local pushed = {}
      for i = 1, 60 do pushed[i] = { "many", { i = i } } end
      local wanted = assert(q:push_many(pushed))
      local path, seen, pages = "/jobs?limit=25&queue=" .. queue, {}, 0
      while path do
        local html = get(path)
        for _, id in ipairs(ids_of(html)) do seen[#seen + 1] = id end
        path = html:match '<a[^>]* href="([^"]*)" rel="next">'
        path, pages = path and path:gsub("&amp;", "&"), pages + 1
      end
      table.sort(seen)
      table.sort(wanted)
      assert.same(wanted, seen)
      assert.is_true(pages >= 3)
    end)
  end)

  -- ---------------------------------------------------------------- many jobs

  describe("an action on a filter", function()
    it("shows the number first and does nothing yet", function()
      local q, queue = fresh_queue()
      local ids = dead(q, 3, "no")
      local html = has(("/jobs?verb=retry&state=dead&queue=%s"):format(queue), "Run again: 3", "dead jobs of the queue")
      assert.truthy(html:find('action="/jobs/begin"', 1, true))
      for _, id in ipairs(ids) do assert.equal("dead", db:job(id).state) end
    end)

    it("does it to all of them", function()
      local q, queue = fresh_queue()
      local ids, others = dead(q, 3, "no"), dead(fresh_queue(), 1, "no")
      local html = act("/jobs/begin", { verb = "retry", state = "dead", queue = queue })
      assert.equal("3 jobs will run again.", said(html):match "^%s*(.-)%s*$")
      for _, id in ipairs(ids) do assert.equal("ready", db:job(id).state) end
      assert.equal("dead", db:job(others[1]).state)
      act("/jobs/begin", { verb = "reprioritise", queue = queue, priority = "7" })
      assert.equal(7, db:job(ids[1]).priority)
      act("/jobs/begin", { verb = "move", queue = queue, to = queue .. "y" })
      assert.equal(queue .. "y", db:job(ids[2]).queue)
      act("/jobs/begin", { verb = "due", queue = queue .. "y", due = "2999-01-31T12:00:00Z" })
      assert.equal("scheduled", db:job(ids[2]).state)
      act("/jobs/begin", { verb = "run_now", state = "scheduled", queue = queue .. "y" })
      assert.equal("ready", db:job(ids[2]).state)
      act("/jobs/begin", { verb = "cancel", queue = queue .. "y", reason = "by page" })
      assert.same({ "cancelled", "by page" }, { db:job(ids[3]).state, db:job(ids[3]).reason })
      act("/jobs/begin", { verb = "delete", state = "cancelled", queue = queue .. "y" })
      assert.is_nil(db:job(ids[1]))
    end)

    it("is refused without a filter, a value or a state that fits", function()
      has("/jobs?verb=delete", "wants a filter")
      has("/jobs?verb=retry&state=ready", "cannot be done to ready jobs")
      for _, fields in ipairs { { verb = "delete" }, { verb = "odd", queue = "q" },
        { verb = "reprioritise", queue = "q", priority = "300" }, { verb = "move", queue = "q" } } do
        assert.equal(400, (post("/jobs/begin", fields)))
      end
    end)

    it("goes on in slices, and says how far it is", function()
      local q, queue = fresh_queue()
      local items = {}
      for i = 1, 1500 do items[i] = { "n", {} } end
      assert(q:push_many(items))
      local html, path = act("/jobs/begin", { verb = "delete", queue = queue, state = "ready", total = "1500" })
      local longest, looks = 0, 0
      path = path:gsub("^http://[^/]*", ""):gsub("%?.*", "")
      while path:find "^/runs/" and not html:find('class="said', 1, true) do
        local began = nst.clock()
        html, looks = get(path), looks + 1
        longest = math.max(longest, nst.clock() - began)
        assert.is_true(looks < 500)
      end
      assert.truthy(text_of(html):find("1500 jobs deleted", 1, true), text_of(html))
      assert.is_true(longest < proc.limit(5), longest) -- 0.3 s on a machine with nothing else to do
      assert.same({}, ids_of((get("/jobs?queue=" .. queue))))
    end)
  end)

  describe("an action on ticked jobs", function()
    it("is done to these, and says what was not done", function()
      local q, queue = fresh_queue()
      local ids = dead(q, 2, "no")
      local third = dead(q, 1, "no")[1]
      local ready = assert(q:push("n", {}))
      local html = act("/jobs/ticked", { verb = "retry", ["job_" .. ids[1]] = "1", ["job_" .. ids[2]] = "1",
        ["job_" .. ready] = "1", queue = queue })
      assert.truthy(said(html):find("2 jobs will run again. 1 not: job " .. ready, 1, true), said(html))
      assert.equal("dead", db:job(third).state)
      assert.equal("ready", db:job(ids[1]).state)
      act("/jobs/ticked", { verb = "move", to = queue .. "z", ["job_" .. ready] = "1" })
      assert.equal(queue .. "z", db:job(ready).queue)
      assert.equal(400, (post("/jobs/ticked", { verb = "retry" })))
    end)

    it("sends them a signal", function()
      local q, queue = fresh_queue()
      local id = assert(q:push("n", {}))
      assert(q:claim():wait { signal = "approved" })
      act("/jobs/ticked", { verb = "signal", value = "[7]", signal = "approved", ["job_" .. id] = "1" })
      assert.same({ 7 }, assert(q:claim { wait = 5 }).signal)
      assert.equal(400, (post("/jobs/ticked", { verb = "signal", value = "{", ["job_" .. id] = "1" })))
      assert.equal(400, (post("/jobs/begin", { verb = "signal", queue = queue })))
    end)
  end)

  -- ------------------------------------------------------------------- one job

  describe("the page of a job", function()
    it("is not there for a job that is not", function()
      assert.equal(404, (request(web, "GET", "/jobs/987654321")))
      assert.equal(404, (request(web, "GET", "/jobs/me")))
    end)

    it("has payload, result, runs with error and log, and hides what is redacted", function()
      local q = fresh_queue()
      local id = assert(q:push("work", { to = "a<b", password = SECRET, list = { 1, 2 } }))
      local job = assert(q:claim())
      job:log "first line of the log"
      assert(job:fail("it broke\nstack traceback: here", { retry_in = 0 }))
      job = assert(q:claim { wait = 5 })
      assert(job:ack { size = 12345, password = SECRET })
      local html, text = has("/jobs/" .. id, "done", "it broke", "stack traceback: here", "first line of the log",
        "12345", "Run 1", "failed", "a<b")
      assert.is_nil(html:find(SECRET, 1, true))
      assert.truthy(text:find("[hidden]", 1, true))
    end)

    -- The sentence had "2.2s" where the runs below it had "2.2 s".
    it("has one form of times", function()
      local id = assert((fresh_queue()):push("later", {}, { delay = 600 }))
      has("/jobs/" .. id, "is scheduled, due in 9 min 5", "Due in 10 min")
    end)

    it("says why it does not run, and what it waits for", function()
      local q = fresh_queue()
      local first = assert(q:push("first", {}))
      local second = assert(q:push("second", {}, { after = { first } }))
      assert(q:pause())
      has("/jobs/" .. first, "is paused", "Waits for it", tostring(second))
      has("/jobs/" .. second, "waits for", "It waits for", tostring(first))
    end)

    it("draws the tree, bounded", function()
      local q = fresh_queue()
      local children = {}
      for i = 1, 30 do children[i] = { name = "leaf" .. i, payload = {} } end
      children[1].children = { { name = "deep", payload = {} } }
      local root = assert(db:flow { name = "root", queue = q.name, payload = {}, children = children })
      local html, text = has("/jobs/" .. root, "Tree", "leaf1 ", "deep", "and 18 more", "30 children", "29 ready",
        "1 waiting")
      assert.is_nil(text:find("leaf30 ", 1, true))
      local deep = html:match '/jobs/(%d+)"[^>]*>%d+</a> deep'
      has("/jobs/" .. deep, "Tree", "root", "leaf1 ")
      local picture = html:match '<svg class="graph".-</svg>'
      assert.equal(14, select(2, picture:gsub('<rect class="box"', ""))) -- as in the list: 12 children, and two more
      assert.equal(14, select(2, picture:gsub('<path class="edge ', ""))) -- the 14th leads to the other 18
      assert.is_truthy(picture:find(('href="/jobs/%s"'):format(deep), 1, true))
    end)

    it("does what its buttons say", function()
      local q, queue = fresh_queue()
      local id = assert(q:push("n", { a = 1, b = 2 }, { delay = 3600 }))
      local at = "/jobs/" .. id .. "/"
      act(at .. "run_now")
      assert.equal("ready", db:job(id).state)
      act(at .. "pause")
      assert.equal("waiting", db:job(id).state)
      act(at .. "resume")
      assert.equal("ready", db:job(id).state)
      act(at .. "change", { priority = "9", max_attempts = "3", tags = "red, blue", payload = '{"a": 5}' })
      local info = db:job(id)
      assert.same({ 9, 3, { "blue", "red" }, { a = 5 } }, { info.priority, info.max_attempts, info.tags, info.payload })
      act(at .. "change", { set = '{"b": 7}', queue = queue .. "w", group = "g" })
      info = db:job(id)
      assert.same({ { a = 5, b = 7 }, queue .. "w", "g" }, { info.payload, info.queue, info.group })
      act(at .. "change", { group = "-" })
      assert.is_nil(db:job(id).group)
      act(at .. "reprioritise", { priority = "11" })
      assert.equal(11, db:job(id).priority)
      act(at .. "cancel", { reason = "enough" })
      assert.same({ "cancelled", "enough" }, { db:job(id).state, db:job(id).reason })
      act(at .. "retry")
      assert.equal("ready", db:job(id).state)
      local html, location = act(at .. "delete")
      assert.truthy(said(html):find("was deleted", 1, true))
      assert.truthy(location:find "/jobs%?")
      assert.is_nil(db:job(id))
    end)

    it("changes nothing by a payload that is no JSON, or a number out of bounds", function()
      local q = fresh_queue()
      local id = assert(q:push("n", { a = 1 }))
      local status, html = post(("/jobs/%d/change"):format(id), { payload = "{a" })
      assert.equal(400, status)
      assert.truthy(text_of(html):find("the payload is not JSON", 1, true))
      assert.equal(400, (post(("/jobs/%d/change"):format(id), { priority = "256", payload = "[]" })))
      assert.equal(400, (post(("/jobs/%d/change"):format(id), {})))
      assert.same({ a = 1 }, db:job(id).payload)
    end)

    it("sends a signal", function()
      local q = fresh_queue()
      local id = assert(q:push("n", {}))
      assert(q:claim():wait { signal = "approved" })
      has("/jobs/" .. id, "approved")
      act(("/jobs/%d/signal"):format(id), { value = '{"by": "page"}' })
      assert.same({ by = "page" }, assert(q:claim { wait = 5 }).signal)
    end)

    it("offers a patch, not the payload, where parts of it are hidden", function()
      local q = fresh_queue()
      local id = assert(q:push("n", { password = SECRET, a = 1 }))
      local html = get("/jobs/" .. id)
      assert.is_nil(html:find('name="payload"', 1, true))
      assert.truthy(html:find('name="set"', 1, true))
      act(("/jobs/%d/change"):format(id), { set = '{"a": 2}' })
      assert.same({ password = SECRET, a = 2 }, db:job(id).payload)
    end)
  end)

  -- ------------------------------------------------------------------- errors

  it("errors stand by their kind, and lead to the jobs and to their retry", function()
    local q, queue = fresh_queue()
    local ids = dead(q, 2, "cannot open file 17")
    local html = has("/errors?queue=" .. queue, "cannot open file #")
    local retry = html:match 'href="(/jobs%?[^"]*verb=retry[^"]*)"':gsub("&amp;", "&")
    has(retry, "Run again: 2")
    local list = html:match 'href="(/jobs%?[^"]*state=dead[^"]*)"':gsub("&amp;", "&")
    assert.same({ ids[2], ids[1] }, ids_of((get(list))))
    has("/errors?queue=none", "No job is dead")
    has("/errors?since=odd", "since must be an instant")
  end)

  -- ---------------------------------------------------------------- schedules

  it("schedules have their next tick and their last job, and are paused, resumed, run and removed", function()
    local _, queue = fresh_queue()
    assert(db:schedule { name = "clean <up>", cron = "*/5 * * * *", push = { "cache.clean", {}, { queue = queue } } })
    has("/schedules", "clean <up>", "*/5 * * * *", "cache.clean", "in ")
    act("/schedules/pause", { name = "clean <up>" })
    assert.is_true(db:schedules()[1].paused)
    has("/schedules", "paused")
    act("/schedules/resume", { name = "clean <up>" })
    assert.is_false(db:schedules()[1].paused)
    local html = act("/schedules/run", { name = "clean <up>" })
    local id = tonumber(said(html):match "job (%d+)")
    assert.equal("cache.clean", db:job(id).name)
    act("/schedules/remove", { name = "clean <up>" })
    assert.same({}, db:schedules())
    has("/schedules", "There are no schedules")
    assert.equal(404, (post("/schedules/pause", { name = "none" })))
  end)

  -- ------------------------------------------------------------ adopted tables

  it("adopted tables have counts and next steps, and are paused, tuned, retried and drained", function()
    local design = designs.worker_queue
    server.sql(design.table .. ";" .. (design.row .. ";"):rep(6), name)
    local t = assert(db:adopt(design.map))
    for _ = 1, 3 do
      for _, job in ipairs(assert(t:claim_many(1))) do assert(job:discard "no") end
    end
    assert(t:give_back()) -- rows that were taken in with those
    has("/adopted", "worker_queue", "not served", "No host takes in its rows")
    has("/adopted?table=worker_queue", "Some rows are dead", "Mapping", "is_done")
    act("/adopted/pause", { table = "worker_queue" })
    has("/adopted?table=worker_queue", "paused")
    act("/adopted/resume", { table = "worker_queue" })
    act("/adopted/tune", { table = "worker_queue", rate = "2.5" })
    has("/adopted?table=worker_queue", "2.5")
    assert.equal(3, t:stats().dead)
    act("/adopted/retry", { table = "worker_queue" })
    assert.equal(0, t:stats().dead)
    local _, queue = fresh_queue()
    has("/adopted?table=worker_queue&into=" .. queue, "6 open rows of worker_queue")
    act("/adopted/drain", { table = "worker_queue", into = queue })
    assert.equal("0", server.sql("SELECT COUNT(*) FROM worker_queue", name))
    assert.equal(6, #assert(db:jobs { queue = queue }))
    assert.equal(404, (request(web, "GET", "/adopted?table=none")))
  end)

  -- -------------------------------------------------------------------- hosts

  it("hosts have workers with their jobs, scripts and memory, and get another number of workers", function()
    has("/hosts", "No host is there")
    local q, queue = fresh_queue()
    local go = fixture.dir() .. "/go"
    local h = host.start(url, ([[return { slow = function(job)
      job:progress(0.25, "quarter <done>")
      while not io.open %q do require "nightshift.core".sleep(0.02) end
    end }]]):format(go), { "--queues", queue })
    local id = assert(q:push("slow", {}))
    local html, text
    eventually(function()
      html, text = get "/hosts"
      return text:find("quarter <done>", 1, true)
    end)
    assert.truthy(html:find('href="/jobs/' .. id .. '"', 1, true))
    assert.truthy(text:find("25%", 1, true))
    assert.truthy(text:find "Memory %d[%d.]* MiB", text)
    assert.truthy(text:find "Workers %d[of 2]*, %d busy", text)
    assert.truthy(text:find "Scripts %x%x%x%x%x%x%x%x")
    has("/jobs/" .. id, "is running", "quarter <done>", "process ")
    html = act("/hosts/tune", { host = html:match 'name="host" value="(%d+)"', workers = "3" })
    assert.truthy(said(html):find("3 workers; it had 2", 1, true), said(html))
    assert.equal(400, (post("/hosts/tune", { host = "1", workers = "x" })))
    assert(io.open(go, "w")):close()
    host.stop(h)
  end)

  it("three clicks from the first page, without an id, say why jobs do not run", function()
    local own = server.fresh()
    local handle <close> = assert(nightshift.open(own))
    local full = handle:queue "full"
    assert(full:push("known", {}))
    assert(full:limit { running = 5 })
    -- as a claim and a job with stop = "queue" leave it
    assert(handle:execute [[INSERT INTO nightshift_backlog SELECT queue_id, '', `rank`, ready_at, job_id, run, alone,
      kind FROM nightshift_ready WHERE job_id > 0]])
    assert(handle:execute "DELETE FROM nightshift_ready WHERE job_id > 0")
    assert(handle:execute("UPDATE nightshift_limit SET stopped = ?", (os.time() + 3600) * 1000000))
    assert(handle:queue "held":pause())
    assert(handle:queue "held":push("known", {}))
    assert(handle:queue "strange":push("stranger", {}))
    local h = host.start(own, "return { known = function() end }") -- a host at work may claim a moment after the pause
    local p = start(own)
    for queue, words in pairs { held = "its queue 'held' is paused", strange = "has a handler 'stranger'",
      full = "queue full is stopped until" } do
      local list = get("/", p):match('href="(/jobs%?[^"]*queue=' .. queue .. '[^"]*)"'):gsub("&amp;", "&")
      local html = get(list, p)
      local text = select(2, get(html:match 'data%-label="ID"><a href="(/jobs/%d+)"', p))
      assert.truthy(text:find(words, 1, true), text)
    end
    host.stop(h)
  end)

  it("limits are shown with their groups, set and ended", function()
    local q, queue = fresh_queue()
    act("/limits/set", { queue = queue, running = "2", rate = "500/1m", backlog = "2", group_running = "1",
      ordered = "1" })
    assert.same({ 2, { 500, 60 }, 2, true },
      { q:limits().running, q:limits().rate, q:limits().backlog, q:limits().group.ordered })
    assert.truthy(get "/queues":find('<a href="/limits?queue=' .. queue .. '" class="dim">limited</a>', 1, true))
    assert(q:push("n", {}))
    assert(db:execute([[INSERT INTO nightshift_backlog SELECT queue_id, 'tenant:7', 0, ready_at, job_id, run, alone,
      kind FROM nightshift_ready r
      WHERE job_id > 0 AND queue_id = (SELECT id FROM nightshift_queue WHERE name = ?)]], queue))
    has("/limits?queue=" .. queue, "2 running, 500/1m, 2 waiting; each group: 1 running, ordered",
      "Groups of " .. queue, "tenant:7", "full: pushes are refused")
    local status, html = post("/limits/set", { queue = queue, rate = "fast" })
    assert.equal(400, status)
    assert.truthy(text_of(html):find("rate must be starts and a time, like 500/1m; got 'fast'", 1, true))
    assert.equal(400, (post("/limits/set", { queue = queue })))
    assert.equal(2, q:limits().running)
    act("/limits/lift", { queue = queue })
    assert.is_nil((q:limits()))
  end)

  -- ------------------------------------------------------------------ structure

  local VOID <const> = { input = true, meta = true, link = true, br = true, img = true, path = true }

  --- Elements end where they are to, ids are there once, and each field has a name that is read out.
  local function check_structure(path, html)
    local open, ids, labelled = {}, {}, {}
    for id in html:gmatch '<label[^>]* for="([^"]*)"' do labelled[id] = true end
    for slash, tag, rest in html:gmatch "<(/?)(%a[%w]*)([^<>]*)>" do
      local id = rest:match '%sid="([^"]*)"'
      if id then assert(not ids[id], ("%s has %s twice"):format(path, id)) end
      if id then ids[id] = true end
      if slash == "/" then
        local was = table.remove(open)
        assert(was == tag, ("%s: %s ends in %s"):format(path, was, tag))
      elseif not VOID[tag] and not rest:find "/$" then
        open[#open + 1] = tag
      end
      local field = tag == "select" or tag == "textarea" or tag == "input" and not rest:find 'type="hidden"'
      if field and slash == "" and not rest:find "aria%-label=" and open[#open] ~= "label" then
        assert(id and labelled[id], ("%s: <%s%s> has no label"):format(path, tag, rest))
      end
    end
    assert.same({}, open, path)
  end

  it("elements end, ids are there once, and fields have labels", function()
    local q, queue = fresh_queue()
    local id = dead(q, 1, "no")[1]
    local parent = assert(q:push("n", {}))
    assert(q:push("n", {}, { parent = parent }))
    assert(db:schedule { name = "s", every = "1h", push = { "n", {}, { queue = queue } } })
    for _, path in ipairs { "/jobs", "/jobs?state=odd", "/jobs?state=dead", "/jobs?queue=none", "/jobs/" .. id,
      "/jobs/" .. parent, "/jobs?verb=cancel&queue=" .. queue, "/jobs?verb=move&queue=" .. queue, "/errors",
      "/schedules", "/adopted", "/hosts", "/limits", "/limits?queue=" .. queue } do
      check_structure(path, (get(path)))
    end
    assert(db:schedule_remove "s")
  end)

  -- ----------------------------------------------------------------- hostility

  it("texts of users stay texts on every page", function()
    local evil = [[<script>alert(1)</script>"><img src=x onerror=alert(1)>'$(os.exit())]]
    local q = db:queue(evil:sub(1, 60))
    local parent = assert(q:push(evil, { [evil] = evil }, { tags = { evil:sub(1, 60) }, unique = evil }))
    local job = assert(q:claim())
    job:log(evil)
    job:progress(0.5, evil)
    get("/jobs/" .. parent)
    get "/hosts"
    assert(job:discard(evil))
    assert(db:schedule { name = evil, every = "1h", push = { evil, { evil }, { queue = evil:sub(1, 60) } } })
    for _, path in ipairs { "/jobs", "/jobs/" .. parent, "/errors", "/schedules", "/hosts", "/adopted",
      "/jobs?queue=" .. encode(q.name), "/jobs?state=dead&error=" .. encode(evil), "/jobs?name=" .. encode(evil),
      "/jobs?verb=retry&state=dead&error=" .. encode(evil), "/errors?name=" .. encode(evil),
      "/jobs?since=" .. encode(evil), "/adopted?table=x&into=" .. encode(evil) } do
      local _, html = request(web, "GET", path)
      assert.is_nil(html:find("<script>alert", 1, true), path)
      assert.is_nil(html:find("<img src=x", 1, true), path)
    end
    act("/schedules/remove", { name = evil })
  end)

  it("a read-only server has no form that changes anything, and refuses it", function()
    local q = fresh_queue()
    local id = dead(q, 1, "no")[1]
    local p = start(url, "--read-only")
    for _, path in ipairs { "/jobs?state=dead", "/jobs/" .. id, "/errors", "/schedules", "/adopted", "/hosts",
      "/jobs?state=dead&verb=retry" } do
      assert.is_nil((get(path, p)):find('method="post"', 1, true), path)
    end
    assert.equal(403, (request(p, "POST", ("/jobs/%d/retry"):format(id), "csrf=x")))
    assert.equal("dead", db:job(id).state)
  end)
end)
