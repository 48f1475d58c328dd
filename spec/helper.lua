-- Loaded once, before all specs. The support modules are loaded here because busted gives every
-- spec file a fresh package.loaded. Their state (the server, the list of processes) has to
-- outlive a file. After each test, its leftovers are removed.

local busted = require "busted"
local nst = require "nst"
local proc = require "spec.support.proc"
local db = require "spec.support.db"

nst.setenv("NIGHTSHIFT_URL", nil) -- the developer's own database is not for us
db.copy_installations()

--- Waits until a function gives something true.
-- @tparam function fn
-- @tparam[opt=30] number timeout seconds; raises when it takes longer
-- @return what fn gave
function eventually(fn, timeout)
  local stop = nst.clock() + proc.limit(timeout or 30)
  local pause = 0.001
  while true do
    local result = table.pack(fn())
    if result[1] then return table.unpack(result, 1, result.n) end
    if nst.clock() > stop then error(("not within %g s"):format(timeout or 30), 2) end
    nst.sleep(pause)
    pause = math.min(pause * 2, 0.05)
  end
end

--- Gives each test a database of its own, opened, and its queue "q"; the handle is
-- closed behind the test.
--
--     local handle, q, url
--     with_database(function(...) handle, q, url = ... end)
-- @tparam function take called before each test with handle, queue, URL, and the database's name
function with_database(take)
  local handle
  busted.before_each(function()
    local url, name = db.fresh()
    handle = assert(require "nightshift".open(url))
    take(handle, handle:queue "q", url, name)
  end)
  busted.after_each(function() handle:close() end)
end

--- Files and folders, removed like everything else: what a test makes when it
-- ends, what setup and before_each make at the end of the file.
fixture = {}

local folders = {}
local in_test = false

--- A new folder.
-- @treturn string path
function fixture.dir()
  local path = proc.folder()
  folders[path] = in_test
  return path
end

--- A new file, in a folder of its own.
-- @tparam string name
-- @tparam string text
-- @treturn string path
function fixture.file(name, text)
  local path = fixture.dir() .. "/" .. name
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(text))
  return path
end

--- A C module, compiled without the optimiser: what it breaks it is to break.
-- @tparam string name
-- @tparam string source
-- @treturn string a LUA_CPATH that has it
function fixture.module(name, source)
  local path = fixture.file(name .. ".c", source)
  local folder = path:match "^(.*)/"
  local flags = io.popen "pkg-config --cflags lua5.4":read "l"
  assert(os.execute(("%s -w -O0 -shared -fPIC %s -o %s/%s.so %s"):format(os.getenv "CC" or "cc", flags, folder, name,
    path)))
  return folder .. "/?.so;;"
end

-- Under `make test-gc` the collector runs inside every function of the module.
local collect = function() end
local stride = math.tointeger(os.getenv "NIGHTSHIFT_COLLECT")
if stride then
  local heap = require "heap"
  collect = function() heap.collect(stride) end
end

local function scope(test)
  in_test = test
  proc.in_test, db.in_test = test, test
end

-- Removes what tests made; what else was made too, when `every`.
local function clean(every)
  proc.forget_all(every)
  db.remove_all(every)
  for path, of_test in pairs(folders) do
    if of_test or every then
      nst.remove(path)
      folders[path] = nil
    end
  end
end

local function on(event, fn)
  busted.subscribe(event, function()
    fn()
    return nil, true
  end, { priority = 1 })
end

on({ "test", "start" }, function()
  scope(true)
  collect()
end)
on({ "test", "end" }, function()
  debug.sethook() -- a test of finalisers that failed would slow the rest down
  scope(false)
  clean(false)
end)
on({ "file", "end" }, function() clean(true) end)
on({ "exit" }, function()
  clean(true)
  db.clean()
  proc.clean()
end)
