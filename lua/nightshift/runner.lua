--- The life of a runner in a host: rounds, one after the other, until the host ends. Runners of
-- adopted tables (source/runner.lua) and of schedules (schedule/runner.lua) have it in common.
--
-- A round that fails, or raises, is told once, and the next one comes later. So a runner goes on,
-- whatever happens to the server or to its own tables.

local runner = {}

local FIRST, LONGEST = 0.1, 5 -- seconds behind a round that has failed, and behind the last of many

--- Runs rounds until the host ends.
---@param wait fun(seconds: number, failed: boolean): boolean whether the host ends
---@param round fun(): number|nil, string?, string? seconds until the next one; or nil, a message, and a code
---@param complain fun(text: string|false, code: string?) the round has failed; false: as the one before
function runner.run(wait, round, complain)
  local pause, said = FIRST, nil
  local failed
  repeat
    local ran, seconds, message, code = pcall(round)
    if not ran then seconds, message, code = nil, tostring(seconds), "INVALID" end
    failed = not seconds
    if failed then
      complain(message ~= said and ("%s (%s)"):format(message, code or "SQL"), code)
      seconds, pause, said = pause, math.min(pause * 2, LONGEST), message
    else
      pause, said = FIRST, nil
    end
  until wait(seconds, failed)
end

return runner
