-- Recurring jobs: a handler that says when it runs. `nightshift work examples/schedules/jobs.lua`
-- pushes and runs them; `nightshift schedules` shows the next ticks, `nightshift schedules run
-- report.daily` pushes the report at once.
return {
  ["report.daily"] = {
    cron = "0 3 * * *", zone = "Europe/Vienna", payload = { format = "pdf" },
    run = function(job)
      print("the daily report as " .. job.payload.format)
      return { pages = 3 }
    end,
  },
  ["cache.clean"] = {
    every = "10m", overlap = "skip", -- no job while the last one lives
    run = function() return { removed = 0 } end,
  },
}
