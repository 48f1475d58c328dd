--- Handler files as people name them: a file is itself, a folder is all its
-- *.lua files in order.

local context = require "nightshift.cli.context"

local files = {}

local function is_folder(path)
  local file = io.open(path, "rb")
  if not file then return false end
  local _, _, errno = file:read(0)
  file:close()
  return errno == 21 -- EISDIR
end

local function shell_quote(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

--- Paths of the *.lua files of a folder, sorted by bytes.
local function lua_files(folder)
  local list = [[LC_ALL=C; cd -- %s && for f in *.lua; do [ -f "$f" ] && printf '%%s\0' "$f"; done; :]]
  local pipe = assert(io.popen(list:format(shell_quote(folder)), "r"))
  local names = pipe:read "a"
  pipe:close()
  local paths = {}
  for name in names:gmatch "[^\0]+" do paths[#paths + 1] = folder:gsub("/*$", "") .. "/" .. name end
  return paths
end

--- Expands what the command line names; an empty folder ends the command.
---@param paths string[]
---@return string[]
function files.expand(paths)
  local all = {}
  for _, path in ipairs(paths) do
    if is_folder(path) then
      local found = lua_files(path)
      if #found == 0 then context.fail(context.CONFIG, "%s: no *.lua file in this folder", path) end
      table.move(found, 1, #found, #all + 1, all)
    else
      all[#all + 1] = path
    end
  end
  return all
end

return files
