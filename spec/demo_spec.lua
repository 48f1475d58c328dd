-- The archive demo on small folders of its own: odd names, what cannot be
-- read, and a worker that is killed in the middle.

local ROOT = assert(io.popen "pwd"):read "l"
local BUILD = os.getenv "NIGHTSHIFT_BUILD" or "build"

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local function sh(script)
  local pipe = assert(io.popen(script))
  local text = pipe:read "a"
  return text, select(3, pipe:close())
end

local function lines_of(script)
  local list = {}
  for line in sh(script):gmatch "[^\n]+" do list[#list + 1] = line end
  return list
end

-- Folder, with a file in it unless it is to be empty.
local function make(folder, file, text)
  assert(os.execute("mkdir -p -- " .. quote(folder)))
  if not file then return end
  local f = assert(io.open(folder .. "/" .. file, "w"))
  f:write(text or "some text\n")
  f:close()
end

local function table_of(text)
  local rows = {}
  for name, value in text:gmatch "%f[^\n\0] *([a-z ]-) ([%d.]+)%f[\n]" do rows[name] = tonumber(value) end
  return rows
end

describe("make demo", function()
  local t, dir, out

  -- `as`: a command in front, which changes the user.
  local function demo(as)
    return sh(("cd %s && DIR=%s OUT=%s O=%s %s sh examples/archive/demo.sh 2>&1")
      :format(quote(ROOT), quote(dir), quote(out), quote(BUILD), as or ""))
  end

  before_each(function()
    t = assert(io.popen "mktemp -d"):read "l"
    dir, out = t .. "/in", t .. "/out"
    make(dir)
    make(out)
  end)

  after_each(function() os.execute("rm -rf " .. quote(t)) end)

  it("archives folders whatever their names are", function()
    local names = { "plain", "two words", "-rf", "quo'te\"s", "new\nline", "$(touch pwned)", "caf\u{e9}", "lat\xe9",
      "%41", "*", ".hidden", ("long"):rep(63) }
    for _, name in ipairs(names) do make(dir .. "/" .. name, "a file\n$x") end
    make(dir .. "/empty")
    assert(os.execute("ln -s plain " .. quote(dir .. "/link")))
    local text, code = demo()
    assert.equal(0, code, text)
    local rows = table_of(text)
    assert.equal(#names + 1, rows.folders, text)
    assert.equal(0, rows.failures)
    assert.equal(#names * #"some text\n", rows["bytes in"])
    assert.is_true(rows["bytes out"] > 0 and rows.polls >= rows.folders and rows.seconds > 0)
    assert.is_truthy(text:find("failures 0", 1, true))
    assert.is_nil(text:find("\r", 1, true), "a progress line although this is no terminal")
    for _, name in ipairs(names) do
      local archive = out .. "/" .. (#name > 240 and name:sub(1, 200) .. "~" or name)
      local count = sh(("cat %s*.tar.gz | gzip -dc | tar -t | wc -l"):format(quote(archive)))
      assert.is_true(tonumber(count) >= 2, name)
    end
    assert.is_nil(io.open(out .. "/pwned"))
    assert.is_nil(io.open(out .. "/link.tar.gz"))
  end)

  it("has a table for a folder without sub-folders", function()
    local text, code = demo()
    assert.equal(0, code, text)
    assert.equal(0, table_of(text).folders)
  end)

  it("says so when the folder does not exist", function()
    dir = dir .. "/none"
    local text, code = demo()
    assert.equal(2, code)
    assert.is_truthy(text:find(dir, 1, true), text)
  end)

  it("lists what cannot be read and archives the rest", function()
    local as
    make(dir .. "/good", "a")
    make(dir .. "/partly", "a")
    make(dir .. "/partly", "secret")
    make(dir .. "/shut", "a")
    if sh "id -u" == "0\n" then
      as = "setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=" .. quote(out)
      assert(os.execute(("chown -R 65534:65534 %s"):format(quote(t))))
      if not os.execute(("%s test -r %s/Makefile 2>/dev/null"):format(as, quote(ROOT))) then
        pending "no ordinary user can read this folder"
      end
    end
    assert(os.execute(("chmod 0 %s/partly/secret %s/shut"):format(quote(dir), quote(dir))))
    local text, code = demo(as)
    os.execute(("chmod 700 %s/shut"):format(quote(dir)))
    assert.equal(1, code, text)
    local rows = table_of(text)
    assert.equal(3, rows.folders, text)
    assert.equal(2, rows.failures, text)
    assert.is_truthy(text:find("partly: tar: [^\n]*secret: Cannot open", 1), text)
    assert.is_truthy(text:find("shut: tar: [^\n]*: Cannot open", 1), text)
    assert.equal("./good/\n./good/a\n", sh(("tar -tzf %s/good.tar.gz"):format(quote(out))))
  end)

  -- A worker of this demo: it works in its folder.
  local function find_worker()
    for _, pid in ipairs(lines_of "grep -l '^ns-worker' /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3") do
      if sh(("readlink /proc/%s/cwd 2>/dev/null"):format(pid)) == out .. "\n" then return pid end
    end
  end

  it("ends with a whole table although workers are killed", function()
    for i = 1, 30 do make(dir .. "/" .. i, "a", ("%d text "):format(i):rep(100000)) end
    local log = t .. "/log"
    local pipe = assert(io.popen(("cd %s && DIR=%s OUT=%s O=%s sh examples/archive/demo.sh >%s 2>&1")
      :format(quote(ROOT), quote(dir), quote(out), quote(BUILD), quote(log))))
    local killed, due = 0, 0
    local function archived() return tonumber((sh(("ls %s 2>/dev/null | wc -l"):format(quote(out))))) end
    for _ = 1, 200 do
      local worker = archived() >= due and find_worker() -- each time another job: one killed thrice is dead
      if worker and os.execute(("kill -9 %s 2>/dev/null"):format(worker)) then
        killed, due = killed + 1, archived() + 3
      end
      if killed >= 5 then break end
      os.execute "sleep 0.1"
    end
    local code = select(3, pipe:close())
    local text = assert(io.open(log)):read "a"
    assert.is_true(killed >= 1, "no worker was found")
    assert.equal(0, code, text)
    local rows = table_of(text)
    assert.equal(30, rows.folders, text)
    assert.equal(0, rows.failures, text)
  end)
end)
