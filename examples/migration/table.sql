CREATE TABLE migration_task (
  id INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  status ENUM('open', 'processing', 'complete') NOT NULL DEFAULT 'open',
  iteration INT NOT NULL DEFAULT 0,
  claimedBy VARCHAR(36) NULL,
  claimedAt DATETIME NULL,
  completedAt DATETIME NULL,
  imageUrl VARCHAR(255) NOT NULL,
  KEY (status)
)
