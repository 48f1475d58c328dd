-- Signs of life of many jobs at once.

local host = require "spec.support.host"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

local SCRIPT = [[
local nightshift, core = require "nightshift", require "nightshift.core"
return {
  show = function(job)
    job:progress(0.25, "the first word")
    job:progress(0.5)
    repeat core.sleep(0.05) until nightshift.shared:get "go" or job:cancelled()
    return job:cancelled() and "cancelled" or "went"
  end,
  go = function() nightshift.shared:set("go", true) end,
}]]

local function shown()
  return handle:execute "SELECT COUNT(*) AS n FROM nightshift_running WHERE worker IS NOT NULL"[1].n
end

it("hundreds of jobs show how far they are, and those that are lost hear of it", function()
  local h = host.start(url, SCRIPT, { "--workers", "200" })
  local items = {}
  for i = 1, 199 do items[i] = { "show" } end
  local ids = assert(q:push_many(items))
  eventually(function() return shown() == 199 end, 60)
  eventually(function()
    local row = handle:execute "SELECT MIN(progress) AS least, COUNT(status) AS n FROM nightshift_running"[1]
    return row.least == 0.5 and row.n == 199
  end, 60)
  -- As if somebody had ended their claims and left no notice.
  for i = 1, 50 do assert(handle:execute("UPDATE nightshift_job SET run = run + 1 WHERE id = ?", ids[i])) end
  eventually(function()
    return select(2, h:transcript():gsub("job%.stop[^\n]*the claim is lost", "")) == 50
  end, 60)
  assert(q:push "go")
  eventually(function()
    return handle:execute "SELECT COUNT(*) AS n FROM nightshift_finished WHERE outcome = 'done'"[1].n == 150
  end, 60)
  assert.equal(50, handle:execute "SELECT COUNT(*) AS n FROM nightshift_job"[1].n)
  h:signal "TERM"
  assert.equal(0, h:wait(60))
end)
