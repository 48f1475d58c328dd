--- The right to see pages and to act: hosts, origins, the token, sessions, and the policy of a page.
--
-- Invariant: a change is a POST to one of our hosts, from a page of ours, with the number of this
-- process. A comparison with a secret takes a time that does not depend on how much of it is right.

local core = require "nightshift.core"

local guard = {}

local SESSIONS <const> = 1000 -- kept at a time; the oldest goes
local SESSION_AGE <const> = 12 * 3600 -- s
local WRONG_MAX <const> = 20 -- wrong tokens in WRONG_WITHIN seconds, then none is looked at
local WRONG_WITHIN <const> = 60
local COOKIE <const> = "nightshift"

--- Hexadecimal digits of random bytes of the kernel.
local function random(bytes)
  local file <close> = assert(io.open("/dev/urandom", "rb"))
  return (file:read(bytes):gsub(".", function(char) return ("%02x"):format(char:byte()) end))
end

guard.random = random

--- Are two texts the same?
local function same(a, b)
  local differs = #a ~ #b
  for i = 1, #a do differs = differs | (a:byte(i) ~ (b:byte(i) or 0)) end
  return differs == 0
end

local LOCAL <const> = { localhost = true, ["127.0.0.1"] = true, ["::1"] = true }

--- The host of "host:port", "[::1]:port" or "host", in lower case.
local function host_of(authority)
  local inner = authority:match "^%[([%x:.]+)%]:?%d*$"
  return inner and inner:lower() or authority:match "^([%w._-]+):?%d*$" and authority:match "^[%w._-]+":lower()
end

guard.host_of = host_of

--- Is it an address in numbers? No name of a stranger can be made to lead there.
local function is_number(host) return host:find "^%d+%.%d+%.%d+%.%d+$" or host:find ":" end

--- Does the address lead to this machine alone?
---@param address string ADDRESS:PORT, in numbers
function guard.is_loopback(address)
  local host = host_of(address) or ""
  return host == "::1" or host:find "^127%." ~= nil
end

local Guard = {}
Guard.__index = Guard

--- Does the request name one of our hosts? A page of a stranger may have its name lead to us, but
-- cannot make a browser send another one.
function Guard:knows_host(request)
  local host = host_of(request.headers.host or "")
  return host ~= nil and (self.hosts[host] or LOCAL[host] or is_number(host)) and true or false
end

local DEFAULT <const> = { http = ":80$", https = ":443$" }

--- Does it come from a page of ours, or from no page at all?
function Guard.is_ours(_, request)
  local origin, site = request.headers.origin, request.headers["sec-fetch-site"]
  if site and site ~= "same-origin" and site ~= "none" then return false end
  if not origin then return true end
  local scheme, authority = origin:match "^(https?)://([^/]+)$"
  if not scheme then return false end
  local port = DEFAULT[scheme]
  return authority:gsub(port, ""):lower() == request.headers.host:gsub(port, ""):lower()
end

--- Does a page of another site ask, for more than to lead a person here? Without a token it would
-- keep streams open, and have pages made.
function Guard.is_foreign(_, request)
  local site, mode = request.headers["sec-fetch-site"], request.headers["sec-fetch-mode"]
  return site ~= nil and site ~= "same-origin" and site ~= "none" and mode ~= "navigate"
end

local function cookie_of(request)
  for name, value in (request.headers.cookie or ""):gmatch "([^=;,%s]+)=([^;,%s]*)" do
    if name == COOKIE then return value end
  end
end

--- May the request see pages? Without a token every client may.
---@return boolean
function Guard:admits(request)
  if not self.token then return true end
  local bearer = request.headers.authorization and request.headers.authorization:match "^[Bb]earer%s+(%S+)$"
  if bearer then
    request.bearer = self:is_token(bearer)
    return request.bearer
  end
  local since = self.sessions[cookie_of(request) or ""]
  return since ~= nil and core.clock() - since < SESSION_AGE
end

--- Is it the token? After too many wrong ones none is, for a while.
function Guard:is_token(text)
  local now = core.clock()
  if now - self.wrong_since > WRONG_WITHIN then self.wrong, self.wrong_since = 0, now end
  if self.wrong >= WRONG_MAX then return false end
  if same(text, self.token) then return true end
  self.wrong = self.wrong + 1
  return false
end

--- Is the form one of ours? A client that shows the token has no form.
function Guard:is_signed(request)
  return request.bearer or same(request.form.csrf or "", self.csrf)
end

--- The cookie of a new session.
---@return string
function Guard:begin(request)
  local id = random(32)
  self.sessions[id], self.order[#self.order + 1] = core.clock(), id
  if #self.order > SESSIONS then self.sessions[table.remove(self.order, 1)] = nil end
  local secure = request.headers["x-forwarded-proto"] == "https"
  return ("%s=%s; Path=%s; HttpOnly; SameSite=Lax%s"):format(COOKIE, id, self.prefix .. "/",
    secure and "; Secure" or "")
end

--- Ends the session of the request.
---@return string cookie
function Guard:finish(request)
  self.sessions[cookie_of(request) or ""] = nil
  return ("%s=; Path=%s; Max-Age=0; HttpOnly; SameSite=Lax"):format(COOKIE, self.prefix .. "/")
end

--- Headers of every answer.
guard.HEADERS = {
  ["Content-Security-Policy"] = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    .. "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
  ["X-Content-Type-Options"] = "nosniff",
  ["X-Frame-Options"] = "DENY",
  ["Referrer-Policy"] = "same-origin", -- without any the Origin of our own forms would be "null"
  ["Cross-Origin-Opener-Policy"] = "same-origin",
  ["Cross-Origin-Resource-Policy"] = "same-origin",
  ["Cache-Control"] = "no-store",
}

--- {token = nil: none is wanted, hosts = names, prefix =}.
---@param given table
---@return table guard
function guard.new(given)
  local hosts = {}
  for _, name in ipairs(given.hosts) do hosts[host_of(name) or name:lower()] = true end
  return setmetatable({ token = given.token, prefix = given.prefix, hosts = hosts, csrf = random(24),
    sessions = {}, order = {}, wrong = 0, wrong_since = core.clock() }, Guard)
end

return guard
