-- Push: in bulk, one at a time, in a caller's transaction.
return function(s)
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
