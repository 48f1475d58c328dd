-- A host of the bench: `nightshift work`, ready before it is returned. Its first
-- line says its process, so that it can be told to end; the pipe is its log. Should
-- we be killed, the kernel tells it to end.
local host = {}
local methods = {}
local meta = { __index = methods, __close = function(self) self:stop() end }

local COMMAND = "echo $$; NIGHTSHIFT_URL='%s' exec setpriv --pdeathsig QUIT"
  .. " '%s/bin/nightshift' work %s --workers %d %s 2>&1"

--- Starts a host and waits until all its workers are there.
---@param asked {url: string, build: string, workers: integer, script: string?, options: string?}
function host.start(asked)
  local pipe = assert(io.popen(COMMAND:format(asked.url, asked.build, asked.script or "bench/lib/noop.lua",
    asked.workers, asked.options or "")))
  local self = setmetatable({ pid = assert(pipe:read "n"), pipe = pipe, log = {} }, meta)
  repeat
    local line = pipe:read "L"
    if not line then error("bench: the host does not start: " .. table.concat(self.log), 0) end
    table.insert(self.log, line)
  until line:find "host.ready"
  return self
end

--- Ends it and waits until it and all its processes are gone.
function methods:stop()
  if not self.pipe then return end
  os.execute("kill -TERM " .. self.pid)
  table.insert(self.log, self.pipe:read "a")
  local ended = self.pipe:close()
  self.pipe = nil
  if not ended then error("bench: the host failed: " .. table.concat(self.log), 0) end
end

return host
