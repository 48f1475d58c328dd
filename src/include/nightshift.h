/*
** Nightshift: durable background jobs on MariaDB. This header has all that a C program needs:
** open a database, push jobs, claim and settle them, look at them and change them.
**
** An ns_db is one handle on one database: one connection, its statements and the claims that it
** holds. It serves one thread at a time. Every function that can fail returns an ns_status and
** fills the caller's ns_err; 'err' must not be NULL unless the function says so. Texts come and
** go as ns_bytes, pointer and length; p == NULL means absent. Arguments are borrowed for the
** call; the function's comment tells how its results are freed. Durations are microseconds;
** instants are microseconds since 1970, UTC, by the server's clock. Payloads, results and
** states are JSON text in UTF-8, which is moved and never parsed.
**
** Example: pushes one job, claims it, settles it.
**
**   ns_config cfg = NS_CONFIG_INIT;
**   ns_jobs jobs = NS_JOBS_INIT;
**   ns_db *db;
**   ns_err err;
**   cfg.url = "mysql://app:secret@localhost/shop";
**   if (ns_open(&db, &cfg, &err) != NS_OK) { puts(err.message); return 1; }
**   ns_push push = ns_push_new("email.send", "{\"to\":\"a@example.com\"}");
**   if (ns_push_jobs(db, ns_str("mail"), &push, 1, &err) == NS_OK)
**     printf("job %lld is on disk\n", (long long)push.id);
**   if (ns_claim(db, ns_str("mail"), 1, 0, 0, &jobs, &err) == NS_OK && jobs.n == 1) {
**     ns_verdict done = ns_ack(&jobs.items[0], ns_str("true"));
**     ns_settle(db, &done, &err);
**   }
**   ns_jobs_free(&jobs);
**   ns_close(db);
**
** Compile and link with: cc mail.c $(pkg-config --cflags --libs nightshift)
*/
#ifndef NIGHTSHIFT_H
#define NIGHTSHIFT_H

#include "nightshift_types.h"

#ifdef __cplusplus
extern "C" {
#define NS_ZERO(type) (type())
#else
#define NS_ZERO(type) ((type){0})
#endif

#define NS_VERSION "0.1.0"

/* Limits and defaults; this is the one place where they are written. */
#define NS_MAX_SIGNAL 100                    /* characters of a signal's name */
#define NS_MAX_QUEUE 64                      /* bytes of a queue's name */
#define NS_MAX_NAME 100                      /* bytes of a job's name */
#define NS_MAX_UNIQUE 190                    /* characters of a unique key */
#define NS_MAX_GROUP 190                     /* characters of a group */
#define NS_MAX_PAYLOAD 1048576               /* bytes of payload, result or state */
#define NS_PRIORITY 100                      /* 0..255, higher first */
#define NS_DECAY 8                           /* priority lost per unfinished return, 0..255 */
#define NS_MAX_ATTEMPTS 10
#define NS_MAX_CRASHES 5
#define NS_HAS_AFTER 1                       /* of ns_job.follows, bits */
#define NS_HAS_TAGS 2
#define NS_MAX_TAGS 16                       /* of a job */
#define NS_MAX_PHASES 100                    /* waits since the push or the last signal */
#define NS_BACKOFF INT64_C(5000000)          /* first retry delay */
#define NS_BACKOFF_MAX INT64_C(3600000000)   /* the longest one */
#define NS_TIMEOUT INT64_C(3600000000)       /* wall time of one run */
#define NS_KEEP_DONE INT64_C(86400000000)    /* history of done jobs */
#define NS_KEEP_DEAD INT64_C(2592000000000)  /* history of dead and cancelled jobs */

typedef struct ns_db ns_db;

/* ------------------------------------------------------------ connection */

/* How to reach the server. Absent fields (NULL, 0) take the default. */
typedef struct ns_config {
  const char *url;         /* mysql:// or mariadb://user:pass@host:port/db?k=v */
  /* 'host' may be a list, "a,b:3307,[::1]:3306,/run/s.sock": a primary and its replicas. The first
  ** that answers and can write is taken, and looked for again when it cannot any more. */
  const char *host, *user, *password, *database, *socket;
  unsigned port;
  const char *file;        /* my.cnf to read instead of the standard ones */
  const char *group;       /* my.cnf group; read after [client] */
  const char *tls;         /* "off", "verify" (default to other machines), "trust" */
  const char *ca, *cert, *key; /* PEM files */
  int64_t connect_timeout; /* µs, for each server; default 3 s, for those of a list 1 s */
  int64_t read_timeout;    /* µs the server may let us wait for a reply before it
                           ** counts as lost; default 30 s, for a host_session 20 s */
  int64_t max_payload;     /* bytes; default NS_MAX_PAYLOAD */
  bool no_schema;          /* skip the version check: for init and migrate */
  bool no_look;            /* opening rescues no dead holders: a host looks for all its handles */
  bool host_session;       /* wait_timeout=30: the caller pings every 10 s */
  size_t statements;       /* that a connection keeps open, if more than usual */
  /* A holder that must not give up is asked this between attempts to reconnect; NULL: one
  ** reconnect, then NS_EGONE. */
  bool (*keep_trying)(void *arg, const ns_err *why);
  void *keep_trying_arg;
  /* Asked while a reply is waited for, ten times a second and after each signal. True
  ** ends the wait and the connection, and the verb says NS_EGONE; it has to stay true
  ** until the verb has returned. NULL: nothing interrupts a wait. */
  bool (*interrupted)(void *arg);
  void *interrupted_arg;
  int interrupt_fd; /* once it may be read it is as if that had said true; 0: none */
  int64_t end_by;   /* monotonic µs: no wait goes on after that; 0: no such time */
  /* Told when a wait for the answer to one of our statements begins, and with 'what' NULL when
  ** the answer has come or never will. 'what': the statement's name, or its words (COMMIT); the
  ** text is static. 'thread': the server's id of the session; 'at': monotonic µs. Not told of
  ** the caller's own SQL, nor of waits for something to claim. NULL: not told. */
  void (*waits)(void *arg, const char *what, int64_t thread, int64_t at);
  void *waits_arg;
} ns_config;

#define NS_CONFIG_INIT NS_ZERO(ns_config)

/*
** Opens '*out' (NULL on failure), which ns_close frees; 'cfg' is copied; 'err' may be
** NULL. The tables have to be there (ns_migrate) unless cfg->no_schema. The first
** open takes LIBMYSQL_PLUGINS, MARIADB_PLUGIN_DIR, MYSQL_HOME and MARIADB_HOME out of the
** environment; $MYSQL_PWD is never read.
** Errors: GONE, DENIED, SCHEMA, SERVER, INVALID (bad URL, or nothing that names a server).
*/
ns_status ns_open(ns_db **out, const ns_config *cfg, ns_err *err);

/* Gives claims back if the server is there, and frees. It waits 3 s at most, for the server and
** for rows that other sessions hold. NULL is allowed. */
void ns_close(ns_db *db);

/* Creates or upgrades all tables, and makes procedures and views anew, by the rights of
** this user. '*from' gets the version found (0: none). Safe to repeat, also while jobs
** flow. Errors: DENIED, SCHEMA (newer), BUSY (a session has been inside a procedure for ten
** seconds). */
ns_status ns_migrate(ns_db *db, int *from, ns_err *err);

/* ------------------------------------------------------------------ push */

/* When a job has the unique key of a push already. REFUSE: the push is DUPLICATE. KEEP: nothing is
** pushed. REPLACE: a job that has not begun becomes this one, and one that has is followed by
** it. */
enum { NS_REFUSE, NS_KEEP, NS_REPLACE };

/* What a push has done. PUSHED: a new job. KEPT: none, and 'id' is the job that has its key.
** REPLACED: 'id' is a job that had it, and is this one now. IN_DOUBT, after GONE: whether 'id' was
** written is not known. */
enum { NS_PUSHED, NS_KEPT, NS_REPLACED, NS_IN_DOUBT };

/* One job to push; ns_push_new gives one with every default. */
typedef struct ns_push {
  int64_t id;        /* 0: chosen by the push, which writes it back */
  ns_bytes name;     /* 1..NS_MAX_NAME bytes, no control characters */
  ns_bytes payload;  /* JSON text */
  ns_bytes queue;    /* absent: the queue of the call */
  int64_t delay;     /* µs from now */
  int64_t at;        /* not before this instant, µs since 1970; 0: as 'delay' says */
  int priority;      /* 0..255 */
  int64_t decay;     /* 0..255 of it lost with each unfinished return */
  int64_t max_attempts, max_crashes;
  int64_t max_polls; /* -1: unlimited */
  int64_t max_phases; /* waits since the push or the last signal, 0: unlimited; -1: the handler's
                      ** number, or NS_MAX_PHASES */
  int64_t backoff;   /* µs, first retry delay */
  int64_t timeout;   /* µs of wall time per run */
  int64_t deadline;  /* µs from now after which it is not started any more, and a
                     ** poll is dead; -1: its parent's, or none */
  ns_bytes unique;   /* key that at most one live job of the queue has */
  int64_t period;    /* µs from the push: a job that is done sooner has the key until then; 0: none */
  int64_t on_conflict; /* NS_REFUSE; or, not for children of a verdict, NS_KEEP, NS_REPLACE (not with
                       ** 'parent' or 'after') */
  int64_t parent;    /* a live job; 0: none */
  ns_bytes after;    /* "[id,…]" of jobs to wait for; absent: none */
  int64_t on_fail_run; /* when a job in 'after' fails: 1: run all the same, 0: be cancelled */
  ns_bytes tags;     /* "[\"tag\",…]": up to NS_MAX_TAGS, each once; absent: none */
  ns_bytes group;    /* 1..NS_MAX_GROUP characters, no control characters; absent: it is in none */
  int64_t anyhow;    /* 1: also into a queue that is full, as children go; 0: no */
  int64_t again;     /* 1: 'id' is of a push that ended in doubt, and that this one repeats */
  int64_t outcome;   /* out: NS_PUSHED, NS_KEPT, NS_REPLACED; after GONE also NS_IN_DOUBT */
} ns_push;

/* A push with every default; 'name' and 'payload' are borrowed. */
ns_push ns_push_new(const char *name, const char *payload);

/*
** Pushes 'n' jobs into 'queue' (created when new) in one transaction, all or none; ids are
** written into 'jobs'. Inside a transaction of the caller it joins that one. When the
** connection is cut at the commit the push is repeated without a second job. If that ends in
** GONE, the caller may repeat it on the same handle. Within a minute the same content will do. At
** any time it is repeated by the ids that are in 'jobs' then: all of them, in their order.
** Rings a listener after the commit. Errors: GONE, BUSY, INVALID, TOO_BIG, DUPLICATE (err->job
** has the key), DENIED, FULL (so many jobs wait in the queue as its limit allows).
*/
ns_status ns_push_jobs(ns_db *db, ns_bytes queue, ns_push *jobs, size_t n, ns_err *err);

/* ----------------------------------------------------------------- claim */

/* A claimed job. All bytes are borrowed from the ns_jobs that holds it. */
typedef struct ns_job {
  int64_t id, run, lease;  /* (id, run) is the claim token */
  int64_t queue_id;
  ns_bytes queue, name, payload;
  ns_bytes state;          /* of the last again; absent at first */
  ns_bytes group;          /* absent: it is in none */
  ns_bytes awaits;         /* the signal it has waited for; absent: none */
  ns_bytes signal;         /* JSON that was sent; absent: nothing came */
  int64_t heard;           /* when that was, as its verdict has to know; 0: never */
  int64_t attempts, polls, crashes; /* before this run */
  int64_t max_attempts, max_polls;  /* max_polls -1: unlimited */
  int64_t priority;        /* as it is now, after decay */
  int64_t parent, root;    /* 0: none */
  int64_t phase;           /* how often it was parked to wait for its children */
  int64_t follows;         /* NS_HAS_AFTER: it was pushed to wait for other jobs; NS_HAS_TAGS */
  int64_t created, due;
  int64_t deadline;        /* 0: none */
  int64_t timeout;         /* µs */
  int64_t nonce;
  int64_t row; /* of the adopted table that it stands for; 0: of none */
} ns_job;

/* A batch of claimed jobs and the memory that their bytes live in. */
typedef struct ns_jobs {
  ns_job *items;
  size_t n, cap;
  void *memory; /* list of blocks that never move */
} ns_jobs;

#define NS_JOBS_INIT NS_ZERO(ns_jobs)

/* Empties; usable again. The claims stand until they are settled. */
void ns_jobs_free(ns_jobs *jobs);

/*
** Claims up to 'limit' jobs of one queue and appends them to 'out', waiting up to 'wait' µs for
** the first. Without any, out->n stays. 'lease' (µs, 0: none) is for callers that may hang. The
** jobs are given back so long after the claim or the last ns_touch of one of them. Without a
** lease they are given back when this handle closes or its process ends. Errors: GONE, BUSY.
*/
ns_status ns_claim(ns_db *db, ns_bytes queue, size_t limit, int64_t wait, int64_t lease,
                   ns_jobs *out, ns_err *err);

/* Shows how far a running job is (0..1, -1: as before; 'text' absent: as before, cut to 255
** bytes), and renews its lease. 'worker_pid' 0: not shown. Errors: STALE, GONE, INVALID. */
ns_status ns_touch(ns_db *db, int64_t id, int64_t run, int64_t worker_pid, double progress,
                   ns_bytes text, ns_err *err);

/* ---------------------------------------------------------------- settle */

typedef enum ns_kind {
  NS_ACK,      /* done, with result */
  NS_FAIL,     /* error; retried after a backoff, or dead */
  NS_AGAIN,    /* not yet; come back after delay, with state */
  NS_DISCARD,  /* dead at once; error holds the reason */
  NS_EXPIRE,   /* the same for a job with a deadline that passed before it was started */
  NS_RELEASE,  /* given back untouched: no budget, no priority lost */
  NS_WAIT,     /* parked until its children have ended, then run again */
  NS_CRASH,    /* the worker died: retried at once, or dead as poison */
  NS_MISSING,  /* no handler of this name here; error lists the known ones */
  NS_LOST      /* its holder died, or its worker by another job's fault */
} ns_kind;

/* How one claim ends. The functions below make one; all bytes are borrowed until it is
** settled. */
typedef struct ns_verdict {
  int64_t id, run, lease;
  ns_kind kind;
  ns_bytes result;   /* ACK: JSON text or absent */
  ns_bytes error;    /* FAIL, DISCARD, CRASH, MISSING; AGAIN that is the end */
  ns_bytes state;    /* AGAIN: JSON text; absent keeps the last one */
  ns_bytes log;      /* last log lines, kept with a failed attempt, ... */
  bool printed;      /* ... and with one that is done or says "not yet": it has printed */
  int64_t delay;     /* FAIL, AGAIN: µs; -1: the job's backoff */
  ns_bytes signal;   /* WAIT: for this signal, with 'delay' as the deadline (-1:
                     ** none); absent: for the children */
  int64_t go_on;     /* WAIT: when a child fails: 1: run all the same, 0: dead. AGAIN, after the
                     ** deadline: 1: run once more, 0: dead. RELEASE: 1: the job was never begun,
                     ** and keeps its place; 2: ns_settle_for has already written its verdict. ACK:
                     ** 1: already written, in a transaction of the handler's. A written verdict
                     ** that is STALE is not reported. */
  int64_t most;      /* of the handler, when the push has said nothing. WAIT: waits, 0: no limit, -1:
                     ** NS_MAX_PHASES. FAIL: attempts; 0 and below: as the job has them */
  ns_push *children; /* ACK, WAIT: claimable now; AGAIN: wait for the parent's
                     ** done; otherwise dropped. ids already taken */
  size_t nchildren;
  int64_t heard;     /* of the claim, for ns_settle_for: see ns_job */
  int stop;          /* AGAIN: no other job starts before it comes back, in a queue with limits: 1:
                     ** of its group, 2: of its queue. 0: they do */
  ns_status status;  /* out: NS_OK, NS_ESTALE, NS_EBUSY: it belongs into a later cycle */
  bool trouble;      /* out: it is BUSY for the server's own trouble with it */
  bool dead;         /* out: the job ended dead, ... */
  const char *reason; /* ... for this reason, a constant */
  int64_t began;     /* when the handler has, monotonic µs; 0: not known, of a program when it has
                     ** claimed the job; -1: none has */
  int64_t worker;    /* the number of the worker in its host; 0: none */
  /* not the core's, but the host's own */
  int64_t ended;        /* when the handler has, monotonic µs; 0: none had begun */
  ns_bytes name, queue; /* of the job, for the log; absent: it was not begun */
  int64_t pid;          /* of the worker */
  bool told;            /* the failure has its line in the log */
} ns_verdict;

/* Done. 'result': JSON text; absent: none. */
ns_verdict ns_ack(const ns_job *job, ns_bytes result);

/* Failed: it is retried after its backoff, or dead when its attempts are spent. */
ns_verdict ns_failed(const ns_job *job, ns_bytes error);

/* Not yet: it comes back after 'delay' µs (-1: its backoff) with 'state', JSON text, which
** its next claim has; absent: the last one stays. No attempt is spent. */
ns_verdict ns_again(const ns_job *job, int64_t delay, ns_bytes state);

/* Dead at once, for this reason. */
ns_verdict ns_discard(const ns_job *job, ns_bytes reason);

/* Given back: no attempt and no priority is lost. */
ns_verdict ns_release(const ns_job *job);

/* Settles one verdict, retrying while its row is locked (at most 10 s). After GONE the same
** verdict may be settled again: OK when it was written. Errors: STALE, GONE, BUSY,
** TOO_BIG. */
ns_status ns_settle(ns_db *db, ns_verdict *verdict, ns_err *err);

/* ------------------------------------------------------ looking, changing */

typedef struct ns_info {
  ns_job job;          /* bytes live in 'bytes' */
  ns_bytes where;      /* scheduled ready running waiting done dead cancelled */
  ns_bytes reason, error, result, unique;
  ns_bytes output; /* printed, and logged, by the run that it ended with; absent: nothing is kept */
  int64_t finished_at, unmet, holder;
  int64_t paused;      /* the job with the pause that holds this one; 0: none */
  int64_t max_crashes, decay;
  double progress;     /* -1: none */
  ns_bytes status_text;
  int64_t started;     /* µs: of an ended job, the start of the run that it ended with; 0: not known */
  int64_t worker;      /* ... and the number of its worker in that host; 0: none */
  int64_t pid;         /* of the host, or of the program; 0: not known */
  ns_bytes host;       /* the machine; absent: not known */
  ns_buf bytes;
} ns_info;

#define NS_INFO_INIT NS_ZERO(ns_info)
void ns_info_free(ns_info *info);

/* Fills 'info', which ns_info_free frees. Errors: NOT_FOUND, GONE. */
ns_status ns_job_info(ns_db *db, int64_t id, ns_info *info, ns_err *err);

/* Ends a live job as cancelled; a running one's late verdict is STALE. 'reason' may be
** absent. Errors: NOT_FOUND, STATE (already finished), GONE. */
ns_status ns_cancel(ns_db *db, int64_t id, ns_bytes reason, ns_err *err);

/* Deletes a job with its payload, result, errors, log and signals. A live one ends first, as
** cancelled, without history. Errors: NOT_FOUND, STATE (it runs, or its parent has not
** finished). */
ns_status ns_delete(ns_db *db, int64_t id, ns_err *err);

/* What is to be different about a job; ns_change_new gives one that changes nothing. */
typedef struct ns_change {
  ns_bytes payload;     /* JSON text; absent: as it is */
  ns_bytes queue;       /* absent: as it is */
  int64_t priority;     /* -1: as it is */
  int64_t due;          /* µs since 1970; -1: as it is */
  int64_t max_attempts; /* -1: as it is */
  ns_bytes tags;        /* as of ns_push, or "[]"; absent: as they are */
  ns_bytes group;       /* as of ns_push, or "": none; absent: as it is */
} ns_change;

ns_change ns_change_new(void);

/* Changes a live job that does not run, or one that is dead or cancelled, for its retry.
** Errors: NOT_FOUND, INVALID, TOO_BIG. STATE: it runs or is done, its row of an adopted table has
** the value, or a retry has no due time. DUPLICATE: its unique key is taken in the other queue. */
ns_status ns_update(ns_db *db, int64_t id, const ns_change *change, ns_err *err);

/* A finished job runs again with fresh budgets. Errors: NOT_FOUND, STATE (still live),
** DUPLICATE (its unique key is taken). */
ns_status ns_retry(ns_db *db, int64_t id, ns_err *err);

/* Sends a value, JSON text, to a job that waits for the signal 'name' (absent: for any), or
** will. Errors: NOT_FOUND, INVALID, TOO_BIG. */
ns_status ns_signal(ns_db *db, int64_t id, ns_bytes value, ns_bytes name, ns_err *err);

/* Stops or restarts claiming from a queue. Errors: NOT_FOUND. */
ns_status ns_pause(ns_db *db, ns_bytes queue, bool paused, ns_err *err);

/* ----------------------------------------------- the caller's own SQL */

/* A transaction of the caller: pushes and verdicts join it. BEGIN inside one is STATE;
** ns_commit rings for the pushed jobs. Errors: STATE, GONE, BUSY. */
ns_status ns_begin(ns_db *db, ns_err *err);
ns_status ns_commit(ns_db *db, ns_err *err);
void ns_rollback(ns_db *db);

/* BYTES: a parameter that is no text to the server. */
typedef enum ns_type { NS_NULL, NS_INT, NS_UINT, NS_REAL, NS_TEXT, NS_BYTES } ns_type;

/* A parameter or a column value. TEXT carries text, blobs, decimals, dates; UINT is only
** used for values above INT64_MAX. */
typedef struct ns_value {
  ns_type type;
  int64_t i;  /* INT; UINT as its two's complement */
  double d;   /* REAL */
  ns_bytes s; /* TEXT */
} ns_value;

typedef struct ns_result {
  size_t ncols;             /* 0: the statement returned no rows */
  const char *const *names; /* ncols column names */
  int64_t affected, insert_id;
} ns_result;

/*
** Runs one statement with bound parameters. If the statement gives rows, ns_fetch hands out one
** row after the other. 'result' and rows are borrowed until the next call. 'sql' may also be
** "@name": a statement of sql/query. Errors: SQL (message is the server's), DENIED, GONE, BUSY,
** TOO_BIG.
*/
ns_status ns_execute(ns_db *db, ns_bytes sql, const ns_value *params, size_t nparams,
                     ns_result *result, ns_err *err);

/* '*row' is NULL after the last row. */
ns_status ns_fetch(ns_db *db, const ns_value **row, ns_err *err);

#ifdef __cplusplus
}
#endif

#endif
