--- What hosts have logged, as files NAME.err in the folder of a torture. Did one of them find
-- a live job that was nowhere, and mend it? And are all lines of job:log there, but for those
-- that the log says it dropped? Only hosts that came to their
-- end are judged, and only runs whose end was accepted: those their host has heard to the end.

local logs = {}

local LAST <const> = 10 -- seconds before a host's end in which its log was always read

-- Lines of job:log by job, and how many of all kinds were dropped; what is no whole line.
local function read(path)
  local seen, dropped, broken = {}, 0, nil
  for line in io.lines(path) do
    local id = line:match "event=job.log id=(%d+)"
    if id then seen[math.tointeger(id)] = (seen[math.tointeger(id)] or 0) + 1 end
    dropped = dropped + (line:match "event=log.dropped lines=(%d+)" or 0)
    if not line:find "^ts=%S+ level=%l+ event=%l+" then broken = line:sub(1, 100) end
  end
  return seen, dropped, broken
end

-- Was it killed, or near its end stopped, or its log not read? nil: it has not ended, or
-- well.
local function judged(faults)
  local ended, unread
  for _, fault in ipairs(faults or {}) do
    if fault.how == "well" then ended = fault.at end
    if fault.how:find "^reader" or fault.how:find "^host%-CONT" then unread = fault.at end
  end
  return ended and (not unread or unread < ended - LAST)
end

--- Jobs that were mended had been lost.
function logs.mended(folder, found)
  for line in io.popen(("grep -hs 'event=job.mended' '%s'/host*.err"):format(folder)):lines() do
    found("nowhere", "mended: job " .. (line:match "id=(%d+)" or line))
  end
end

--- @tparam string folder
-- @tparam table told host -> {[job] = lines that its accepted runs gave to job:log}
-- @tparam table faults whom -> {{at =, how =}, …}
-- @tparam function found gets a kind and a text
function logs.check(folder, told, faults, found)
  for host, jobs in pairs(told) do
    if judged(faults[host]) then
      local seen, dropped, broken = read(("%s/%s.err"):format(folder, host))
      local missing = 0
      for id, n in pairs(jobs) do missing = missing + math.max(0, n - (seen[id] or 0)) end
      if missing > dropped then
        found("log", ("%s: %d lines of its jobs are not in its log, which says that it dropped %d"):format(host,
          missing, dropped))
      end
      if broken then found("log", ("%s: not a line: %s"):format(host, broken)) end
    end
  end
end

return logs
