-- The smallest handler file: one handler, which is an ordinary function.
return {
  ["hello.say"] = function(job)
    print("hello " .. job.payload.name)
    return { said = true }
  end,
}
