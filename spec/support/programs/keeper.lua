-- Pushes keyed jobs again and again, keeping those that are there: alone, with others, and
-- in transactions. usage: keeper.lua URL N
-- Prints "ready", then each id that a push gave, then "done".

local nightshift = require "nightshift"

local db = assert(nightshift.open(arg[1]))
local q = db:queue "q"

local function keep(i) return { unique = { key = "k" .. i % 3, on_conflict = "keep" } } end

local ways = {
  function(i) return { q:push("one", i, keep(i)) } end,
  function(i) return q:push_many { { "many", i, keep(i) }, { "plain", i }, { "many", i, keep(i + 1) } } end,
  function(i)
    return db:transaction(function(tx)
      local id, message, code = tx:queue("q"):push("tx", i, keep(i))
      if not id then return nil, message, code end
      return { id }
    end)
  end,
}

io.write "ready\n"
for i = 1, tonumber(arg[2]) do
  local ids, message, code = ways[i % #ways + 1](i)
  while not ids or not ids[1] do -- a deadlock, or a connection that was killed
    code = code or ids and ids[3]
    assert(code == "BUSY" or code == "GONE", message or ids and ids[2])
    ids, message, code = ways[i % #ways + 1](i)
  end
  io.write(table.concat(ids, "\n"), "\n")
end
io.write "done\n"
