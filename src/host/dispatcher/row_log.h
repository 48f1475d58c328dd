/*
** What the log says of rows of adopted tables that come back: a line each.
*/
#ifndef NSH_DISPATCHER_ROW_LOG_H
#define NSH_DISPATCHER_ROW_LOG_H

#include "dispatcher/batch.h"

/* Those of settled verdicts that have failed. */
void nsh_row_log_failed(ns_bytes table, const ns_verdict *verdicts, size_t n);

/* Those that claims have left alone. */
void nsh_row_log_refused(ns_bytes table, ns_adopted *a);

/* Those that looks have given back. */
void nsh_row_log_reset(ns_bytes table, ns_adopted *a);

#endif
