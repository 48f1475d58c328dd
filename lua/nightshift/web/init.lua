--- The pages of `nightshift web`: from a request to a page or an action, and back.
--
-- A page is a module of this folder: {path, title, nav, load, body, actions}. `load` reads the data
-- of the template `body`; actions are POSTs to the page's path and their name. `turn` lets long
-- actions of a page go on. guard.lua says which requests are looked at, live.lua how pages change.
--
-- Invariant: a fault while a page is made costs that page: it says so with a status of its own,
-- and the server goes on. One request is answered at a time, on one connection to the database.

local assets = require "nightshift.web.assets"
local core = require "nightshift.core"
local guard = require "nightshift.web.guard"
local layout = require "nightshift.web.layout"
local live = require "nightshift.web.live"

local web = {}

-- In the order of the navigation; the key behind "g" that leads there.
local PAGES <const> = {
  { "overview", "o" }, { "queues", "q" }, { "jobs", "j" }, { "job" }, { "limits", "l" }, { "schedules", "s" },
  { "errors", "e" }, { "adopted", "a" }, { "hosts", "h" }, { "audit", "u" }, { "runs" },
}

local HTML <const>, TEXT <const> = "text/html; charset=utf-8", "text/plain; charset=utf-8"
local SAID <const> = 200 -- messages for the page behind an action that are kept
local FIELDS <const> = 1000 -- of a query or a form

-- --------------------------------------------------------------------- requests

--- "a=1&b=2" as {a = "1", b = "2"}, the first of each; and {a = {"1"}, …}, all of them. nil: there
-- are too many.
local function pairs_of(text)
  local first, all, n = {}, {}, 0
  for pair in text:gmatch "[^&]+" do
    n = n + 1
    if n > FIELDS then return nil end
    local key, value = pair:match "^([^=]*)=?(.*)$"
    key, value = layout.unquoted(key, true), layout.unquoted(value, true)
    if first[key] == nil then first[key], all[key] = value, {} end
    table.insert(all[key], value)
  end
  return first, all
end

--- Is it text that the database can be asked for?
local function is_text(text) return utf8.len(text) and not text:find "%z" end

--- Are these fields, each a list?
local function are_texts(fields)
  if not fields then return false end
  for key, list in pairs(fields) do
    if not is_text(key) then return false end
    for _, value in ipairs(list) do
      if not is_text(value) then return false end
    end
  end
  return true
end

--- The segments of a path, decoded.
local function segments_of(path)
  local list = {}
  for part in path:gmatch "[^/]+" do list[#list + 1] = layout.unquoted(part) end
  return list
end

--- The headers of an answer, beside those of all answers.
local function header(type_of, more)
  local headers = { ["Content-Type"] = type_of }
  for name, value in pairs(more or {}) do headers[name] = value end
  return headers
end

--- A place on this server that a client has named; "/" for any other.
local function local_target(text)
  return text and text:find "^/" and not text:find "^//" and not text:find "[%c\\]" and text or "/"
end

-- ------------------------------------------------------------------------ pages

--- Where a page is: its path in segments, "{id}" for any. An item has the page, or its file's name.
local function load_pages(items)
  local list, entries = {}, {}
  for _, item in ipairs(items) do
    local name = type(item[1]) == "string" and "nightshift.web." .. item[1]
    if not name or package.searchpath(name, package.path) then
      local page = name and require(name) or item[1]
      page.render = layout.compile(page.path, page.body)
      page.segments = segments_of(page.path)
      list[#list + 1] = page
      if item[2] then
        entries[#entries + 1] = { path = page.path, title = page.entry or page.title, nav = page.nav, key = item[2] }
      end
    end
  end
  return list, entries
end

--- The page at these segments, and the texts that stand in its path.
local function match(pages, segments)
  for _, page in ipairs(pages) do
    local args, good = {}, #page.segments == #segments
    for i, part in ipairs(good and page.segments or {}) do
      local name = part:match "^{(%w+)}$"
      if name then args[name] = segments[i] end
      good = good and (name ~= nil or part == segments[i])
    end
    if good then return page, args end
  end
end

local Site = {}
Site.__index = Site

--- The database, which is looked at: it answers now.
function Site:connect()
  local now, message, code = self.db._handle:now()
  if not now then return nil, message, code end
  self.now = now / 1000000
  return self.db
end

function Site:context()
  return { db = self.db, url = self.h.url, readonly = self.readonly, redact = self.redact, now = self.now }
end

local STATUS_OF <const> = { GONE = 503, BUSY = 409, NOT_FOUND = 404, DENIED = 403, INVALID = 400, STATE = 409,
  DUPLICATE = 409, STALE = 409 }

--- The status of HTTP for a failed verb's code; a number is the status itself.
local function status_of(code) return math.type(code) == "integer" and code or STATUS_OF[code] or 500 end

local TITLE <const> = { [400] = "That cannot be done", [403] = "Not allowed", [404] = "Not found",
  [405] = "Not allowed", [409] = "That cannot be done now", [415] = "That cannot be read",
  [429] = "Too many tries", [500] = "This page has failed", [503] = "The database is away" }

--- A page of the frame.
function Site:page(fields, status, headers)
  fields.h, fields.version, fields.release = self.h, assets.version, core._VERSION
  fields.readonly, fields.database, fields.now = self.readonly, self.database, self.now * 1000 // 1 | 0
  return status, header(HTML, headers), layout.page(fields)
end

local PROBLEM <const> = layout.compile("a problem", [[
<div class="problem"><p class="large">$(message)</p>
# if away then
<p>This page looks again every few seconds, and comes back by itself.</p>
# end
<p>$(h.link(back, nil, "Back", "button"))</p></div>
]])

--- A page about something that is wrong. `back`: where a link leads to; while the database is away
-- the page itself leads there, if it is given.
function Site:problem(status, message, back)
  local away = status == 503
  local refresh = back and ("3;url=%s"):format(self.h.url(back)) or 3
  local body = PROBLEM { h = self.h, message = message, away = away, back = back or "/" }
  return self:page({ title = TITLE[status] or "Something is wrong", body = layout.raw(body), entries = self.entries,
    refresh = away and refresh or nil }, status, away and { ["Retry-After"] = "3" } or nil)
end

--- The HTML of a page's inside, and its data; nil, message, status.
function Site:inside(page, request)
  local context = self:context()
  local data, why, code = page.load(context, request)
  if not data then
    if math.type(why) == "integer" then why, code = code, why end
    return nil, why or "There is nothing here.", status_of(code)
  end
  local own = { h = self.h, raw = layout.raw, request = request, context = context, readonly = self.readonly }
  return page.render(setmetatable(own, { __index = data })), data
end

--- The message of an action, for the page behind it; it is shown once.
function Site:take_said(request)
  local id = request.query.said
  local said = id and self.said[id]
  if said then self.said[id] = nil end
  return said
end

function Site:keep_said(text, class)
  local id = guard.random(8)
  self.said[id], self.said_order[#self.said_order + 1] = { text = text, class = class or "" }, id
  if #self.said_order > SAID then self.said[table.remove(self.said_order, 1)] = nil end
  return id
end

--- Shows a page.
function Site:show(request)
  local page, args = match(self.pages, request.segments)
  if not page then return self:problem(404, "There is no page " .. request.path .. ".") end
  request.args = args
  local db, message, code = self:connect()
  if not db then return self:problem(status_of(code), message) end
  local body, data, status = self:inside(page, request)
  if not body then return self:problem(status, data) end
  local query = {}
  for key, value in pairs(request.query_all) do query[key] = key ~= "said" and value or nil end
  local target = layout.path_of(request.segments) .. layout.query_of(query)
  return self:page({
    title = type(page.title) == "function" and page.title(data) or page.title, body = layout.raw(body),
    nav = page.nav, entries = self.entries, said = self:take_said(request), refresh = data.refresh,
    live = body:find("data-live=", 1, true) and self.h.url("/live", { path = target }) or nil,
  }, 200)
end

-- ---------------------------------------------------------------------- actions

local FORM <const> = "application/x-www-form-urlencoded"
local NO_FIELDS <const> = "The %s must be UTF-8 without NUL, with up to " .. FIELDS .. " fields."

--- Reads the form of a POST; nil: it is answered already.
function Site:read_form(request)
  local type_of = (request.headers["content-type"] or ""):match "^[^;]*":lower():gsub("%s+$", "")
  if type_of ~= FORM then return nil, self:problem(415, "A form is expected, as " .. FORM .. ".") end
  request.form, request.form_all = pairs_of(request.body)
  if not are_texts(request.form_all) then return nil, self:problem(400, NO_FIELDS:format "form") end
  return true
end

--- Does the action of a form, and leads to a page that says so.
function Site:act(request)
  local name = table.remove(request.segments)
  local page, args = match(self.pages, request.segments)
  local action = page and page.actions and page.actions[name]
  if not action then return self:problem(404, ("There is no action %s."):format(request.path)) end
  request.args, request.path = args, layout.path_of(request.segments)
  if self.readonly then
    return self:problem(403, "This server was started with --read-only: nothing can be changed.", request.path)
  end
  if not self.guard:is_signed(request) then
    return self:problem(403, "This form is of an earlier run of the server. Go back, reload the page, and try again.",
      request.path)
  end
  local db, message, code = self:connect()
  if not db then return self:problem(status_of(code), message, request.path) end
  local done
  done, message, code = action(self:context(), request)
  if not done then return self:problem(status_of(code), message or "It failed.", request.path) end
  local to = local_target(done.to or request.path)
  if done.said then
    local id = self:keep_said(done.said, done.class)
    to = to:gsub("#.*$", "") .. (to:find("?", 1, true) and "&" or "?") .. "said=" .. id
  end
  return 303, header(TEXT, { Location = self.prefix .. to }), "see " .. to .. "\n"
end

-- ------------------------------------------------------------------------ tokens

local LOGIN <const> = layout.compile("the token's page", [[
<form method="post" action="$(h.url("/login"))" class="login">
<p>This server shows its pages to those who have its token: the text of the file of <code>--token-file</code>.</p>
<input type="hidden" name="to" value="$(to)">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
# if wrong then
<p class="error" role="alert">That is not the token.</p>
# end
<p><button class="button main">Go on</button></p>
</form>
]])

function Site:ask_token(status, to, wrong)
  local body = LOGIN { h = self.h, to = to, wrong = wrong }
  return self:page({ title = "Token", body = layout.raw(body) }, status,
    status == 401 and { ["WWW-Authenticate"] = "Bearer" } or nil)
end

function Site:login(request)
  local to = local_target(request.form and request.form.to or request.query.to)
  if request.method ~= "POST" then return self:ask_token(200, to) end
  if not self.guard.token then return 303, header(TEXT, { Location = self.prefix .. to }), "" end
  if not self.guard:is_token(request.form.token or "") then return self:ask_token(403, to, true) end
  return 303, header(TEXT, { Location = self.prefix .. to, ["Set-Cookie"] = self.guard:begin(request) }), "welcome\n"
end

-- ------------------------------------------------------------------------- routes

--- A file of the style and the script; they never change under their URL.
local function asset(request)
  local file = assets.files[request.path]
  if not file then return 404, header(TEXT), "there is no such file\n" end
  local headers = { ETag = file.etag, ["Cache-Control"] = "public, max-age=31536000, immutable" }
  if request.headers["if-none-match"] == file.etag then return 304, header(file.type, headers), "" end
  return 200, header(file.type, headers), file.text
end

--- Where the search field leads to: a job by its id, or jobs by their name.
function Site:find(request)
  local text = (request.query.q or ""):match "^%s*(.-)%s*$"
  local to = self.h.url("/jobs", { name = text })
  if text:find "^%d+$" then to = self.h.url({ "jobs", text }) end
  return 303, header(TEXT, { Location = to }), "see " .. to .. "\n"
end

--- Opens the stream of a page.
function Site:stream(request)
  local target = request.query.path or ""
  local segments = segments_of(target:match "^[^?]*")
  if not self.live or not target:find "^/" or not match(self.pages, segments) then
    return 404, header(TEXT), "there is no such page\n"
  end
  self.live:open(request.stream, target)
  return 200, header("text/event-stream", { ["X-Accel-Buffering"] = "no" }), self.server.STREAM
end

--- A form that came from elsewhere is not looked at.
function Site:post(request)
  if not self.guard:is_ours(request) then
    return self:problem(403, "This form comes from a page of another site.")
  end
  local good, status, headers, body = self:read_form(request)
  if not good then return status, headers, body end
  if request.path == "/login" then return self:login(request) end
  if not self.guard:admits(request) then return self:ask_token(401, "/") end
  if request.path == "/logout" and self.guard:is_signed(request) then
    return 303, header(TEXT, { Location = self.prefix .. "/login", ["Set-Cookie"] = self.guard:finish(request) }), ""
  end
  return self:act(request)
end

function Site:get(request)
  if self.guard:is_foreign(request) then
    return 403, header(TEXT), "a page of another site may lead here, and no more\n"
  end
  if request.path == "/login" then return self:login(request) end
  if not self.guard:admits(request) then
    local to = request.path .. (request.search ~= "" and "?" .. request.search or "")
    if request.path == "/live" then return 401, header(TEXT), "the token is wanted\n" end
    return self:ask_token(401, to)
  end
  if request.path == "/find" then return self:find(request) end
  if request.path == "/live" then return self:stream(request) end
  return self:show(request)
end

local PLACES <const> = { ["/login"] = true, ["/logout"] = true, ["/find"] = true, ["/live"] = true }

--- Does the path lead to a page, an action or a file?
function Site:leads(path)
  local segments = segments_of(path)
  if PLACES[path] or assets.files[path] or match(self.pages, segments) then return true end
  local action = table.remove(segments)
  local page = match(self.pages, segments)
  return page ~= nil and page.actions ~= nil and page.actions[action] ~= nil
end

--- The path without the prefix, which a proxy may have cut off before. A prefix may be called as a
-- page is: "/jobs/5" leads to that job when the proxy cuts, and "/jobs" to the list.
function Site:path_below(path)
  local prefix = self.prefix
  if prefix == "" or (path .. "/"):sub(1, #prefix + 1) ~= prefix .. "/" then return path end
  local below = path:sub(#prefix + 1)
  if self:leads(path) and (below == "" or not self:leads(below)) then return path end
  return below
end

--- Reads the target; false: it is no text.
function Site:read(request)
  request.path = self:path_below(request.path)
  if request.path == "" then request.path = "/" end
  request.search = request.query
  request.segments = segments_of(request.path)
  request.query, request.query_all = pairs_of(request.query)
  return is_text(layout.unquoted(request.path)) and are_texts(request.query_all)
end

function Site:route(request)
  if not self.guard:knows_host(request) then
    return 403, header(TEXT), ("This server is not known as '%s'. Start it with --host and that name.\n"):format(
      layout.cut(request.headers.host or "", 200))
  end
  if not self:read(request) then return self:problem(400, NO_FIELDS:format "address") end
  if request.method == "POST" then return self:post(request) end
  if request.method ~= "GET" and request.method ~= "HEAD" then
    return 405, header(TEXT, { Allow = "GET, HEAD, POST" }), "GET, HEAD and POST only\n"
  end
  if request.path:find "^/assets/" then return asset(request) end
  return self:get(request)
end

-- -------------------------------------------------------------------------- faults

--- A line about a fault.
function Site.complain(text) io.stderr:write("nightshift: web: ", text, "\n") end

local function trace(message) return { text = tostring(message), trace = debug.traceback(tostring(message), 2) } end

--- The same answer with the headers of all answers.
local function guarded(status, headers, body)
  for name, value in pairs(guard.HEADERS) do headers[name] = headers[name] or value end
  return status, headers, body
end

--- Answers a request; a fault in a page is a page about it.
---@return integer status
---@return table headers
---@return any body
function Site:answer(request)
  local given = table.pack(xpcall(self.route, trace, self, request))
  if given[1] then return guarded(table.unpack(given, 2, given.n)) end
  local fault = given[2]
  self.complain(fault.trace)
  return guarded(self:problem(500, fault.text:match "[^\n]*"))
end

--- The inside of a page for its streams; nil: it is gone.
function Site:render_live(target)
  local path, search = target:match "^([^?]*)%??(.*)$"
  local request = { method = "GET", path = path, segments = segments_of(path), headers = {} }
  request.query, request.query_all = pairs_of(search)
  local page, args = match(self.pages, request.segments)
  if not page or not are_texts(request.query_all) then return nil end
  request.args = args
  local done, body = xpcall(self.inside, trace, self, page, request)
  if done then return body or nil end
  self.complain(body.trace)
  return nil
end

--- Lets long actions go on between two requests; is one left?
function Site:turn()
  for _, page in ipairs(self.pages) do
    if page.turn and page.turn() then return true end
  end
  return false
end

--- A text that changes with the database, nil, and one that changes with hosts and settings; or nil
-- and a message.
function Site:sign()
  local db, message = self:connect()
  if not db then return nil, message end
  local rows
  rows, message = db._handle:execute "@report_sign"
  if not rows then return nil, message end
  return rows[1].work .. "/" .. rows[1].settings, nil, rows[1].settings
end

--- Texts that change with some jobs, by their ids; nil and a message.
function Site:signs(ids)
  local rows, message = self.db._handle:execute("@report_sign_jobs", ids)
  if not rows then return nil, message end
  local signs = {}
  for _, row in ipairs(rows) do signs[row.id] = row.sign end
  return signs
end

-- ---------------------------------------------------------------------------- birth

local HIDDEN <const> = "[hidden]"

--- A function that copies a value without the items under these keys.
local function redactor(keys)
  local hidden = {}
  for _, key in ipairs(keys) do hidden[key:lower()] = true end
  local function redact(value)
    if type(value) ~= "table" then return value end
    local copy = setmetatable({}, getmetatable(value))
    for key, item in next, value do
      copy[key] = type(key) == "string" and hidden[key:lower()] and HIDDEN or redact(item)
    end
    return copy
  end
  return redact
end

--- A site: server (of host.listen, nil: none), db, token, hosts, prefix, readonly, redact (keys),
-- pages (nil: all of this folder).
---@param given table
function web.site(given)
  local self = setmetatable({ server = given.server, db = given.db, prefix = given.prefix or "",
    readonly = given.readonly or false, redact = redactor(given.redact or {}), now = os.time(),
    said = {}, said_order = {} }, Site)
  self.guard = guard.new { token = given.token, hosts = given.hosts or {}, prefix = self.prefix }
  self.csrf = self.guard.csrf
  local place = given.db and given.db._handle:execute "@report_server"
  self.database = place and place[1] and place[1].db
  self.h = layout.helpers(self)
  self.pages, self.entries = load_pages(given.pages or PAGES)
  self.live = given.server and live.new {
    server = given.server, render = function(target) return self:render_live(target) end,
    sign = function() return self:sign() end, signs = function(ids) return self:signs(ids) end,
  }
  return self
end

--- Answers requests until the process ends.
---@param given table as of web.site; or `site`, which is one
function web.serve(given)
  local site = given.site or web.site(given)
  local function answer(request) return site:answer(request) end
  local function chores()
    site.live:tick()
    return site:turn()
  end
  local busy = false
  while true do
    site.server:step(busy and 0 or site.live:wait(), answer)
    local done, more = xpcall(chores, trace)
    busy = done and more
    if not done then site.complain(more.trace) end
  end
end

return web
