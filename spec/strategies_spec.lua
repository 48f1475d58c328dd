-- The bench of designs still measures what the tables are, and still sees a job that
-- runs twice: very small ones, whose figures say nothing.

local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local function bench(only, args)
  local p = proc.start { "make", "--no-print-directory", "bench-strategies", "ONLY=" .. only, "ARGS=" .. args }
  return p:wait(240), p
end

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
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
    local status, p = bench("skip_inside,skip_outside,skip_locked", ("--topics work --workers 1,4 --rounds 1"
      .. " --ms 400 --rows 400 --gap-ms 20 --json %s --doc %s"):format(json, doc))
    assert.equal(0, status, p:transcript())
    local lines, text = nightshift.decode(read(json)).work, read(doc)
    assert.equal(6, #lines)
    for _, name in ipairs { "skip_inside", "skip_outside", "skip_locked" } do
      assert.is_true(sum(lines, name, "jobs") > 0, name)
    end
    assert.equal(0, sum(lines, "skip_locked", "again"))
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
      assert.matches(">adopted</text>", svg)
      os.remove(("%s.plots/%s.svg"):format(doc, name))
    end
    os.remove(doc .. ".plots")
    os.remove(doc)
    os.remove(json)
  end)

  it("asks a large table with each index, when that topic is named", function()
    local json = os.tmpname()
    local status, p = bench("rows", "--many 20000 --many-ms 200 --json " .. json)
    assert.equal(0, status, p:transcript())
    local kept = nightshift.decode(read(json))
    assert.same({ 0, 8 }, { #kept.work, #kept.rows })
    for _, name in ipairs { "skip_inside", "skip_locked", "skip_indexed", "skip_advised" } do
      assert.is_true(sum(kept.rows, name, "jobs") > 0, name)
    end
    assert.matches("### A large table: .*20,000 rows", (p:text()))
    os.remove(json)
  end)

  it("says which contenders there are", function()
    local status, p = bench("nonsense", "")
    assert.not_equal(0, status)
    local out, err = p:text()
    assert.matches("no contender 'nonsense'; there are: migration update_limit", out .. err)
  end)
end)
