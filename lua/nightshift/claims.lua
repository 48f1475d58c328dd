--- The three ways to claim, for whatever has jobs: a queue, an adopted table.
--
-- They differ in how many jobs they give; who gets them, and how they are waited
-- for, is the business of the one function that they are made of.

local job = require "nightshift.job"
local options = require "nightshift.options"

local claims = {}

local LIMIT = options.integer(1, 10000)

--- The jobs of a claim that can be worked on. One that Lua cannot hold exactly (it was
-- written from SQL) fails, as it does in a worker, rather than come as something else.
---@param claimed table[] as the core gives them
---@param backend table of their verbs
---@return nightshift.Job[]
function claims.usable(claimed, backend)
  local usable = {}
  for i = 1, #claimed do
    local made = job.new(claimed[i], backend)
    local broken = made.payload_error or made.state_error or made.signal_error
    if broken then made:fail(broken) else usable[#usable + 1] = made end
  end
  return usable
end

--- Gives 'methods' claim, claim_many and jobs.
---@param methods table
---@param live fun(self, verb: string) raises when the handle is closed
---@param claim fun(self, verb: string, limit: integer, opts: table?): nightshift.Job[]?, string?, string?
---@param noun string what is claimed: "jobs"
function claims.add(methods, live, claim, noun)
  -- One job; a bare nil when none came within `wait`.
  function methods:claim(opts)
    local claimed, message, code = claim(self, "claim", 1, opts)
    if not claimed then return nil, message, code end
    return claimed[1]
  end

  -- Up to `n`; the list may be empty.
  function methods:claim_many(n, opts)
    live(self, "claim_many")
    local limit, message = LIMIT(n, "claim_many: the number of " .. noun)
    if not limit then return nil, message, "INVALID" end
    local claimed, why, code = claim(self, "claim_many", limit, opts)
    return claimed, why, code
  end

  -- `for job in q:jobs{wait = 5} do … end`: claims one after the other until none
  -- comes within `wait`. A job that the loop goes on without a verdict of has failed, and so
  -- has the one that an error leaves it with; leaving it otherwise gives that one back. A
  -- failing claim raises.
  function methods:jobs(opts)
    live(self, "jobs")
    local current
    local function next_job()
      local ended, message, code
      if current then ended, message, code = job.let_go(current, "no verdict") end
      if not ended and message and code ~= "STALE" then options.raise("jobs: %s (%s)", message, code) end
      current, message, code = self:claim(opts)
      if message then options.raise("jobs: %s (%s)", message, code) end
      return current
    end
    local function leave(_, err)
      if current then job.let_go(current, err) end
    end
    return next_job, nil, nil, setmetatable({}, { __close = leave })
  end
end

return claims
