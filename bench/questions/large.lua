-- Payloads of 64 KiB.
local PAYLOAD = 65536

return function(s)
  local jobs, few = s:jobs(2000, 100), s:jobs(500)
  local function options(batch) return { jobs = batch > 1 and jobs or few, batch = batch, payload = PAYLOAD } end
  local function floor(what, batch) return function() return s:floor(what, options(batch)) end end
  local function verbs(what, batch) return function() return s:verbs(what, options(batch)) end end
  return {
    title = "Payloads of 64 KiB",
    ask = {
      function() return s:beside("push_many, 100 a time, C", floor("push", 100), verbs("push", 100)) end,
      function() return s:beside("push, one a time, C", floor("single", 1), verbs("single", 1)) end,
      function() return s:beside("claim + ack, batch 100, C", floor("claim", 100), verbs("claim", 100)) end,
      function()
        return s:beside("`nightshift work`, 8 workers, beside claim + ack in batches of 100", floor("claim", 100),
          function() return s:program("work", jobs, 8, PAYLOAD)[1] end)
      end,
    },
  }
end
