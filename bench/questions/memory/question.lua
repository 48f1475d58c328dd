-- What a worker takes of memory: see bench/questions/memory/program.lua.

return function(s)
  return {
    title = "Memory per worker",
    rounds = 1,
    ask = { function() return s:program("memory/program", s.scale) end },
  }
end
