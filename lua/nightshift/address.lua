--- Where the database is when no address is given: $NIGHTSHIFT_URL, or, inside a worker, the
-- database that its host serves. A worker's environment has no URL: programs that a handler
-- starts need not know the password.

local address = {}

local served

--- Options for nightshift.open, or nil: the private server of the folder.
---@return table|nil
function address.default()
  if served then return served end
  local url = os.getenv "NIGHTSHIFT_URL"
  return url and url ~= "" and { url = url } or nil
end

--- From now on this is the default: the host's own connection.
---@param connection table options of nightshift.open; empty: the private server
function address.serve(connection)
  served = next(connection) and connection or nil
end

return address
