-- A small HTTP server for the files below FOLDER, on a port of its own choice, which it
-- prints. Every so often it has enough and answers 503 for a second.
-- usage: lua5.4 server.lua FOLDER [PAUSE_EVERY]
local socket = require "socket"
local url = require "socket.url"

local folder, pause_every = arg[1], tonumber(arg[2] or 0)
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
