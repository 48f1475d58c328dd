/*
** The home of a private server: the folder .nightshift and what stands in it.
**
** A socket path may have 107 bytes, and the installation script does not
** quote. So the server gets to know its home by 'base': the real path when it
** is short and plain, else a symlink in a private folder under /tmp.
*/
#ifndef NS_PRIVATE_HOME_H
#define NS_PRIVATE_HOME_H

#include <limits.h>
#include <sys/types.h>

#include "nightshift.h"

#define NS_HOME_BASE 100 /* bytes of a base: with /s.sock they are 107 */

typedef struct ns_home {
  int dir;                       /* descriptor of the folder; -1: closed */
  char shown[256];               /* how messages call it */
  char real[PATH_MAX];           /* its path */
  char base[NS_HOME_BASE + 1];   /* its path for the server */
  char folder[NS_HOME_BASE + 1]; /* where base is a symlink in; "": it is not */
  char user[64];                 /* database user */
  bool by_socket;                /* the system user, known by its socket */
  off_t log_from;                /* size of the log before this start */
} ns_home;

/* Opens 'dir'/.nightshift, created when it is not there. 'base' is not set
** yet. Close it also when this fails. Errors: DENIED, GONE, INVALID. */
ns_status ns_home_open(ns_home *h, const char *dir, ns_err *err);
void ns_home_close(ns_home *h);

/* Hides the folder from git and finds or makes 'base'. With start.lock held.
** Errors: DENIED, GONE. */
ns_status ns_home_prepare(ns_home *h, ns_err *err);

/* Writes my.cnf. With start.lock held. Errors: DENIED, GONE. */
ns_status ns_home_settings(const ns_home *h, ns_err *err);

/* '*url' gets the malloc'd URL of the server. Errors: NOMEM. */
ns_status ns_home_url(const ns_home *h, char **url, ns_err *err);

/* Fails with errno: "private server: cannot WHAT HOME: …". */
ns_status ns_home_fail(const ns_home *h, const char *what, ns_err *err);

/* Replaces a file as a whole; false: errno says why. With start.lock held. */
bool ns_home_write(const ns_home *h, const char *name, ns_bytes text);

/* Reads at most size - 1 bytes from 'at'; terminated, "" on failure. */
void ns_home_read(const ns_home *h, const char *name, off_t at, char *text,
                  size_t size);

bool ns_home_has(const ns_home *h, const char *name);

/* Notes where the server's log ends; a log that is too long starts anew. */
void ns_home_note_log(ns_home *h);

/* What was logged since: the first errors, which are the causes of later
** ones; without any the last lines. */
void ns_home_read_log(const ns_home *h, char *out, size_t size);

#endif
