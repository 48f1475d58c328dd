--- Writes the two pages that have everything: all of Lua from the annotations in
-- library/nightshift.lua, all of the shell from the parser of the command line.
--
--     lua5.4 doc/reference.lua FOLDER      FOLDER/reference-lua.md, FOLDER/reference-shell.md

local cli = require "nightshift.cli"

local folder = assert(arg[1], "usage: reference.lua FOLDER")

local function write(name, lines)
  local file <close> = assert(io.open(("%s/%s"):format(folder, name), "w"))
  assert(file:write(table.concat(lines, "\n"), "\n"))
end

local function cell(text) return (text:gsub("|", "\\|")) end

-- ------------------------------------------------------------ annotations

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

readers["return"] = function(item, rest)
  local kind, about = split_type(rest)
  table.insert(item.returns, { kind, about })
end

--- What a block says: {text, class, alias, values, fields, params, returns, code}.
local function item_of(block)
  local item = { text = {}, values = {}, fields = {}, params = {}, returns = {}, code = block.code }
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
end

local lua_page = { "# Lua, verb by verb", "",
  "Made from `library/nightshift.lua`. The short form is the [reference](reference.md).", "" }
for _, block in ipairs(blocks "library/nightshift.lua") do add_item(lua_page, item_of(block)) end
write("reference-lua.md", lua_page)

-- ------------------------------------------------------------------ shell

local function described(element)
  local text = (element._description or ""):gsub("%s+", " ")
  local default = element._default
  return type(default) == "string" and default ~= "null" and ("%s Default: %s."):format(text, default) or text
end

local function add_command(out, title, parser)
  out[#out + 1] = ("\n## %s\n%s\n\n```sh\n%s\n```"):format(title, (parser._description:gsub("%s+", " ")),
    (parser:get_usage():gsub("^Usage: ", "")))
  local rows = {}
  for _, argument in ipairs(parser._arguments) do rows[#rows + 1] = { argument._name, described(argument) } end
  for _, option in ipairs(parser._options) do
    if not option._hidden then rows[#rows + 1] = { table.concat(option._aliases, ", "), described(option) } end
  end
  add_table(out, { "argument or option", "" }, rows)
  if parser._epilog then out[#out + 1] = "\n" .. parser._epilog:gsub("\n", "  \n") end
end

local shell_page = { "# The shell, option by option", "", "Made from the parser of the command line, as `--help` and"
  .. " the manual pages are. The short form is the [reference](reference.md#the-shell)." }
local parser = cli.parser()
add_command(shell_page, "nightshift", parser)
for _, command in ipairs(parser._commands) do
  add_command(shell_page, "nightshift " .. command._aliases[1], command)
end
write("reference-shell.md", shell_page)
