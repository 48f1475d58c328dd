-- The handlers of bench/questions/purge/program.lua: one does nothing, one comes back as often as its
-- payload says.
return {
  noop = function() end,
  returns = function(job)
    if job.polls < job.payload then return job:again(0) end
  end,
}
