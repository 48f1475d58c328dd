--- Mappings of existing tables, as Lua files give them: one, or a list, each.

local context = require "nightshift.cli.context"

local mapping = {}

local function read(what, file, given)
  local ok, flat, message = pcall(require "nightshift.adopt".read, given)
  if not ok then flat, message = nil, flat end
  if not flat then context.fail(context.CONFIG, "%s %s: %s", what, file, message:gsub("^nightshift: ", "")) end
  return flat
end

local function load_file(what, file)
  local chunk, message = loadfile(file, "t")
  if not chunk then context.fail(context.CONFIG, "%s: %s", what, message) end
  local ok, value = pcall(chunk)
  if not ok then context.fail(context.CONFIG, "%s: %s", what, tostring(value)) end
  if type(value) ~= "table" then
    context.fail(context.CONFIG, "%s %s: it must return a mapping or a list of them, and returned a %s", what, file,
      type(value))
  end
  return value[1] and value or { value }
end

--- The mappings of the files, as the core takes them, and as they were given; nil when
-- there are none. One that is wrong, or a table that is named twice, ends the command.
---@param what string the option, or command, as people write it
---@param files string[]
---@return table[]|nil
---@return table[]|nil
function mapping.load(what, files)
  local flats, given, seen = {}, {}, {}
  for _, file in ipairs(files) do
    for _, one in ipairs(load_file(what, file)) do
      local flat = read(what, file, one)
      if seen[flat.table] then
        context.fail(context.CONFIG, "%s %s: table '%s' is named twice", what, file, flat.table)
      end
      seen[flat.table] = true
      flats[#flats + 1], given[#given + 1] = flat, one
    end
  end
  if flats[1] then return flats, given end
end

return mapping
