/*
** Queues, for the other files of the core.
*/
#ifndef NS_DB_QUEUE_H
#define NS_DB_QUEUE_H

#include "nightshift.h"

/* Refuses an empty name, one over 'max' bytes, control characters. 'what' is
** "queue name" or "job name". Errors: INVALID. */
ns_status ns_name_check(ns_bytes name, const char *what, size_t max,
                        ns_err *err);

/* The name of a queue this handle has met; NS_NONE otherwise. Good as long as the
** handle is open, for other threads, too. */
ns_bytes ns_queue_name_of(const ns_db *db, int64_t id);

/* Frees the names; only when the handle is closed. */
void ns_queues_forget(ns_db *db);

/* Whether a queue is paused at this moment. Errors: GONE. */
ns_status ns_queue_paused(ns_db *db, int64_t id, bool *paused, ns_err *err);

/* As ns_queues, of a list that was asked for (ns_ask, queue_list). */
ns_status ns_queues_told(ns_db *db, ns_queue_row **rows, size_t *n, ns_err *err);

#endif
