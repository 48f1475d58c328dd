--- Claims one job of a queue, says so, and holds it until it is killed.
-- usage: recovery_claim.lua URL QUEUE
local nightshift = require "nightshift"
local db = assert(nightshift.open(arg[1]))
local job = assert(db:queue(arg[2]):claim { wait = 10 })
print("claimed " .. job.id)
io.flush()
while true do os.execute "sleep 3600" end
