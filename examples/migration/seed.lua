-- Creates the table with a task for each file below FOLDER, at most LIMIT of them.
-- usage: lua5.4 seed.lua FOLDER BASE [LIMIT]     BASE: where FOLDER is served, e.g.
-- http://127.0.0.1:8000
local nightshift = require "nightshift"
local url = require "socket.url"

local folder, base, limit = arg[1], arg[2], math.tointeger(tonumber(arg[3] or 50000))
-- As it was published.
local TABLE = [[
CREATE TABLE `migration_task` (
  `id` int(10) unsigned NOT NULL AUTO_INCREMENT,
  `status` varchar(20) CHARACTER SET utf8 COLLATE utf8_bin NOT NULL,
  `iteration` tinyint(3) unsigned NOT NULL,
  `claimedBy` char(35) DEFAULT NULL,
  `claimedAt` datetime DEFAULT NULL,
  `completedAt` datetime DEFAULT NULL,
  `imageUrl` varchar(500) NOT NULL,
  PRIMARY KEY (`id`),
  KEY `byClaim` (`claimedBy`,`status`),
  KEY `byStatus` (`status`,`completedAt`,`claimedAt`) USING BTREE
) ENGINE=InnoDB DEFAULT CHARSET=utf8]]

local db = assert(nightshift.open()) -- $NIGHTSHIFT_URL, else a private server

local function address(path)
  local parts = {}
  for part in path:gmatch "[^/]+" do parts[#parts + 1] = url.escape(part) end
  return base .. "/" .. table.concat(parts, "/")
end

assert(db:execute "DROP TABLE IF EXISTS migration_task")
assert(db:execute(TABLE))

local find = "find -L '%s/' -type f -readable -printf '%%P\\0' 2>/dev/null"
local pipe <close> = assert(io.popen(find:format(folder:gsub("'", "'\\''"))))
local tasks = 0
assert(db:transaction(function(tx)
  for path in pipe:read("a"):gmatch "[^\0]+" do
    local from = address(path)
    if #from <= 500 and tasks < limit then
      assert(tx:execute("INSERT INTO migration_task (status, iteration, imageUrl) VALUES ('open', 0, ?)", from))
      tasks = tasks + 1
    end
  end
  return true
end))
print(("%d tasks"):format(tasks))
db:close()
