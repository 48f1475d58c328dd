-- status showed the progress of adopted rows only; a paused job waited "for 1 jobs"; a host of
-- adopted tables "serves "; a tree showed old errors of jobs that are done.

local designs = require "spec.support.designs"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local handle, q, url

with_database(function(...) handle, q, url = ... end)

local function shown(...)
  local exit, out, err = proc.nightshift({ ... }, url)
  assert.same({ 0, "" }, { exit, err })
  return out
end

describe("status", function()
  it("shows how far jobs are that say so", function()
    assert(q:push "silent")
    local id = assert(q:push "loud")
    local silent, loud = assert(q:claim()), assert(q:claim())
    assert.same({ "silent", "loud" }, { silent.name, loud.name })
    assert(silent:touch())
    assert.is_nil(shown "status":find "STARTED")
    assert(loud:progress(0.25, "page 1\27[31m"))
    local out = shown "status"
    assert.matches("\n *ID  QUEUE  NAME +HOST +PID +STARTED +SEEN +DONE +STATUS\n", out)
    assert.is_truthy(out:find(("\n *%d +q +loud +%%S+ +%%d+ +%%S+Z +[%%d.]+m?s +25%%%% +page 1\\x1b%%[31m\n")
      :format(id)), out)
    assert.is_nil(out:find("silent", 1, true))
    local running = nightshift.decode(shown("status", "--json")).running
    assert.same({ 1, id, 0.25, "q" }, { #running, running[1].id, running[1].progress, running[1].queue })
    assert(loud:ack())
    assert.is_nil(shown "status":find "STARTED")
    assert.same({}, nightshift.decode(shown("status", "--json")).running)
  end)

  it("shows twenty of them", function()
    for _ = 1, 22 do assert(q:push "a") end
    for i, job in ipairs(q:claim_many(22)) do assert(job:progress(i / 22)) end
    local out = shown "status"
    assert.equal(20, select(2, out:gsub("\n *%d+  q +a ", "")))
    assert.is_truthy(out:find("… and more: nightshift jobs --state running\n", 1, true), out)
    assert.equal(22, #nightshift.decode(shown("status", "--json")).running)
  end)

  it("explains its columns", function()
    local out = shown("status", "--help")
    for _, word in ipairs { "OLDEST", "UP", "BEAT", "WORKERS", "BATCHES", "SEEN" } do
      assert.is_truthy(out:find(word .. "[^\n]*: "), word)
    end
  end)
end)

it("jobs says of a paused one whose pause it is", function()
  local id = assert(q:push "top")
  local kid = assert(q:push("kid", nil, { parent = id }))
  local join = assert(q:push("join", nil, { parent = id, after = { kid } }))
  assert(handle:pause(id))
  for _, state in ipairs { {}, { "--state", "waiting" } } do
    local out = shown("jobs", table.unpack(state))
    assert.is_truthy(out:find(" top +waiting [^\n]* paused\n"), out)
    assert.is_truthy(out:find((" kid +waiting [^\n]* paused with %d\n"):format(id)), out)
    assert.is_truthy(out:find((" join +waiting [^\n]* paused with %d, for 1 job\n"):format(id)), out)
  end
  for _, row in ipairs(handle:jobs()) do assert.same({ id, row.id == join and 2 or 1 }, { row.paused, row.unmet }) end
  assert(handle:resume(id))
  assert.is_truthy(shown("jobs"):find " join +waiting [^\n]* for 1 job\n")
  for _, row in ipairs(handle:jobs { state = "waiting" }) do assert.same({ join }, { row.id, row.paused }) end
end)

it("why says of a host that it serves adopted tables only", function()
  designs.create(handle, "migration_task", 1)
  local h = host.start(url, "return { migrate = function() end }", { "--adopt", designs.file "migration_task" })
  local id = assert(q:push "migrate")
  eventually(function() return not handle:why(id):find("did not tell", 1, true) end)
  assert.matches("; %S+ %(pid %d+%) serves adopted tables only$", (handle:why(id)))
  h:signal "TERM"
  assert.equal(0, h:wait())
end)

it("a tree shows no old error of a job that is done", function()
  local id = assert(q:push("top", nil, { backoff = 0.001 }))
  local job = assert(q:claim())
  local kid = assert(job:spawn("kid", nil, { backoff = 0.001 }))
  assert(job:ack())
  assert(q:claim():fail "at first")
  job = eventually(function() return q:claim() end)
  assert.is_truthy(shown("show", tostring(id), "--tree"):find(("running kid %d: at first\n"):format(kid)))
  assert(job:ack())
  assert.is_truthy(shown("show", tostring(id), "--tree"):find(("done kid %d\n"):format(kid)))
end)
