-- Who may be rung: whoever asks for it, on the very connection that asks.

-- name: create_listen
-- Enters this connection as a listener, or strikes it out (p_queues NULL). The
-- ring ends queries by its definer's rights, so the list of threads it reads
-- must not be anybody's to write: with INSERT on the table a worker's account
-- could have had every query of the server ended.
CREATE OR REPLACE PROCEDURE nightshift_listen(
  IN p_queues MEDIUMTEXT CHARACTER SET utf8mb4, IN p_holder BIGINT)
  SQL SECURITY DEFINER MODIFIES SQL DATA
BEGIN
  IF p_queues IS NULL THEN
    DELETE FROM nightshift_listener WHERE thread = CONNECTION_ID();
  ELSE
    REPLACE INTO nightshift_listener (thread, kind, holder)
    VALUES (CONNECTION_ID(), MD5(p_queues), p_holder);
  END IF;
END
