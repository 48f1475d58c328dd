-- Many handles that claim from one queue at one time, each on a connection of its
-- own. verbs.c fails unless every job is claimed exactly once.
local CASES = { { 1, 1 }, { 2, 1 }, { 8, 1 }, { 32, 1 }, { 100, 1 }, { 200, 1 }, { 8, 100 }, { 200, 100 } }
local JOBS = { [1] = 3000, [100] = 50000 }

return function(s)
  local ask = {}
  for i, case in ipairs(CASES) do
    local handles, batch = table.unpack(case)
    local title = ("%d handle%s, batch %d"):format(handles, handles > 1 and "s" or "", batch)
    ask[i] = function()
      local jobs = s:jobs(JOBS[batch], batch)
      return s:beside(title, function() return s:floor("claim", { jobs = jobs, batch = batch }) end,
        function() return s:verbs("handles", { jobs = jobs, batch = batch, handles = handles }) end)
    end
  end
  return {
    title = "Claim and ack by concurrent handles",
    text = "The floor is one connection. Every job was claimed exactly once, or this would have failed.",
    ask = ask,
  }
end
