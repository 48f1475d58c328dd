-- The pages of `nightshift web` in a browser: what is seen, clicked and typed, what moves, and what
-- texts of users may do there. `make test-web` runs them; `make screenshots` draws the pictures.
--
-- All of them share one browser: headless Chromium, driven over WebDriver (the W3C's protocol,
-- JSON over HTTP), which Debian's chromium-driver speaks. What the driver refuses raises an error.
-- A database with a bit of everything (`demo`) is looked at on every page; what is changed has
-- databases of its own.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local http = require "socket.http"
local ltn12 = require "ltn12"
local mime = require "mime"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"
local server = require "spec.support.db"

-- ------------------------------------------------------------------- the browser

local browser = {}

local ELEMENT <const> = "element-6066-11e4-a52e-4f735466cecf" -- the key of an element's id in JSON
local WAIT <const> = 20 -- seconds that waiting lasts

local FLAGS <const> = { "--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--no-default-browser-check", "--disable-background-networking", "--disable-component-update", "--disable-sync",
  "--disable-extensions", "--disable-default-apps", "--disable-breakpad", "--mute-audio", "--hide-scrollbars",
  "--force-color-profile=srgb", "--font-render-hinting=none", "--remote-debugging-pipe" }

--- Why there is no browser here; nil: there is one.
function browser.missing()
  local found = io.popen "command -v chromedriver":read "l"
  if not found then return "chromedriver is not installed: sh .ci/deps web" end
end

local Browser = {}
Browser.__index = Browser

local function list(items) return nightshift.array(items or {}) end

--- Asks the driver; its value.
local function ask(at, method, path, given)
  local body = given and nightshift.encode(given)
  local parts = {}
  local ok, status = http.request { url = at .. path, method = method, sink = ltn12.sink.table(parts),
    headers = body and { ["content-type"] = "application/json", ["content-length"] = #body },
    source = body and ltn12.source.string(body) }
  if not ok then error(("the browser's driver does not answer: %s"):format(status), 0) end
  local answer = nightshift.decode(table.concat(parts)) or {}
  if status ~= 200 then
    local value = type(answer.value) == "table" and answer.value or {}
    error(("%s %s: %s: %s"):format(method, path, value.error or status, (value.message or ""):match "[^\n]*"), 0)
  end
  return answer.value
end

function Browser:ask(method, path, given)
  http.TIMEOUT = proc.limit(60)
  return ask(self.at, method, "/session/" .. self.id .. path, given)
end

--- Starts one.
---@param opts {width: integer?, height: integer?}?
function browser.start(opts)
  opts = opts or {}
  local driver = proc.start { "chromedriver", "--port=0" }
  driver:wait_line "started successfully on port"
  local port = driver:text():match "successfully on port (%d+)"
  local args = list { "--user-data-dir=" .. fixture.dir(), table.unpack(FLAGS) }
  if select(2, nst.ids()) == 0 then table.insert(args, "--no-sandbox") end
  local self = setmetatable({ driver = driver, at = "http://127.0.0.1:" .. port }, Browser)
  http.TIMEOUT = proc.limit(60)
  self.id = ask(self.at, "POST", "/session", { capabilities = { alwaysMatch = {
    browserName = "chrome", unhandledPromptBehavior = "ignore", ["goog:loggingPrefs"] = { browser = "ALL" },
    ["goog:chromeOptions"] = { args = args },
  } } }).sessionId
  self:size(opts.width or 1280, opts.height or 800)
  return self
end

function Browser:close()
  self:ask("DELETE", "")
  self.driver:signal "TERM"
  self.driver:wait()
end

--- A command of Chromium's own protocol.
function Browser:cdp(command, params)
  return self:ask("POST", "/goog/cdp/execute", { cmd = command, params = params or {} })
end

--- The size of what a page sees, in CSS pixels; phones are narrower than any window.
function Browser:size(width, height)
  self:cdp("Emulation.setDeviceMetricsOverride",
    { width = width, height = height, deviceScaleFactor = 1, mobile = false })
end

--- "light" or "dark", as the person who looks prefers; with `still`, nothing moves.
function Browser:scheme(name, still)
  self:cdp("Emulation.setEmulatedMedia", { features = list { { name = "prefers-color-scheme", value = name },
    { name = "prefers-reduced-motion", value = still and "reduce" or "no-preference" } } })
end

--- A function's body of JavaScript that is done in the page before any script of it.
function Browser:before_pages(script)
  self:cdp("Page.addScriptToEvaluateOnNewDocument", { source = script })
end

-- ---------------------------------------------------------------------- pages

function Browser:go(url) self:ask("POST", "/url", { url = url }) end
function Browser:url() return self:ask("GET", "/url") end
function Browser:reload() self:ask("POST", "/refresh", {}) end

--- Runs a function's body in the page; what it returns.
---@param script string
---@param ... any the body's `arguments`
function Browser:run(script, ...)
  return self:ask("POST", "/execute/sync", { script = script, args = list { ... } })
end

--- Runs a function's body that calls its last argument when it is done; what it gives to it.
function Browser:run_async(script, ...)
  return self:ask("POST", "/execute/async", { script = script, args = list { ... } })
end

--- Waits until a function's body returns something true; this. While a page goes, it is asked again.
function Browser:wait(script, ...)
  local stop, why = nst.clock() + proc.limit(WAIT), nil
  while nst.clock() < stop do
    local ran, value = pcall(self.run, self, script, ...)
    if ran and value and value ~= nightshift.null then return value end
    why = not ran and value or nil
    nst.sleep(0.03)
  end
  error(("within %g s this was not so: %s\n%s\n%s"):format(WAIT, script, why or "", self:text "body"), 2)
end

-- ------------------------------------------------------------------- elements

--- The first element of a selector of CSS; raises when there is none.
function Browser:find(css)
  return self:ask("POST", "/element", { using = "css selector", value = css })[ELEMENT]
end

--- How many elements a selector finds.
function Browser:count(css) return self:run("return document.querySelectorAll(arguments[0]).length", css) end

--- The text of the first one, as it is seen.
function Browser:text(css) return self:ask("GET", ("/element/%s/text"):format(self:find(css))) end

-- Buttons and links by the name that screen readers say, those of a dialog first.
local NAMED <const> = [[
  const [css, name] = arguments;
  const all = [...document.querySelectorAll(css)].filter((item) => item.checkVisibility());
  const called = (item) => (item.getAttribute("aria-label") || item.textContent).replace(/\s+/g, " ").trim();
  return all.find((item) => called(item) === name) || null;
]]

local function named(self, css, name)
  local found = self:run(NAMED, css, name)
  if found == nil or found == nightshift.null then
    error(("there is no %s '%s' at %s:\n%s"):format(css, name, self:url(), self:text "main"), 3)
  end
  return found[ELEMENT]
end

local function click(self, element) self:ask("POST", ("/element/%s/click"):format(element), {}) end

--- Clicks at the first element of a selector.
function Browser:click(css) click(self, self:find(css)) end

--- Clicks at the button of that name.
function Browser:press(name) click(self, named(self, "button, summary", name)) end

--- Clicks at the link of that name.
---@param within string? a selector that its links are below
function Browser:follow(name, within) click(self, named(self, (within or "") .. " a[href]", name)) end

--- Writes into a field, in place of what it has.
function Browser:type(css, text)
  local element = self:find(css)
  self:ask("POST", ("/element/%s/clear"):format(element), {})
  self:ask("POST", ("/element/%s/value"):format(element), { text = text })
end

--- Presses keys, one after the other, wherever the focus is: "j", browser.ENTER, …
function Browser:keys(...)
  local actions = list {}
  for _, key in ipairs { ... } do
    actions[#actions + 1] = { type = "keyDown", value = key }
    actions[#actions + 1] = { type = "keyUp", value = key }
  end
  self:ask("POST", "/actions", { actions = list { { type = "key", id = "keyboard", actions = actions } } })
end

browser.ENTER, browser.ESCAPE = "\u{E007}", "\u{E00C}"

--- Says yes to the question of `confirm`; its text.
function Browser:accept()
  local text = self:ask("GET", "/alert/text")
  self:ask("POST", "/alert/accept", {})
  return text
end

-- -------------------------------------------------------------------- results

--- What the console has got since the last time: errors of scripts, what the policy has forbidden.
---@return string[]
function Browser:complaints()
  local found = {}
  for _, entry in ipairs(self:ask("POST", "/se/log", { type = "browser" })) do
    if entry.level ~= "INFO" and entry.level ~= "DEBUG" then found[#found + 1] = entry.message end
  end
  return found
end

--- Writes a picture of what is seen, as PNG.
function Browser:shot(path)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write((mime.unb64(self:ask("GET", "/screenshot")))))
end

-- ----------------------------------------------------------------------- specs

local why = not os.getenv "NIGHTSHIFT_BROWSER" and "`make test-web` runs it" or browser.missing()
if why then return pending("the pages of nightshift web in a browser: " .. why) end

local PICTURES <const> = os.getenv "NIGHTSHIFT_PICTURES" -- a folder: pictures are drawn into it

local HANDLERS <const> = [[
  local core = require "nightshift.core"
  local function hold(job)
    job:progress(job.payload.part, "frame " .. math.floor(job.payload.part * 4800) .. " of 4800")
    while not io.open(os.getenv "GO") do core.sleep(0.05) end
  end
  local function report(rows)
    return #rows.missing
  end
  return {
    ["email.send"] = function(job)
      if job.payload.to:find "nowhere" then return nil, "550 no such mailbox: " .. job.payload.to end
      return { sent = job.payload.to }
    end,
    ["video.encode"] = hold,
    ["report.build"] = function(job)
      job:log("reading the ledger of " .. job.payload.month)
      print "12,408 rows"
      return report {}
    end,
    ["page.fetch"] = function(job) return { bytes = #job.payload.url * 977 } end,
    ["report.daily"] = { run = function() end, cron = "0 3 * * *", queue = "reports" },
    ["cache.clean"] = { run = function() end, every = "10m", queue = "imports" },
  }
]]

--- Starts `nightshift web`; it has `at`, the address of its first page without the "/".
local function serve(url, ...)
  local p = proc.start { proc.program, "web", "--listen", "127.0.0.1:0", env = { NIGHTSHIFT_URL = url }, ... }
  p.at = "http://" .. p:wait_line("the pages are at http://([^/%s]+)", 30)
  return p
end

--- A database and its pages, for one test: handle, server of pages, URL.
local function place(...)
  local url = server.fresh()
  return assert(nightshift.open(url)), serve(url, ...), url
end

--- Its path is seen on pages, so it is the same in each run.
local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  assert(file:write(text))
  return path
end

-- Colours of terminals, by their numbers.
local COLOURS <const> = { [0] = "#000", "#f47067", "#57ab5a", "#c69026", "#539bf5", "#b083f0", "#39c5cf", "#d0d7de" }

--- The text of a terminal with its colours, as `tmux capture-pane -e` gives it, as a page.
local function terminal_page(text)
  local style = {}
  local function set(code)
    if code == 0 then style = {} end
    if code == 1 then style.weight = "bold" end
    if code == 2 then style.faint = true end
    if code == 7 then style.turned = true end
    if code == 27 then style.turned = nil end
    if code >= 30 and code <= 39 then style.front = COLOURS[code - 30] end
    if code >= 40 and code <= 49 then style.back = COLOURS[code - 40] end
    if code >= 90 and code <= 97 then style.front = COLOURS[code - 90] end
  end
  local function css()
    local front, back = style.front or "#e6edf3", style.back or "#0d1117"
    if style.turned then front, back = back, front end
    return ("color:%s;background:%s;font-weight:%s;opacity:%s"):format(front, back, style.weight or "normal",
      style.faint and "0.7" or "1")
  end
  local body = ("\27[0m" .. text):gsub("[&<>]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;" })
    :gsub("\27%(B", ""):gsub("\14", ""):gsub("\15", "")
    :gsub("\27%[([%d;]*)m([^\27]*)", function(codes, shown)
      for code in (codes == "" and "0" or codes):gmatch "%d+" do set(math.tointeger(code)) end
      return ('<span style="%s">%s</span>'):format(css(), shown)
    end)
  return '<!doctype html><meta charset="utf-8"><body style="margin:0;background:#0d1117"><pre style="margin:12px 16px;'
    .. 'font:15px/20px monospace">' .. body .. "</pre>"
end

--- Tells of the last hour what hosts would have counted in each minute.
local function tell_minutes(name)
  server.sql(([[
    INSERT IGNORE INTO %s.nightshift_minute
    SELECT 1, UNIX_TIMESTAMP() DIV 60 * 60000000 - seq * 60000000, q.id, ROUND(n), ROUND(4 * POW(SIN(seq * seq), 6)),
      seq %% 29 = 5, 0,
      ROUND(52 + 24 * SIN(seq / 11)), n, n * (60000 + 40000 * SIN(seq / 5)), 400000, n,
      n * (210000 + 90000 * SIN(seq / 17)), 900000
    FROM (SELECT seq, 50 + 25 * SIN(seq / 11 - 0.2) + 4 * SIN(seq * 7) AS n FROM seq_0_to_70) s
    JOIN (SELECT 0 AS id UNION ALL SELECT id FROM %s.nightshift_queue WHERE name IN ('mail', 'imports')) q]])
    :format(name, name))
end

--- Fills a database so that each page has something to show; a host runs until `go` is there.
local function demo()
  local url, name = server.fresh()
  local db = assert(nightshift.open(url))
  local go = fixture.dir() .. "/go"
  local mail, video, reports = db:queue "mail", db:queue "video", db:queue "reports"
  for i = 1, 60 do assert(mail:push("email.send", { to = ("user%d@example.com"):format(i) })) end
  for i = 1, 20 do assert(db:queue "imports":push("page.fetch", { url = "https://example.com/page/" .. i })) end
  for i = 1, 5 do
    assert(mail:push("email.send", { to = ("user%d@nowhere.example"):format(i) }, { max_attempts = 1 }))
  end
  for i = 1, 3 do
    assert(mail:push("email.send", { to = ("list%d@nowhere.example"):format(i) }, { backoff = "20m" }))
  end
  local dead = assert(reports:push("report.build", { month = "October", format = "pdf", rows = { 12, 408 } },
    { max_attempts = 2, backoff = "1ms", tags = { "customer:87", "monthly" } }))
  for i = 1, 3 do assert(video:push("video.encode", { file = ("talk-%d.mov"):format(i), part = i / 4 })) end
  for i = 1, 14 do
    assert(mail:push("email.send", { to = ("later%d@example.com"):format(i) }, { delay = i * 700 .. "s" }))
  end
  local script = write("build/jobs.lua", HANDLERS)
  local h = host.start(url, script, { "--workers", "4" }, { GO = go })
  local other = host.start(url, script, { "--workers", "2" }, { GO = go })
  eventually(function()
    local stats = assert(db:stats())
    local busy, left = 0, 0
    for _, row in ipairs(stats.queues) do busy, left = busy + row.running, left + row.ready end
    return busy == 3 and left == 0 and assert(db:job(dead)).state == "dead"
  end)
  local billing = db:queue "billing"
  assert(billing:pause())
  for i = 1, 12 do assert(billing:push("invoice.charge", { customer = 40 + i, euros = 19.9 })) end
  assert(db:queue "print":push("label.print", { order = 7741 }))
  tell_minutes(name)
  local first = assert(db:jobs { queue = "video", state = "running" })[1]
  assert(video:push("video.publish", { talk = 1 }, { after = { first.id } }))
  return { db = db, url = url, hosts = { h, other }, dead = dead, go = go }
end

--- The pages that the navigation leads to, and those behind them.
local function pages_of(b, at, shown)
  b:go(at .. "/")
  local paths = b:run "return [...document.querySelectorAll('.pages a')].map((a) => a.getAttribute('href'))"
  for _, path in ipairs(paths) do
    if path == "/jobs" then
      table.move({ "/jobs?state=dead", "/jobs?state=dead&verb=retry", "/jobs?state=running",
        "/jobs/" .. shown.dead, "/jobs/" .. shown.running }, 1, 5, #paths + 1, paths)
      break
    end
  end
  return paths
end

describe("the pages of nightshift web in a browser:", function()
  local b, shown, web, paths

  setup(function()
    b = browser.start()
    shown = demo()
    shown.running = assert(shown.db:jobs { state = "running" })[1].id
    web = serve(shown.url)
    paths = pages_of(b, web.at, shown)
  end)
  teardown(function()
    b:close()
    io.open(shown.go, "w"):close()
    for _, h in ipairs(shown.hosts) do host.stop(h) end
    shown.db:close()
  end)
  before_each(function()
    b:size(1280, 800)
    b:scheme "light"
  end)

  --- There is a page of jobs; specs of pages that are not there are left out.
  local function has(path)
    for _, item in ipairs(paths) do
      if item == path then return true end
    end
    return false
  end

  -- ------------------------------------------------------------------ each page

  it("each opens without an error, and without anything that its policy forbids", function()
    b:complaints()
    for _, path in ipairs(paths) do
      b:go(web.at .. path)
      assert.same({}, b:complaints(), path)
      assert.equal(1, b:count "h1", path)
    end
  end)

  it("each fits on a phone, 360 pixels wide, and on a tablet", function()
    local function wide(path)
      b:go(web.at .. path)
      return b:run [[
        const wide = document.documentElement.clientWidth;
        if (document.documentElement.scrollWidth <= innerWidth) return "";
        return [...document.querySelectorAll("body *")].filter((item) =>
          item.getBoundingClientRect().right > wide + 1 && !item.closest(".scroll, pre"))
          .slice(0, 5).map((item) => item.outerHTML.slice(0, 160)).join("\n") || "wide";
      ]]
    end
    for _, width in ipairs { 360, 800 } do
      b:size(width, 740)
      for _, path in ipairs(paths) do assert.equal("", wide(path), path) end
    end
  end)

  it("each has nothing that axe-core finds, in light and in dark", function()
    local file <close> = io.open "build/axe.js"
    local axe = file and file:read "a" or ""
    if #axe == 0 then return pending "axe-core cannot be had from the npm registry here" end
    local faults = {}
    for _, path in ipairs(paths) do
      b:scheme("light", true)
      b:go(web.at .. path)
      b:run(axe)
      for _, scheme in ipairs { "light", "dark" } do
        b:scheme(scheme, true)
        local found = b:run_async([[
          const [done] = arguments;
          axe.run(document, {}).then(({ violations }) =>
            done(violations.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) =>
              `${id}: ${html.slice(0, 200)}: ${failureSummary}`)).join("\n")));
        ]])
        if found ~= "" then faults[#faults + 1] = ("%s in %s: %s"):format(path, scheme, found) end
      end
    end
    assert.equal("", table.concat(faults, "\n"))
  end)

  it("are dark for those who like it", function()
    b:go(web.at .. "/")
    local function colour() return b:run "return getComputedStyle(document.body).backgroundColor" end
    local function light(text)
      local red, green, blue = text:match "(%d+), (%d+), (%d+)"
      return (red + green + blue) / 765
    end
    assert.is_true(light(colour()) > 0.8)
    b:scheme "dark"
    assert.is_true(light(colour()) < 0.2)
  end)

  -- ------------------------------------------------------------------- keyboard

  it("are walked by keys", function()
    b:go(web.at .. "/queues")
    b:keys "/"
    assert.equal("search", b:run "return document.activeElement.id")
    b:keys("j", "g")
    assert.equal("jg", b:run "return document.getElementById('search').value")
    b:keys(browser.ESCAPE)
    local function row()
      return b:run "return [...document.querySelectorAll('tr[data-row]')].findIndex((row) => row.matches('.at'))"
    end
    b:keys "j"
    assert.equal(0, row())
    b:keys("j", "j", "k")
    assert.equal(1, row())
    local to = b:run "return document.activeElement.href"
    b:keys(browser.ENTER)
    b:wait("return location.href === arguments[0]", to)
    b:keys "?"
    assert.is_true(b:run "return document.getElementById('help').open")
    b:keys(browser.ESCAPE)
    assert.is_false(b:run "return document.getElementById('help').open")
    b:keys("g", "o")
    b:wait "return location.pathname === '/'"
  end)

  it("has a link past the navigation as the first that Tab meets", function()
    b:go(web.at .. "/")
    b:keys("\u{E004}", browser.ENTER)
    assert.equal("main", b:run "return document.activeElement.id")
  end)

  -- ----------------------------------------------------------------------- live

  it("shows a job that is pushed without a reload, and nothing else moves", function()
    local db, p = place()
    local q = db:queue "calm"
    assert(q:pause())
    assert(q:push("one", {}))
    b:go(p.at .. "/queues")
    b:wait "return !document.querySelector('.live').hidden"
    b:run [[
      window.stays = true;
      document.querySelector("tr[data-row] button").focus();
      window.places = () => JSON.stringify([...document.querySelectorAll("body *")].map((item) =>
        [item.nodeName, ...Object.values(item.getBoundingClientRect().toJSON())]));
      window.before = places();
    ]]
    assert(q:push("two", {}))
    b:wait "return document.querySelector('[data-label=Ready]').textContent.trim() === '2'"
    assert.is_true(b:run "return window.stays")
    assert.equal(b:run "return window.before", b:run "return places()")
    assert.equal("Resume calm", b:run "return document.activeElement.getAttribute('aria-label')")
    db:close()
  end)

  -- -------------------------------------------------------------------- actions

  --- Waits for the message behind an action, which matches; then it is taken away.
  local function said(pattern)
    b:wait([[
      const said = document.querySelector(".said");
      if (!said || !new RegExp(arguments[0]).test(said.textContent)) return false;
      said.remove();
      return true;
    ]], pattern)
  end

  it("pauses, resumes and removes a queue by clicks", function()
    local db, p = place()
    assert(db:queue "mail":push("one", {}))
    b:go(p.at .. "/queues")
    b:press "Pause mail"
    b:wait "return document.querySelector('.said')"
    assert.is_truthy(b:text ".said":find("'mail' is paused", 1, true))
    assert.is_true(assert(db:queue "mail":stats()).paused)
    b:press "Resume mail"
    b:wait "return /goes on/.test(document.querySelector('.said').textContent)"
    assert.is_false(assert(db:queue "mail":stats()).paused)
    b:press "Pause all"
    assert.is_truthy(b:accept():find("Pause every queue", 1, true))
    b:wait "return /Every queue is paused/.test(document.body.textContent)"
    assert.is_truthy(assert(db:stats()).paused.all)
    assert(db:cancel(assert(db:jobs { queue = "mail" })[1].id))
    b:press "Resume all"
    said "Queues go on"
    b:press "Remove mail"
    assert.is_truthy(b:accept():find("Remove the queue mail", 1, true))
    said "The queue 'mail' is removed"
    assert.same({}, assert(db:stats()).queues)
    db:close()
  end)

  it("retries, cancels and deletes jobs by clicks", function()
    if not has "/jobs" then return pending "there is no page of jobs yet" end
    local db, p = place()
    local q = db:queue "q"
    local id = assert(q:push("one", {}))
    assert(assert(q:claim()):discard "no use")
    local at = p.at .. "/jobs/" .. id
    b:go(at)
    assert.is_truthy(b:text "main":find("no use", 1, true))
    b:press "Run again"
    b:wait "return document.querySelector('.said')"
    assert.equal("ready", assert(db:job(id)).state)
    b:type("#job-reason", "not wanted")
    b:press "Cancel"
    b:wait "return /cancelled/.test(document.querySelector('.said').textContent)"
    local job = assert(db:job(id))
    assert.equal("cancelled not wanted", job.state .. " " .. job.reason)
    b:press "Delete"
    assert.is_truthy(b:accept():find("Delete this job", 1, true))
    b:wait "return location.pathname === '/jobs'"
    assert.equal("NOT_FOUND", select(3, db:job(id)))
    db:close()
  end)

  --- On the page that asks: what is to be done to how many jobs, all of them counted; then does it.
  local function begin(pattern)
    b:wait "return document.querySelector('form[action$=\"/jobs/begin\"]')"
    if b:count "a[href*='on=1']" > 0 then
      b:follow "Count on for a second"
      b:wait "return location.search.includes('on=1') && document.querySelector('form[action$=\"/jobs/begin\"]')"
    end
    assert.matches(pattern, b:text "main")
    return function() b:click "form[action$='/jobs/begin'] button" end
  end

  it("does an action to all jobs of a filter, and says before how many they are", function()
    if not has "/jobs" then return pending "there is no page of jobs yet" end
    local db, p = place()
    local q = db:queue "q"
    for i = 1, 7 do assert(q:push(i <= 4 and "one" or "other", {})) end
    b:go(p.at .. "/jobs")
    b:type("#jobs-name", "one")
    b:press "Show"
    b:wait "return document.querySelectorAll('tr[data-row]').length === 4"
    b:follow "Cancel…"
    begin "Cancel: 4 %l* ?jobs named 'one'" ()
    b:wait "return document.querySelector('.said')"
    assert.is_truthy(b:text ".said":find("4 jobs", 1, true))
    local left = 0
    for _, row in ipairs(assert(db:jobs { queue = "q" })) do left = left + (row.state == "ready" and 1 or 0) end
    assert.equal(3, left)

    local ids = {}
    for i = 1, 3 do ids[i] = assert(q:push("later", {}, { delay = "1h" })) end
    b:go(p.at .. "/jobs?name=later&state=scheduled")
    b:follow "Run now…"
    local go = begin "Run now: 3 %l* ?jobs named 'later'"
    assert.equal("scheduled", assert(db:job(ids[1])).state)
    go()
    said "3 jobs made ready"
    for _, id in ipairs(ids) do
      assert.equal("ready", assert(db:job(id)).state)
      assert(db:cancel(id))
    end

    assert(q:push("breaks", {}, { priority = 200 }))
    assert(assert(q:claim()):discard "no file 17")
    b:go(p.at .. "/errors")
    b:follow "Run all again…"
    begin "Run again: 1 dead jobs" ()
    said "1 job will run again"
    assert.equal("breaks", assert(assert(q:claim()).name))
    db:close()
  end)

  it("runs, changes, moves, pauses and tells one job by clicks, and ticked ones", function()
    local db, p = place()
    local q = db:queue "q"
    local id = assert(q:push("later", { n = 1 }, { delay = "1h" }))
    local at = p.at .. "/jobs/" .. id
    b:go(at)
    b:press "Run now"
    said "It is ready now"
    assert.equal("ready", assert(db:job(id)).state)
    b:type("#job-priority", "200")
    b:type("#job-queue", "elsewhere")
    b:press "Change"
    said "It was changed"
    assert.same({ 200, "elsewhere" }, { assert(db:job(id)).priority, assert(db:job(id)).queue })
    b:type("#job-payload", '{"n": 2}')
    b:press "Change the payload"
    said "It was changed"
    assert.same({ n = 2 }, assert(db:job(id)).payload)
    b:press "Pause"
    said "It is paused"
    b:press "Resume"
    said "It goes on"
    b:type("#job-name", "go")
    b:type("#job-value", '{"yes": true}')
    b:press "Send"
    said "The signal was sent"
    local sent = assert(db:execute("SELECT value FROM nightshift_signal WHERE job_id = ?", id))[1]
    assert.equal([[{"yes":true}]], sent.value)

    local ids = { id, assert(q:push("other", {})), assert(q:push("left", {})) }
    b:go(p.at .. "/jobs")
    for i = 1, 2 do b:click(("[name=job_%d]"):format(ids[i])) end
    b:press "Priority, queue, due time, signal"
    b:type("#jobs-priority", "7")
    b:press "Change priority"
    said "2 jobs have another priority"
    b:click(("[name=job_%d]"):format(ids[2]))
    b:press "Priority, queue, due time, signal"
    b:type("#jobs-to", "third")
    b:press "Move"
    said "1 job moved"
    local found = {}
    for i, one in ipairs(ids) do
      local job = assert(db:job(one))
      found[i] = job.queue .. " " .. job.priority
    end
    assert.same({ "elsewhere 7", "third 7", "q 100" }, found)

    b:go(p.at .. "/audit")
    b:run "document.getElementById('audit-verb').value = 'pause'"
    b:press "Show"
    b:wait "return location.search.includes('verb=pause')"
    assert.equal(1, b:count "tr[data-row]")
    assert.is_truthy(b:text "tr[data-row]":find("the page", 1, true))
    db:close()
  end)

  it("runs, pauses and removes schedules, tunes hosts, and drains an adopted table by clicks", function()
    local db, p = place()
    assert(db:schedule { name = "hourly", every = "1h", push = { "clean", {}, { queue = "q" } } })
    b:go(p.at .. "/schedules")
    b:press "Run now: hourly"
    said "'hourly' has pushed job"
    assert.equal("clean", assert(db:jobs { queue = "q" })[1].name)
    b:press "Pause hourly"
    said "'hourly' is paused"
    assert.is_true(assert(db:schedules())[1].paused)
    b:press "Resume hourly"
    said "'hourly' goes on"
    b:press "Remove hourly"
    assert.is_truthy(b:accept():find("Remove this schedule", 1, true))
    said "'hourly' is removed"
    assert.same({}, assert(db:schedules()))

    local one = designs.migration_task
    assert(db:execute(one.table))
    for _ = 1, 3 do assert(db:execute(one.row)) end
    assert(db:adopt(one.map))
    b:go(p.at .. "/adopted?table=migration_task")
    b:press "Pause"
    said "is paused"
    b:press "Resume"
    said "goes on"
    b:type("#adop-rate", "5")
    b:press "Set"
    said "5 rows a second"
    b:type("#adop-into", "drained")
    b:press "Drain…"
    b:wait "return /3 *open rows/.test(document.querySelector('main').textContent.replace(/\\s+/g, ' '))"
    b:press "Drain"
    said "3 rows became jobs"
    assert.equal(3, #assert(db:jobs { queue = "drained" }))
    db:close()

    local id = assert(shown.db:stats()).holders[1].id
    b:go(web.at .. "/hosts")
    for _, n in ipairs { "5", "4" } do
      b:type("#workers-" .. id, n)
      b:press("Set the workers of host " .. id)
      said(("is to have %s workers"):format(n))
    end
  end)

  it("shows how far a long action is, stops it by a click, and what was done stays done", function()
    local db, p = place()
    local items = {}
    for i = 1, 8000 do items[i] = { "n", {} } end
    assert(db:queue "q":push_many(items))
    b:go(p.at .. "/jobs?state=ready&queue=q&verb=delete")
    b:run "document.querySelector('form[action$=\"/jobs/begin\"] button').click()"
    b:wait [[
      const stop = [...document.querySelectorAll("button")].find((item) => item.textContent === "Stop");
      const told = /jobs so far/.test(document.querySelector("main").textContent);
      if (!stop || !told || !document.querySelector("main progress")) return false;
      stop.click();
      return true;
    ]]
    b:wait "return /It was stopped after/.test(document.querySelector('main').textContent)"
    local left = tonumber(assert(db:execute "SELECT COUNT(*) AS n FROM nightshift_job")[1].n)
    assert.is_true(left > 0 and left < 8000, left)

    b:go(p.at .. "/jobs?state=ready&queue=q")
    b:follow "Move to a queue…"
    b:wait "return document.querySelector('#jobs-to')"
    assert.matches("Move to a queue: [%d,atles ]+ ready jobs of the queue 'q'", b:text "main")
    b:type("#jobs-to", "elsewhere")
    b:run "document.querySelector('form[action$=\"/jobs/begin\"] button').click()"
    b:wait("return document.querySelector('main').textContent.includes(arguments[0])", left .. " jobs moved.")
    assert.same({}, assert(db:jobs { queue = "q" }))
    db:close()
  end)

  it("says in three clicks from the first page why jobs do not run", function()
    if not has "/jobs" then return pending "there is no page of jobs yet" end
    local wanted = { billing = "its queue 'billing' is paused", print = "has a handler 'label.print'" }
    for queue, words in pairs(wanted) do
      b:go(web.at .. "/")
      b:click((".attention a[href*='queue=%s']"):format(queue))
      b:wait("return document.querySelector('tr[data-row]')")
      b:click "tr[data-row] td[data-label=ID] a"
      b:wait "return document.querySelector('.why')"
      assert.is_truthy(b:text ".why":find(words, 1, true), b:text ".why")
    end
  end)

  -- ------------------------------------------------------------ texts of users

  -- Each would set window.owned where it is taken for HTML, a URL, a template or JavaScript.
  local EVIL <const> = {
    "<script>window.owned=1</script>",
    [["><img src=x onerror="window.owned=1">]],
    [['><svg onload=window.owned=1>]],
    "</textarea><script>window.owned=1</script>",
    "</title></pre><script>window.owned=1</script>",
    "javascript:window.owned=1",
    [[<iframe srcdoc="<script>top.owned=1</script>">]],
    "</pre><details open ontoggle=window.owned=1>",
    "$(os.exit(1)) &lt;script&gt; %3Cscript%3E",
    "' onfocus=window.owned=1 autofocus x='",
    "\n# os.exit(1)\n",
  }

  --- Asserts that the texts of the page are texts.
  local function check_tame(text, path)
    local found = b:run [[
      const odd = [...document.querySelectorAll("*")].filter((item) => item.matches("iframe, img, object, embed, base")
        || (item.matches("script") && !item.src.includes("/assets/page.js"))
        || [...item.attributes].some(({ name, value }) => /^on/i.test(name) || (/^(href|src|action)$/.test(name)
          && /^\s*javascript:/i.test(value))));
      return odd.map((item) => item.outerHTML.slice(0, 200)).join("\n") + (window.owned ? " owned" : "");
    ]]
    assert.equal("", found, path)
    assert.same({}, b:complaints(), path)
    if text then
      local shows = b:run("return document.querySelector('main').textContent.includes(arguments[0])", text)
      assert.is_true(shows, ("%s does not show %s"):format(path, text))
    end
  end

  it("texts of users stay texts: names, payloads, errors, tags, output", function()
    if not has "/jobs" then return pending "there is no page of jobs yet" end
    local db, p, url = place()
    local parts, ids = {}, {}
    for i, text in ipairs(EVIL) do
      local name = text:gsub("%c", "")
      parts[i] = ("[%q] = handler,"):format(name)
      ids[i] = assert(db:queue(name:sub(1, 60)):push(name, { text = text, [text] = { text } },
        { tags = { name:sub(1, 60) }, unique = name, max_attempts = 1 }))
    end
    host.drain(url, [[local function handler(job)
      print(job.payload.text)
      job:log(job.payload.text)
      error(job.payload.text, 0)
    end
    return {]] .. table.concat(parts, "\n") .. "}")
    assert(db:schedule { name = EVIL[1], every = "1h", push = { EVIL[2], { EVIL[3] }, { queue = "q" } } })
    b:complaints()
    for i, text in ipairs(EVIL) do
      b:go(p.at .. "/jobs/" .. ids[i])
      assert.equal("dead", assert(db:job(ids[i])).state)
      check_tame(text:match "[^\n]+", "/jobs/" .. ids[i])
      assert.is_true(b:run("return document.querySelector('.log').textContent.includes(arguments[0])",
        text:match "[^\n]+"))
    end
    for _, path in ipairs { "/", "/queues", "/jobs", "/errors", "/schedules", "/hosts", "/jobs?state=dead" } do
      b:go(p.at .. path)
      check_tame(path ~= "/schedules" and path ~= "/hosts" and path ~= "/" and EVIL[1] or nil, path)
    end
    db:close()
  end)

  it("a text that comes while the page is watched stays a text", function()
    if not has "/jobs" then return pending "there is no page of jobs yet" end
    local db, p = place()
    local q = db:queue "q"
    local id = assert(q:push("one", {}))
    local job = assert(q:claim())
    b:complaints()
    b:go(p.at .. "/jobs/" .. id)
    for i = 1, 3 do
      assert(job:progress(i / 10, EVIL[i]))
      b:wait("return document.querySelector('main').textContent.includes(arguments[0])", EVIL[i])
      check_tame(EVIL[i], "/jobs/" .. id)
    end
    assert(job:ack())
    b:wait "return document.querySelector('[data-live=head] .is-done')"
    db:close()
  end)

  -- ------------------------------------------------------------------- pictures

  it("are drawn", function()
    local folder = PICTURES or fixture.dir()
    local function draw(name, path)
      b:go(web.at .. path)
      b:wait "return document.readyState === 'complete'"
      local file = ("%s/web-%s.png"):format(folder, name)
      b:shot(file)
      local handle <close> = assert(io.open(file, "rb"))
      local text = handle:read "a"
      assert.equal("\137PNG", text:sub(1, 4))
      assert.same({ 1280, 800 }, { table.unpack({ string.unpack(">I4I4", text, 17) }, 1, 2) }, file)
      assert.is_true(#text < 150000, ("%s has %d bytes"):format(file, #text))
    end
    draw("overview", "/")
    if has "/jobs" then draw("job", "/jobs/" .. shown.dead) end
  end)

  -- What a terminal shows, as a page.
  it("are drawn of nightshift top, too", function()
    local socket = fixture.dir() .. "/tmux"
    local function tmux(...) return proc.run { "tmux", "-f", "/dev/null", "-S", socket, ... } end
    local status, _, err = tmux("new-session", "-d", "-x", "100", "-y", "26", "-s", "top", "env",
      "NIGHTSHIFT_URL=" .. shown.url, "LC_ALL=C.UTF-8", proc.program, "top")
    assert.equal(0, status, err)
    finally(function() tmux "kill-server" end)
    local text
    eventually(function()
      text = select(2, tmux("capture-pane", "-e", "-p", "-N", "-t", "top"))
      return text:find("HOSTS", 1, true) and text:find("video.encode", 1, true)
    end)
    b:size(1000, 560)
    b:go("file://" .. fixture.file("top.html", terminal_page(text)))
    local file = (PICTURES or fixture.dir()) .. "/top.png"
    b:shot(file)
    local handle <close> = assert(io.open(file, "rb"))
    assert.is_true(#handle:read "a" < 150000)
  end)
end)
