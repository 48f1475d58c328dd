-- What a host with nothing to do costs.
return function(s)
  return {
    title = "An idle host",
    text = "Processor time of all the host's processes, and of the server on its behalf, as parts of one processor;"
      .. " statements to the server; how many of the seconds had none.",
    rounds = 1,
    ask = { function() return s:program("idle/program", math.max(2, 20 * math.min(s.scale, 1) // 1 | 0), 8, 500) end },
  }
end
