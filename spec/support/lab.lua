--- One database of the shared server for a spec file in which all tests use it: lab.handles().
-- Or lab.fresh() in setup and lab.open() in the test.

local busted = require "busted"

local db = require "spec.support.db"

local lab = {}
local socket

--- A new database with our tables; its name is lab.database.
function lab.fresh()
  local url
  url, lab.database = db.fresh()
  socket = url:match "unix_socket=(.*)"
end

--- Opens it as administrator, or as `options` say.
-- @treturn Database, or nil, message, code
function lab.try_open(options)
  local all = { socket = socket, user = db.account, database = lab.database }
  for name, value in pairs(options or {}) do all[name] = value end
  return require "nightshift".open(all)
end

--- Its URL, for other programs.
function lab.url() return db.url(lab.database) end

function lab.open(options) return assert(lab.try_open(options)) end

--- For a whole file: its database, and before each test handles, which end with it.
--
--     local a, b
--     lab.handles(2, function(...) a, b = ... end)
function lab.handles(n, take)
  local open = {}
  busted.setup(lab.fresh)
  busted.before_each(function()
    for i = 1, n do open[i] = lab.open() end
    take(table.unpack(open))
  end)
  busted.after_each(function()
    for i = n, 1, -1 do open[i]:close() end
  end)
end

local names = 0

--- A queue that no other test of the file uses.
function lab.queue(handle)
  names = names + 1
  return assert(handle:queue("lab" .. names))
end

--- The ids of jobs, or rows of them, in their order.
function lab.ids_of(rows)
  local ids = {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  return ids
end

--- Runs SQL as administrator, outside any database.
function lab.sql(text) return db.sql(text) end

--- Another database, without tables.
-- @treturn string its name
function lab.empty_database() return (select(2, db.empty())) end

return lab
