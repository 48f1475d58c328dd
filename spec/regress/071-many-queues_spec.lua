-- A host that served 1,500 queues asked each of them at each wake, which took
-- 0.7 s from a push to its job's start, and again at each look after it.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"

local QUEUES = 300

it("a host of many queues asks those that have something", function()
  local url = db.fresh()
  local handle <close> = assert(nightshift.open(url))
  local ids = {}
  assert(handle:transaction(function(tx)
    for i = 1, QUEUES do ids[i] = tx:queue("q" .. i):push "job" end
    return true
  end))
  local h = host.start(url, "return { job = function() end }")
  local function done(id) eventually(function() return handle:job(id).state == "done" end) end
  for _, id in ipairs(ids) do done(id) end
  local function executed()
    return tonumber(assert(handle:execute "SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'")[1].Value)
  end
  local before = executed()
  done(assert(handle:queue("q" .. QUEUES // 2):push "job"))
  local took = executed() - before
  assert.is_true(took < QUEUES, took)
  h:signal "TERM"
  assert.equal(0, h:wait())
end)
