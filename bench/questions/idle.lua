-- What a host with nothing to do costs.
return function(s)
  local seconds = math.max(2, 20 * math.min(s.scale, 1))
  return {
    title = "An idle host",
    text = "Statements to the server; processor time of all the host's processes, and of the server on its behalf, as"
      .. " parts of one processor.",
    rounds = 1,
    ask = {
      function() return s:program("idle", 8, seconds) end,
      function() return s:program("idle", 500, seconds) end,
    },
  }
end
