-- Jobs that start while a large tree of old ones is deleted: see bench/questions/prune/program.lua.
return function(s)
  return {
    title = "Beside a prune",
    text = "One job every 5 ms, from its push to its handler, before and while the host deletes the history of a tree"
      .. " of 300,000 children of another.",
    ask = { function() return s:program("prune/program", s.scale) end },
  }
end
