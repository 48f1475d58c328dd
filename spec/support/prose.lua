--- Comments and pages as sentences: where comments stand in a source file, their sentences, and
-- the number of words of each. Code examples, tables and annotations are no sentences.

local prose = {}

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
function prose.comments(path, text)
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
function prose.sentences(text, line, fn, is_page)
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
function prose.of_source(path, text, fn)
  for _, comment in ipairs(joined(prose.comments(path, text))) do
    prose.sentences(comment.text, comment.line, fn)
  end
end

return prose
