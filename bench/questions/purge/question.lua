-- Claims while a long read transaction keeps the server from purging: see
-- bench/questions/purge/program.lua.
return function(s)
  local function ask(...)
    local words = { ... }
    return function() return s:program("purge/program", s.scale, table.unpack(words)) end
  end
  return {
    title = "Purge blocked",
    text = "The same without and with a transaction that reads, open elsewhere for the whole run, as a backup's; what"
      .. " one costs beside the other. Of the last two rows, 300,000 jobs had been worked off by then.",
    ask = { ask("claim", 100), ask("claim", 1000), ask "work", ask "lanes", ask "handle", ask "host" },
  }
end
