-- The table as a queue: which of its columns is what.
return {
  table = "migration_task", name = "migrate",
  status = { column = "status", open = "open", processing = "processing", done = "complete" },
  claimed_by = "claimedBy", claimed_at = "claimedAt", completed_at = "completedAt", attempts = "iteration",
  max_attempts = 20, overdue = "2m",
}
