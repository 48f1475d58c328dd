/*
** Frames between the host's processes: pure functions on bytes.
**
** A frame is a length (u32, of what follows), a type byte and fields; a field
** is a tag byte and its value, so a reader that expects something else finds
** out. Both ends are the same program on the same machine: numbers travel in
** memory order. Invariant: reading never touches a byte outside the frame,
** never allocates and never fails half-way: a bad frame is 'bad' to its end
** and what it yields is zero and absent.
**
** The data types are the core's (jobs, pushes, verdict kinds); no function of
** the core is called here.
*/
#ifndef NSH_IPC_FRAME_H
#define NSH_IPC_FRAME_H

#include <stdint.h>

#include "nightshift_host.h"
#include "ns_buf.h"

#define NSH_FRAME_MAX (64u << 20) /* bytes of one frame; more is malformed */

typedef enum nsh_type {
  /* host to worker */
  NSH_JOB = 1,  /* one job to run */
  NSH_IDS,      /* ids for children */
  NSH_QUIT,     /* finish; no more jobs come */
  /* worker to host */
  NSH_VERDICT,  /* how a job ended */
  NSH_PROGRESS, /* sign of life of the running job */
  NSH_LOG,      /* a line of the running job */
  NSH_WANT_IDS, /* asks for ids */
  NSH_HOOK,     /* a function of nightshift.on has failed: event, error */
  /* host to keeper and zygote */
  NSH_FORK,     /* start a child; carries its socket */
  NSH_KILL,     /* send a signal to a child */
  /* keeper and zygote to host */
  NSH_LOADED,   /* the handlers are there */
  NSH_LOADERR,  /* they are not: a message */
  NSH_SOCKETS,  /* sockets that the scripts have opened */
  NSH_FORKED,   /* a child runs, or could not be started */
  NSH_EXITED,   /* a child has ended */
  NSH_HEARD,    /* NSH_KILL was obeyed */
  NSH_TYPES
} nsh_type;

/* --------------------------------------------------------------- writing */

/* Starts a frame at the end of 'b'; returns what nsh_end wants. */
size_t nsh_begin(ns_buf *b, nsh_type type);
void nsh_put_int(ns_buf *b, int64_t i);
void nsh_put_real(ns_buf *b, double d);
void nsh_put_bytes(ns_buf *b, ns_bytes s); /* absent stays absent */
/* Closes the frame. False: over NSH_FRAME_MAX or memory; 'b' is as it was
** before nsh_begin, and usable. */
bool nsh_end(ns_buf *b, size_t start);

/* --------------------------------------------------------------- reading */

/* A frame being read: a view of the bytes it came from. */
typedef struct nsh_frame {
  nsh_type type;
  const char *p, *end;
  bool bad;
} nsh_frame;

/* Looks for a frame at the start of 'n' bytes. > 0: the frame's size in
** bytes, '*f' reads it; 0: more bytes are needed; -1: malformed. */
int64_t nsh_next(const char *p, size_t n, nsh_frame *f);

int64_t nsh_get_int(nsh_frame *f);
double nsh_get_real(nsh_frame *f);
ns_bytes nsh_get_bytes(nsh_frame *f); /* borrowed from the frame's bytes */
/* Everything was read and nothing was wrong. */
bool nsh_done(const nsh_frame *f);

/* -------------------------------------------------------------- contents */

/* A job on its way to a worker. */
typedef struct nsh_order {
  uint32_t seq; /* numbers the jobs of one worker */
  bool hold;    /* the job is expected to be short: verdicts may wait for it */
  ns_job job;   /* bytes borrowed */
} nsh_order;

bool nsh_put_order(ns_buf *b, const nsh_order *o);
bool nsh_get_order(nsh_frame *f, nsh_order *o);

/* What a worker says about a finished job. */
typedef struct nsh_report {
  uint32_t seq;
  ns_kind kind;
  int64_t micros;    /* the handler's wall time */
  int64_t delay;     /* FAIL, AGAIN: µs; -1: the job's backoff */
  int64_t go_on;     /* WAIT, AGAIN: see ns_verdict */
  int64_t max_phases; /* WAIT: see ns_verdict */
  ns_bytes result, error, state, signal;
  bool leaves;       /* it takes no more jobs and is about to exit */
  size_t nchildren;  /* follow one by one: nsh_get_child */
} nsh_report;

/* The children must follow at once, nsh_put_child each. */
size_t nsh_begin_report(ns_buf *b, const nsh_report *r);
void nsh_put_child(ns_buf *b, const ns_push *child);
/* False: malformed. Then 'nchildren' calls of nsh_get_child, then nsh_done.
** nchildren is plausible: no more than the frame has bytes for. */
bool nsh_get_report(nsh_frame *f, nsh_report *r);
bool nsh_get_child(nsh_frame *f, ns_push *child);

#endif
