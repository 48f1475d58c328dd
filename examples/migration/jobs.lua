-- One task: the image at imageUrl becomes the file $IMAGES/ID.
--
-- It may be run again: a worker may die at any moment, and a claim may be overdue while
-- its worker still writes. So each run writes a file of its own, which is renamed when it
-- is whole.
local http = require "socket.http"
local ltn12 = require "ltn12"

local IMAGES = assert(os.getenv "IMAGES", "IMAGES is not set")
http.TIMEOUT = 20

-- A server that has enough says so, and for how long.
local BUSY = { [429] = true, [503] = true }

local function migrate(job)
  local path = ("%s/%d"):format(IMAGES, job.row)
  local part = ("%s.part%d"):format(path, job.attempt)
  local file = assert(io.open(part, "wb"))
  local ok, status, headers = http.request { url = job.payload.imageUrl, sink = ltn12.sink.file(file) }
  if ok and status == 200 then
    local size = tonumber(headers["content-length"])
    local copy <close> = assert(io.open(part, "rb"))
    assert(not size or copy:seek "end" == size, "the connection broke off")
    assert(os.rename(part, path))
    return
  end
  os.remove(part)
  if BUSY[status] then return job:again { retry_after = headers["retry-after"] or 1 } end
  error(status, 0)
end

return { migrate = migrate }
