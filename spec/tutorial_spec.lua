-- The tutorial works: its files are saved and its commands run, in their order, in an empty folder.

local db = require "spec.support.db"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

local function read(path)
  local file <close> = assert(io.open(path))
  return file:read "a"
end

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  file:write(text)
end

--- The blocks of the page: {language, text, file = what it is to be saved as, shown = output}.
local function blocks()
  local list, page, at = {}, read "doc/tutorial.md", 1
  for before, language, text, after in page:gmatch "()```(%a*)\n(.-)```()" do
    local file
    for name in page:sub(at, before):gmatch "`([%w/]+%.lua)`:" do file = name end
    at = after
    if language == "" then list[#list].shown = text
    elseif language ~= "console" then list[#list + 1] = { language = language, text = text, file = file } end
  end
  return list
end

-- The first word of what is shown that an output has not, in order. Words with digits (ids, times) differ.
local function missing(shown, out)
  local at = 1
  for word in shown:gmatch "[^%s…]+" do
    local _, last = out:find(word, at, true)
    local varies = word:find "[%d…]" or word == "vm" or word == "now,"
    if not varies and not last then return word end
    at = varies and at or last + 1
  end
end

describe("the tutorial", function()
  it("works, step by step", function()
    local folder = proc.folder()
    local env = { NIGHTSHIFT_URL = db.fresh(), PATH = proc.build .. "/bin:" .. os.getenv "PATH" }
    local host
    -- What a block assigns is there in those behind it, as in one terminal.
    local function run(text)
      local script = "[ ! -e .vars ] || . ./.vars\n" .. text .. '\necho "job=$job bad=$bad" > .vars\n'
      return proc.run { "sh", "-e", "-c", script, cwd = folder, env = env }
    end
    local steps = 0
    for _, block in ipairs(blocks()) do
      if block.language == "lua" then
        write(folder .. "/" .. assert(block.file, block.text), block.text)
      elseif block.text:find "^nightshift work" then
        host = proc.start { "sh", "-c", "exec " .. block.text, cwd = folder, env = env }
        host:wait_line("host.ready", 60)
      else
        steps = steps + 1
        local limit = nightshift.clock() + proc.limit(30)
        local status, out, errors, word
        repeat -- as a reader does: until it is there
          status, out, errors = run(block.text)
          word = block.shown and missing(block.shown, out)
        until not word or nightshift.clock() > limit
        assert.equal(0, status, block.text .. errors)
        assert.is_nil(word, block.text .. "\ngave " .. out .. errors)
      end
    end
    assert.is_true(steps >= 8)
    host:signal "INT"
    assert.equal(0, host:wait(60))
  end)
end)
