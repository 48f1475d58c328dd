--- Writes what is made from other texts. Of the parser of the command line and of annotations: so
-- `--help`, the manual pages and the reference are one text. Of descriptions: pictures.
--
--     lua5.4 doc/generate.lua man FOLDER VERSION  nightshift(1), and one page for each command
--     lua5.4 doc/generate.lua completion FOLDER   what bash, zsh and fish read to complete our words
--     lua5.4 doc/generate.lua reference FOLDER    reference-lua.md and reference-shell.md: all of it
--     lua5.4 doc/generate.lua pictures FOLDER     of doc/pictures/pictures.dot: NAME.svg of each graph

local USAGE = "usage: generate.lua man|completion|reference|pictures FOLDER [VERSION]"
local what, folder, version = arg[1], assert(arg[2], USAGE), arg[3] or ""
local makers = {}

local function command_line() return require "nightshift.cli".parser() end

-- ------------------------------------------------------------ manual pages

local EXITS <const> = {
  { "0", "Done; of work: drained." },
  { "1", "A failure." },
  { "2", "Wrong usage, or a wrong value." },
  { "69", "The database is unreachable." },
  { "78", "Bad configuration: the address, scripts, tables, privileges." },
}
local LEFT <const> = { "3", "With --drain: jobs are left, ready or due soon, that no script here can run." }

local VARIABLES <const> = {
  { "NIGHTSHIFT_URL", "The database, when no --url is given." },
  { "NIGHTSHIFT_CONFIG", "The file of settings, when no --config is given." },
  { "NIGHTSHIFT_WORKERS, NIGHTSHIFT_QUEUES, ...", "Options of work; --log has none." },
  { "NIGHTSHIFT_SHARED", "Size of nightshift.shared in plain Lua." },
  { "NIGHTSHIFT_LOG", "debug: events of level debug are logged, too." },
}

--- Text in which nothing is a request of the formatter.
local function escaped(text)
  text = text:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("'", "\\(aq"):gsub("`", "\\`"):gsub("…", "...")
  return (text:gsub("^%.", "\\&."):gsub("\n%.", "\n\\&."))
end

local function bold(text) return "\\fB" .. escaped(text) .. "\\fR" end
local function italic(text) return "\\fI" .. escaped(text) .. "\\fR" end

--- Whatever the parser takes for a description, as one line.
local function described(element)
  local text = (element._description or ""):gsub("%s+", " ")
  local default = element._default
  if type(default) == "string" and element._show_default ~= false and default ~= "null" then
    text = ("%s (default: %s)"):format(text, default)
  end
  return escaped(text)
end

--- What stands behind an option, or for an argument: "<id>", "{a,b}", "NAMES".
local function placeholder(element)
  local name = element._argname
  if type(name) == "table" then name = table.concat(name, " ") end
  if name then return name end
  if element._choices then return "{" .. table.concat(element._choices, ",") .. "}" end
  return element._name and element._name:gsub("^%-+", "") or ""
end

local function takes_value(option) return (option._maxargs or 1) > 0 end

local function option_head(option)
  local names = {}
  for i, alias in ipairs(option._aliases) do names[i] = bold(alias) end
  local head = table.concat(names, ", ")
  return takes_value(option) and head .. " " .. italic(placeholder(option)) or head
end

--- The page of one parser: its name, and the texts that follow each other in it.
local Page = {}
Page.__index = Page

local function new_page(name)
  local title = (".TH %s 1 \"\" \"Nightshift %s\" \"Nightshift\""):format(name:upper(), version)
  return setmetatable({ name = name, title }, Page)
end

function Page:add(format, ...) self[#self + 1] = select("#", ...) > 0 and format:format(...) or format end

function Page:section(title) self:add(".SH %s", title) end

function Page:item(head, text)
  self:add ".TP"
  self:add(head)
  self:add(text ~= "" and text or "\\&")
end

function Page:list(title, items)
  self:section(title)
  for _, item in ipairs(items) do self:item(bold(item[1]), escaped(item[2])) end
end

function Page:write()
  local file <close> = assert(io.open(("%s/%s.1"):format(folder, self.name), "w"))
  assert(file:write(table.concat(self, "\n"), "\n"))
end

--- "nightshift work [-h] …", as --help has it, without its first word.
local function add_synopsis(page, parser)
  page:section "SYNOPSIS"
  page:add ".nf"
  page:add(escaped((parser:get_usage():gsub("^Usage: ", ""))))
  page:add ".fi"
end

local function add_elements(page, parser)
  if #parser._arguments > 0 then
    page:section "ARGUMENTS"
    for _, argument in ipairs(parser._arguments) do page:item(italic(placeholder(argument)), described(argument)) end
  end
  page:section "OPTIONS"
  for _, option in ipairs(parser._options) do
    if not option._hidden then page:item(option_head(option), described(option)) end
  end
end

--- The notes below --help's options, and the examples below these.
local function parts_of(epilog)
  local notes, examples = epilog:match "^(.-)\n*Examples:\n(.*)$"
  return notes or epilog, examples
end

--- The lines below --help's options.
local function add_epilog(page, parser)
  local notes, examples = parts_of(parser._epilog or "")
  local lines = {}
  for line in notes:gmatch "[^\n]+" do lines[#lines + 1] = escaped(line) end
  if #lines > 0 then
    page:section "NOTES"
    page:add(table.concat(lines, "\n.PP\n"))
  end
  if not examples then return end
  page:section "EXAMPLES"
  page:add ".nf"
  page:add(escaped(examples))
  page:add ".fi"
end

local function start_of(name, parser)
  local page = new_page(name)
  page:section "NAME"
  page:add("%s \\- %s", escaped(name), (escaped(parser._description:match "^[^.:;]*"):gsub("%s+", " ")))
  add_synopsis(page, parser)
  page:section "DESCRIPTION"
  page:add(escaped((parser._description:gsub("%s+", " "))))
  return page
end

local function add_ends(page, with_left)
  local exits = table.move(EXITS, 1, #EXITS, 1, {})
  if with_left then table.insert(exits, 4, LEFT) end
  page:list("EXIT STATUS", exits)
  page:list("ENVIRONMENT", VARIABLES)
end

function makers.man()
  local parser = command_line()
  local main = start_of("nightshift", parser)
  add_elements(main, parser)
  main:section "COMMANDS"
  for _, command in ipairs(parser._commands) do
    local name = command._aliases[1]
    main:item(("%s(1)"):format(bold("nightshift-" .. name)), described(command))
    local page = start_of("nightshift-" .. name, command)
    add_elements(page, command)
    add_epilog(page, command)
    add_ends(page, name == "work")
    page:section "SEE ALSO"
    page:add "\\fBnightshift\\fR(1)"
    page:write()
  end
  add_epilog(main, parser)
  add_ends(main)
  main:write()
end

-- ------------------------------------------- all of Lua: annotations

local function write(name, lines)
  local file <close> = assert(io.open(("%s/%s"):format(folder, name), "w"))
  assert(file:write(table.concat(lines, "\n"), "\n"))
end

local COMPLETIONS <const> = { bash = "nightshift", zsh = "_nightshift", fish = "nightshift.fish" }

function makers.completion()
  local help = require "nightshift.cli.help"
  for _, shell in ipairs(help.SHELLS) do
    write(COMPLETIONS[shell], { (help.completion(command_line(), shell):gsub("\n$", "")) })
  end
end

local function cell(text) return (text:gsub("|", "\\|")) end

--- A type stands in front of its description; blanks inside brackets, and around what
-- joins two types, are its own.
local function split_type(text)
  local depth, at = 0, 1
  while at <= #text do
    local char = text:sub(at, at)
    if char:find "[%(%{%[<]" then depth = depth + 1 end
    if char:find "[%)%}%]>]" then depth = depth - 1 end
    if char == " " and depth == 0 and not text:sub(at - 1, at - 1):find "[:,|]" then break end
    at = at + 1
  end
  return text:sub(1, at - 1), text:sub(at + 1)
end

--- The blocks of the file: comment lines that follow each other, with the code line below them.
local function blocks(path)
  local list, block = {}, {}
  for line in io.lines(path) do
    local comment = line:match "^%-%-%-(.*)"
    if comment then
      local tagged = comment:sub(1, 1) == "@"
      local joins = not tagged and #block > 0 and block[#block]:find "^@field" and not comment:find "^|"
      if joins then
        block[#block] = ("%s %s"):format(block[#block], comment:match "^%s*(.*)")
      else
        block[#block + 1] = comment
      end
    elseif #block > 0 then
      block.code = line
      list[#list + 1] = block
      block = {}
    end
  end
  return list
end

local readers = {}

function readers.class(item, rest) item.class, item.about = rest:match "^([^%s:]+:? ?[%w.]*)%s*(.*)$" end

function readers.alias(item, rest)
  item.alias = rest
  local is = rest:match "^%S+%s+(.*)$"
  if is then item.about = ("`%s`"):format(is) end
end

function readers.field(item, rest)
  local name, more = rest:match "^(%S+)%s+(.*)$"
  local kind, about = split_type(more)
  table.insert(item.fields, { name, kind, about })
end

function readers.param(item, rest)
  local name, more = rest:match "^(%S+)%s+(.*)$"
  local kind, about = split_type(more)
  table.insert(item.params, { name, kind, about })
end

--- Another form of a call: "fun(self: …, filter: …): …", without self.
function readers.overload(item, rest)
  table.insert(item.forms, (rest:gsub("^fun%(self: [%w.]+,? ?", "(")))
end

readers["return"] = function(item, rest)
  local kind, about = split_type(rest)
  table.insert(item.returns, { kind, about })
end

--- What a block says: {text, class, alias, values, fields, params, returns, forms, code}.
local function item_of(block)
  local item = { text = {}, values = {}, fields = {}, params = {}, returns = {}, forms = {}, code = block.code }
  for _, line in ipairs(block) do
    local tag, rest = line:match "^@(%l+)%s*(.*)$"
    if readers[tag] then
      readers[tag](item, rest)
    elseif line:find "^| " then
      table.insert(item.values, line:sub(3))
    elseif not tag then
      table.insert(item.text, (line:gsub("^ ", "")))
    end
  end
  return item
end

--- A table of Markdown, or nothing.
local function add_table(out, heads, rows)
  if #rows == 0 then return end
  out[#out + 1] = "\n| " .. table.concat(heads, " | ") .. " |\n|" .. ("---|"):rep(#heads)
  for _, row in ipairs(rows) do
    local cells = {}
    for i = 1, #heads do
      local text = row[i] or ""
      cells[i] = cell(text ~= "" and i < #heads and ("`%s`"):format(text) or text)
    end
    out[#out + 1] = "| " .. table.concat(cells, " | ") .. " |"
  end
end

--- The head of an item: "## nightshift.Job", "### job:ack(result)"; nil: it is of no use alone.
local function heading(item)
  if item.class or item.alias then return "## " .. (item.class or item.alias):match "^[^%s:]+" end
  local call = item.code:match "^function ([%w_.:]+%b())" or item.code:match "^function [%w_.]+%b%[%]"
  if call then return ("### `%s`"):format((call:gsub("^%u", string.lower))) end
  local name = item.code:match "^([%w_.]+) ="
  return name and #item.text > 0 and ("### `%s`"):format(name)
end

local function add_item(out, item)
  local head = heading(item)
  if not head then return end
  out[#out + 1] = "\n" .. head
  if item.about and item.about ~= "" then out[#out + 1] = item.about .. "." end
  if #item.text > 0 then out[#out + 1] = table.concat(item.text, "\n") end
  local values = {}
  for i, value in ipairs(item.values) do
    local name, about = value:match "^(%b\"\")%s*#?%s*(.*)$"
    values[i] = { name or value, about or "" }
  end
  add_table(out, { "value", "" }, values)
  add_table(out, { "field", "type", "" }, item.fields)
  add_table(out, { "argument", "type", "" }, item.params)
  add_table(out, { "gives", "" }, item.returns)
  for _, form in ipairs(item.forms) do out[#out + 1] = ("\nAlso `%s`."):format(form) end
end

-- ------------------------------------------------------------------ shell

local function told(element)
  local text = (element._description or ""):gsub("%s+", " ")
  local default = element._default
  return type(default) == "string" and default ~= "null" and ("%s Default: %s."):format(text, default) or text
end

local function add_command(out, title, parser)
  out[#out + 1] = ("\n## %s\n%s\n\n```sh\n%s\n```"):format(title, (parser._description:gsub("%s+", " ")),
    (parser:get_usage():gsub("^Usage: ", "")))
  local rows = {}
  for _, argument in ipairs(parser._arguments) do rows[#rows + 1] = { argument._name, told(argument) } end
  for _, option in ipairs(parser._options) do
    if not option._hidden then rows[#rows + 1] = { table.concat(option._aliases, ", "), told(option) } end
  end
  add_table(out, { "argument or option", "" }, rows)
  local notes, examples = parts_of(parser._epilog or "")
  if notes ~= "" then out[#out + 1] = "\n" .. notes:gsub("\n", "  \n") end
  if examples then out[#out + 1] = ("\n```sh\n%s\n```"):format((examples:gsub("%f[^\n\0]   ", ""))) end
end

function makers.reference()
  local lua_page = { "# Lua, verb by verb", "",
    "Made from `library/nightshift.lua`. The short form is the [reference](reference.md).", "" }
  for _, block in ipairs(blocks "library/nightshift.lua") do add_item(lua_page, item_of(block)) end
  write("reference-lua.md", lua_page)
  local parser = command_line()
  local shell_page = { "# The shell, option by option", "", "Made from the parser of the command line, as `--help` and"
    .. " the manual pages are. The short form is the [reference](reference.md#the-shell)." }
  add_command(shell_page, "nightshift", parser)
  for _, command in ipairs(parser._commands) do
    add_command(shell_page, "nightshift " .. command._aliases[1], command)
  end
  write("reference-shell.md", shell_page)
end

-- ---------------------------------------------------------------- pictures

local STYLE <const> = [[
/* Words and lines on the page itself have colours between light and dark, for viewers that do
   not tell the scheme; boxes have a fill of their own. */
text { fill: #1f2328; font-family: "DejaVu Sans", Verdana, Arial, sans-serif; }
.node path, .node polygon, .node ellipse, .node polyline { fill: #f6f8fa; stroke: #6e7681; }
.cluster path, .cluster polygon { fill: none; stroke: #6e7681; stroke-dasharray: 4 3; }
.edge path { stroke: #6e7681; }
.edge polygon { fill: #6e7681; stroke: #6e7681; }
.edge text, .cluster text, .label text { fill: #6e7681; }
.db path, .db polygon, .db ellipse, .db polyline { fill: #ddf4ff; stroke: #0969da; }
.good path { fill: #dafbe1; stroke: #1a7f37; }
.bad path { fill: #ffebe9; stroke: #cf222e; }
.busy path { fill: #fff8c5; stroke: #9a6700; }
@media (prefers-color-scheme: dark) {
  text, .edge text, .cluster text, .label text { fill: #e6edf3; }
  .node path, .node polygon, .node ellipse, .node polyline { fill: #161b22; stroke: #8b949e; }
  .edge path { stroke: #8b949e; }
  .edge polygon { fill: #8b949e; stroke: #8b949e; }
  .db path, .db polygon, .db ellipse, .db polyline { fill: #0c2d6b; stroke: #58a6ff; }
  .good path { fill: #033a16; stroke: #3fb950; }
  .bad path { fill: #67060c; stroke: #f85149; }
  .busy path { fill: #4b2900; stroke: #d29922; }
}
]]

--- A graph's lines of SVG: without comments and what differs from run to run, with the style, which
-- follows the reader's light or dark scheme. Needs `dot` (Debian: graphviz).
local function draw(graph)
  local description, lines = os.tmpname(), {}
  local file <close> = assert(io.open(description, "w"))
  assert(file:write(graph))
  assert(file:flush())
  local pipe = assert(io.popen("dot -Tsvg " .. description))
  for line in pipe:lines() do
    local is_left_out = line:find "^<!%-%-" or line:find "^ %-%->" or line:find "^ Pages" or line:find "^<title>"
    if not is_left_out then lines[#lines + 1] = line end
    if line:find "^ viewBox=" then lines[#lines + 1] = "<style>\n" .. STYLE .. "</style>" end
  end
  assert(pipe:close(), "dot has failed")
  os.remove(description)
  return lines
end

function makers.pictures()
  local file <close> = assert(io.open "doc/pictures/pictures.dot")
  for name, body in file:read("a"):gmatch "digraph (%l+) (%b{})" do
    local picture <close> = assert(io.open(("%s/%s.svg"):format(folder, name), "w"))
    assert(picture:write(table.concat(draw("digraph " .. name .. " " .. body), "\n"), "\n"))
  end
end

assert(makers[what], USAGE)()
