/*
** The private server: a MariaDB of its own for a working directory, for development. The first
** declaration is for other layers; the rest is between the files of this folder.
**
** Invariant: the server lives while any process holds a share of users.lock.
*/
#ifndef NS_PRIVATE_H
#define NS_PRIVATE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base.h"

/*
** Creates and starts (or joins) the private MariaDB server under 'dir'/.nightshift; 'dir'
** NULL: the working directory. '*url' gets a malloc'd URL. The server lives until its last
** user is gone, however it went. Errors: GONE (did not start), DENIED, INVALID.
*/
ns_status ns_private_start(const char *dir, char **url, ns_err *err);

/* The same for tests: a commit does not wait for the disk, and the start is not told. */
ns_status ns_private_start_fast(const char *dir, char **url, ns_err *err);

/* -------------------------------------------------------------- its home */

/*
** The home of a private server: the folder .nightshift and its files.
**
** A socket path may have 107 bytes, and the installation script does not quote. So the server
** knows its home by 'base': the real path when it is short and plain, else a symlink in a
** folder under /tmp.
*/

#define NS_HOME_BASE 100 /* bytes of a base: with /s.sock they are 107 */

typedef struct ns_home {
  int dir;                       /* descriptor of the folder; -1: closed */
  char shown[256];               /* how messages call it */
  char real[PATH_MAX];           /* its path */
  char base[NS_HOME_BASE + 1];   /* its path for the server */
  char folder[NS_HOME_BASE + 1]; /* where base is a symlink in; "": it is not */
  char user[64];                 /* database user */
  bool by_socket;                /* the system user, known by its socket */
  bool fast;                     /* for tests: nothing in it is worth a wait for the disk */
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

/* The log since then: the first errors, which are the causes of later
** ones; without any the last lines. */
void ns_home_read_log(const ns_home *h, char *out, size_t size);

/* -------------------------------------------------------- its guardian */

/*
** The guardian of a private server: a process of its own that runs mariadbd as its child. It
** lives as long as a process holds a shared lock on users.lock.
**
** Files in its home, all locked with flock():
**   users.lock   shared by every user; the guardian waits for the exclusive
**                lock, which it gets when the last user is gone, however
**   guard.lock   held by the guardian: free means there is none
**   server.lock  held by the guardian and inherited by mariadbd and the
**                installation, so that an orphan of either is waited for;
**                both are killed with the guardian, their children are not
*/

#define NS_GUARD_ARGS 12

/* The guardian's data, made before the fork; borrowed. */
typedef struct ns_guard {
  int home;          /* directory fd of .nightshift */
  const char *title; /* the process title in ps */
  const char *link;  /* symlink to remove at the end, and the folder */
  const char *folder; /* it is in; NULL: none */
  char *install[NS_GUARD_ARGS]; /* makes a data directory in data.new */
  char *serve[NS_GUARD_ARGS];   /* runs the server on the folder data */
  char *env[NS_GUARD_ARGS];     /* of both */
} ns_guard;

typedef enum ns_guard_stage {
  NS_GUARD_SETUP = 1, /* a file or a lock; status is an errno */
  NS_GUARD_INSTALL,   /* status as waitpid gives it */
  NS_GUARD_SERVE      /* mariadbd ended while the starter waited; same */
} ns_guard_stage;

/* Sent once, when the start fails while the starter still listens. */
typedef struct ns_guard_report {
  ns_guard_stage stage;
  int status;
} ns_guard_report;

/*
** Starts the guardian and returns the read end of its pipe: one report when
** the start fails, end of file when it ended. Closing it tells the guardian
** that the server is in use, so that from then on it restarts a server that
** dies. -1: no pipe or no process, errno says why. Call it with start.lock
** and a share of users.lock held and guard.lock free.
*/
int ns_guard_start(const ns_guard *plan);

/* Whether a server answers at the socket 'path': it greets, or says why it
** does not. Waits at most a second. */
bool ns_guard_answers(const char *path);

#endif
