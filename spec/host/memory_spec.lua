-- How much memory a job may use.

local host = require "spec.support.host"
local nst = require "nst"
local proc = require "spec.support.proc"

local url, handle, q

with_database(function(...) handle, q, url = ... end)

local ONCE = { max_attempts = 1 }

-- A sanitizer's own memory counts as the process's, and what is freed stays
-- its for a while.
local function plain()
  if not os.getenv "SAN" then return true end
  pending "needs a build without sanitizers"
end

local SCRIPT = [[
local function hoard(n)
  local kept = {}
  for i = 1, n do kept[i] = ("x"):rep(1000) .. i end
  return kept
end
return {
  hoard = function(job) hoard(job.payload) return "fits" end,
  forgives = function(job)
    local ok, message = pcall(hoard, job.payload)
    return { ok, tostring(message) }
  end,
  litter = function() for i = 1, 1e6 do local _ = ("x"):rep(200) .. i end return "collected" end,
  insists = function() while true do pcall(hoard, 100000) end end,
  loops = function() pcall(hoard, 100000) while true do end end,
  sleeps = function() pcall(hoard, 100000) os.execute "sleep 60" end,
  leak = function(job) leaked = hoard(job.payload) return "kept" end,
  own = { run = function(job) hoard(job.payload) return "fits" end, memory = "256K" },
  wide = { run = function(job) hoard(job.payload) return "fits" end, memory = "1G" },
  pid = function() return (io.open "/proc/self/stat":read "a"):match "^%d+" end,
  limit = function() return io.popen "ulimit -d":read "l" end,
  rep = function(job) return #("x"):rep(job.payload) end,
  concat = function(job)
    local t, s = {}, ("x"):rep(20000)
    for i = 1, 2000 do t[i] = s end
    return #table.concat(t)
  end,
  gsub = function() return #(("x"):rep(2^20 // 1):gsub("x", ("y"):rep(1000))) end,
  read = function() return #io.open "/dev/zero":read(2^30 // 1) end,
  read_all = function() return #io.popen "head -c 100000000 /dev/zero":read "a" end,
  copes = function()
    local kept = ("x"):rep(3 * 2^20 // 1)
    assert(not pcall(string.rep, "x", 6 * 2^20))
    return "without it " .. #kept
  end,
  speaks = function()
    local kept = ("x"):rep(3 * 2^20 // 1)
    assert(not pcall(string.rep, "x", 6 * 2^20))
    error("something else " .. #kept)
  end,
}]]

local function run(name, payload, args)
  local id = assert(q:push(name, payload, ONCE))
  local h = host.start(url, SCRIPT, { "--workers", "1", table.unpack(args or {}) })
  eventually(function() return handle:job(id).state:match "^d" end, 40)
  return handle:job(id), h
end

local function stop(h)
  h:signal "TERM"
  assert.equal(0, h:wait())
end

describe("--memory", function()
  local LIMIT = { "--memory", "8M" }

  it("fails a job that is over it, and replaces its worker", function()
    local job, h = run("hoard", 100000, LIMIT)
    assert.same({ "dead", 0, "memory limit of 8 MiB" }, { job.state, job.crashes, job.error })
    local id = q:push "pid"
    local pid = eventually(function() return handle:job(id).result end)
    assert.same({ pid }, { tostring(host.member(h.pid)) })
    assert.is_nil(h:transcript():find "worker.died", h:transcript())
    stop(h)
  end)

  it("is noticed although the handler catches the error", function()
    local job, h = run("forgives", 100000, LIMIT)
    assert.same({ "dead", "memory limit of 8 MiB" }, { job.state, job.error })
    stop(h)
  end)

  it("stops a handler that catches the error and goes on", function()
    if not plain() then return end
    for _, name in ipairs { "insists", "loops", "sleeps" } do
      local start = nst.clock()
      local job, h = run(name, nil, LIMIT)
      assert.same({ "dead", 0, "memory limit of 8 MiB" }, { job.state, job.crashes, job.error })
      assert.is_true(nst.clock() - start < proc.limit(30), name) -- of itself: 60 s, or never
      assert.matches("job.stop .*memory limit", h:transcript())
      stop(h)
    end
  end)

  it("counts what a function of the library asks for in one piece", function()
    local h = host.start(url, SCRIPT, { "--workers", "1", table.unpack(LIMIT) })
    local last
    for _, name in ipairs { "rep", "concat", "gsub", "read", "read_all" } do
      local id, pid = q:push(name, 5 * 2^20, ONCE), q:push "pid"
      eventually(function() return handle:job(id).state:match "^d" end)
      assert.same({ "dead", 0, "memory limit of 8 MiB" }, { handle:job(id).state, handle:job(id).crashes,
        handle:job(id).error }, name)
      pid = eventually(function() return handle:job(pid).result end)
      assert.not_equal(last, pid, name)
      last = pid
    end
    assert.is_nil(h:transcript():find "worker.died", h:transcript())
    stop(h)
  end)

  it("leaves a job alone that can do without", function()
    local job, h = run("copes", nil, LIMIT)
    assert.same({ "done", "without it 3145728" }, { job.state, job.result })
    local id = q:push("speaks", nil, ONCE)
    eventually(function() return handle:job(id).state == "dead" end)
    assert.matches("something else", handle:job(id).error)
    stop(h)
  end)

  it("counts what is kept, not what is collected", function()
    if not plain() then return end
    local job, h = run("litter", nil, LIMIT)
    assert.same({ "done", "collected" }, { job.state, job.result })
    stop(h)
  end)

  it("counts for each job anew", function()
    local job, h = run("leak", 5000, LIMIT)
    assert.equal("kept", job.result)
    local ids = {}
    for i = 1, 5 do ids[i] = q:push("hoard", 5000, ONCE) end
    for _, id in ipairs(ids) do
      eventually(function() return handle:job(id).state:match "^d" end)
      assert.equal("fits", handle:job(id).result)
    end
    stop(h)
  end)

  it("yields to what a handler says for itself", function()
    local job, h = run("own", 1000, LIMIT)
    assert.equal("memory limit of 256 KiB", job.error)
    local id = q:push("wide", 20000, ONCE)
    assert.equal("fits", eventually(function() return handle:job(id).result end))
    stop(h)
  end)

  it("limits C code as well, more generously", function()
    if not plain() then return end
    local job, h = run("limit", nil, LIMIT)
    assert.is_true(tonumber(job.result) > 80 * 1024 and tonumber(job.result) < 300 * 1024, job.result)
    stop(h)
  end)

  it("is not there unless asked for", function()
    local job, h = run("hoard", 100000)
    assert.equal("fits", job.result)
    local id = q:push "limit"
    assert.equal("unlimited", eventually(function() return handle:job(id).result end))
    stop(h)
  end)
end)

describe("a size that makes no sense is refused:", function()
  local function refuses(exit, text, args, script)
    local status, _, err = proc.nightshift({ "work", fixture.file("jobs.lua", script or SCRIPT),
      table.unpack(args) }, url)
    assert.equal(exit, status, err)
    assert.matches(text, err, 1, true)
  end

  it("on the command line", function()
    refuses(2, '--memory must be bytes or a text like "64M"', { "--memory", "lots" })
    refuses(2, "--memory must be at least 64K, got 1", { "--memory", "1" })
  end)

  it("in a handler file", function()
    refuses(78, "jobs.lua:1: handler 'a': memory must be bytes", {},
      "return { a = { run = function() end, memory = {} } }")
    refuses(78, "handler 'a': 'run' must be a function, got nothing", {}, "return { a = { memory = 65536 } }")
    refuses(78, "handler 'a': unknown field 'ram'; known: max_phases, memory, run", {},
      "return { a = { run = print, ram = 5 } }")
  end)
end)

describe("a worker whose standard library a handler damaged", function()
  local damage = { "string = nil", "for k in pairs(_G) do _G[k] = nil end", "debug.traceback = nil",
    "getmetatable('').__index = nil", "table.concat = error", "xpcall, pcall, error = nil",
    "job.new = nil require 'nightshift.job'.new = nil" }

  it("is replaced as soon as a job fails of it", function()
    local body = {}
    for i, code in ipairs(damage) do body[i] = ("bad%d = function(job) %s end,"):format(i, code) end
    local h = host.start(url, "return {" .. table.concat(body) .. [[
      good = function() return ("%d"):format(#table.concat { "a", debug.traceback "b" }) end }]], { "--workers", "1" })
    for i in ipairs(damage) do
      q:push("bad" .. i, nil, ONCE)
      local id = q:push("good", nil, { backoff = 0.01, max_attempts = 3 })
      eventually(function() return handle:job(id).state:match "^d" end)
      assert.equal("done", handle:job(id).state, damage[i])
    end
    assert.is_nil(h:transcript():find "worker.died", h:transcript())
    stop(h)
  end)

  it("may keep what handler files changed or added themselves", function()
    local h = host.start(url, [[
      string.shout = string.upper
      counter = 0
      local old = print
      function print(...) old("said", ...) end
      return {
        fail = function() counter = counter + 1 error "as ever" end,
        pid = function() return (io.open "/proc/self/stat":read "a"):match "^%d+" end }]], { "--workers", "1" })
    local worker = tostring(host.member(h.pid))
    local id = q:push("fail", nil, ONCE)
    eventually(function() return handle:job(id).state == "dead" end)
    id = q:push "pid"
    assert.equal(worker, eventually(function() return handle:job(id).result end))
    stop(h)
  end)
end)
