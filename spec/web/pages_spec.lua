-- `nightshift web`: a real process on a real database, asked over HTTP. What a browser may see and
-- do, what it is told when jobs do not run, and what an attacker's page gets. Then the pages of
-- jobs, one job, errors, schedules, adopted tables and hosts.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local http = require "socket.http"
local ltn12 = require "ltn12"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local server = require "spec.support.db"
local socket = require "socket"

http.TIMEOUT = proc.limit(20)

--- Starts one at a free port; it has `at`, the address.
local function start(url, ...)
  local p = proc.start { proc.program, "web", "--listen", "127.0.0.1:0", env = { NIGHTSHIFT_URL = url }, ... }
  p.at = p:wait_line "the pages are at http://([^/%s]+)"
  return p
end

local function encode(text)
  return (tostring(text):gsub("[^%w]", function(c) return ("%%%02X"):format(c:byte()) end))
end

local function form_of(fields)
  local parts = {}
  for key, value in pairs(fields) do parts[#parts + 1] = encode(key) .. "=" .. encode(value) end
  return table.concat(parts, "&")
end

--- Status, body and headers of a request; `given` may have a form, headers, a method.
local function ask(p, path, given)
  given = given or {}
  local parts, headers, body = {}, {}, given.body
  for name, value in pairs(given.headers or {}) do headers[name] = value end
  if given.form then
    body = form_of(given.form)
    headers["content-type"] = headers["content-type"] or "application/x-www-form-urlencoded"
  end
  if body then headers["content-length"] = #body end
  local ok, status, got = http.request {
    url = "http://" .. p.at .. path, method = given.method or (body and "POST" or "GET"), headers = headers,
    source = body and ltn12.source.string(body), sink = ltn12.sink.table(parts), redirect = false,
  }
  assert(ok, status)
  return status, table.concat(parts), got
end

--- The value of the hidden field against forged forms.
local function csrf_of(p, path, given) return select(2, ask(p, path, given)):match 'name="csrf" value="(%x+)"' end

--- Sends a form as the page would; the page behind it.
local function submit(p, page, action, form)
  form.csrf = form.csrf or assert(csrf_of(p, page), "a page without a form")
  local status, body, headers = ask(p, action, { form = form })
  if status ~= 303 then return status, body end
  return status, select(2, ask(p, headers.location)), headers.location
end

local SCRIPT <const> = "return { known = function() return 1 end }"

describe("nightshift web", function()
  local handle, p, url

  setup(function()
    url = server.fresh()
    handle = assert(nightshift.open(url))
    p = start(url)
  end)
  teardown(function() handle:close() end)

  it("says on an empty database what to do first", function()
    local status, body = ask(p, "/")
    assert.equal(200, status)
    assert.is_truthy(body:find("nightshift push QUEUE NAME", 1, true))
    assert.is_truthy(body:find("nightshift work FILE", 1, true))
    assert.is_nil(body:find("Needs attention", 1, true))
  end)

  it("tells on its first page why jobs do not run, with a link to them", function()
    assert(handle:queue "held":push "known")
    assert(handle:queue "held":pause())
    assert(handle:queue "open":push "stranger")
    local _, body = ask(p, "/")
    assert.is_truthy(body:find("No host runs, and 2 jobs are ready", 1, true))
    local h = host.start(url, SCRIPT)
    _, body = ask(p, "/")
    assert.is_truthy(body:find("The queue &#39;held&#39; is paused, and has 1 job.", 1, true))
    local text = "No live host has a handler for &#39;stranger&#39; (1 in queue &#39;open&#39;)"
    eventually(function()
      _, body = ask(p, "/")
      return body:find(text, 1, true)
    end)
    assert.is_truthy(body:find('href="/jobs?name=stranger&amp;queue=open&amp;state=ready"', 1, true))
    host.stop(h)
  end)

  it("shows how much was done, as a picture, a sentence and figures", function()
    for span, words in pairs { ["1h"] = "1 hour", ["1d"] = "1 day", ["7d"] = "7 days" } do
      local _, body = ask(p, "/?span=" .. span)
      assert.is_truthy(body:find('aria-label="Throughput, last ' .. words .. ". done: at most ", 1, true))
      assert.equal(3, select(2, body:gsub("<svg viewBox[^>]*role=\"img\"", "")))
      assert.equal(3, select(2, body:gsub("<summary>Figures</summary>", "")))
    end
  end)

  it("pauses and resumes a queue by the forms of its pages", function()
    assert(handle:queue "mail":push "known")
    local status, body, at = submit(p, "/queues", "/queues/pause", { queue = "mail" })
    assert.equal(303, status)
    assert.is_truthy(body:find("The queue &#39;mail&#39; is paused", 1, true))
    assert.is_true(handle:queue "mail":stats().paused)
    for _, cell in ipairs { 'Ended a minute">0', 'Done in">not known', 'Workers">0, 0 wanted' } do
      assert.is_truthy(body:find('data-label="' .. cell, 1, true), cell)
    end
    assert.is_nil(select(2, ask(p, at)):find("none of its jobs starts", 1, true)) -- it is said once
    body = select(2, submit(p, "/", "/queues/resume", { queue = "mail", to = "/" }))
    assert.is_truthy(body:find("The queue &#39;mail&#39; goes on", 1, true))
    assert.is_truthy(body:find("<h1>Overview</h1>", 1, true))
    assert.is_false(handle:queue "mail":stats().paused)
  end)

  it("pauses every queue, and names of jobs", function()
    local _, body = submit(p, "/queues", "/queues/pause_all", {})
    assert.is_truthy(body:find("Every queue is paused, since", 1, true))
    assert.is_truthy(select(2, ask(p, "/")):find("Every queue is paused: no job starts anywhere", 1, true))
    submit(p, "/queues", "/queues/resume_all", {})
    assert.is_nil(assert(handle:stats()).paused.all)
    body = select(2, submit(p, "/queues", "/queues/pause_name", { name = "<b>&'\"" }))
    assert.is_truthy(body:find("Jobs named &#39;&lt;b&gt;&amp;&#39;&quot;&#39; are paused", 1, true))
    submit(p, "/queues", "/queues/resume_name", { name = "<b>&'\"" })
    assert.same({}, { table.unpack(assert(handle:stats()).paused.names) })
  end)

  it("lists who did what, by verb and page by page", function()
    local id = assert(handle:queue "later":push("known", 1, { delay = 3600 }))
    for i = 1, 51 do assert(handle:reprioritise(id, i)) end
    assert(handle:cancel(id, { reason = "<b>twice" }))
    submit(p, "/queues", "/queues/pause", { queue = "later" })
    submit(p, "/queues", "/queues/resume", { queue = "later" })
    local _, body = ask(p, "/audit")
    assert.is_truthy(body:find("queue later", 1, true))
    assert.matches(">the page on [^<]+ <span", body)
    assert.is_truthy(body:find(('<a href="/jobs/%d">job %d: &lt;b&gt;twice</a>'):format(id, id), 1, true))
    assert.matches(">a Lua program on [^<]+ <span", body)
    assert.is_truthy(body:find(handle:execute("SELECT USER() AS u")[1].u, 1, true))
    local more = body:match 'href="(/audit%?after=%d+)"[^>]*>Next page'
    assert.is_truthy(select(2, ask(p, more)):find(("job %d: priority 1<"):format(id), 1, true))
    body = select(2, ask(p, "/audit?verb=cancel&since=1h"))
    assert.is_truthy(body:find("&lt;b&gt;twice", 1, true))
    assert.is_nil(body:find("priority", 1, true))
    assert.is_truthy(select(2, ask(p, "/audit?verb=drain")):find("No action is like this", 1, true))
    assert.is_truthy(select(2, ask(p, "/audit?since=soon")):find("Since must be an instant", 1, true))
  end)

  it("says what a verb has refused", function()
    local status, body = submit(p, "/queues", "/queues/remove", { queue = "held" })
    assert.equal(409, status)
    assert.is_truthy(body:find("it has a live job", 1, true))
    assert.equal(400, (submit(p, "/queues", "/queues/pause_name", { name = "" })))
  end)

  -- ------------------------------------------------------------------- safety

  it("escapes whatever names hold", function()
    local name = "<script>alert(1)</script>\"'&"
    assert(handle:queue(name):push("<img src=x onerror=alert(1)>"))
    assert(handle:queue(name):pause())
    for _, path in ipairs { "/", "/queues", "/audit", "/nowhere%3Cscript%3E", "/jobs%22%3E" } do
      local _, body = ask(p, path)
      assert.is_nil(body:find("<script>", 1, true))
      assert.is_nil(body:find("<img", 1, true))
    end
    local escaped = "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"
    assert.is_truthy(select(2, ask(p, "/queues")):find(escaped, 1, true))
    assert(handle:cancel(assert(handle:jobs { queue = name })[1].id))
    assert(handle:queue(name):resume())
  end)

  it("forbids scripts, frames and styles that are not its own", function()
    local _, body, headers = ask(p, "/")
    assert.is_truthy(headers["content-security-policy"]:find("default-src 'none'", 1, true))
    assert.is_truthy(headers["content-security-policy"]:find("frame-ancestors 'none'", 1, true))
    assert.is_nil(headers["content-security-policy"]:find("unsafe", 1, true))
    assert.equal("nosniff", headers["x-content-type-options"])
    assert.equal("same-origin", headers["referrer-policy"])
    assert.equal("no-store", headers["cache-control"])
    assert.is_nil(body:find "%sstyle=")
    assert.is_nil(body:find "%son%l+=")
    for path in body:gmatch '[sh]re?[cf]="(/assets/[^"]+)"' do
      local status, text, got = ask(p, path)
      assert.equal(200, status)
      assert.is_true(#text > 100)
      assert.equal(304, (ask(p, path, { headers = { ["if-none-match"] = got.etag } })))
    end
  end)

  -- A search on the page of several databases, and a body that was too long, were answered without.
  it("sends the headers that protect a browser with every answer", function()
    local function guards(got, what)
      for name, value in pairs(require "nightshift.web.guard".HEADERS) do
        local found = assert(got[name:lower()], what .. " has no " .. name)
        if name ~= "Cache-Control" then assert.equal(value, found, what) end
      end
    end
    local site = require "nightshift.web".site { db = handle }
    for _, page in ipairs(site.pages) do
      local paths = { { "GET", page.path }, { "POST", page.path } }
      for name in pairs(page.actions or {}) do paths[#paths + 1] = { "POST", page.path .. "/" .. name } end
      for _, one in ipairs(paths) do
        local path, lower = one[2]:gsub("//", "/"):gsub("{%w+}", "7"), {}
        local _, headers = site:answer { method = one[1], path = path, query = "", body = "",
          headers = { host = "localhost", ["content-type"] = "application/x-www-form-urlencoded" } }
        for name, value in pairs(headers) do lower[name:lower()] = value end
        guards(lower, table.concat(one, " "))
      end
    end
    local asset = select(2, ask(p, "/")):match '"(/assets/[^"]+)"'
    local etag = select(3, ask(p, asset)).etag
    local csrf = csrf_of(p, "/queues")
    for _, case in ipairs {
      { 200, "/login" }, { 200, asset }, { 304, asset, { headers = { ["if-none-match"] = etag } } },
      { 404, "/assets/x" }, { 303, "/find?q=1" }, { 404, "/nowhere" }, { 404, "/jobs/7" },
      { 404, "/live?path=/nowhere" }, { 400, "/?x=%ff" },
      { 403, "/", { headers = { host = "evil.example" } } }, { 405, "/", { method = "DELETE" } },
      { 403, "/", { headers = { ["sec-fetch-site"] = "cross-site" } } }, { 200, "/", { method = "HEAD" } },
      { 415, "/queues/pause_all", { body = "a" } }, { 413, "/queues/pause_all", { body = ("a"):rep(300000) } },
      { 303, "/login", { form = { token = "x" } } }, { 303, "/logout", { form = { csrf = csrf } } },
      { 303, "/queues/resume_all", { form = { csrf = csrf } } },
      { 403, "/queues/resume_all", { form = { csrf = "x" } } },
    } do
      local status, _, got = ask(p, case[2], case[3])
      assert.same({ case[2], case[1] }, { case[2], status })
      guards(got, ("%d for %s"):format(status, case[2]))
    end
    local s = assert(socket.connect(p.at:match "^(.*):(%d+)$"))
    s:settimeout(proc.limit(20))
    s:send(("GET /live?path=/ HTTP/1.1\r\nHost: %s\r\n\r\n"):format(p.at))
    local got, line = {}, assert(s:receive "*l")
    assert.equal("HTTP/1.1 200 OK", line)
    repeat
      line = assert(s:receive "*l")
      local name, value = line:match "^([^:]+):%s*(.*)$"
      if name then got[name:lower()] = value end
    until line == ""
    guards(got, "a stream")
    s:close()
  end)

  it("answers only to its own names", function()
    local wrong = { "evil.example", "evil.example:7878", "localhost.evil.example", "", "127.0.0.1@evil.example" }
    for _, name in ipairs(wrong) do
      assert.equal(403, (ask(p, "/", { headers = { host = name } })), name)
    end
    for _, name in ipairs { "localhost:1", "127.0.0.1", "[::1]:7878", "LOCALHOST" } do
      assert.equal(200, (ask(p, "/", { headers = { host = name } })), name)
    end
  end)

  it("takes no form of another site, and none without the number of this process", function()
    local csrf = csrf_of(p, "/queues")
    local function try(form, headers, path)
      return (ask(p, path or "/queues/pause_all", { form = form, headers = headers }))
    end
    assert.equal(403, try({ csrf = csrf }, { origin = "http://evil.example" }))
    assert.equal(403, try({ csrf = csrf }, { origin = "null" }))
    assert.equal(403, try({ csrf = csrf }, { origin = "http://" .. p.at .. ".evil.example" }))
    assert.equal(403, try({ csrf = csrf }, { ["sec-fetch-site"] = "cross-site" }))
    assert.equal(403, try({ csrf = csrf }, { ["sec-fetch-site"] = "same-site" }))
    assert.equal(403, try({ csrf = "" }))
    assert.equal(403, try({ csrf = csrf:reverse() }))
    assert.equal(415, try({ csrf = csrf }, { ["content-type"] = "text/plain" }))
    assert.equal(404, try({ csrf = csrf }, nil, "/queues/explode"))
    assert.equal(404, (ask(p, "/queues/pause_all")))
    assert.equal(405, (ask(p, "/queues", { method = "DELETE" })))
    assert.is_nil(assert(handle:stats()).paused.all)
    assert.equal(303, try({ csrf = csrf }, { origin = "http://" .. p.at, ["sec-fetch-site"] = "same-origin" }))
    assert.equal(303, try({ csrf = csrf }, nil, "/queues/resume_all"))
  end)

  -- A page of another site kept streams open, for which pages were made each second.
  it("shows a page of another site nothing, but lets it lead a person here", function()
    local function try(path, site, mode)
      return (ask(p, path, { headers = { ["sec-fetch-site"] = site, ["sec-fetch-mode"] = mode } }))
    end
    assert.equal(403, try("/live?path=/", "cross-site", "no-cors"))
    assert.equal(403, try("/queues", "same-site", "cors"))
    assert.equal(200, try("/queues", "cross-site", "navigate"))
    assert.equal(200, try("/queues", "none", "navigate"))
    assert.equal(200, try("/assets/icon.svg", "cross-site", "no-cors"))
  end)

  it("bounds a request, and survives those that are none", function()
    assert.equal(413, (ask(p, "/queues/pause_all", { body = ("a"):rep(300000) })))
    local many = { body = ("a&"):rep(1001), headers = { ["content-type"] = "application/x-www-form-urlencoded" } }
    assert.equal(400, (ask(p, "/login", many)))
    assert.equal(400, (ask(p, "/queues?x=%ff")))
    assert.equal(404, (ask(p, "/live?path=//evil")))
    local s = assert(socket.connect(p.at:match "^(.*):(%d+)$"))
    s:send "\0\1\2 nonsense\r\n\r\n"
    s:close()
    assert.equal(200, (ask(p, "/")))
  end)

  -- 512 of them kept all browsers out.
  it("cuts off a client that sends a byte now and then", function()
    local path = fixture.file("uptime", ("i8"):pack(0))
    local other = proc.start { proc.program, "web", "--listen", "127.0.0.1:0", env = { NIGHTSHIFT_URL = url,
      LD_PRELOAD = proc.build .. "/meddle.so", MEDDLE_UPTIME = path } }
    other.at = other:wait_line "the pages are at http://([^/%s]+)"
    local s = assert(socket.connect(other.at:match "^(.*):(%d+)$"))
    s:send "GET / HTTP/1.1\r\nX: "
    --- Sends a byte as if it were so many seconds later; what has become of the connection.
    local function drip(seconds)
      assert.equal(200, (ask(other, "/"))) -- what came before has been read
      local file <close> = assert(io.open(path, "r+b"))
      file:write(("i8"):pack(seconds))
      file:flush()
      s:settimeout(0)
      s:send "a"
      assert.equal(200, (ask(other, "/")))
      s:settimeout(seconds > 60 and proc.limit(20) or 0)
      return select(2, s:receive(1))
    end
    assert.equal("timeout", drip(19))
    assert.equal("timeout", drip(57))
    assert.equal("closed", drip(62))
  end)

  it("leads a search to a job, or to jobs by name", function()
    assert.equal("/jobs/42", select(3, ask(p, "/find?q=42")).location)
    assert.equal("/jobs?name=mail.send", select(3, ask(p, "/find?q=+mail.send")).location)
  end)

  -- --------------------------------------------------------------------- live

  --- Opens a stream of a page; next_event() gives the name and the value of the next one.
  local function watch(path)
    local s = assert(socket.connect(p.at:match "^(.*):(%d+)$"))
    s:settimeout(proc.limit(20))
    s:send(("GET /live?path=%s HTTP/1.1\r\nHost: %s\r\n\r\n"):format(path, p.at))
    local head, text = s:receive "*l", ""
    repeat local line = assert(s:receive "*l") until line == ""
    local function next_event()
      while true do
        local event, rest = text:match "^(.-)\n\n(.*)$"
        if event then
          text = rest
          local name, data = event:match "^event: (%l+)\ndata: (.*)$"
          if name then return name, assert(nightshift.decode(data)) end
        else
          local size = tonumber(assert(s:receive "*l"), 16) -- of a chunk
          text = text .. assert(s:receive(size))
          s:receive(2)
        end
      end
    end
    return head, next_event, s
  end

  it("sends what has changed on a page that is watched, and nothing else", function()
    local head, next_event, s = watch "/queues"
    assert.equal("HTTP/1.1 200 OK", head)
    local name, parts = next_event()
    assert.equal("change", name)
    assert.is_truthy(parts.queues and parts.names) -- all of it, once
    assert(handle:queue "fresh":push "known")
    repeat name, parts = next_event() until parts.queues and parts.queues:find("fresh", 1, true)
    assert.equal("change", name)
    assert.is_nil(parts.names)
    s:close()
    assert.equal("HTTP/1.1 404 Not Found", (watch "/nowhere"))
  end)

  it("asks the server no more often for 200 watchers than for one", function()
    local q = handle:queue "watched"
    local ids, busy = {}, handle:queue "busy"
    for i = 1, 100 do ids[i] = assert(q:push("seen", {})) end
    local function asked_while(n)
      local list, events = {}, {}
      for i = 1, n do
        local _, next_event, s = watch(i % 2 == 1 and "/queues" or "/jobs/" .. ids[i // 2])
        list[i], events[i] = s, next_event
      end
      for _, next_event in ipairs(events) do next_event() end
      local function count() return tonumber(server.sql "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'":match "%d+") end
      local before, began = count(), nst.clock()
      for _ = 1, 5 do -- something else changes all the time
        assert(busy:push("other", {}))
        nst.sleep(0.5)
      end
      local asked = (count() - before) / (nst.clock() - began) -- a second
      if n > 1 then -- the change of one job is told to its page, and to no other one
        assert(handle:cancel(ids[7], { reason = "told" }))
        repeat local _, parts = events[14]() until (parts.head or ""):find("told", 1, true)
      end
      for _, s in ipairs(list) do s:close() end
      return asked
    end
    local one, many = asked_while(1), asked_while(200)
    -- one statement a second tells of all jobs, and every ten seconds one of the pages is made anew
    assert.is_true(many <= one * 1.1 + 8, ("%.1f statements a second for one, %.1f for 200"):format(one, many))
  end)

  -- ----------------------------------------------------------- its ends and options

  it("ends at TERM at once, with open streams", function()
    local other = start(url)
    local s = assert(socket.connect(other.at:match "^(.*):(%d+)$"))
    s:send(("GET /live?path=/ HTTP/1.1\r\nHost: %s\r\n\r\n"):format(other.at))
    s:receive "*l"
    local began = nst.clock()
    other:signal "TERM"
    assert.equal("signal 15", other:wait())
    assert.is_true(nst.clock() - began < proc.limit(1))
  end)

  it("changes nothing with --read-only, and shows no buttons", function()
    local other = start(url, "--read-only")
    local _, body = ask(other, "/queues")
    assert.is_nil(body:find('method="post"', 1, true))
    local status
    status, body = ask(other, "/queues/pause_all", { form = { csrf = "x" } })
    assert.equal(403, status)
    assert.is_truthy(body:find("--read-only", 1, true))
    assert.is_nil(assert(handle:stats()).paused.all)
  end)

  it("stands below a prefix, whether the proxy cuts it off or not", function()
    local other = start(url, "--prefix", "/ops/", "--host", "jobs.example")
    for _, path in ipairs { "/ops/queues", "/queues" } do
      local status, body = ask(other, path, { headers = { host = "jobs.example" } })
      assert.equal(200, status)
      assert.is_truthy(body:find('href="/ops/assets/style.css', 1, true))
      assert.is_truthy(body:find('action="/ops/queues/pause"', 1, true))
      assert.is_nil(body:find '[hc][rt]%l+="/[^o]')
    end
    local csrf = csrf_of(other, "/ops/queues")
    local _, _, headers = ask(other, "/ops/queues/resume_all", { form = { csrf = csrf },
      headers = { host = "jobs.example", origin = "https://jobs.example" } })
    assert.is_truthy(headers.location:find("/ops/queues?said=", 1, true) == 1)
  end)

  it("wants the token of --token-file, as a cookie or a header", function()
    local token = ("t0ken"):rep(5)
    local other = start(url, "--token-file", fixture.file("token", token .. "\n"))
    local status, body = ask(other, "/queues")
    assert.equal(401, status)
    assert.is_nil(body:find("fresh", 1, true))
    assert.equal(401, (ask(other, "/live?path=/")))
    assert.equal(401, (ask(other, "/queues/pause_all", { form = { csrf = "x" } })))
    assert.equal(200, (ask(other, "/assets/style.css")))
    assert.equal(403, (ask(other, "/login", { form = { token = token .. "x" } })))
    local _, _, headers = ask(other, "/login", { form = { token = token, to = "/queues" } })
    assert.equal("/queues", headers.location)
    local cookie = headers["set-cookie"]
    assert.is_truthy(cookie:find("HttpOnly", 1, true) and cookie:find("SameSite=", 1, true))
    local as = { headers = { cookie = cookie:match "^[^;]*" } }
    assert.equal(200, (ask(other, "/queues", as)))
    assert.equal(401, (ask(other, "/queues", { headers = { cookie = "nightshift=" .. ("0"):rep(64) } })))
    assert.equal(200, (ask(other, "/queues", { headers = { authorization = "Bearer " .. token } })))
    assert.equal(401, (ask(other, "/queues", { headers = { authorization = "Bearer x" } })))
    local csrf = csrf_of(other, "/queues", as)
    ask(other, "/logout", { form = { csrf = csrf }, headers = as.headers })
    assert.equal(401, (ask(other, "/queues", as)))
    for _ = 1, 30 do status = ask(other, "/login", { form = { token = "wrong" } }) end
    assert.equal(403, status)
    assert.equal(403, (ask(other, "/login", { form = { token = token } }))) -- too many wrong ones
    _, _, headers = ask(other, "/login?to=//evil.example")
    assert.is_nil(headers.location)
  end)

  it("listens for other machines only with a token", function()
    local status, _, err = proc.run { proc.program, "web", "--listen", "0.0.0.0:0", env = { NIGHTSHIFT_URL = url } }
    assert.equal(2, status)
    assert.is_truthy(err:find("--token-file", 1, true))
    local short = fixture.file("token", "short\n")
    status, _, err = proc.run { proc.program, "web", "--token-file", short, env = { NIGHTSHIFT_URL = url } }
    assert.equal(78, status)
    assert.is_truthy(err:find("16 characters", 1, true))
    status, _, err = proc.run { proc.program, "web", "--listen", p.at, env = { NIGHTSHIFT_URL = url } }
    assert.equal(2, status)
    assert.is_truthy(err:find("Address already in use", 1, true))
  end)

  it("says that the database is away, on every page, and comes back by itself", function()
    local its = server.spare()
    local other = start((its:fresh()))
    assert.equal(200, (ask(other, "/")))
    local csrf = csrf_of(other, "/queues")
    its:stop()
    for _, path in ipairs { "/", "/queues" } do
      local status, body, headers = ask(other, path)
      assert.equal(503, status)
      assert.is_truthy(body:find("The database is away", 1, true))
      assert.is_truthy(headers["retry-after"])
    end
    -- the page behind an action that failed looked again at a page that is none
    local _, failed = ask(other, "/queues/pause_all", { form = { csrf = csrf } })
    assert.is_truthy(failed:find('http-equiv="refresh" content="3;url=/queues"', 1, true))
    assert.equal(404, (ask(other, "/nowhere")))
    its:start()
    eventually(function() return ask(other, "/") == 200 end)
  end)
end)

-- ----------------------------------------------------------------- in this process

describe("the pages of nightshift web, beside many jobs,", function()
  local handle, site

  --- Adds so many jobs of each of four states behind an id.
  local function add(n, behind)
    local live = "FROM nightshift_job WHERE id > ? AND nonce MOD 3 = "
    for _, text in ipairs {
      "INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank, max_attempts, max_crashes, backoff, "
        .. "timeout, created, due, unmet, nonce) SELECT ? + seq, 1, 'n', '1', 100, 155, 10, 5, 1, 1, 1, "
        .. "IF(seq MOD 3 = 1, 4102444800000000 + seq, seq), seq MOD 3 = 2, seq FROM seq_1_to_" .. 3 * n,
      "INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run) SELECT 1, rank, due, id, 1 " .. live .. 0,
      "INSERT INTO nightshift_scheduled (run_at, job_id, queue_id, rank, run) SELECT due, id, 1, rank, 1 " .. live .. 1,
      "INSERT INTO nightshift_edge (on_id, job_id) SELECT 1, id " .. live .. 2,
      "INSERT INTO nightshift_finished (id, queue_id, name, payload, priority, outcome, reason, error, run, attempts, "
        .. "polls, crashes, lost, max_attempts, max_crashes, backoff, timeout, created, finished_at, on_fail, nonce) "
        .. "SELECT ? + 100000 + seq, 1, 'n', '1', 100, 'dead', 'attempts', 'no', 1, 0, 0, 0, 0, 10, 5, 1, 1, 1, seq, "
        .. "'cancel', seq FROM seq_1_to_" .. n,
    } do assert(handle:execute(text, behind)) end
  end

  setup(function()
    handle = assert(nightshift.open((server.fresh())))
    assert(handle:queue "many":push("n", 1))
    add(2500, 1000)
    site = require "nightshift.web".site { db = handle }
  end)
  teardown(function() handle:close() end)

  local function get(path)
    local status, _, html = site:answer { method = "GET", path = path, query = "", headers = { host = "localhost" } }
    assert.equal(200, status, html)
    return html
  end

  local function rows_read(path)
    assert(handle:execute "FLUSH STATUS")
    get(path)
    local sum = 0
    for _, row in ipairs(handle:execute "SHOW SESSION STATUS LIKE 'Handler_read%'") do sum = sum + row.Value end
    return sum
  end

  it("read no more rows where there are more", function()
    local paths, before = { "/", "/queues", "/errors", "/hosts", "/schedules", "/jobs", "/limits" }, {}
    for _, path in ipairs(paths) do before[path] = rows_read(path) end
    add(1000, 20000)
    assert(handle:pause(20003) and handle:resume(20003)) -- then all rows of ready were read
    for _, path in ipairs(paths) do
      local n = rows_read(path)
      assert.is_true(n < before[path] + 100, ("%s: %d rows, then %d"):format(path, before[path], n))
    end
  end)

  it("say how many are ready, once these have been counted between two requests", function()
    local function count_of(state)
      return get "/queues":match('href="/jobs%?queue=many&amp;state=' .. state .. '">([^<]*)')
    end
    assert.equal("1,000+", count_of "ready")
    assert.is_truthy(get "/queues":find('data-label="Done in">not known', 1, true))
    assert.is_truthy(get "/queues":find("Ready jobs are being counted: the next look has their number.", 1, true))
    site:turn()
    assert.equal("3,501", count_of "ready")
    assert.is_nil(get "/queues":find("being counted", 1, true))
    assert.is_truthy(get "/queues":find("1,000+: there are more of these, which are not counted.", 1, true))
    for _, state in ipairs { "scheduled", "waiting", "dead" } do assert.equal("1,000+", count_of(state)) end
  end)

  it("say how far they look for names that no host serves", function()
    assert.is_nil(get "/":find("Names that no host serves", 1, true))
    assert(handle:execute [[INSERT INTO nightshift_holder (id, kind, host, pid, boot_id, connection, started, beat,
      version) VALUES (1, 'host', 'far', 1, '', 1, 1, 1, '')]])
    assert.is_truthy(get "/":find("among the first 2,000 ready jobs, and as many\nscheduled ones", 1, true))
    assert.is_truthy(get "/hosts":find("among the first 2,000 ready jobs", 1, true))
  end)
end)

describe("the pages of nightshift web", function()
  local web = require "nightshift.web"
  local layout = require "nightshift.web.layout"

  it("give a page about a fault in a page, and go on", function()
    local broken = true
    local site, said = web.site {}
    site.db = { _handle = { now = function()
      if broken then error "<b>it burns</b>" end
      return nil, "gone", "GONE"
    end } }
    site.complain = function(text) said = text end
    local function get()
      return site:answer { method = "GET", path = "/", query = "", headers = { host = "localhost" }, body = "" }
    end
    local status, headers, body = get()
    assert.equal(500, status)
    assert.is_truthy(said:find("it burns", 1, true))
    assert.equal("text/html; charset=utf-8", headers["Content-Type"])
    assert.is_truthy(body:find("&lt;b&gt;it burns", 1, true))
    broken = false
    assert.equal(503, (get()))
  end)

  it("escape text, and show what cannot be shown", function()
    assert.equal("&lt;a href=&quot;&#39;&quot;&gt;&amp;", layout.escape [[<a href="'">&]])
    assert.equal("a\u{FFFD}b\u{FFFD}", layout.escape "a\xFFb\xC3")
    assert.equal("␀␛\n\t␡", layout.escape "\0\27\n\t\127")
    assert.equal("é日本", layout.escape "é日本")
    assert.equal("<i>", layout.escape(layout.raw "<i>"))
    local show = layout.compile("a test", "# for _, x in ipairs(list) do\n$(x)\n# end\n$(nothing)")
    assert.equal("&lt;\n&gt;\n", show { list = { "<", ">" } })
  end)

  it("hide the values of some keys", function()
    local site = web.site { redact = { "Password", "card" } }
    local value = { password = "a1", list = { { card = { n = 1 } }, "open" }, more = nightshift.null }
    local text = layout.escape(site.h.json(value))
    assert.is_nil(text:find("a1", 1, true))
    assert.equal(2, select(2, text:gsub("%[hidden%]", "")))
    assert.is_truthy(text:find("open", 1, true) and text:find("null", 1, true))
  end)

  it("write JSON with a line for each item, and bound it", function()
    local h = web.site {}.h
    local text = layout.escape(h.json { a = { 1, 2 }, b = nightshift.array {}, c = 'x,{"' })
    local expected = '{\n  "a": [\n    1,\n    2\n  ],\n  "b": [],\n  "c": "x,{\\""\n}</pre>'
    assert.equal(expected, (text:gsub("^<pre[^>]*>", ""):gsub("&quot;", '"')))
    assert.is_true(#layout.escape(h.json { a = ("x"):rep(200000) }) < 70000)
  end)

  it("make URLs of any text", function()
    local h = web.site { prefix = "/p" }.h
    assert.equal("/p/jobs?a=%2F%3F%26%3D%20%2B&b=1&b=2", h.url("/jobs", { a = "/?&= +", b = { 1, 2 }, c = "" }))
    assert.equal("/p/jobs/a%2Fb%22", h.url { "jobs", 'a/b"' })
  end)

  -- When the proxy cut the prefix of the manual off, the list of jobs was the overview, and no job had
  -- a page.
  it("stand below a prefix that is called as a page is", function()
    local site = web.site { prefix = "/jobs" }
    for path, below in pairs { ["/jobs/"] = "/", ["/"] = "/", ["/jobs"] = "/jobs", ["/jobs/jobs"] = "/jobs",
      ["/jobs/7"] = "/jobs/7", ["/jobs/jobs/7"] = "/jobs/7", ["/jobs/7/retry"] = "/jobs/7/retry",
      ["/jobs/ticked"] = "/jobs/ticked", ["/jobs/jobs/ticked"] = "/jobs/ticked", ["/jobs/queues"] = "/queues",
      ["/jobs/queues/pause"] = "/queues/pause", ["/jobs/find"] = "/find", ["/jobs/nothing/here"] = "/nothing/here",
    } do assert.equal(below, site:path_below(path), path) end
  end)

  -- The page about all databases changed every ten seconds, whatever happened.
  it("of several databases change when one of these has", function()
    local rows = { { work = "1", settings = "a" }, { work = "7", settings = "a" } }
    local site = require "nightshift.web.shards".site { server = {}, db = { _list = {}, _handle = {
      now = function() return 1000000 end, execute = function() return rows end } } }
    local before = site.top:sign()
    rows[2].work = "8"
    assert.not_equal(before, site.top:sign())
    rows[1].settings = "b"
    assert.equal("b a", select(3, site.top:sign()))
  end)

  -- The stream of a job with long errors was over at once, and was opened again, for ever.
  it("send no more to a stream than it takes", function()
    local sent, html = {}, ('<p data-live="short">%s</p><p data-live="long">%s</p>'):format("a", ("x"):rep(500000))
    local live = require "nightshift.web.live".new {
      server = { send = function(_, _, text) sent[#sent + 1] = text return #text < 1 << 20 end },
      sign = function() return "1", nil, "2" end, signs = function() return {} end, render = function() return html end,
    }
    live:open(1, "/jobs/1")
    live:tick()
    assert.same({ 'event: change\ndata: {"short":"a"}\n\n' }, sent)
  end)

  it("find the parts of a page that may change", function()
    local fragments = require "nightshift.web.live".fragments
    assert.same({ a = "x<div>y</div>", b = "<td>1</td>" }, fragments(
      '<div class="z" data-live="a">x<div>y</div></div><p>no</p><table><tbody data-live="b"><td>1</td></tbody>'))
  end)
end)

-- ----- pages of jobs

local SECRET <const> = "hunter2-is-no-secret"

--- One request; no redirect is followed.
local function request(p, method, path, body)
  return ask(p, path, { method = method, body = body, headers = body and
    { ["content-type"] = "application/x-www-form-urlencoded", origin = "http://" .. p.at } })
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
    web = start(url, "--redact", "card, password")
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
      for i = 1, 700 do items[i] = { "n", {} } end
      assert(q:push_many(items))
      local html, path = act("/jobs/begin", { verb = "delete", queue = queue, state = "ready", total = "700" })
      local longest, looks = 0, 0
      path = path:gsub("^http://[^/]*", ""):gsub("%?.*", "")
      while path:find "^/runs/" and not html:find('class="said', 1, true) do
        local began = nst.clock()
        html, looks = get(path), looks + 1
        longest = math.max(longest, nst.clock() - began)
        assert.is_true(looks < 500)
      end
      assert.truthy(text_of(html):find("700 jobs deleted", 1, true), text_of(html))
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
    local p = start(url, "--redact", "card, password", "--read-only")
    for _, path in ipairs { "/jobs?state=dead", "/jobs/" .. id, "/errors", "/schedules", "/adopted", "/hosts",
      "/jobs?state=dead&verb=retry" } do
      assert.is_nil((get(path, p)):find('method="post"', 1, true), path)
    end
    assert.equal(403, (request(p, "POST", ("/jobs/%d/retry"):format(id), "csrf=x")))
    assert.equal("dead", db:job(id).state)
  end)
end)
