/*
** Which names a handle claims: all, or some. As numbers, see db/kind.h, in the text of
** the statements of a claim: one number may stand for another name, too, so what is
** claimed is looked at once more. Pure memory.
*/
#ifndef NS_CLAIM_FILTER_H
#define NS_CLAIM_FILTER_H

#include <stdbool.h>

#include "db/sql.h"
#include "nightshift.h"

typedef struct ns_filter {
  ns_buf names; /* each ended by NUL, sorted */
  ns_buf kinds; /* " AND kind IN (0,…)", ended by NUL; empty: all names */
} ns_filter;

void ns_filter_free(ns_filter *o);

/* The condition behind that of the lanes; NULL: there is none. */
const char *ns_filter_kinds(const ns_filter *o);

/* Appends a statement, with the condition in the place of its mark. */
void ns_filter_fill(const ns_filter *o, ns_buf *text, ns_sql sql);

/* Is it one of the names? */
bool ns_filter_has(const ns_filter *o, ns_bytes name);

#endif
