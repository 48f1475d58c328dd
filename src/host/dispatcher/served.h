/*
** What a host can run, for people to read: the names of its handlers, from the
** lines that a zygote reports, and the queues it serves.
*/
#ifndef NSH_DISPATCHER_SERVED_H
#define NSH_DISPATCHER_SERVED_H

#include <stdint.h>

#include "config.h"
#include "ns_buf.h"

/* Adds the names that are to be claimed, a line each: those of 'lines', which may be
** fewer than 'count', or of cfg->only, that are in the other, too. Says how many they
** are, more than were added when those that are left out are not known. */
int64_t nsh_served_pick(ns_buf *picked, ns_bytes lines, int64_t count,
                        const nsh_config *cfg);

/* How many lines they are. */
int64_t nsh_served_count(ns_bytes lines);

/* From now on 'db' claims jobs of those names only; NULL: of all. */
ns_status nsh_served_claim(ns_db *db, const char *lines, ns_err *err);

/* Adds ["name",…], with null at its end when 'lines' has fewer than 'count'. */
void nsh_served_json(ns_buf *list, ns_bytes lines, int64_t count);

/* Adds "name, name". */
void nsh_served_text(ns_buf *text, ns_bytes lines);

/* Is a name in such a list, or may it be? */
bool nsh_served_has(const char *list, ns_bytes name);

/* Adds ["name",…] of the queues that were asked for. */
void nsh_served_queues(ns_buf *list, const nsh_config *cfg);

/* Adds [["name",workers],…] of those that have workers of their own. */
void nsh_served_reserves(ns_buf *list, const nsh_config *cfg);

#endif
