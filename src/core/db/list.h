/*
** Lists as parameters of statements: "[id,…]", "[[id,run],…]".
*/
#ifndef NS_DB_LIST_H
#define NS_DB_LIST_H

#include "handle.h"

/* Each adds an element; the first one begins the list. */
void ns_id_add(ns_buf *list, int64_t id);
void ns_pair_add(ns_buf *list, int64_t id, int64_t run);

/* It has no element, and has lost none. */
bool ns_list_is_empty(const ns_buf *list);

/* Ends a list, whatever its elements are, or though it has none. The parameter is
** good until the list changes. */
ns_value ns_list_end(ns_buf *list);

/* Ends a list, runs the statement whose last parameter it is, behind 'first' if
** that is not NULL, and frees it. Errors: NOMEM, too. */
ns_status ns_list_run(ns_db *db, ns_sql sql, const ns_value *first, ns_buf *list,
                      ns_err *err);

/* The same of a statement that has to change 'n' rows. Errors: as ns_whole, too. */
ns_status ns_list_change(ns_db *db, ns_sql sql, const ns_value *first, ns_buf *list,
                         size_t n, ns_err *err);

#endif
