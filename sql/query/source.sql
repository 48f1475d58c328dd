-- Statements about rows of adopted tables that jobs stand for. They open none of those tables.
-- Sorted by name.

-- name: source_owe
-- Params: [[source,row,job,failures,due,outcome],…]. Key: PRIMARY, appended at its end. Waits
-- for nobody.
INSERT INTO nightshift_owed (source, row_id, job_id, failures, due, outcome)
SELECT v.source, v.row_id, v.job, v.failures, v.due, v.outcome
FROM JSON_TABLE(?, '$[*]' COLUMNS (source INT PATH '$[0]', row_id BIGINT PATH '$[1]',
  job BIGINT PATH '$[2]', failures INT PATH '$[3]', due BIGINT PATH '$[4]',
  outcome VARCHAR(10) {bytes} PATH '$[5]')) v
