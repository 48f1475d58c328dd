-- Numbers that leave room for the next.

-- name: job_run_bound
-- Each return adds one to run; one at the column's own limit could never be
-- given back. A job at the bound ends with its next return.
ALTER TABLE nightshift_job
  DROP CONSTRAINT IF EXISTS job_run_counts,
  ADD CONSTRAINT job_run_counts CHECK (run BETWEEN 1 AND 4000000000)
