--- A proxy in front of a spec's server that breaks connections in chosen ways;
-- spec/c/proxy.c says which. It ends with its test, like all processes.
--
--     local p = proxy.start(db.shared())
--     local handle = assert(nightshift.open(p:url(url)))
--     p:tell "commit after 1"
--     handle:queue("q"):push("job")
--     assert.equal("yes", p:tell "fired")

local proc = require "spec.support.proc"

local proxy = {}
local Proxy = {}
Proxy.__index = Proxy

--- Starts one.
-- @tparam Server server of spec/support/db.lua
-- @tparam[opt] string kind "tcp": it listens on a port, "tcp:ADDRESS": of that
-- address, else on a unix socket
-- @tparam[opt] string before words of the shell before its name
function proxy.start(server, kind, before)
  local self = setmetatable({ folder = proc.folder() }, Proxy)
  local fifo = self.folder .. "/fifo"
  assert(os.execute(("mkfifo %s.in %s.out"):format(fifo, fifo)))
  self.socket = self.folder .. "/p.sock"
  self.process = proc.start { "sh", "-c", "exec " .. (before or "") .. ' "$@"', "sh", proc.build .. "/proxy",
    kind or self.socket, server.socket, fifo }
  self.port = self.process:wait_line "^listening *(%d*)"
  self.commands, self.answers = assert(io.open(fifo .. ".in", "w")), assert(io.open(fifo .. ".out", "r"))
  self.commands:setvbuf "no"
  return self
end

--- A command; it is in force when this returns.
-- @treturn string the answer
function Proxy:tell(command)
  assert(self.commands:write(command, "\n"))
  local answer = assert(self.answers:read "l", "the proxy is gone")
  if answer == "unknown" then error("the proxy does not know " .. command, 2) end
  return answer
end

--- A URL of the server, with the way through the proxy in it.
function Proxy:url(url)
  if self.port == "" then return (url:gsub("unix_socket=[^&]*", "unix_socket=" .. self.socket)) end
  return (url:gsub("@localhost/", "@127.0.0.1:" .. self.port .. "/"):gsub("[?&]unix_socket=[^&]*", "?tls=off"))
end

--- The packets of the last trace: who sent each, and how many bytes had passed
-- when it ended.
-- @treturn table[] {who = "c"|"C"|"s", at = integer}
function Proxy:packets()
  local list = {}
  for who, at in self:tell("report"):gmatch "(%a)(%d+)" do list[#list + 1] = { who = who, at = math.tointeger(at) } end
  return list
end

return proxy
