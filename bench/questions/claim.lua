-- Claim and ack through the API at several batch sizes, and what history costs the
-- floor itself.
local JOBS = { [1] = 2000, [10] = 15000, [100] = 50000, [1000] = 60000 } -- about two seconds each

return function(s)
  local function jobs(batch) return s:jobs(JOBS[batch], batch) end
  local function floor(batch, history)
    return function() return s:floor("claim", { jobs = jobs(batch), batch = batch, history = history }) end
  end
  local ask = {}
  for _, batch in ipairs { 1, 10, 100, 1000 } do
    table.insert(ask, function()
      local without = floor(batch, 0)().rate
      local line = s:beside(("claim + ack, batch %d, C"):format(batch), floor(batch, 1),
        function() return s:verbs("claim", { jobs = jobs(batch), batch = batch }) end)
      line.no_history_rate = without
      return line
    end)
  end
  table.insert(ask, function()
    return s:beside("claim + ack, one by one, Lua", floor(1, 1),
      function() return s:handle("ack", { jobs = jobs(1) }) end)
  end)
  for _, batch in ipairs { 10, 100, 1000 } do
    table.insert(ask, function()
      return s:beside(("claim_many + acks in one transaction, batch %d, Lua"):format(batch), floor(batch, 1),
        function() return s:handle("batch", { jobs = s:jobs(math.min(300 * batch, 6000), batch), batch = batch }) end)
    end)
  end
  return { title = "Claim and ack", text = "No history: the floor when it writes none.", ask = ask }
end
