--- Writes the manual pages, nightshift(1) and one for each command, from the parser of the
-- command line: what `--help` says, and the pages, are one text.
--
--     lua5.4 doc/man.lua FOLDER VERSION

local cli = require "nightshift.cli"

local folder, version = assert(arg[1], "usage: man.lua FOLDER VERSION"), arg[2] or ""

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

--- The lines below --help's options.
local function add_epilog(page, parser)
  if not parser._epilog then return end
  page:section "NOTES"
  local lines = {}
  for line in parser._epilog:gmatch "[^\n]+" do lines[#lines + 1] = escaped(line) end
  page:add(table.concat(lines, "\n.PP\n"))
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

local parser = cli.parser()
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
