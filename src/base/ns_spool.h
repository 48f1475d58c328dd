/*
** Lines on their way to a file descriptor, written by a thread of their own.
**
** Invariants: who adds a line never waits for whoever reads them. A line that finds no
** room is dropped and counted, and so are all behind it until half of the room is free
** again; then one line says how many there were. Lines go out whole, as many in one
** write as a pipe takes without mixing them with those of others. (Asserted but for the first,
** which is about time: spec/host/log_spec.lua has a reader that stops.)
**
** There is one per process; a child that is forked has none.
*/
#ifndef NS_SPOOL_H
#define NS_SPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NS_SPOOL_SIZE ((size_t)1 << 20) /* bytes of lines that wait */
#define NS_SPOOL_LINE 4096              /* the longest one: PIPE_BUF on Linux */

/* Starts the thread, with all signals blocked. 'notice' makes the line that says how many
** were dropped, and gives its length. False: there is no thread. */
bool ns_spool_start(int fd, size_t (*notice)(char line[NS_SPOOL_LINE], int64_t dropped));

/* Adds a line of 'n' bytes with its newline. False: no thread runs, nothing is done. */
bool ns_spool_add(const char *line, size_t n);

/* Waits until all is written, for 'us' at most; no line is taken any more then. In the last
** quarter lines that are left are dropped, and the thread tells how many there were, behind
** what it is writing. */
void ns_spool_stop(int64_t us);

#endif
