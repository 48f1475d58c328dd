--- Settings of a file, of the environment, and of the command line, which goes before both. And the
-- command config, which shows the settings that count, and where they are from.
--
-- A setting is `url`, or an option of `work` without its "--". Settings of file and environment are
-- put in front of the arguments of their command, so the parser checks all of them alike.

local context = require "nightshift.cli.context"
local core = require "nightshift.core"
local options = require "nightshift.options"
local output = require "nightshift.cli.output"

local config = { commands = {} }

---@class nightshift.Setting
---@field key string
---@field value string
---@field place string where it is from: "$NIGHTSHIFT_WORKERS"; "/etc/nightshift/config, line 3"

-- ------------------------------------------------------------------- reading

-- The value of an option that stands anywhere among the arguments; nil: it is not given.
local function given(argv, option)
  local value
  for i, text in ipairs(argv) do
    if text == option then value = argv[i + 1] or "" end
    if text:sub(1, #option + 1) == option .. "=" then value = text:sub(#option + 2) end
  end
  return value
end

--- The file of settings, and the option or variable that names it. A named file has to be there.
local function path_of(argv)
  local named, by = given(argv, "--config"), "--config"
  if not named then named, by = os.getenv "NIGHTSHIFT_CONFIG", "$NIGHTSHIFT_CONFIG" end
  if named and named ~= "" then return named, by end
  local own = os.getenv "XDG_CONFIG_HOME"
  local home = os.getenv "HOME"
  if not own or own == "" then own = home and home .. "/.config" end
  for _, folder in ipairs { own or false, "/etc" } do
    local path = folder and folder .. "/nightshift/config"
    local file <close> = path and io.open(path)
    if file then return path, "found" end
  end
end

--- The lines of a file: "key = value"; empty lines, and lines that begin with "#", say nothing.
---@return nightshift.Setting[]
local function read_file(path, by)
  local file <close>, message = io.open(path)
  if not file then context.fail(context.CONFIG, "cannot read the file of settings that %s names: %s", by, message) end
  local settings, n = {}, 0
  for line in file:lines() do
    n = n + 1
    local text = line:match "^%s*(.-)%s*$"
    if text ~= "" and not text:find "^#" then
      local key, value = text:match "^([%w-]+)%s*=%s*(.*)$"
      if not key then context.fail(context.CONFIG, "%s, line %d: 'key = value' is expected", path, n) end
      settings[#settings + 1] = { key = key, value = value, place = ("%s, line %d"):format(path, n) }
    end
  end
  return settings
end

--- Options of work, by key.
local function work_options(parser)
  local known = {}
  for _, command in ipairs(parser._commands) do
    for _, option in ipairs(command._name == "work" and command._options or {}) do
      local key = option._aliases[1]:match "^%-%-(.*)$"
      if key then known[key] = option end
    end
  end
  return known
end

-- $NIGHTSHIFT_LOG is the level of the log, not its form.
local NO_VARIABLE <const> = { log = true }

--- Settings of the environment, for the known keys.
local function read_environment(known)
  local settings = {}
  local function add(key)
    local name = "NIGHTSHIFT_" .. key:upper():gsub("-", "_")
    local value = not NO_VARIABLE[key] and os.getenv(name)
    if value and value ~= "" then settings[#settings + 1] = { key = key, value = value, place = "$" .. name } end
  end
  add "url"
  for key in pairs(known) do add(key) end
  return settings
end

local function is_list(option) return option and (option._maxcount or 1) > 1 end

--- The settings that count, by key: of the file, or of the environment, which goes before it.
---@return table<string, nightshift.Setting[]>
local function settle(known, of_file, of_environment)
  local by_key = {}
  for _, one in ipairs(of_file) do
    local list = by_key[one.key]
    if not known[one.key] and one.key ~= "url" then
      local names = { url = true }
      for key in pairs(known) do names[key] = true end
      context.fail(context.CONFIG, "%s: unknown key '%s'%s", one.place, one.key,
        context.tip(options.nearest(one.key, names)))
    elseif list and not is_list(known[one.key]) then
      context.fail(context.CONFIG, "%s: '%s' is given twice", one.place, one.key)
    end
    by_key[one.key] = list or {}
    table.insert(by_key[one.key], one)
  end
  for _, one in ipairs(of_environment) do by_key[one.key] = { one } end
  return by_key
end

local TRUTH <const> = { ["true"] = true, yes = true, on = true, ["1"] = true,
  ["false"] = false, no = false, off = false, ["0"] = false }

--- A setting as an argument; nil: a flag that is not set.
local function argument_of(option, one)
  if not option or option._maxargs ~= 0 then return ("--%s=%s"):format(one.key, one.value) end
  local set = TRUTH[one.value]
  if set == nil then context.fail(context.CONFIG, "%s: %s must be true or false, got '%s'", one.place, one.key,
    options.shown(one.value)) end
  return set and "--" .. one.key or nil
end

-- ------------------------------------------------------------------ applying

--- All that is set, for a command: options of work for work alone.
---@param parser table that knows work, when the command is work or config
---@param argv string[]
---@param command string
---@return table<string, nightshift.Setting[]> by_key
---@return table<string, table> known options of work, by key
---@return string|nil path of the file
---@return string|nil by
local function collect(parser, argv, command)
  local path, by = path_of(argv)
  local of_file, known = path and read_file(path, by) or {}, {}
  if command == "work" or command == "config" then
    known = work_options(parser)
  else -- what is for work alone is none of its business
    local urls = {}
    for _, one in ipairs(of_file) do
      if one.key == "url" then urls[#urls + 1] = one end
    end
    of_file = urls
  end
  return settle(known, of_file, read_environment(known)), known, path, by
end

--- The arguments with the settings of file and environment, and where each setting is from.
---@param parser table
---@param argv string[]
---@param command string
---@param at integer where it stands in argv
---@return string[] argv
---@return table<string, string> from place by option
function config.apply(parser, argv, command, at)
  local by_key, known = collect(parser, argv, command)
  local all, from = table.move(argv, 1, at, 1, {}), {}
  for key, list in pairs(by_key) do
    local option = "--" .. key
    local ours = key == "url" and not list[1].place:find "^%$" or key ~= "url" and command == "work"
    if ours and not given(argv, option) then
      for _, one in ipairs(list) do
        all[#all + 1] = argument_of(known[key], one)
        from[option] = one.place
      end
    end
  end
  return table.move(argv, at + 1, #argv, #all + 1, all), from
end

--- Ends the command when the parser refuses a setting of file or environment.
---@param parser table
---@param argv string[]
function config.check(parser, argv)
  local by_key, known = collect(parser, argv, "config")
  for key, list in pairs(by_key) do
    for _, one in ipairs(key ~= "url" and list or {}) do
      local ok, message = parser:pparse { "work", "x", argument_of(known[key], one) }
      if not ok then context.fail(context.CONFIG, "%s: %s: %s", one.place, key, message) end
    end
  end
end

-- --------------------------------------------------------------- the command

--- Adds the command to the parser.
function config.define(parser)
  local command = parser:command("config", "Show the settings that count, each with where it is from: the "
    .. "command line, the environment, a file, or the default.")
  command:flag("--json", "Print JSON.")
end

--- A URL, or several, without passwords.
local function masked(urls)
  return (urls:gsub("%S+", function(url) return (url:gsub("^(%w+://[^:/@]*:).*@", "%1***@")) end))
end

local function url_row(argv, list)
  local here = given(argv, "--url")
  if not here and not list then
    return { key = "url", default = "the private server of ./.nightshift", from = "default" }
  end
  return { key = "url", value = masked(here or list[1].value), from = here and "--url" or list[1].place }
end

local function default_of(option)
  return type(option._default) == "string" and option._default
    or option._description:match "Default: (.*)%.$" or option._description:match "without: (.*)%.$"
    or option._maxargs == 0 and "false" or nil
end

local function row_of(key, option, list)
  if not list then return { key = key, default = default_of(option), from = "default" } end
  local values = {}
  for i, one in ipairs(list) do values[i] = one.value end
  return { key = key, value = table.concat(values, " "), from = list[#list].place }
end

function config.commands.config(args, parser, argv)
  config.check(parser, argv)
  local by_key, known, path, by = collect(parser, argv, "config")
  local rows = { { key = "config", value = path, default = not path and "none" or nil, from = by or "default" },
    url_row(argv, by_key.url) }
  local keys = {}
  for key in pairs(known) do
    if key ~= "help" then keys[#keys + 1] = key end
  end
  table.sort(keys)
  for _, key in ipairs(keys) do rows[#rows + 1] = row_of(key, known[key], by_key[key]) end
  if args.json then return output.json(core.array(rows)) end
  output.table({
    output.column("KEY", "key"),
    { title = "VALUE", get = function(row) return row.value or row.default end },
    output.column("FROM", "from"),
  }, rows)
end

return config
