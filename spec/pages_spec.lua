-- The README and the pages of doc/: the names in them exist, their lines, paragraphs and
-- sentences are short. The list of log events is complete. Their examples run as they stand
-- there: the tutorial in its order, the recipes beside stand-ins. doc/faults.md names a proof
-- for each fault, and all exist. Pages, and the comments of all sources, name their subjects.

local db = require "spec.support.db"
local host = require "spec.support.host"
local nightshift = require "nightshift"
local proc = require "spec.support.proc"

-- -------------------------------------------------------------------- prose

-- Comments and pages as sentences: where comments stand in a source file, their sentences, and
-- the number of words of each. Code examples, tables and annotations are no sentences.
local writing = {}

-- How a comment begins and ends by the kind of a file; strings are told from comments, where one
-- can stand in the other.
local C = { { "^/%*", "%*/" }, { "^//", "\n" } }
local DASHES = { { "^%-%-%[%[", "%]%]" }, { "^%-%-", "\n" } }
local KINDS = {
  c = { next = "[\"'/]", comments = C, quotes = true }, h = { next = "[\"'/]", comments = C, quotes = true },
  lua = { next = "[\"'%-%[]", comments = DASHES, quotes = true }, sql = { next = "['%-]", comments = DASHES },
  sh = { next = "#", comments = { { "^#", "\n" } } }, mk = { next = "#", comments = { { "^#", "\n" } } },
}

-- The end of a string that begins at `at`, or `at`.
local function end_of_string(text, at, kind)
  local quote = text:sub(at, at)
  if quote == "[" then
    local _, _, level = text:find("^%[(=*)%[", at)
    return level and select(2, text:find("]" .. level .. "]", at, true)) or at
  elseif quote ~= '"' and quote ~= "'" then
    return at
  end
  local from = at
  repeat
    local last = text:find(kind.quotes and "[\\\n" .. quote .. "]" or quote, from + 1)
    if not last then return at end
    local is_escape = text:byte(last) == 92
    from = is_escape and last + 1 or last
  until not is_escape
  return from
end

-- How many newlines a text has between two places, and whether only blanks stand before the second
-- on its line.
local function lines_between(text, from, to)
  local _, n = text:sub(from, to - 1):gsub("\n", "")
  return n, not text:sub(math.max(1, to - 200), to - 1):match "[^\n]*$":find "%S"
end

--- The comments of a source: {line, text, alone = nothing stands before it on its line}.
function writing.comments(path, text)
  local kind, list = KINDS[path:match "%.(%a+)$"], {}
  local at, line, counted = text:find(kind.next), 1, 1
  while at do
    local last
    for _, form in ipairs(kind.comments) do
      local _, begins = text:find(form[1], at)
      if begins then
        last = select(2, text:find(form[2], begins + 1)) or #text
        local n, alone = lines_between(text, counted, at)
        line, counted = line + n, at
        list[#list + 1] = { line = line, text = text:sub(begins + 1, last), alone = alone }
        break
      end
    end
    at = text:find(kind.next, (last or end_of_string(text, at, kind)) + 1)
  end
  return list
end

-- Comments to the end of a line, one below the other, are one.
local function joined(comments)
  local list = {}
  for _, comment in ipairs(comments) do
    local above = list[#list]
    if above and above.last and comment.alone and above.last + 1 == comment.line and comment.text:find "\n$" then
      above.text, above.last = above.text .. comment.text, comment.line
    else
      local is_line = comment.alone and comment.text:find "^[^\n]*\n$"
      list[#list + 1] = { line = comment.line, text = comment.text, last = is_line and comment.line }
    end
  end
  return list
end

local ABBREVIATIONS = { ["e.g."] = true, ["i.e."] = true, ["vs."] = true, ["etc."] = true }

--- The sentences of a paragraph: {line, text, words}. `fn` gets each.
local function split(words, fn)
  local first = 1
  for i, word in ipairs(words) do
    local ends = word.text:find "[.!?][)\"'`*%]]*$" and not word.text:find "%.%.%.$"
      and not ABBREVIATIONS[word.text]
    if ends or i == #words then
      local texts, n = {}, 0
      for k = first, i do
        texts[#texts + 1] = words[k].text
        n = n + (words[k].text:find "[%w\u{80}-\u{10ffff}]" and 1 or 0)
      end
      fn(words[first].line, table.concat(texts, " "), n)
      first = i + 1
    end
  end
end

-- A line of code, a line of a table, a line that parts a file, a name of a statement in SQL.
local function is_apart(line, in_item)
  return line:find "^    " or line:find "^   " and not in_item or line:find "^%s*|" or line:find "%-%-%-%-%-"
    or line:find "^ %l+: [%l%d_]+$"
end

-- A line of a comment without its marks.
local function unmarked(line) return (line:gsub("%*/$", ""):gsub("^%s*%*+", ""):gsub("^%-+", "")) end

--- Calls `fn(line, sentence, words)` for the sentences of a text that begins in a line. The text
-- is a comment, or a page without its blocks of code. Lines indented by four columns are code,
-- lines with bars a table; an empty line and an item begin anew. An annotation is no sentence,
-- nor are the lines that it goes on in.
function writing.sentences(text, line, fn, is_page)
  local words, in_item, annotated = {}, false, false
  local function flush()
    if #words > 0 then split(words, fn) end
    words, in_item, annotated = {}, false, false
  end
  for one in (text .. "\n"):gmatch "([^\n]*)\n" do
    local bare = is_page and one or unmarked(one)
    local apart, item = is_apart(bare, in_item), bare:find "^%s*[-*] " or bare:find "^%s*%d+%. "
    local annotation, heading = bare:find "^%s*@", bare:find "^#"
    if annotation or heading or not bare:find "%S" or not annotated and (apart or item) then flush() end
    in_item, annotated = in_item or item, annotated or annotation
    if not apart and not annotated then
      for word in bare:gmatch "%S+" do words[#words + 1] = { line = line, text = word } end
    end
    if heading then flush() end
    line = line + 1
  end
  flush()
end

--- Calls `fn(line, sentence, words)` for the sentences of all comments of a source.
function writing.of_source(path, text, fn)
  for _, comment in ipairs(joined(writing.comments(path, text))) do
    writing.sentences(comment.text, comment.line, fn)
  end
end

-- -------------------------------------------------------------------- pages

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

-- Words that withhold their noun.
local VEILS = { somebody = true, nobody = true, whoever = true, whose = true, whom = true, others = true,
  everybody = true }
-- Words that may stand for one, and mostly do at the begin of a clause.
local HALF_VEILS = { what = true, who = true, those = true }

-- Adds "where: word" to a list for each word of a text that a set has; how many words the text has.
local function count_veils(text, list, where, set)
  local words = 0
  for word in text:gmatch "%f[%w]%a+" do
    words = words + 1
    if set[word:lower()] then list[#list + 1] = where .. ": " .. word end
  end
  return words
end

local SOURCES = listed("find src sql lua library examples bench spec mk -name '*.[ch]' -o -name '*.lua' " ..
  "-o -name '*.sql' -o -name '*.sh' -o -name '*.mk'")

local PAGES = listed "ls *.md doc/*.md doc/internals/*.md src/*/README.md examples/*.md"

-- How many sentences the comments of a source have; `tell` gets the lines of faults.
local function check_comments(path, tell)
  local text, n = read(path), 0
  writing.of_source(path, text, function(line, sentence, words)
    n = n + 1
    if words > 25 and not sentence:find "^Params:" then tell(line, " " .. words .. " words: " .. sentence) end
  end)
  for _, comment in ipairs(writing.comments(path, text)) do
    for line in (comment.alone and comment.text or ""):gmatch "[^\n]+" do
      local most = line:find "^%-@" and math.huge or 100 -- an annotation has one line
      if utf8.len(line) > most then tell(comment.line, " a long line: " .. line) end
    end
  end
  return n
end

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

  it("compare features, and name a spec for each that there is", function()
    local wrong, n = {}, 0
    for line in read "doc/comparison.md":gmatch "\n| (%w[^\n]+)" do
      local feature, ours = line:match "^(.-) | (.-) |"
      local specs, missing = 0, 0
      for path in ours:gmatch "`(spec/[^`]+)`" do
        specs = specs + 1
        if not exists(path) then missing = missing + 1 end
      end
      local has = ours:find "^yes" or ours:find "^part"
      local right = has and specs > 0 and missing == 0 or ours:find "^no$" or ours:find "^no, "
      if not right then wrong[#wrong + 1] = feature .. ": " .. ours end
      n = n + 1
    end
    assert.same({}, wrong)
    assert.is_true(n > 50)
  end)

  it("name symbols in C and statements in SQL that exist", function()
    local words, n = {}, 0
    for _, path in ipairs(listed "ls src/*/*.[ch] src/*/*/*.[ch] sql/*/*.sql sql/*.sql lua/nightshift/*/*.lua") do
      for word in read(path):gmatch "[%a_][%w_]*" do words[word] = true end
    end
    each_page(function(page, text, tell)
      if not page:find "^doc/internals/" then return end
      for word in text:gmatch "`(%l+_[%l_]+)`" do
        n = n + 1
        if not words[word] then tell(word) end
      end
    end)
    assert.is_true(n > 40, n)
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
    each_page(function(_, text, tell)
      local long = 0
      for line in own(text):gmatch "[^\n]+" do
        if not line:find "^|" and utf8.len(line) > 100 then long = long + 1 end
      end
      if long > 0 then tell(long, "long lines") end
    end)
  end)

  it("have paragraphs of 80 words", function()
    each_page(function(_, text, tell)
      local prose = parts(own(text)):gsub("\n%s*[-*] ", "\n\n%0"):gsub("\n%d+%. ", "\n\n%0")
      for paragraph in (prose .. "\n\n"):gmatch "(.-)\n%s*\n" do
        local _, words = paragraph:gsub("^#+ [^\n]*\n", ""):gsub("%S+", "")
        if words > 80 and not paragraph:find "^%s*[|<]" and not paragraph:find "\n|" then
          tell(words, "words:", paragraph:sub(1, 60))
        end
      end
    end)
  end)

  it("have sentences of 25 words", function()
    each_page(function(_, text, tell)
      writing.sentences(parts(text):gsub("<!%-%-.-%-%->", ""), 1, function(_, sentence, words)
        if words > 25 then tell(words, "words:", sentence) end
      end, true)
    end)
  end)

  it("name their subjects: hardly any somebody, nobody, whoever, whose, others", function()
    local words, veiled = 0, {}
    each_page(function(page, text)
      local prose = parts(own(text)):gsub("`[^`\n]*`", "")
      words = words + count_veils(prose, veiled, page, VEILS)
    end)
    assert.is_true(#veiled <= words // 1000, table.concat(veiled, "\n"))
  end)

  it("and the comments of each layer name their subjects", function()
    local words, veiled, half = {}, {}, {}
    for _, path in ipairs(SOURCES) do
      local layer = path:match "^src/[^/]+" or path:match "^[^/]+"
      veiled[layer], half[layer] = veiled[layer] or {}, half[layer] or {}
      for _, comment in ipairs(writing.comments(path, read(path))) do
        local text = comment.text:gsub("`[^`\n]*`", ""):gsub("'[^'%s]*'", "")
        words[layer] = (words[layer] or 0) + count_veils(text, veiled[layer], path, VEILS)
        count_veils(text, half[layer], path, HALF_VEILS)
      end
    end
    assert.is_true(words["src/core"] > 20000 and words.spec > 10000 and words.sql > 5000) -- they are found
    for layer, list in pairs(veiled) do
      assert.is_true(#list <= math.max(1, words[layer] // 1000), table.concat(list, "\n"))
      local is_program = layer:find "^src/" or layer == "lua" or layer == "sql" or layer == "library"
      assert.is_true(not is_program or #half[layer] <= words[layer] // 250, table.concat(half[layer], "\n"))
    end
  end)

  it("and the comments of sources have sentences of 25 words, on lines that are not too long", function()
    local n, wrong = 0, {}
    for _, path in ipairs(SOURCES) do
      if not path:find "^mk/" then
        n = n + check_comments(path, function(line, ...) wrong[#wrong + 1] = table.concat({ path, line, ... }, ":") end)
      end
    end
    assert.is_true(n > 4000) -- they are found
    assert.same({}, wrong)
  end)

  it("have each code, option of a host and command in the reference", function()
    local page, missing = read "doc/reference.md", {}
    local function want(word, shown)
      if not page:find(shown, 1, true) then missing[#missing + 1] = word end
    end
    for code in read "src/include/nightshift_types.h":gmatch '  X%(E%u+, "([%u_]+)"' do
      want(code, "| `" .. code .. "` |")
    end
    for _, name in ipairs { "work", "push", "jobs" } do
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

  -- The texts of the sources with twelve characters or more beside what is formatted into them, as
  -- patterns.
  local function messages()
    local list = {}
    for _, path in ipairs(listed "ls src/*/*.c src/*/*/*.c lua/nightshift/*.lua lua/nightshift/*/*.lua") do
      local source = read(path):gsub('\\"', "\1"):gsub('"%s*\n?%s*%.?%.?%s*"', "") -- goes on in the next line
      for text in source:gmatch '"([^"\n]+)"' do
        text = text:gsub("\1", '"')
        local pattern, inserts = text:gsub("%p", "%%%0"):gsub("%%%%[%d%%.]*l*[%a]", ".-")
        pattern = pattern:gsub("…", ".-")
        if #text - 2 * inserts >= 12 and text:find " %l" then list[#list + 1] = pattern end
      end
    end
    return list
  end

  it("quote messages as the program says them", function()
    local page = read "doc/troubleshooting.md":match "^(.*)\n## Log events"
    local known, n, missing = messages(), 0, {}
    local function is_said(message)
      local rest = message:gsub("%s*….*", "") -- the page leaves out the end of some
      for _, pattern in ipairs(known) do
        local begins = #rest >= 12 and pattern:find(rest:gsub("%p", "%%%0"):gsub("%d+", ".-"), 1, true)
        if begins or message:find(pattern) then return true end
      end
    end
    for quoted in page:gmatch "\n| ([^|]*`[^|]*) |" do
      for message in quoted:gmatch "`([^`]+)`" do
        if message:find " " then
          n = n + 1
          if not is_said(message) then missing[#missing + 1] = message end
        end
      end
    end
    assert.same({}, missing)
    assert.is_true(n > 40)
  end)

  it("list the events of the log, and no others", function()
    local page = read "doc/troubleshooting.md"
    local told, written = {}, {}
    for row in page:match("## Log events(.*)"):gmatch "\n| (`[^|]*) |" do
      for event in row:gmatch "`([%a_.]+)`" do told[event] = true end
    end
    local sources = "src/host/*.c src/host/*/*.c src/base/*.c src/base/*/*.c lua/nightshift/*.lua "
      .. "lua/nightshift/source/*.lua lua/nightshift/schedule/*.lua lua/nightshift/report/*.lua"
    for _, path in ipairs(listed("ls " .. sources .. " 2>/dev/null")) do
      local text = read(path)
      for call in text:gmatch "ns_log%([^;]*;" do
        for event in call:gsub("ns_f%l%([^()]*%)", ""):gmatch '"(%l+%.?[%l_]*)"' do written[event] = true end
      end
      for event in text:gmatch 'log%("%l+", "([%l_.]+)"' do written[event] = true end
      for event in text:gmatch 'self%.log%("([%l_.]+)"' do written[event] = true end
      for event in (path:find "%.c$" and text or ""):gmatch '"(job%.[%l_]+)"' do written[event] = true end
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

describe("the reference", function()
  it("names verbs and options that there are", function()
    local page, library = read "doc/reference.md", read "library/nightshift.lua"
    local classes = { db = "Db", q = "Queue", job = "Job", tx = "Transaction", t = "Testing" }
    local program, n = {}, 0
    for path in io.popen("ls lua/nightshift/cli/*.lua"):lines() do program[#program + 1] = read(path) end
    local shell = table.concat(program)
    for row in page:gmatch "\n(|[^\n]*)" do
      for object, verb in row:gmatch "`(%l+):([%l_]+)%(" do
        local class = classes[object]
        if class then
          n = n + 1
          assert.is_truthy(library:find(("function %s:%s("):format(class, verb), 1, true), object .. ":" .. verb)
        end
      end
      for option in row:gmatch "`(%-%-[%l-]+)" do
        n = n + 1
        local made = '"' .. option:sub(3) .. '"' -- of a list of words
        assert.is_truthy(shell:find(option, 1, true) or shell:find(made, 1, true), option)
      end
    end
    assert.is_true(n > 100)
  end)
end)

--- The block of a page, in Lua unless told, that holds a text.
local function block(page, text, language)
  for code in read(page):gmatch("```" .. (language or "lua") .. "\n(.-)```") do
    if code:find(text, 1, true) then return code end
  end
  error(page .. " has no block with " .. text)
end

describe("the README's", function()
  it("first commands run, and print what it shows", function()
    local commands = block("README.md", "hello.say", "sh"):gsub("build/bin/nightshift", proc.program)
    local shown = read "README.md":match "```\n(%d+\n.-)\n```"
    local status, out, errors = proc.run { "sh", "-e", "-c", commands, env = { NIGHTSHIFT_URL = db.fresh() } }
    assert.equal(0, status, errors)
    local said, expected = {}, {}
    for line in out:gmatch "[^\n]+" do said[#said + 1] = line end
    for line in shown:gmatch "[^\n]+" do expected[#expected + 1] = line end
    assert.equal(#expected, #said, out)
    for i, line in ipairs(expected) do
      for word in line:gsub("%d+", ""):gsub("…", ""):gmatch "[%a.]+" do
        assert.is_truthy(said[i]:find(word, 1, true), word .. " is not in: " .. said[i])
      end
    end
  end)

  it("handlers can be pasted and run", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local script = block("README.md", "nightshift.background"):gsub("sleep 8", "sleep 1"):gsub("every = 5", "every = 1")
    local path = proc.folder() .. "/sized"
    assert(io.open(path, "w")):write("12345"):close()
    local q = handle:queue "q"
    local sized = assert(q:push("file.size", { path = path }))
    local missing = assert(q:push("file.size", { path = "/none" }, { max_attempts = 1 }))
    local encoded = assert(q:push "video.encode")
    local h = host.start(url, script, { "--drain" })
    assert.equal(0, h:wait(60), h:transcript())
    assert.same({ bytes = 5 }, handle:job(sized).result)
    assert.is_truthy(handle:job(missing).error:find("No such file", 1, true))
    assert.equal("done", handle:job(encoded).state)
    local results = 0
    for _, row in ipairs(handle:jobs { state = "done" }) do
      local job = handle:job(row.id)
      if job.parent == encoded and type(job.result) == "string" then results = results + 1 end
    end
    assert.equal(1, results)
  end)

  it("few lines of a program run, and run again", function()
    local url = db.fresh()
    local lines = block("README.md", "job:ack { sent = true }")
    assert.is_truthy(lines:find("nightshift.open", 1, true))
    lines = lines:gsub('nightshift.open "[^"]*"', ("nightshift.open %q"):format(url))
      :gsub('delay = "30s"', "delay = 0"):gsub("wait = 60", "wait = 5")
    for _ = 1, 2 do assert(load(lines .. "\nassert(job)"))() end
  end)
end)

describe("the pages'", function()
  it("handlers run under a host", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local printed = assert(handle:queue "q":push "invoice.print")
    local cut = assert(handle:queue "q":push "video.cut")
    local status, log = host.drain(url, block("doc/handlers.md", "invoice.print"))
    assert.equal(0, status, log)
    assert.same({ pages = 4 }, handle:job(printed).result)
    assert.equal("done", handle:job(cut).state)
  end)

  it("connection of a worker is opened at its start and closed at its end", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local script = [[package.preload.redis = function()
      return { connect = function()
        print "connected"
        return { set = function(_, key) print("set " .. key) end, quit = function() print "quit" end }
      end }
    end
    ]] .. block("doc/handlers.md", "worker.start")
    assert(handle:queue "q":push("cache.warm", { key = "k", value = 1 }))
    local h = host.start(url, script, { "--workers", "1", "--drain" })
    assert.equal(0, h:wait(60), h:transcript())
    assert.equal("connected\nset k\nquit\n", (h:text()))
  end)

  it("parents join what their children gave", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local script = "return {\n" .. block("doc/trees.md", "local total = 0") ..
      ',\n["report.region"] = function(job) return { sum = job.payload } end }'
    script = script:gsub("end\n,", "end,")
    local id = assert(handle:queue "q":push("report", { regions = { 2, 3 } }))
    local status, log = host.drain(url, script)
    assert.equal(0, status, log)
    assert.same({ total = 5 }, handle:job(id).result)
  end)

  it("flows and signals run", function()
    local url = db.fresh()
    local handle <close> = assert(nightshift.open(url))
    local id, ids = assert(load("local db = ...\n" .. block("doc/trees.md", "db:flow{") .. "\nreturn id, ids"))(handle)
    assert.equal(id, ids.id)
    assert.equal("waiting", handle:job(id).state)
    local script = 'return { ask = function(job)\nlocal function ask_for_approval() end\n' ..
      block("doc/trees.md", "ask_for_approval") .. "return job.signal\nend }"
    local asked = assert(handle:queue "q":push "ask")
    local h = host.start(url, script, {}, { NIGHTSHIFT_LOG = "debug" })
    h:wait_line("job.waits", 20)
    local sql = block("doc/sql.md", "nightshift_signal", "sql"):gsub("17", tostring(asked))
    for statement in sql:gmatch "CALL[^;]+" do assert(handle:execute(statement)) end
    h:wait_line("job.done", 20)
    h:signal "TERM"
    assert.equal(0, h:wait(60))
    assert.same({ by = "ann" }, handle:job(asked).result)
  end)

  it("push from SQL gives an id", function()
    local handle <close> = assert(nightshift.open(db.fresh()))
    local id
    for statement in block("doc/sql.md", "nightshift_push", "sql"):gmatch "%f[%a]%u+ [^;]+" do
      local rows = assert(handle:execute(statement))
      id = rows[1] and rows[1]["@nightshift_id"] or id
    end
    assert.equal("scheduled", handle:job(id).state)
    assert.equal(120, handle:job(id).priority)
  end)
end)

-- The parts of a picture in their order: what kind each is, and its words; and the style.
local function parts_of_picture(text)
  local list = { assert(text:match "<style>\n(.-)</style>") }
  for kind, body in text:gmatch '<g id="[^"]*" class="([^"]*)"[^>]*>(.-)</g>' do
    local words = {}
    for word in body:gmatch "<text[^>]*>(.-)</text>" do words[#words + 1] = word end
    list[#list + 1] = kind .. ": " .. table.concat(words, " / ")
  end
  return list
end

describe("the pictures", function()
  it("are those that their descriptions make: parts, words and style, in order", function()
    if not os.execute "command -v dot >/dev/null" then return pending "Graphviz (dot) is not installed" end
    local folder, n = proc.folder(), 0
    local status, _, errors = proc.run { proc.lua, "doc/generate.lua", "pictures", folder }
    assert.equal(0, status, errors)
    for _, path in ipairs(listed "ls doc/pictures/*.svg") do
      local drawn = parts_of_picture(read(folder .. path:match "/[^/]*$"))
      assert.same(drawn, parts_of_picture(read(path)), path)
      n = n + #drawn
    end
    assert.is_true(n > 50, n)
  end)
end)

describe("the page about coordination", function()
  it("has unique keys that do what it says", function()
    local url = db.fresh()
    local code = block("doc/coordination.md", "welcome:42"):gsub("open%(%)", ("open %q"):format(url))
    assert(load(code))()
    local handle <close> = assert(nightshift.open(url))
    assert.equal(3, #handle:jobs())
    local index = handle:jobs({ name = "index.update" })
    assert.same({ 1, 3 }, { #index, handle:job(index[1].id).payload.version })
  end)
end)

local function write(path, text)
  local file <close> = assert(io.open(path, "w"))
  file:write(text)
end

--- The blocks of the tutorial: {language, text, file = what it is to be saved as, shown = output}.
local function steps_of_tutorial()
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

-- The first word of what is shown that an output has not, in order. Words with digits (ids, times)
-- differ.
local function first_missing(shown, out)
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
    local running
    -- What a block assigns is there in those behind it, as in one terminal.
    local function run(text)
      local script = "[ ! -e .vars ] || . ./.vars\n" .. text .. '\necho "job=$job bad=$bad" > .vars\n'
      return proc.run { "sh", "-e", "-c", script, cwd = folder, env = env }
    end
    local steps = 0
    for _, step in ipairs(steps_of_tutorial()) do
      if step.language == "lua" then
        write(folder .. "/" .. assert(step.file, step.text), step.text)
      elseif step.text:find "^nightshift work" then
        running = proc.start { "sh", "-c", "exec " .. step.text, cwd = folder, env = env }
        running:wait_line("host.ready", 60)
      else
        steps = steps + 1
        local limit = nightshift.clock() + proc.limit(30)
        local status, out, errors, word
        repeat -- as a reader does: until it is there
          status, out, errors = run(step.text)
          word = step.shown and first_missing(step.shown, out)
        until not word or nightshift.clock() > limit
        assert.equal(0, status, step.text .. errors)
        assert.is_nil(word, step.text .. "\ngave " .. out .. errors)
      end
    end
    assert.is_true(steps >= 8)
    running:signal "INT"
    assert.equal(0, running:wait(60))
  end)
end)

describe("the recipe of", function()
  local url, handle

  before_each(function()
    url = db.fresh()
    handle = assert(nightshift.open(url))
  end)

  after_each(function() handle:close() end)

  it("a mailer sends, waits and gives up", function()
    local folder = proc.folder()
    -- Takes a mail to ann, is not ready for bob, and fails for carl.
    write(folder .. "/sendmail", ([[#!/bin/sh
      cat > %s/last
      if grep -q '^To: ann' %s/last; then mv %s/last %s/sent; exit 0; fi
      if grep -q '^To: bob' %s/last; then exit 75; fi
      exit 1
    ]]):gsub("%%s", folder))
    assert(os.execute("chmod +x " .. folder .. "/sendmail"))
    local script = block("doc/recipes.md", "/usr/sbin/sendmail"):gsub("/usr/sbin/sendmail", folder .. "/sendmail")
    local q = handle:queue "mail"
    local function mail(to, opts) return assert(q:push("mail.send", { to = to, subject = "s", text = "t" }, opts)) end
    local sent, later, failed = mail "ann", mail "bob", mail("carl", { max_attempts = 1 })
    local bad = mail "ann\nBcc: all"
    local status, log = host.drain(url, script, { "--workers", "1", "--drain-within", "0" })
    assert.equal(0, status, log)
    assert.equal("done", handle:job(sent).state)
    assert.is_truthy(read(folder .. "/sent"):find("Message-ID: <" .. handle:job(sent).key, 1, true))
    assert.equal("scheduled", handle:job(later).state)
    assert.equal(0, handle:job(later).attempts)
    assert.is_truthy(handle:job(failed).error:find("sendmail ended with 1", 1, true))
    assert.equal("discarded", handle:job(bad).reason)
  end)

  it("a video pipeline publishes both sizes", function()
    local folder = proc.folder()
    write(folder .. "/push.lua", block("doc/recipes.md", "db:flow {"))
    -- Encodings of the size 480 fail, until a file says that they do not.
    write(folder .. "/encoder_api.lua", ([[
      local asked = {}
      return {
        start = function(file, height, key)
          if height == 480 then io.open(%q, "a"):write(key, "\n"):close() end
          return file .. "-" .. height
        end,
        status = function(operation)
          asked[operation] = (asked[operation] or 0) + 1
          if operation:find "480" and not io.open(%q) then return { failed = "no such codec" } end
          return asked[operation] > 1 and { url = "http://" .. operation } or {}
        end,
      }]]):format(folder .. "/started", folder .. "/mended"))
    local status, out, errors = proc.run { proc.lua, folder .. "/push.lua", "film", env = { NIGHTSHIFT_URL = url } }
    assert.equal(0, status, errors)
    local id = assert(math.tointeger(tonumber(out:match "^(%d+)\n$")))
    local script = ("package.path = %q .. package.path\n"):format(folder .. "/?.lua;") ..
      block("doc/recipes.md", "encoder_api"):gsub("every = 30", "every = 0.05")
    local ended, log = host.drain(url, script, { "--workers", "1", "--drain" })
    assert.equal(0, ended, log)
    assert.equal("cancelled", handle:job(id).state)
    assert(os.execute(("[ $(sort -u %s/started | wc -l) = 3 ]"):format(folder)), read(folder .. "/started"))
    write(folder .. "/mended", "")
    assert(handle:retry(id, { tree = true }))
    ended, log = host.drain(url, script, { "--workers", "1", "--drain" })
    assert.equal(0, ended, log)
    assert.same({ urls = { "http://film-1080", "http://film-480" } }, handle:job(id).result)
  end)

  it("web hooks takes each delivery once", function()
    local folder = proc.folder()
    write(folder .. "/hook.cgi", block("doc/recipes.md", "HTTP_X_DELIVERY"))
    for sql in block("doc/recipes.md", "TABLE hook", "sql"):gmatch "[^;]+;" do
      assert(handle:execute(sql))
    end
    assert(handle:execute "INSERT INTO invoice VALUES (7, FALSE)")
    local function deliver(where)
      local _, out = proc.run { proc.lua, folder .. "/hook.cgi", stdin = '{"invoice": 7, "paid": true}',
        env = { NIGHTSHIFT_URL = where, HTTP_X_DELIVERY = "d1" } }
      return out:match "Status: (%d+)"
    end
    assert.equal("202", deliver(url))
    assert.equal("202", deliver(url))
    assert.equal("503", deliver "mysql://nobody@127.0.0.1:1/none?connect_timeout=1")
    local status, log = host.drain(url, block("doc/recipes.md", "hook.handle\"] = function"))
    assert.equal(0, status, log)
    assert.equal("202", deliver(url))
    assert.equal(1, assert(handle:execute "SELECT paid FROM invoice")[1].paid)
    assert.equal(1, #assert(handle:jobs {}))
  end)
end)

local PAGE = "doc/faults.md"

-- The proofs in the last column of the tables: {line, place, words}.
local function proofs()
  local list = {}
  local number = 0
  for line in io.lines(PAGE) do
    number = number + 1
    if line:find "^## Without a spec" then break end
    local column = line:match "^|.*|([^|]*)|$"
    for one in (column and column:find "`" and column or ""):gmatch "[^;]+" do
      local place, words = one:match "^%s*`([^`]+)`%s*(.-)%s*$"
      list[#list + 1] = { line = number, place = place or one, words = words or "" }
    end
  end
  return list
end

-- The names of tests and groups of a spec, as far as they are written out.
local function names(text)
  local list = {}
  for _, call in ipairs { "it", "describe" } do
    for name in text:gmatch("%f[%w]" .. call .. "%(+\"(.-)\"") do list[#list + 1] = name end
  end
  return list
end

local function begins(list, words)
  for _, name in ipairs(list) do
    if name:sub(1, #words) == words then return true end
  end
end

describe("the page of faults", function()
  it("names tests and targets that exist", function()
    local makefile = read "Makefile" .. read "mk/test.mk"
    local missing = {}
    for _, proof in ipairs(proofs()) do
      local target = proof.place:match "^make ([%w-]+)$"
      local text = not target and read("spec/" .. proof.place .. "_spec.lua")
      local there
      if target then
        there = makefile:find("\n" .. target:gsub("%p", "%%%0") .. "[%w -]*:")
      else
        there = text and proof.words ~= "" and begins(names(text), proof.words)
      end
      if not there then
        missing[#missing + 1] = ("%s:%d: `%s` %s"):format(PAGE, proof.line, proof.place, proof.words)
      end
    end
    assert.same({}, missing)
  end)

  it("names many, on lines that are not too long", function()
    local list = proofs()
    assert.is_true(#list >= 60, #list)
    for line in io.lines(PAGE) do assert.is_true(utf8.len(line) <= 120, line) end
  end)
end)
