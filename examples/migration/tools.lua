-- What is around the migration: makes its tasks, serves the files, shows how far it is.
--   lua5.4 tools.lua seed FOLDER BASE [LIMIT]
--   lua5.4 tools.lua serve FOLDER [PAUSE_EVERY]
--   lua5.4 tools.lua watch
-- BASE: where FOLDER is served, e.g. http://127.0.0.1:8000
local nightshift = require "nightshift"
local socket = require "socket"
local url = require "socket.url"

local tools = {}

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

--- Creates the table with a task for each file below a folder, at most `limit` of them.
function tools.seed(folder, base, limit)
  limit = math.tointeger(tonumber(limit or 50000))
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
end

--- A small HTTP server for the files below a folder, on a port of its own choice, which it
-- prints. Every so often it has enough and answers 503 for a second.
function tools.serve(folder, pause_every)
  pause_every = tonumber(pause_every or 0)
  local listener = assert(socket.bind("127.0.0.1", 0, 128))
  local requests, busy_until = 0, 0

  local function answer(client, status, body, more)
    client:send(("HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n"):format(status, #body, more or ""))
    client:send(body)
  end

  local function is_busy()
    if socket.gettime() < busy_until then return true end
    requests = requests + 1
    if pause_every > 0 and requests % pause_every == 0 then busy_until = socket.gettime() + 1 end
    return false
  end

  local function serve(client)
    local request = client:receive "*l"
    local path = request and request:match "^GET (%S+) HTTP/1"
    repeat local line = client:receive "*l" until not line or line == ""
    if not path then return end
    if is_busy() then return answer(client, "503 Service Unavailable", "", "Retry-After: 1\r\n") end
    path = url.unescape(path)
    local file <close> = not ("/" .. path .. "/"):find("/../", 1, true) and io.open(folder .. path, "rb") or nil
    local body = file and file:read "a"
    if body then answer(client, "200 OK", body) else answer(client, "404 Not Found", "") end
  end

  io.stdout:setvbuf "no"
  print((select(2, listener:getsockname())))
  while true do
    local client = listener:accept()
    if client then
      client:settimeout(5)
      pcall(serve, client)
      client:close()
    end
  end
end

local WIDTH, BACK = 40, 10 -- characters of the bar; seconds of which the rate is the mean

--- Shows how far the migration is, until nothing is open. Exits with 1 when tasks have been given
-- up.
function tools.watch()
  local LIMIT = dofile((arg[0]:match "^(.*/)" or "./") .. "migration.lua").max_attempts
  local db = assert(nightshift.open())
  local on_terminal = os.execute "test -t 1"
  local begun, seen = nightshift.clock(), {}

  local function count(where)
    return assert(db:execute("SELECT COUNT(*) AS n FROM migration_task WHERE " .. where))[1].n
  end

  -- Tasks a second, of late.
  local function rate(complete)
    local now = nightshift.clock()
    seen[#seen + 1] = { at = now, complete = complete }
    while #seen > 2 and seen[2].at < now - BACK do table.remove(seen, 1) end
    return (complete - seen[1].complete) / math.max(now - seen[1].at, 0.001)
  end

  local function time(seconds)
    seconds = math.ceil(seconds)
    if seconds >= 3600 then return ("%d:%02d h"):format(seconds // 3600, seconds % 3600 // 60) end
    return ("%d:%02d min"):format(seconds // 60, seconds % 60)
  end

  local total, last = count "TRUE", -1
  local complete, dead
  repeat
    complete, dead = count "status = 'complete'", count("status = 'open' AND iteration >= " .. LIMIT)
    local speed, part = rate(complete), total > 0 and complete / total or 1
    local bar = ("#"):rep(math.floor(part * WIDTH)) .. ("."):rep(WIDTH - math.floor(part * WIDTH))
    local left = speed > 0 and (", %s left"):format(time((total - dead - complete) / speed)) or ""
    local line = ("[%s] %d of %d, %.0f/s%s"):format(bar, complete, total, speed, left)
    if on_terminal then io.write("\r", line, "\27[K")
    elseif math.floor(part * 10) > last then print(line) end
    io.flush()
    last = math.floor(part * 10)
  until complete + dead >= total or not os.execute "sleep 0.25"

  if on_terminal then print() end
  print(("%d complete, %d given up, %.1f s"):format(complete, dead, nightshift.clock() - begun))
  os.exit(dead == 0, true)
end

tools[arg[1]](table.unpack(arg, 2))
