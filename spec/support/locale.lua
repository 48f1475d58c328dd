--- A locale with a decimal comma, made here, so that none has to be installed.

local nst = require "nst"
local proc = require "spec.support.proc"

local locale = { name = "de_DE.UTF-8" }

-- The folder for LOCPATH, in which the locale lies; whoever comes first makes it.
local function folder()
  local path = proc.build .. "/locale"
  local there = io.open(path .. "/" .. locale.name .. "/LC_NUMERIC")
  if there then
    there:close()
    return path
  end
  local status, _, errors = proc.run {
    "sh", "-c", [[mkdir -p "$1" && localedef --no-archive -i de_DE -f UTF-8 "$1/$2.$$" &&
      { mv -T "$1/$2.$$" "$1/$2" || test -e "$1/$2/LC_NUMERIC"; }]],
    "sh", path, locale.name,
  }
  assert(status == 0, errors)
  return path
end

--- Runs a function while this process has a decimal comma.
---@param fn function
function locale.comma(fn)
  local path, old = os.getenv "LOCPATH", os.setlocale(nil, "numeric")
  nst.setenv("LOCPATH", folder())
  assert(os.setlocale(locale.name, "numeric"))
  local ok, message = pcall(fn)
  os.setlocale(old, "numeric")
  nst.setenv("LOCPATH", path)
  assert(ok, message)
end

return locale
