-- The benches: they still measure the tables as they are, and the one of designs still sees a
-- job that runs twice. They are very small, and their figures mean nothing.

local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local function bench(args)
  local p = proc.start { "make", "--no-print-directory", "bench", "ARGS=" .. args }
  return p:wait(240), p
end

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

-- Figures of the row with a title that begins like this.
local function row(report, title)
  for _, question in ipairs(report.questions) do
    for _, found in ipairs(question.rows) do
      if found.what:sub(1, #title) == title then return found end
    end
  end
end

describe("the bench", function()
  it("answers questions, as Markdown and as JSON", function()
    local file = os.tmpname()
    local status, p = bench("--only push,claim,handles,work,latency,idle,flows,capacity --rounds 1 --scale 0.01 --json " .. file)
    local report = nightshift.decode(read(file))
    os.remove(file)
    assert.equal(0, status, p:transcript())
    local out = p:text()
    for _, title in ipairs {
      "push_many, 1000 a time, C", "push, one a time, Lua", "push in a transaction, Lua", "claim + ack, batch 1000, C",
      "200 handles, batch 1", "8 workers", "100 siblings",
    } do
      local figures = assert(row(report, title), title)
      assert.is_true(figures.floor > 0, title)
      assert.is_true(out:find("| " .. figures.what .. " | ", 1, true) ~= nil, title)
    end
    assert.is_true(row(report, "bare SQL").p99_ms > 0)
    assert.is_true(row(report, "80 workers").server_cpu_s >= 0)
    local alone, many = row(report, "pushed and worked off one by one"), row(report, "worked off, 8 workers")
    assert.is_true(alone.redo_bytes > many.redo_bytes and many.redo_bytes > 100)
    assert.matches("innodb%-flush%-log%-at%-trx%-commit=1", report.settings)
    assert.matches("MariaDB", report.versions.server)
    for _, question in ipairs(report.questions) do
      assert.is_true(#question.rows > 0, question.name)
      assert.is_true(out:find("### " .. question.title, 1, true) ~= nil, question.name)
    end
  end)

  -- They used to stay for ever: the hosts of a bench that was killed, with hundreds of
  -- workers, and its server.
  for _, signal in ipairs { "TERM", "KILL" } do
    it("leaves no process behind when it gets a SIG" .. signal, function()
      local p = proc.start { "make", "--no-print-directory", "bench", "ARGS=--only memory --rounds 1 --scale 0.02" }
      eventually(function() return #host.members(p.pid) == 10 end, 120)
      local all = host.family(p.pid)
      p:signal(signal)
      p:wait()
      host.await_gone(all)
    end)
  end

  it("says which questions there are", function()
    local status, p = bench "--only nonsense"
    assert.not_equal(0, status)
    local out, err = p:text()
    assert.matches("no question 'nonsense'; there are: push claim", out .. err)
  end)
end)

local function bench_designs(only, args)
  local p = proc.start { "make", "--no-print-directory", "bench-strategies", "ONLY=" .. only, "ARGS=" .. args }
  return p:wait(240), p
end


local function sum(lines, name, field)
  local n = 0
  for _, line in ipairs(lines) do
    if line.name == name then n = n + (line[field] or 0) end
  end
  return n
end

describe("the bench of designs", function()
  it("sets ours beside the published one, and sees what runs twice", function()
    local json, doc = os.tmpname(), os.tmpname()
    local page <close> = assert(io.open(doc, "w"))
    page:write "before\n<!-- strategies:begin -->\nold\n<!-- strategies:end -->\nafter\n"
    page:close()
    -- Between its lock and its mark a worker loses 20 ms, in which another finds the
    -- row as it was.
    local status, p = bench_designs("skip_inside,skip_outside,skip_host", ("--topics work --workers 1,4 --rounds 1"
      .. " --ms 400 --rows 400 --gap-ms 20 --json %s --doc %s"):format(json, doc))
    assert.equal(0, status, p:transcript())
    local lines, text = nightshift.decode(read(json)).work, read(doc)
    assert.equal(6, #lines)
    for _, name in ipairs { "skip_inside", "skip_outside", "skip_host" } do
      assert.is_true(sum(lines, name, "jobs") > 0, name)
    end
    assert.equal(0, sum(lines, "skip_host", "again"))
    assert.equal(0, sum(lines, "skip_inside", "again"))
    assert.is_true(sum(lines, "skip_outside", "again") > 0)
    for _, title in ipairs { "Jobs per second", "Time of a claim", "Lock waits", "Jobs that ran more than once" } do
      assert.is_true(p:text():find("### " .. title, 1, true) ~= nil, title)
      assert.is_true(text:find("### " .. title, 1, true) ~= nil, title)
    end
    assert.matches("^before\n<!%-%- strategies:begin %-%->\nMachine", text)
    assert.matches("<!%-%- strategies:end %-%->\nafter\n$", text)
    assert.is_nil(text:find("old", 1, true))
    for _, name in ipairs { "rate", "claim" } do
      local svg = read(("%s.plots/%s.svg"):format(doc, name))
      assert.matches("^<svg .*</svg>\n$", svg)
      if name == "rate" then assert.matches(">adopted, advised index, one host</text>", svg) end
      os.remove(("%s.plots/%s.svg"):format(doc, name))
    end
    os.remove(doc .. ".plots")
    os.remove(doc)
    os.remove(json)
  end)

  it("asks a large table with each index, when that topic is named", function()
    local json = os.tmpname()
    local status, p = bench_designs("rows", "--many 20000 --many-ms 200 --json " .. json)
    assert.equal(0, status, p:transcript())
    local kept = nightshift.decode(read(json))
    assert.same({ 0, 4 }, { #kept.work, #kept.rows })
    for _, name in ipairs { "skip_inside", "skip_indexed" } do
      assert.is_true(sum(kept.rows, name, "jobs") > 0, name)
    end
    assert.matches("### A large table: .*20,000 rows", (p:text()))
    os.remove(json)
  end)

  it("says which contenders there are", function()
    local status, p = bench_designs("nonsense", "")
    assert.not_equal(0, status)
    local out, err = p:text()
    assert.matches("no contender 'nonsense'; there are: migration migration_host", out .. err)
  end)
end)
