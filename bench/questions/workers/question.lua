-- Many workers on one host: see bench/questions/workers/program.lua.

return function(s)
  return {
    title = "Many workers",
    rounds = 1,
    ask = { function() return s:program("workers/program", s.scale) end },
  }
end
