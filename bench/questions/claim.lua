-- Claim and ack through the API at several batch sizes, with history and without.
local JOBS = { [1] = 2000, [10] = 15000, [100] = 50000, [1000] = 60000 } -- about two seconds each

return function(s)
  local function floor(options)
    return function() return s:floor("claim", options) end
  end
  local ask = {}
  local function cycles(history, title)
    for _, batch in ipairs { 1, 10, 100, 1000 } do
      local options = { jobs = s:jobs(JOBS[batch], batch), batch = batch, history = history }
      table.insert(ask, function()
        return s:beside(title:format(batch), floor(options), function() return s:verbs("claim", options) end)
      end)
    end
  end
  local function from_lua(title, what, jobs, batch)
    table.insert(ask, function()
      return s:beside(title, floor { jobs = s:jobs(JOBS[batch], batch), batch = batch, history = 1 },
        function() return s:handle(what, { jobs = s:jobs(jobs, batch), batch = batch }) end)
    end)
  end
  cycles(1, "claim + ack, batch %d, C")
  cycles(0, "claim + ack, batch %d, C, no history")
  from_lua("claim + ack, one by one, Lua", "ack", 2000, 1)
  from_lua("claim_many + acks in one transaction, batch 10, Lua", "batch", 3000, 10)
  from_lua("claim_many + acks in one transaction, batch 100, Lua", "batch", 6000, 100)
  return { title = "Claim and ack", text = "No history: neither writes a row for jobs that are done.", ask = ask }
end
