--- The frame of a page, the escaper of all templates, and the helpers `h` that templates call.
--
-- Invariant: a value gets into HTML in one way, through `escape`. A value that passes it as it is was
-- made by `raw`, by code of this folder and never from a text of a user. A page has no style
-- attribute and no script: the policy that it is sent with forbids both.

local core = require "nightshift.core"
local template = require "pl.template"
local units = require "nightshift.units"

local layout = {}

-- ------------------------------------------------------------------- escaping

local Raw = { __name = "nightshift.html" }
Raw.__tostring = function(self) return self.html end

--- HTML that is not escaped again.
---@param html string
function layout.raw(html) return setmetatable({ html = html }, Raw) end

local raw = layout.raw

local ENTITY <const> = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }

--- The text with bytes that are not UTF-8 as U+FFFD.
local function valid(text)
  local parts, from = {}, 1
  local bad = select(2, utf8.len(text))
  while bad do
    parts[#parts + 1] = text:sub(from, bad - 1)
    parts[#parts + 1] = "\u{FFFD}"
    from = bad + 1
    bad = select(2, utf8.len(text, from))
  end
  parts[#parts + 1] = text:sub(from)
  return table.concat(parts)
end

--- Control characters are shown as the pictures that Unicode has of them.
local function picture(char)
  local byte = char:byte()
  return utf8.char(byte == 127 and 0x2421 or 0x2400 + byte)
end

--- A value as HTML: `$(value)` of templates.
---@param value any
---@return string
function layout.escape(value)
  if getmetatable(value) == Raw then return value.html end
  local text = tostring(value)
  if not text:find "[&<>\"'%c\x80-\xFF]" then return text end
  text = valid(text):gsub("[&<>\"']", ENTITY):gsub("[^%C\n\t]", picture)
  return text
end

local escape = layout.escape

-- ------------------------------------------------------------------ templates

local GLOBALS <const> = { ipairs = ipairs, pairs = pairs, next = next, select = select, tostring = tostring,
  tonumber = tonumber, type = type, math = math, string = string, table = table, raw = raw }

--- Compiles a template of Penlight: `$(value)`, and lines of Lua behind a "#" in the first column.
---@param name string for messages
---@param text string
---@return fun(fields: table): string
function layout.compile(name, text)
  local compiled, message = template.compile(text, { chunk_name = name })
  if not compiled then error(("the template of %s: %s"):format(name, message), 0) end
  compiled.env.__tostring = escape
  return function(fields)
    local env = setmetatable({}, { __index = function(_, key)
      local value = fields[key]
      if value == nil then return GLOBALS[key] end
      return value
    end })
    local html, why = compiled:render(env)
    if not html then error(why, 0) end
    return html
  end
end

-- ------------------------------------------------------------ numbers and times

local EMPTY <const> = "–"

--- "12,345"; a list of groups of three digits.
local function thousands(n)
  if not n then return EMPTY end
  if math.type(n) == "float" and n ~= math.floor(n) then return units.fixed(n, n < 10 and 2 or 1) end
  local sign, digits = ("%d"):format(n):match "^(-?)(%d+)$"
  return sign .. digits:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
end

local SPANS <const> = { { 86400, "d" }, { 3600, "h" }, { 60, "min" } }

--- "45 ms", "1.2 s", "3 min", "2 h", "4 d": one unit, so that columns are read at a glance.
local function seconds(s)
  if not s then return EMPTY end
  local size = math.abs(s)
  if size < 0.0005 then return "0 s" end
  if size < 1 then return ("%d ms"):format(math.floor(s * 1000 + 0.5)) end
  if size < 10 then return units.fixed(s, 1) .. " s" end
  if size < 120 then return ("%d s"):format(math.floor(s + 0.5)) end
  for _, span in ipairs(SPANS) do
    if size >= 2 * span[1] then return ("%d %s"):format(math.floor(s / span[1] + 0.5), span[2]) end
  end
end

local SIZES <const> = { { 1 << 40, "TiB" }, { 1 << 30, "GiB" }, { 1 << 20, "MiB" }, { 1 << 10, "KiB" } }

local function bytes(n)
  if not n then return EMPTY end
  for _, size in ipairs(SIZES) do
    if n >= 10 * size[1] then return ("%d %s"):format(n // size[1], size[2]) end
    if n >= size[1] then return units.fixed(n / size[1], 1) .. " " .. size[2] end
  end
  return ("%d B"):format(n)
end

layout.seconds, layout.count = seconds, thousands

-- ----------------------------------------------------------------------- URLs

local function hex(char) return ("%%%02X"):format(char:byte()) end

--- A part of a URL, whatever it holds.
local function quoted(text) return (tostring(text):gsub("[^A-Za-z0-9_.~-]", hex)) end

local function char_of(digits) return string.char(tonumber(digits, 16)) end

--- The text of a part of a path; of a query, where "+" is a space, with `plus`.
---@param text string
---@param plus boolean?
function layout.unquoted(text, plus)
  if plus then text = text:gsub("+", " ") end
  return (text:gsub("%%(%x%x)", char_of))
end

--- A path: as a text, or as a list of segments of any text.
function layout.path_of(path)
  if type(path) == "table" then
    local parts = {}
    for i, part in ipairs(path) do parts[i] = quoted(part) end
    return "/" .. table.concat(parts, "/")
  end
  return (path:gsub("[^/]+", function(part) return quoted(layout.unquoted(part)) end))
end

--- "?a=1&b=2", in the order of the keys; a list repeats its key; nil, false and "" are left out.
local function query_of(query)
  local keys, parts = {}, {}
  for key in pairs(query or {}) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do
    local value = query[key]
    for _, item in ipairs(type(value) == "table" and value or { value or nil }) do
      if item ~= "" then parts[#parts + 1] = quoted(key) .. "=" .. quoted(item) end
    end
  end
  return #parts > 0 and "?" .. table.concat(parts, "&") or ""
end

layout.query_of = query_of

-- -------------------------------------------------------------------- helpers

local STATES <const> = { ready = true, scheduled = true, running = true, waiting = true, done = true, dead = true,
  cancelled = true, paused = true, failed = true, crashed = true, lost = true, ok = true, warn = true }

local JSON_MAX <const> = 65536 -- bytes that a page shows of a value

local ARRAY <const> = getmetatable(core.array {})

--- The keys of a table in their order; nil: it is an array.
local function keys_of(value)
  if getmetatable(value) == ARRAY or value[1] ~= nil then return nil end
  local keys = {}
  for key in next, value do keys[#keys + 1] = key end
  table.sort(keys, function(x, y) return tostring(x) < tostring(y) end)
  return keys
end

--- Adds the JSON of a value with a line for each item, its keys in their order, until there are
-- JSON_MAX bytes.
local function add_json(out, value, indent)
  local function add(text)
    out.size = out.size + #text
    out[#out + 1] = text
  end
  if type(value) ~= "table" then return add((assert(core.encode(value, math.maxinteger)))) end
  local keys, inner, n = keys_of(value), indent .. "  ", 0
  add(keys and "{" or "[")
  for i, key in ipairs(keys or value) do
    if out.size > JSON_MAX then break end
    add(i == 1 and inner or "," .. inner)
    if keys then add(core.encode(tostring(key)) .. ": ") end
    add_json(out, value[keys and key or i], inner)
    n = i
  end
  add((n > 0 and indent or "") .. (keys and "}" or "]"))
end

--- The JSON of a value on several lines; one of more than JSON_MAX bytes is not whole.
---@return string
function layout.pretty(value)
  local out = { size = 0 }
  add_json(out, value, "\n")
  return table.concat(out)
end

--- Cuts a text at a number of bytes, at the end of a character.
local function cut(text, max)
  if #text <= max then return text end
  while max > 0 and text:byte(max + 1) & 0xC0 == 0x80 do max = max - 1 end
  return text:sub(1, max)
end

layout.cut = cut

--- The fields of a form as hidden inputs; a list repeats its name.
local function hidden(fields)
  local keys, out = {}, {}
  for key in pairs(fields or {}) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do
    local value = fields[key]
    for _, item in ipairs(type(value) == "table" and value or { value }) do
      out[#out + 1] = ('<input type="hidden" name="%s" value="%s">'):format(escape(key), escape(item))
    end
  end
  return table.concat(out)
end

--- "3 min ago", "in 2 h", "now".
local function relative(instant, now)
  local ago = now - instant
  if math.abs(ago) < 1 then return "now" end
  return ago > 0 and seconds(ago) .. " ago" or "in " .. seconds(-ago)
end

--- The helpers of a site: {prefix =, csrf =, readonly =, now =, redact =}.
---@param site table `now` changes with each request
---@return table h
function layout.helpers(site)
  local h = { seconds = seconds, count = thousands, bytes = bytes }

  --- A URL of a page: its path, or a list of segments of any text; and its query.
  function h.url(path, query) return site.prefix .. layout.path_of(path) .. query_of(query) end

  function h.link(path, query, text, class)
    return raw(('<a href="%s"%s>%s</a>'):format(escape(h.url(path, query)),
      class and (' class="%s"'):format(escape(class)) or "", escape(text)))
  end

  --- A job, or a queue's jobs, by link.
  function h.job(id) return id and h.link({ "jobs", id }, nil, id, "number") or EMPTY end
  function h.queue(name) return name and h.link("/jobs", { queue = name }, name) or EMPTY end

  function h.time(instant)
    if not instant then return EMPTY end
    local full = units.instant(instant)
    return raw(('<time datetime="%s" title="%s">%s</time>'):format(full, full:gsub("T", " "):gsub("%..*$", "")
      :gsub("Z$", "") .. " UTC", escape(relative(instant, site.now))))
  end

  function h.state(state, text)
    return raw(('<span class="state %s">%s</span>'):format(STATES[state] and "is-" .. state or "",
      escape(text or state)))
  end

  --- A count that may go further: "1,000+".
  function h.atleast(n, more) return thousands(n) .. (more and "+" or "") end

  --- A button in a form of its own. Without the right to change anything there is none.
  function h.form(action, fields, label, opts)
    if site.readonly then return raw "" end
    opts = opts or {}
    return raw(('<form method="post" action="%s" class="inline"%s>%s<input type="hidden" name="csrf" value="%s">'
      .. '<button class="%s"%s>%s</button></form>'):format(escape(h.url(action)),
      opts.confirm and (' data-confirm="%s"'):format(escape(opts.confirm)) or "", hidden(fields), site.csrf,
      escape(opts.class or "button"), opts.label and (' aria-label="%s"'):format(escape(opts.label)) or "",
      escape(label)))
  end

  --- The hidden field for a form that a template writes itself.
  function h.csrf() return raw(('<input type="hidden" name="csrf" value="%s">'):format(site.csrf)) end

  function h.empty(text, command)
    return raw(('<div class="empty"><p>%s</p>%s</div>'):format(escape(text),
      command and ("<pre><code>%s</code></pre>"):format(escape(command)) or ""))
  end

  --- Links to the first page and the next one. more: {after =, …}, added to the query; nil: it is
  -- the last.
  function h.pager(request, opts)
    local more, links = opts and opts.more, {}
    local function with(changes)
      local query = {}
      for key, value in pairs(request.query) do query[key] = value end
      query.after, query.said = nil, nil
      for key, value in pairs(changes) do query[key] = value end
      return query
    end
    if request.query.after then links[1] = h.link(request.path, with {}, "First page", "button").html end
    if more then
      links[#links + 1] = h.link(request.path, with { after = more.after or more }, "Next page", "button").html
    end
    if #links == 0 then return raw "" end
    return raw('<nav class="pager" aria-label="Pages of the list">' .. table.concat(links) .. "</nav>")
  end

  --- A value as indented JSON, without redacted values, of a bounded length.
  function h.json(value)
    local text = layout.pretty(site.redact(value))
    local whole = #text <= JSON_MAX
    return raw(('<pre class="json" tabindex="0">%s%s</pre>'):format(escape(cut(text, JSON_MAX)), whole and "" or "\n…"))
  end

  return h
end

-- ------------------------------------------------------------------- the frame

local FRAME <const> = [[
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
# if refresh then
<meta http-equiv="refresh" content="$(refresh)">
# end
<title>$(title) · Nightshift</title>
<link rel="stylesheet" href="$(h.url("/assets/style.css", { v = version.style }))">
<link rel="icon" href="$(h.url("/assets/icon.svg"))" type="image/svg+xml">
<script src="$(h.url("/assets/page.js", { v = version.script }))" defer></script>
</head>
<body
# if live then
data-stream="$(live)"
# end
data-now="$(now)" data-root="$(h.url("/"))">
<a class="skip" href="#main">Skip to the content</a>
<header class="bar">
<a class="brand" href="$(h.url("/"))"><svg class="mark" viewBox="0 0 16 16" aria-hidden="true"><path
d="M13.5 10.2A6 6 0 0 1 5.8 2.5a6 6 0 1 0 7.7 7.7z"/></svg>Nightshift</a>
# if entries then
<nav aria-label="Main"><ul class="pages">
# for _, entry in ipairs(entries) do
<li><a href="$(entry.url or h.url(entry.path))" data-key="$(entry.key)"
# if entry.nav == nav then
aria-current="page"
# end
>$(entry.title)</a></li>
# end
</ul></nav>
<form class="search" role="search" action="$(h.url("/find"))">
<label class="unseen" for="search">Find a job by its id or its name</label>
<input id="search" type="search" name="q" placeholder="Job id or name" maxlength="100" autocomplete="off">
<kbd aria-hidden="true">/</kbd>
</form>
# end
</header>
<main id="main" tabindex="-1">
# if said then
<p class="said $(said.class)" role="status">$(said.text)</p>
# end
<div class="title"><h1>$(title)</h1>
# if live then
<p class="live" role="status" hidden><span class="dot" aria-hidden="true"></span><span class="text">Live</span></p>
# end
</div>
$(body)
</main>
<footer class="foot">
# if database then
<p>Database <b>$(database)</b></p>
# end
# if readonly then
<p>Read-only</p>
# end
<p>Nightshift $(release)</p>
<p class="keys"><button type="button" class="plain" data-help>Keys: <kbd>?</kbd></button></p>
</footer>
<dialog id="help" aria-labelledby="help-title">
<h2 id="help-title">Keys</h2>
<dl class="keylist">
<dt><kbd>/</kbd></dt><dd>find a job</dd>
<dt><kbd>j</kbd> <kbd>k</kbd></dt><dd>next row, row before</dd>
<dt><kbd>Enter</kbd></dt><dd>open the row</dd>
# for _, entry in ipairs(entries or {}) do
<dt><kbd>g</kbd> <kbd>$(entry.key)</kbd></dt><dd>$(entry.title)</dd>
# end
<dt><kbd>?</kbd></dt><dd>this list</dd>
</dl>
<form method="dialog"><button class="button">Close</button></form>
</dialog>
</body>
</html>
]]

local frame

--- A whole page. fields: h, title, body (raw), nav, entries, said, live, refresh, database,
-- version, now (ms).
---@param fields table
---@return string html
function layout.page(fields)
  frame = frame or layout.compile("the frame", FRAME)
  return frame(fields)
end

return layout
