-- House rules that a machine can check: which layer includes which headers, where SQL may be
-- written, the exports of the module.

local core = require "nightshift.core"
local proc = require "spec.support.proc"

local function lines(command)
  local list = {}
  local pipe <close> = assert(io.popen(command))
  for line in pipe:lines() do list[#list + 1] = line end
  return list
end

local function files(pattern) return lines("ls " .. pattern .. " 2>/dev/null") end

local function includes(path)
  local list = {}
  for line in io.lines(path) do
    local name = line:match '^%s*#%s*include%s*[<"]([^>"]+)[>"]'
    if name then list[#list + 1] = name:gsub("^%.%./.*/", "") end
  end
  return list
end

local SOURCES = "src/*/*.[ch] src/*/*/*.[ch]"

-- Host files that may speak core: the exchange, frames, configuration; by the first of them the
-- threads and the pools that use it.
local HOST_CORE = { ["exchange/exchange"] = true, ["ipc/ipc"] = true,
  config = true, main = true }

-- Who sees libmariadb: five files, and the header between them, which is theirs alone.
local MYSQL = { ["src/core/link/connection.c"] = true, ["src/core/link/answers.c"] = true,
  ["src/core/link/statement.c"] = true, ["src/core/link/rows.c"] = true, ["src/core/link/send.c"] = true,
  ["src/core/link/servers.c"] = true }

-- Folders of core, and what only core may include beside them.
local CORE = { ["handle.h"] = true }
for _, folder in ipairs(lines "ls -d src/core/*/") do CORE[folder:match "core/(%l+)/"] = true end
-- Headers of core's folders that other layers use.
local SEEN_ABOVE = { ["wake/wake.h"] = true, ["link/link.h"] = true }

local function breaks(path, layer, base, name)
  if name == "mysql.h" or name == "mysqld_error.h" or name == "errmsg.h" then
    return not (MYSQL[path] or path == "src/core/link/mariadb.h")
  elseif name == "link/mariadb.h" then
    return not MYSQL[path]
  elseif name == "lua.h" or name == "lauxlib.h" or name == "lualib.h" then
    return layer ~= "lua" and layer ~= "host" -- of host's the compiler finds them for a few alone
  elseif name:match "^nsl_?" then
    return layer == "base" or layer == "core" or layer == "private"
  elseif name:match "^nightshift%l*_?%l*%.h$" and name ~= "nightshift_types.h" then
    return layer == "base" or layer == "private" or (layer == "host" and not HOST_CORE[base])
  elseif CORE[name:match "^(%l+)/" or name] then
    return layer ~= "core" and not SEEN_ABOVE[name]
  end
end

describe("the house", function()
  it("keeps its layers: who includes what", function()
    local broken = {}
    for _, layer in ipairs { "include", "base", "core", "private", "lua", "host" } do
      for _, path in ipairs(files(("src/%s/*.[ch] src/%s/*/*.[ch]"):format(layer, layer))) do
        local base = path:match("^src/" .. layer .. "/(.*)%.[ch]$")
        for _, name in ipairs(includes(path)) do
          if breaks(path, layer, base, name) then broken[#broken + 1] = path .. " includes " .. name end
        end
      end
    end
    assert.same({}, broken)
  end)

  it("compiles each layer with the headers of its own and of those below", function()
    local sees = {
      ["base/text"] = { "base" },
      ["core/claim/take"] = { "base", "core", "build/gen" },
      ["private/server"] = { "base", "core", "private" },
      ["lua/nsl_db"] = { "base", "private", "lua" },
      ["host/pool/pool"] = { "base", "core", "host" },
      ["host/worker/worker"] = { "base", "core", "host", "lua" },
    }
    for path, folders in pairs(sees) do
      local expected = { "-Isrc/include" }
      for _, folder in ipairs(folders) do
        expected[#expected + 1] = "-I" .. (folder:find "/" and folder or "src/" .. folder)
      end
      local object = "build/" .. path .. ".o"
      local seen = {}
      for _, line in ipairs(lines("env -u MAKEFLAGS -u MFLAGS -u O make -Bn V=1 O=build " .. object)) do
        local command = line:find("-c -o " .. object, 1, true) and line or ""
        for folder in command:gmatch "%-I[%w_.][%w_./]*" do seen[#seen + 1] = folder end
      end
      assert.same(expected, seen, path)
    end
  end)

  -- The objects of a layer: what each defines and calls, by nm. A file is "folder/name", or "name".
  local function defined_and_called(layer)
    local file_of, calls = {}, {}
    local objects = ("%s/%s/*.o %s/%s/*/*.o"):format(proc.build, layer, proc.build, layer)
    for _, line in ipairs(lines("nm -A " .. objects)) do
      local file, kind, symbol = line:match("/" .. layer .. "/(%g*)%.o:%x* +(%a) (%g+)$")
      if kind:match "[TDBR]" then file_of[symbol] = file end
      if kind == "U" then calls[#calls + 1] = { file, symbol } end
    end
    assert.is_true(#calls > 0)
    return file_of, calls
  end

  local function folder_of(file) return file:match "^(%l+)/" or file end

  -- A layer's README names its folders in order: each calls only those above it in that list.
  for _, layer in ipairs { "base", "core", "host" } do
    it("has folders in " .. layer .. " that call only folders named before them", function()
      local place, n = {}, 0
      for line in io.lines("src/" .. layer .. "/README.md") do
        local folder = line:match "^| `(%l+)/?` |"
        if folder then
          n = n + 1
          place[folder] = n
        end
      end
      local file_of, calls = defined_and_called(layer)
      local upward = {}
      for _, call in ipairs(calls) do
        local from, to = folder_of(call[1]), file_of[call[2]] and folder_of(file_of[call[2]])
        assert.is_truthy(place[from], from .. " is not in the README")
        if to and place[to] > place[from] then
          upward[#upward + 1] = ("%s calls %s of %s"):format(call[1], call[2], to)
        end
      end
      assert.same({}, upward)
    end)
  end

  it("has Lua files that require only those named before them", function()
    local place, n = {}, 0
    for line in io.lines "lua/README.md" do
      local first = line:match "^| (`[^|]*) |"
      if first then
        n = n + 1
        for unit in first:gmatch "`(%l+)/?`" do place[unit] = n end
      end
    end
    local wrong = {}
    for _, path in ipairs(files "lua/nightshift/*.lua lua/nightshift/*/*.lua") do
      local from = path:match "^lua/nightshift/(%l+)"
      if not place[from] then wrong[#wrong + 1] = from .. " is not in the README" end
      for line in io.lines(path) do
        local to = line:match 'require ?%(?"nightshift%.(%l+)'
        if to and to ~= "core" and to ~= "host" and (place[to] or math.huge) > (place[from] or 0) then
          wrong[#wrong + 1] = path .. " requires " .. to
        end
      end
    end
    assert.same({}, wrong)
  end)

  -- The files that a file calls in the end, itself among them if it is in a circle.
  local function reach(callees, from, seen)
    for file in pairs(callees[from] or {}) do
      if not seen[file] then
        seen[file] = true
        reach(callees, file, seen)
      end
    end
    return seen
  end

  for layer, most in pairs { base = 1, core = 2, host = 1, lua = 1 } do
    it("has no circle of more than " .. most .. " files in a folder of " .. layer, function()
      local file_of, calls = defined_and_called(layer)
      local callees, found = {}, {}
      for _, call in ipairs(calls) do
        local from, to = call[1], file_of[call[2]]
        if to and to ~= from and (layer == "lua" or folder_of(to) == folder_of(from)) and folder_of(to) ~= "adopt" then
          callees[from] = callees[from] or {}
          callees[from][to] = true
        end
      end
      for from in pairs(callees) do
        local circle = {}
        for file in pairs(reach(callees, from, {})) do
          if reach(callees, file, {})[from] then circle[#circle + 1] = file end
        end
        table.sort(circle)
        if #circle > most then found[table.concat(circle, " ")] = true end
      end
      assert.same({}, found)
    end)
  end

  it("has folders with two to eight files of at most 550 lines", function()
    local wrong = {}
    for _, folder in ipairs(lines "ls -d src/base/*/ src/core/*/ src/host/*/") do
      local list = files(folder .. "*.c")
      if folder ~= "src/core/adopt/" then
        if #list < 2 or #list > 8 then wrong[#wrong + 1] = folder .. " has " .. #list end
        for _, path in ipairs(list) do
          local n = 0
          for _ in io.lines(path) do n = n + 1 end
          if n > 550 and not path:find "adopted" then wrong[#wrong + 1] = path .. " has " .. n end
        end
      end
    end
    assert.same({}, wrong)
  end)

  it("begins the global symbols of core with the noun of their folder", function()
    -- those that other layers call have the names of the public headers
    local nouns = { link = { "link", "stmt", "url" }, gen = { "sql", "schema" } }
    local public, wrong = {}, {}
    for _, path in ipairs(files "src/include/*.h") do
      for line in io.lines(path) do
        for name in line:gmatch "ns_[%w_]+" do public[name] = true end
      end
    end
    for symbol, file in pairs((defined_and_called "core")) do
      local folder = folder_of(file)
      local good = public[symbol] or folder == "adopt"
      for _, noun in ipairs(nouns[folder] or { folder }) do
        good = good or symbol:match("^ns_" .. noun .. "_") or symbol == "ns_" .. noun
      end
      if not good then wrong[#wrong + 1] = symbol .. " of " .. file end
    end
    assert.same({}, wrong)
  end)

  it("has a paragraph on top of each source file", function()
    local bare = {}
    local patterns = SOURCES .. " lua/nightshift/*.lua lua/nightshift/*/*.lua sql/*/*.sql spec/c/*.c"
    for _, path in ipairs(files(patterns)) do
      local file <close> = assert(io.open(path))
      if not (file:read "l" or ""):match "^%s*[-/]" then bare[#bare + 1] = path end
    end
    assert.same({}, bare)
  end)

  -- Lines of files that a function of line and path finds wrong.
  local function wrong_lines(patterns, is_wrong)
    local found = {}
    for _, path in ipairs(files(patterns)) do
      local number = 0
      for line in io.lines(path) do
        number = number + 1
        if is_wrong(line, path) then found[#found + 1] = path .. ":" .. number .. ": " .. line end
      end
    end
    return found
  end

  it("writes SQL in sql/ only", function()
    assert.same({}, wrong_lines("src/*/*.c src/*/*/*.c lua/nightshift/*.lua lua/nightshift/*/*.lua", function(line)
      local code = line:gsub("^%s*%*%*.*", ""):gsub("^%s*/%*.*", ""):gsub("%-%-.*", "")
      return code:match '["%[]%s*SELECT%s' or code:match '["%[]%s*UPDATE%s+%w' or code:match '["%[]%s*DELETE%s+FROM'
    end))
  end)

  it("asks no EXISTS about a column of (SELECT ?) p, which a KILL QUERY makes a SIGSEGV of the server", function()
    local seen = 0
    for _, name in ipairs(core.statements()) do
      local sql = core.sql(name)
      for question in sql:gmatch "EXISTS ?(%b())" do
        seen = seen + 1
        if sql:find "%(SELECT %?[^()]*%) p%f[%W]" then assert.is_nil(question:find "%f[%w]p%.", name) end
      end
    end
    assert.is_true(seen > 20)
  end)

  it("names no mark of sql/marks.sql as a placeholder of adopted tables", function()
    local placeholders, marks = { table = true, id = true }, 0
    for _, path in ipairs(files "lua/nightshift/source/*.lua") do
      local words = io.open(path):read "a"
      for _, pattern in ipairs { 'fill%("source_[%l_]+", (%b{})', '{ "%l+", (.-) }' } do
        for list in words:gmatch(pattern) do
          for name in list:gmatch '([%l_]+)"?%]? =' do placeholders[name] = true end
        end
      end
    end
    assert.is_true(placeholders["until"])
    assert.is_true(placeholders.where)
    for line in io.lines "sql/marks.sql" do
      local mark = line:match "^%-%- mark: (%S+)$"
      marks = marks + (mark and 1 or 0)
      assert.is_nil(placeholders[mark or ""], mark)
    end
    assert.is_true(marks > 5)
  end)

  it("writes numbers with fractions in one file, whatever the locale's decimal sign", function()
    assert.same({}, wrong_lines(SOURCES .. " lua/nightshift/*.lua lua/nightshift/*/*.lua", function(line, path)
      local is_format = path:match "%.[ch]$" or line:find "format"
      local fraction = line:gsub("%%%%", ""):match '"[^"]*%%[-+#0]*[%d*]*%.?[%d*]*[lL]*[efgEFG]'
      return is_format and fraction and path ~= "src/base/text.c"
    end))
  end)

  -- For `make lint` before a push. A landed commit stays as it is; a clone knows it by its origin.
  it("has commits with subjects of up to 72 characters, where they are not landed yet", function()
    local base = not os.getenv "CI" and lines("git rev-parse --verify -q origin/HEAD 2>/dev/null")[1]
    local wrong = {}
    for _, subject in ipairs(base and lines("git log --format=%s " .. base .. "..HEAD") or {}) do
      local good = utf8.len(subject) <= 72 and subject:find "^%u" and not subject:find "%.$"
      if not good then wrong[#wrong + 1] = subject end
    end
    assert.same({}, wrong)
  end)

  it("has no prefix in the names of files that stand in a layer of folders", function()
    assert.same({}, lines "find src/base src/core src/private src/host -name 'ns*_*'")
  end)

  it("exports one symbol from the module", function()
    local symbols = lines("nm -D --defined-only " .. proc.build .. "/nightshift/core.so |" ..
      "awk '$2 ~ /[TDBR]/ {print $3}'")
    local ours = {}
    for _, symbol in ipairs(symbols) do
      if not symbol:match "^_" and not symbol:match "^__" then ours[#ours + 1] = symbol end
    end
    assert.same({ "luaopen_nightshift_core" }, ours)
  end)

  it("does not link the module against Lua", function()
    assert.same({}, lines("ldd " .. proc.build .. "/nightshift/core.so | grep liblua"))
  end)
end)
