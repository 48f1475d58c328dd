-- What people ask while there is much of everything: see bench/questions/looking/program.lua.
return function(s)
  return {
    title = "Looking at large tables",
    text = "With 5 million finished jobs, a million live ones, and 100,000 of those claimed, in 200 batches: how long"
      .. " an answer takes. Ten times each, the first one not counted.",
    rounds = 1,
    prepare = function()
      assert(s.db:execute "CREATE OR REPLACE DATABASE looking CHARACTER SET utf8mb4")
      s:init "looking"
    end,
    clean = function() assert(s.db:execute "DROP DATABASE looking") end,
    ask = { function() return s:script("looking", "looking/program", s.scale) end },
  }
end
