--- The handler file of the torture's hosts.
local outcomes = require "spec.torture.outcomes"

return { work = function(job) return outcomes.run(job) end }
