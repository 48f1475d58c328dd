/*
** Names of handlers: from the lines that a zygote reports to what people read.
*/
#ifndef NSH_SERVED_H
#define NSH_SERVED_H

#include <stdint.h>

#include "ns_buf.h"

/* Adds ["name",…], with null at its end when 'lines' has fewer than 'count'. */
void nsh_served_json(ns_buf *list, ns_bytes lines, int64_t count);

/* Adds "name, name". */
void nsh_served_text(ns_buf *text, ns_bytes lines);

#endif
