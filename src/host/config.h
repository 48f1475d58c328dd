/*
** The configuration of `nightshift work`.
**
** Invariant: every string is borrowed from the Lua table that it was read from. That table
** stays on the caller's stack for as long as the host runs (and, by fork, in every child).
** Nothing here is changed after reading. (Not asserted: a string does not know its owner.)
*/
#ifndef NSH_CONFIG_H
#define NSH_CONFIG_H

#include "base.h"
#include "ipc/ipc.h"
#include "nightshift_host.h"

/* As it is, to stdout and stderr; line by line, into the log. AUTO: the latter unless lines are
** logfmt. */
typedef enum nsh_output { NSH_OUTPUT_AUTO, NSH_OUTPUT_RAW, NSH_OUTPUT_LOG } nsh_output;

#define NSH_POOLS_MAX 33 /* 32 reserved queues, and the workers for all */

/* A queue to serve; it may not exist yet. */
typedef struct nsh_weighted_queue {
  ns_bytes name;
  int weight;
} nsh_weighted_queue;

/* Workers that take jobs of this queue only. */
typedef struct nsh_reserve {
  ns_bytes name;
  size_t workers;
} nsh_reserve;

/* An adopted table, and its mapping as JSON. */
typedef struct nsh_table {
  ns_bytes name;
  ns_bytes mapping;
} nsh_table;

typedef struct lua_State lua_State; /* of lua.h */

typedef struct nsh_config {
  const char **files;    /* handler files and folders */
  size_t nfiles;
  size_t workers;        /* at first; default: one per processor */
  size_t most_workers;   /* places for them: it may be told to have more later */
  nsh_weighted_queue *queues; /* none: every queue */
  size_t nqueues;
  ns_bytes *only;        /* jobs of these names only; none: of all handlers */
  size_t nonly;
  nsh_table *tables; /* adopted tables; their names are among 'queues' */
  size_t ntables;
  nsh_reserve *reserves; /* number i has pool i + 1; pool 0 takes all jobs */
  size_t nreserves;      /* < NSH_POOLS_MAX */
  bool strict;           /* by priority, and in the order of 'queues', only */
  bool forget_done;      /* done jobs without a parent leave no history */
  bool drain;            /* end when there is nothing left to do */
  int64_t progress;      /* jobs that a drain has before it, shown on a terminal; 0: nothing is */
  int64_t drain_within;  /* µs: jobs due sooner count as left to do */
  int64_t drain_timeout; /* µs a stopping host waits for running handlers */
  const char *user;      /* of zygotes and workers; NULL: the host's own */
  bool allow_setuid;     /* programs started by workers may gain rights */
  int64_t memory;        /* bytes a job may use; 0: no limit */
  int64_t recycle;       /* jobs after which a worker is replaced; 0: never, and */
  int64_t recycle_memory; /* bytes: when it has more of them resident */
  int64_t max_children;  /* that a run may spawn; 0: as options.lua says */
  ns_form form;          /* how log lines look */
  nsh_output output;     /* where what handlers print goes */
  bool log_done;         /* a line for each run that ends well */
  const char *http;      /* where metrics and health are served, ADDRESS:PORT; NULL: nowhere */
  const char *lua;       /* the interpreter's version; static */
  const char *shared;    /* size of the shared dict; NULL: see ns_region_open */
  bool fork_per_job;     /* isolation = "job" */
  bool keep_env;         /* workers keep the variables that nsh_secrets_drop would take */
  ns_config db;
} nsh_config;

/*
** Reads the table at 'idx' and pushes a userdata that holds the arrays, which
** must outlive '*cfg'. Raises for an unknown key or a wrong type; errors of
** value come back as INVALID. [-0, +1, v]
*/
ns_status nsh_config_read(lua_State *L, int idx, nsh_config *cfg, ns_err *err);

/* Does what handlers print go into the log? */
bool nsh_config_logs_output(const nsh_config *cfg);

/* The pool that has workers for a queue's jobs alone; 0: none has. */
size_t nsh_config_pool(const nsh_config *cfg, ns_bytes queue);

/* The pool of place 'index', and how many of 'workers' workers a pool has. */
size_t nsh_config_pool_of(const nsh_config *cfg, size_t index);
size_t nsh_config_workers(const nsh_config *cfg, size_t pool, size_t workers);

/* May the host have so many workers? Errors: INVALID, with the bound. */
ns_status nsh_config_check_workers(const nsh_config *cfg, int64_t workers, ns_err *err);

/* Pushes the connection as options for nightshift.open; [-0, +1, m] */
void nsh_config_pushdb(lua_State *L, const nsh_config *cfg);

#endif
