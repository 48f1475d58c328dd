-- The typed reference for editors names exactly what there is.

local nightshift = require "nightshift"
local server = require "spec.support.db"

local function documented()
  local found = {}
  local file <close> = assert(io.open "library/nightshift.lua")
  for line in file:lines() do
    local owner, name = line:match "^function ([%w_]+)[.:]([%w_]+)%("
    if not owner then owner, name = line:match "^(nightshift)%.([%w_]+) =" end
    if owner then
      found[owner] = found[owner] or {}
      found[owner][name] = true
    end
  end
  return found
end

local function keys(t)
  local list = {}
  for key in pairs(t) do list[#list + 1] = key end
  table.sort(list)
  return list
end

local function methods(object)
  local meta = getmetatable(object)
  return meta.methods or meta.__index
end

describe("library/nightshift.lua", function()
  it("has every public function and no other", function()
    local db <close> = assert(nightshift.open((server.fresh())))
    local queue = db:queue "mail"
    queue:push("a", 1)
    local job <close> = queue:claim()
    local tx
    db:transaction(function(t) tx = t end)
    db:execute "CREATE TABLE t (id INT PRIMARY KEY, done BOOLEAN NOT NULL)"
    local adopted = assert(db:adopt { table = "t", status = { column = "done", open = false, done = true } })
    local there = { nightshift = nightshift, Db = methods(db), Queue = methods(queue), Job = methods(job),
      Transaction = methods(tx), Shared = nightshift.shared, Lock = methods(nightshift.mutex "m"),
      DbLock = methods(db:lock "l"), Adopted = methods(adopted) }
    local said = documented()
    for owner, functions in pairs(there) do assert.same(keys(functions), keys(said[owner]), owner) end
    assert.same(keys(there), keys(said))
  end)
end)
