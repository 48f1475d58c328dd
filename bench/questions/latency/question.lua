-- From a push to the first line of its handler, beside a push and a claim by one
-- connection in bare SQL.

return function(s)
  local ask = {
    function()
      local line = s:floor("latency", { jobs = s:jobs(1000) })
      line.what = "bare SQL: one connection pushes, commits, claims, commits"
      return line
    end,
  }
  table.insert(ask, function() return s:program("latency/program", s.scale) end)
  return { title = "From push to handler", ask = ask }
end
