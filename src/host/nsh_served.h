/*
** What a host can run, for people to read: the names of its handlers, from the
** lines that a zygote reports, and the queues it serves.
*/
#ifndef NSH_SERVED_H
#define NSH_SERVED_H

#include <stdint.h>

#include "ns_buf.h"
#include "nsh_config.h"

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
