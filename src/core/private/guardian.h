/*
** The guardian of a private server: a process of its own that runs mariadbd
** as its child for as long as anybody holds a shared lock on users.lock.
**
** Files in its home, all locked with flock():
**   users.lock   shared by every user; the guardian waits for the exclusive
**                lock, which it gets when the last user is gone, however
**   guard.lock   held by the guardian: free means there is none
**   server.lock  held by the guardian and inherited by mariadbd and the
**                installation, so that an orphan of either is waited for;
**                both are killed with the guardian, their children are not
*/
#ifndef NS_PRIVATE_GUARDIAN_H
#define NS_PRIVATE_GUARDIAN_H

#include <stdbool.h>

#define NS_GUARD_ARGS 12

/* All that the guardian needs, made before the fork; borrowed. */
typedef struct ns_guard {
  int home;          /* directory fd of .nightshift */
  const char *title; /* what ps shows */
  const char *link;  /* symlink to remove at the end, and the folder */
  const char *folder; /* it is in; NULL: none */
  char *install[NS_GUARD_ARGS]; /* makes a data directory in data.new */
  char *serve[NS_GUARD_ARGS];   /* serves the one in data */
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
