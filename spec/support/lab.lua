--- One database of the shared server for a spec file whose tests all use it:
-- lab.fresh() in setup, lab.open() before each test.

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
  local all = { socket = socket, user = "root", database = lab.database }
  for name, value in pairs(options or {}) do all[name] = value end
  return require "nightshift".open(all)
end

--- Its URL, for other programs.
function lab.url() return db.url(lab.database) end

function lab.open(options) return assert(lab.try_open(options)) end

--- Runs SQL as administrator, outside any database.
function lab.sql(text) return db.sql(text) end

--- Another database, without tables.
-- @treturn string its name
function lab.empty_database() return (select(2, db.empty())) end

return lab
