-- Locks and semaphores in handlers: slots belong to the running job, whatever
-- happens to its worker.

local host = require "spec.support.host"
local proc = require "spec.support.proc"

local url, handle, q, folder

with_database(function(...)
  handle, q, url = ...
  folder = fixture.dir()
end)

-- In `add` a number in a file is read and written back plus one: whoever comes
-- in between shows. `enter` tells when it comes and goes. Both may kill their
-- worker while they are inside, once.
local SCRIPT = [[
local core = require "nightshift.core"
local FOLDER = "%s"
local function die() os.execute("kill -9 " .. (io.open "/proc/self/stat":read "a"):match "^%%d+") end
local function append(name, ...)
  local file <close> = assert(io.open(FOLDER .. name, "ab"))
  file:write(table.concat({ ... }, " "), "\n")
end
local function add(job)
  local file <close> = io.open(FOLDER .. "/sum")
  local sum = file and file:read "n" or 0
  if job.payload.dies and job.crashes == 0 then die() end
  core.sleep(0.002)
  local new = FOLDER .. "/sum." .. job.id
  local out <close> = assert(io.open(new, "w"))
  out:write(sum + 1)
  out:close()
  os.rename(new, FOLDER .. "/sum")
  append("/seen", sum)
end
local function free(job, name)
  return (job:db():lock(name):acquire(0)) ~= nil
end
local shared
return {
  add = function(job)
    if job.payload.careless then return add(job) end
    assert(job:db():lock("sum", { timeout = "2m" })(function() add(job) return true end))
  end,
  enter = function(job)
    assert(job:db():semaphore("room", 3, { timeout = "2m" })(function()
      append("/room", "+1")
      core.sleep(0.005)
      append("/room", "-1")
      if job.payload.dies and job.crashes == 0 then die() end
      return true
    end))
  end,
  crash = function(job)
    local ok = free(job, "mine")
    if job.crashes == 0 then die() end
    return ok
  end,
  keep = function(job)
    shared = shared or job:db():lock "kept"
    assert(shared:acquire(30))
    print("keeps " .. job.id)
    if job.payload == "long" then core.sleep(60) end
    if job.payload == "fail" then error "no" end
    if job.payload == "again" then return job:again(3600) end
    return "kept"
  end,
}]]

local function script() return (SCRIPT:format(folder)) end

local function push_all(name, n, payload)
  local items = {}
  for i = 1, n do items[i] = { name, payload(i), { max_crashes = 10 } } end
  assert(q:push_many(items))
end

-- Two hosts work until nothing is left.
local function drain(workers)
  local args = { "--drain-within", "500ms", "--workers", tostring(workers) }
  local hosts = { host.spawn(url, script(), args), host.spawn(url, script(), args) }
  for _, h in ipairs(hosts) do assert.equal(0, h:wait(120), h:transcript()) end
end

local function numbers(name)
  local list = {}
  for line in io.lines(folder .. name) do list[#list + 1] = tonumber(line) end
  return list
end

describe("a lock of two hosts with twenty workers", function()
  it("lets in one at a time, when workers are killed inside, too", function()
    push_all("add", 150, function(i) return { dies = i % 25 == 0 } end)
    drain(10)
    local seen = numbers "/seen"
    table.sort(seen)
    for i = 1, 150 do assert.equal(i - 1, seen[i]) end
    assert.equal(150, #seen)
    assert.equal("150", (handle:execute "SELECT SUM(outcome = 'done') AS n FROM nightshift_finished")[1].n)
    assert.equal(6, (handle:execute "SELECT COUNT(*) AS n FROM nightshift_attempt")[1].n)
    assert.same({}, handle:slots())
  end)

  it("is needed: without it the same detector fires", function()
    push_all("add", 150, function() return { careless = true } end)
    drain(10)
    local seen, twice = {}, 0
    for _, n in ipairs(numbers "/seen") do
      twice = twice + (seen[n] and 1 or 0)
      seen[n] = true
    end
    assert.is_true(twice > 0)
  end)
end)

describe("a semaphore of three", function()
  it("lets in three at a time and not more", function()
    push_all("enter", 150, function(i) return { dies = i % 50 == 0 } end)
    drain(10)
    local inside, most = 0, 0
    for _, step in ipairs(numbers "/room") do
      inside = inside + step
      most = math.max(most, inside)
    end
    assert.equal(0, inside)
    assert.equal(3, most)
    assert.same({}, handle:slots())
  end)
end)

describe("what a job holds", function()
  local function work() return host.start(url, script(), { "--workers", "1" }) end

  it("is free for its next run when its worker was killed", function()
    local h = work()
    local id = q:push "crash"
    eventually(function() return handle:job(id).state == "done" end)
    assert.same({ 1, true }, { handle:job(id).crashes, handle:job(id).result })
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is the job's while it runs, and free with its verdict, whatever that is", function()
    local h = work()
    for i, payload in ipairs { "done", "fail", "again", "done" } do
      local id = q:push("keep", payload)
      h:wait_line("^keeps " .. id)
      eventually(function() return handle:job(id).state ~= "running" and handle:job(id).state ~= "ready" end)
      assert.same({}, handle:slots(), i)
      assert.equal(payload == "done" and "kept" or nil, handle:job(id).result)
    end
    assert(handle:lock("kept")(function() return true end))
    h:signal "TERM"
    assert.equal(0, h:wait())
  end)

  it("is free for whoever waits when its host was killed", function()
    local h = work()
    local id = q:push("keep", "long")
    h:wait_line("^keeps " .. id)
    h:signal "KILL"
    assert(handle:lock("kept"):acquire(proc.limit(20))) -- nobody else is there to notice
    assert.equal(2, handle:job(id).run)
  end)

  it("is free at once when it is cancelled", function()
    local h = work()
    local id = q:push("keep", "long")
    h:wait_line("^keeps " .. id)
    local slot = handle:slots()[1]
    assert.same({ "kept", id, 1, nil }, { slot.name, slot.job, slot.run, slot.holder })
    assert.equal("BUSY", select(3, handle:lock("kept"):acquire(0)))
    assert(handle:cancel(id))
    assert(handle:lock("kept"):acquire(0))
    h:signal "KILL"
  end)
end)
