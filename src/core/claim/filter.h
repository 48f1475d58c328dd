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

typedef struct ns_only {
  ns_buf names; /* each ended by NUL, sorted */
  ns_buf kinds; /* " AND kind IN (0,…)", ended by NUL; empty: all names */
} ns_only;

void ns_only_free(ns_only *o);

/* The condition behind that of the lanes; NULL: there is none. */
const char *ns_only_kinds(const ns_only *o);

/* Appends a statement, with the condition in the place of its mark. */
void ns_only_fill(const ns_only *o, ns_buf *text, ns_sql sql);

/* Is it one of the names? */
bool ns_only_has(const ns_only *o, ns_bytes name);

#endif
