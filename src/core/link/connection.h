/*
** One connection to MariaDB, and what server errors mean. Everything above
** speaks through this and link/statement.h, and never sees mysql.h.
**
** A link does not reconnect, retry or know about jobs. After a lost
** connection it is 'dead' and every call says NS_EGONE.
*/
#ifndef NS_LINK_CONNECTION_H
#define NS_LINK_CONNECTION_H

#include "nightshift.h"

typedef struct ns_link ns_link;

/* Connects, checks the server and sets the session up. Errors: GONE, DENIED,
** SERVER, SCHEMA (no such database), INVALID. */
ns_status ns_link_open(ns_link **out, const ns_config *cfg, ns_err *err);

/* Closes; 'foreign' (inherited over a fork) frees memory without a word to
** the server. NULL is allowed. */
void ns_link_close(ns_link *l, bool foreign);

bool ns_link_dead(const ns_link *l);

/* From now on it is dead: nobody knows what state its session is in. */
void ns_link_give_up(ns_link *l);

/* Nothing is waited for after that; monotonic µs. */
void ns_link_end_by(ns_link *l, int64_t at);

/* From now on an answer may take as long as it takes; or the read timeout at most, as
** at first. */
void ns_link_be_patient(ns_link *l, bool patient);

int64_t ns_link_patience(const ns_link *l); /* µs: how long an answer may take at first */

/* Asks the kernel whether the server has closed the connection while nothing
** was under way; then the link is dead. Costs no round trip. */
void ns_link_look(ns_link *l);

int64_t ns_link_thread(const ns_link *l); /* the server's id of it */
/* How many answers were slow, and µs of the slowest. */
int64_t ns_link_slow(const ns_link *l, int64_t *slowest);

unsigned ns_link_version(const ns_link *l); /* e.g. 101106 */

/* The server's max_allowed_packet: what is longer is TOO_BIG before it is sent. */
void ns_link_limit(ns_link *l, int64_t max_packet);

/* Runs plain text that returns no rows of interest (they are dropped). */
ns_status ns_link_text(ns_link *l, const char *sql, ns_err *err);

/* What the server's last answer said of the session. Open: a transaction is, or autocommit is
** off, so that the next statement would begin one. Marked: the answered statement has changed
** variables, the default database, the role, or what else belongs to a session; the server
** does not see all of that (db/reset.c does the rest). */
bool ns_link_is_open(const ns_link *l);
/* Has the server said that it takes and gives texts in our character set? Of the last answer. */
bool ns_link_is_utf8(ns_link *l);
bool ns_link_is_marked(const ns_link *l);

/* Sets the session back to what it was behind ns_link_open, but for its default database and
** its role. The server forgets all statements, which are prepared anew when they are needed.
** The caller has read all answers. An error leaves the link dead. */
ns_status ns_link_reset(ns_link *l, const ns_config *cfg, ns_err *err);

/* True for 1213, 1205 and 1020: the transaction may simply be run again. */
bool ns_link_retryable(const ns_err *err);

/* True for what a value in a row can cause: a constraint, a range, an encoding, a size,
** or a trigger that refuses it. All other errors of a server are its own trouble. */
bool ns_link_blames_value(const ns_err *err);

#endif
