-- Many polling jobs that are parked, some of which fall due each second: see
-- bench/questions/parked/program.lua.
return function(s)
  return {
    title = "Parked polling jobs",
    text = "A million of them. Processor time of all the host's processes, and of the server, as parts of one"
      .. " processor; then a thousand a second fall due, poll and are parked again.",
    rounds = 1,
    ask = {
      function() return s:program("parked/program", s.scale, "idle") end,
      function() return s:program("parked/program", s.scale, "due") end,
    },
  }
end
