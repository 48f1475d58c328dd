-- Verbs beside bare SQL, each a question of its own: push, claim and ack, claims of many
-- handles at once, payloads of 64 KiB. What they run is in bench/floor and
-- bench/lib/handle.lua.

local questions = {}

-- Push: in bulk, one at a time, in a caller's transaction.
function questions.push(s)
  local many, few = s:jobs(100000, 1000), s:jobs(4000)
  local function beside(title, what, side, options)
    return function()
      return s:beside(title, function() return s:floor(what, options) end,
        function() return s[side](s, what, options) end)
    end
  end
  return {
    title = "Push",
    text = "In a transaction: begin, one row of an application's table, one push, commit.",
    ask = {
      beside("push_many, 1000 a time, C", "push", "verbs", { jobs = many, batch = 1000 }),
      beside("push_many, 1000 a time, Lua", "push", "handle", { jobs = many, batch = 1000 }),
      beside("push, one a time, C", "single", "verbs", { jobs = few }),
      beside("push, one a time, Lua", "single", "handle", { jobs = few }),
      beside("push in a transaction, C", "transaction", "verbs", { jobs = few }),
      beside("push in a transaction, Lua", "transaction", "handle", { jobs = few }),
    },
  }
end

local CLAIMED = { [1] = 2000, [10] = 15000, [100] = 50000, [1000] = 60000 } -- about two seconds each

-- Claim and ack through the API at several batch sizes, with history and without.
function questions.claim(s)
  local function floor(options)
    return function() return s:floor("claim", options) end
  end
  local ask = {}
  local function cycles(history, title)
    for _, batch in ipairs { 1, 10, 100, 1000 } do
      local options = { jobs = s:jobs(CLAIMED[batch], batch), batch = batch, history = history }
      table.insert(ask, function()
        return s:beside(title:format(batch), floor(options), function() return s:verbs("claim", options) end)
      end)
    end
  end
  local function from_lua(title, what, jobs, batch)
    table.insert(ask, function()
      return s:beside(title, floor { jobs = s:jobs(CLAIMED[batch], batch), batch = batch, history = 1 },
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

local CASES = { { 1, 1 }, { 2, 1 }, { 8, 1 }, { 32, 1 }, { 100, 1 }, { 200, 1 }, { 8, 100 }, { 200, 100 } }
local SHARED = { [1] = 3000, [100] = 50000 }

-- Many handles that claim from one queue at one time, each on a connection of its
-- own. verbs.c fails unless every job is claimed exactly once.
function questions.handles(s)
  local ask = {}
  for i, case in ipairs(CASES) do
    local handles, batch = table.unpack(case)
    local title = ("%d handle%s, batch %d"):format(handles, handles > 1 and "s" or "", batch)
    ask[i] = function()
      local jobs = s:jobs(SHARED[batch], batch)
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

local PAYLOAD = 65536

-- Payloads of 64 KiB.
function questions.large(s)
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

return questions
