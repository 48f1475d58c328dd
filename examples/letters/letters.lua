-- A mailing from its push to its end, by one program: tags, an instant, and verbs on all jobs of a
-- filter. The program works its letters off itself; under a host `work_off` would be a handler.
--
--     lua5.4 examples/letters/letters.lua
local nightshift = require "nightshift"
local db <close> = assert(nightshift.open()) -- $NIGHTSHIFT_URL, else a private server
local letters = db:queue "letters"
local TAG = "mailing:" .. os.time()

local function push(to, at)
  return assert(letters:push("letter.send", { to = to }, { tags = { TAG }, at = at }))
end

local function work_off()
  for job in function() return letters:claim() end do
    local to = job.payload.to
    if to:find("@", 1, true) then assert(job:ack { sent = to })
    else assert(job:discard("no address: " .. to)) end
  end
end

local function tell(state)
  print(#assert(db:jobs { tag = TAG, state = state }), state)
end

local later = os.time() + 3600
local ids = { push "ann@example.com", push "bob at example.com", push("cy@example.com", later) }
work_off()
tell "done"
tell "dead"
tell "scheduled"

-- Bob's address is mended, and his letter runs again; Cy's goes out now.
assert(db:update({ tag = TAG, state = "dead" }, { payload = function(letter)
  letter.to = letter.to:gsub(" at ", "@")
  return letter
end }, { retry = true }))
assert(db:run_now { tag = TAG })
work_off()
for _, ended in ipairs(assert(db:wait_all(ids, 10))) do print(ended.outcome, ended.result.sent) end
print(assert(db:delete { tag = TAG }).changed, "deleted")
