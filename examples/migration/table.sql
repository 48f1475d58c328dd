CREATE TABLE `migration_task` (
	`id` int(10) unsigned NOT NULL AUTO_INCREMENT,
	`status` varchar(20) CHARACTER SET utf8 COLLATE utf8_bin NOT NULL,
	`iteration` tinyint(3) unsigned NOT NULL,
	`claimedBy` char(35) DEFAULT NULL,
	`claimedAt` datetime DEFAULT NULL,
	`completedAt` datetime DEFAULT NULL,
	`imageUrl` varchar(500) NOT NULL,
	PRIMARY KEY (`id`),
	KEY `byClaim` (`claimedBy`,`status`),
	KEY `byStatus` (`status`,`completedAt`,`claimedAt`) USING BTREE
) ENGINE=InnoDB DEFAULT CHARSET=utf8;
