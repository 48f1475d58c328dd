-- The bench still measures what the tables are: a very small one, whose figures
-- say nothing.

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

-- Figures of the row whose title begins like this.
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
    local status, p = bench("--only push,claim,handles,work,latency,idle,flows --rounds 1 --scale 0.01 --json " .. file)
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
    assert.is_true(row(report, "500 workers").server_cpu_s >= 0)
    assert.matches("innodb%-flush%-log%-at%-trx%-commit=1", report.settings)
    assert.matches("MariaDB", report.versions.server)
    for _, question in ipairs(report.questions) do
      assert.is_true(#question.rows > 0, question.name)
      assert.is_true(out:find("### " .. question.title, 1, true) ~= nil, question.name)
    end
  end)

  -- They used to stay for ever: the hosts of a bench that was killed, with hundreds of
  -- workers, and its server.
  for _, signal in ipairs { "TERM", "INT", "KILL" } do
    it("leaves no process behind when it gets a SIG" .. signal, function()
      local p = proc.start { "make", "--no-print-directory", "bench", "ARGS=--only memory --rounds 1 --scale 0.02" }
      eventually(function() return #host.members(p.pid) == 10 end, 120)
      local all = host.family(p.pid)
      p:signal(signal)
      p:wait()
      for _, pid in ipairs(all) do
        eventually(function() return not host.name(pid) end)
      end
    end)
  end

  it("says which questions there are", function()
    local status, p = bench "--only nonsense"
    assert.not_equal(0, status)
    local out, err = p:text()
    assert.matches("no question 'nonsense'; there are: push claim", out .. err)
  end)
end)
