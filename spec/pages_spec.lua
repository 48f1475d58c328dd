-- The pages of doc/: what they name exists, their examples compile, their lines and paragraphs
-- are short, and the list of log events is complete.

local function read(path)
  local file <close> = io.open(path, "rb")
  return file and file:read "a"
end

local function listed(command)
  local list = {}
  local pipe <close> = assert(io.popen(command))
  for line in pipe:lines() do list[#list + 1] = line end
  return list
end

local PAGES = listed "ls README.md CONTRIBUTING.md doc/*.md doc/internals/*.md src/*/README.md examples/*/README.md"

local function exists(path)
  local file <close> = io.open(path, "rb")
  return file ~= nil
end

--- A page without its blocks of code, and the blocks: {language, text}.
local function parts(text)
  local blocks = {}
  local prose = ("\n" .. text):gsub("\n```(%a*)\n(.-)\n```", function(language, code)
    blocks[#blocks + 1] = { language = language, text = code }
    return "\n"
  end)
  return prose, blocks
end

-- The name by which a link reaches a heading.
local function anchor_of(heading)
  return (heading:lower():gsub("[^%w%s\u{80}-\u{10ffff}_-]", ""):gsub("%s", "-"))
end

local function anchors(text)
  local set = {}
  for heading in parts(text):gmatch "\n#+ ([^\n]+)" do set[anchor_of(heading)] = true end
  return set
end

local function each_page(fn)
  local wrong = {}
  for _, page in ipairs(PAGES) do
    local function tell(...) wrong[#wrong + 1] = page .. ": " .. table.concat({ ... }, " ") end
    fn(page, read(page), tell)
  end
  assert.same({}, wrong)
end

describe("the pages", function()
  it("name files and folders that exist", function()
    local n = 0
    each_page(function(page, text, tell)
      for path in text:gmatch "`([%w_]+/[%w_./-]+)`" do
        local top = path:match "^[^/]+"
        local is_path = ("src sql lua spec doc mk bench examples library"):find("%f[%w]" .. top .. "%f[%W]")
        if is_path and page ~= "doc/faults.md" and not path:find "%u%u" then -- no names of specs, no placeholders
          n = n + 1
          if not exists(path) then tell(path) end
        end
      end
    end)
    assert.is_true(n > 100)
  end)

  it("link to pages and headings that are there", function()
    each_page(function(page, text, tell)
      local folder = page:match "^(.*/)[^/]*$" or ""
      for target in parts(text):gmatch "%]%(([^)]+)%)" do
        local path, anchor = target:match "^([^#]*)#?(.*)$"
        local other = path == "" and page or folder .. path
        local found = exists(other) and (anchor == "" or anchors(read(other))[anchor])
        if not found and not target:find "^https?:" then tell(target) end
      end
    end)
  end)

  it("have examples in Lua that compile", function()
    each_page(function(_, text, tell)
      local _, blocks = parts(text)
      for _, block in ipairs(blocks) do
        if block.language == "lua" then
          local code = block.text:gsub("…", "")
          if not (load(code) or load("return {" .. code .. "}")) then tell(select(2, load(code)), code) end
        end
      end
    end)
  end)

  -- What commands have written into pages is theirs.
  local function own(text) return (text:gsub("<!%-%- (%a+):begin %-%->.-<!%-%- %1:end %-%->", "")) end

  it("have lines of 100 columns, but for tables", function()
    each_page(function(page, text, tell)
      local long = 0
      for line in own(text):gmatch "[^\n]+" do
        if not line:find "^|" and utf8.len(line) > 100 then long = long + 1 end
      end
      if long > 0 and page ~= "doc/adopting.md" and not page:find "^src/" then tell(long, "long lines") end
    end)
  end)

  it("have paragraphs of 80 words", function()
    each_page(function(page, text, tell)
      if page == "doc/adopting.md" then return end
      local prose = parts(own(text)):gsub("\n%s*[-*] ", "\n\n%0"):gsub("\n%d+%. ", "\n\n%0")
      for paragraph in (prose .. "\n\n"):gmatch "(.-)\n%s*\n" do
        local _, words = paragraph:gsub("%S+", "")
        if words > 85 and not paragraph:find "^%s*[|<]" and not paragraph:find "\n|" then
          tell(words, "words:", paragraph:sub(1, 60))
        end
      end
    end)
  end)

  it("have each code, option of a host and command in the reference", function()
    local page, missing = read "doc/reference.md", {}
    local function want(word, shown)
      if not page:find(shown, 1, true) then missing[#missing + 1] = word end
    end
    for code in read "src/include/nightshift_types.h":gmatch '  X%(E%u+, "([%u_]+)"' do
      want(code, "| `" .. code .. "` |")
    end
    for _, name in ipairs { "work", "jobs" } do
      for option in read("lua/nightshift/cli/" .. name .. ".lua"):gmatch '%f[%w][of][pl]%w+%("(%-%-[%l-]+)"' do
        want(option, option)
      end
    end
    for _, path in ipairs(listed "ls lua/nightshift/cli/*.lua") do
      for command in read(path):gmatch 'parser:command%("([%l-]+)"' do want(command, "`" .. command) end
    end
    for verb in read "library/nightshift.lua":gmatch "\nfunction %u%l+:(%l[%l_]*)%(" do
      local known = page:find(verb, 1, true) or read "doc/coordination.md":find(verb, 1, true)
        or read "doc/adopting.md":find(verb, 1, true)
      if not known then missing[#missing + 1] = verb end
    end
    assert.same({}, missing)
  end)

  it("list the events of the log, and no others", function()
    local page = read "doc/troubleshooting.md"
    local told, written = {}, {}
    for row in page:match("## Log events(.*)"):gmatch "\n| (`[^|]*) |" do
      for event in row:gmatch "`([%a_.]+)`" do told[event] = true end
    end
    local sources = "src/host/*.c src/host/*/*.c src/base/*.c src/base/*/*.c lua/nightshift/*.lua"
    for _, path in ipairs(listed("ls " .. sources .. " 2>/dev/null")) do
      local text = read(path)
      for call in text:gmatch "ns_log%([^;]*;" do
        for event in call:gsub("ns_f%l%([^()]*%)", ""):gmatch '"(%l+%.?[%l_]*)"' do written[event] = true end
      end
      for event in text:gmatch '{"(job%.[%l_]+)", NS_LOG' do written[event] = true end
      for event in text:gmatch 'core%.warn%("([%l_.]+)"' do written[event] = true end
      for event in text:gmatch '"(log%.dropped)"' do written[event] = true end
    end
    for event in pairs(written) do
      if event:find "%." or event == "rescue" or event == "mended" then
        assert.is_true(told[event], event .. " is not in doc/troubleshooting.md")
      end
    end
    for event in pairs(told) do assert.is_true(written[event], event .. " is not an event") end
  end)
end)
