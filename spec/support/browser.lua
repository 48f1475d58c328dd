--- A browser for specs: headless Chromium, driven over WebDriver (the W3C's protocol, JSON over
-- HTTP), which Debian's chromium-driver speaks.
--
--     local b = browser.start()
--     b:go("http://127.0.0.1:7878/")
--     b:press "Pause mail"
--     b:wait("return document.title === 'Queues'")
--     b:close()
--
-- Invariant: what the driver refuses raises, with its words. One browser has one window; its
-- profile is a new folder, so nothing of an earlier run is seen.

local http = require "socket.http"
local ltn12 = require "ltn12"
local mime = require "mime"
local nightshift = require "nightshift"
local nst = require "nst"
local proc = require "spec.support.proc"

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

return browser
