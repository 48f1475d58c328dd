-- doc/faults.md names a proof for each fault; all of them exist.

local PAGE = "doc/faults.md"

local function read(path)
  local file <close> = io.open(path, "rb")
  return file and file:read "a"
end

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
    local makefile = read "Makefile" .. read "mk/test.mk" .. read "mk/torture.mk"
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
