/*
** How the processes of a host speak: by frames of bytes. Frames travel in rings in shared
** memory, a slot per worker, and a pipe wakes the host. Also the memory of the host itself.
**
** Invariants are stated at each part. The contents of shared memory are not asserted: a handler
** may write anything there, and that must end its worker, not the host.
*/
#ifndef NSH_IPC_IPC_H
#define NSH_IPC_IPC_H

#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base.h"
#include "nightshift_host.h"

/* ----------------------------------------------------- the host's own memory */

/* Memory of the host process. A host that cannot get a few bytes cannot keep its promises
** either, so these do not fail: they log and abort. Other hosts rescue its claims, and its
** workers die with it. */

/* Zeroed; freed with free. */
void *nsh_alloc(size_t n);

/* Logs and aborts unless 'ok': nsh_must(ns_grow(…)). */
void nsh_must(bool ok);

/* -------------------------------------------------------------------- frames */

/* Frames between the host's processes: pure functions on bytes.
**
** A frame is a length (u32, of the rest), a type byte and fields. A field is a tag byte and its
** value, so a reader that expects another type finds out. Both ends are the same program on the
** same machine: numbers travel in memory order. Invariant: reading never touches a byte outside
** the frame, never allocates and never fails half-way. A bad frame is 'bad' to its end and
** yields zeros and absent bytes.
**
** The data types are the core's (jobs, pushes, verdict kinds); no function of
** the core is called here. */

#define NSH_FRAME_MAX (64u << 20) /* bytes of one frame; more is malformed */

typedef enum nsh_type {
  /* host to worker */
  NSH_JOB = 1, /* one job to run */
  NSH_BULK,    /* a batch of jobs, for one call of their handler */
  NSH_IDS,     /* ids for children */
  NSH_QUIT,    /* finish; no more jobs come */
  /* worker to host */
  NSH_VERDICT,  /* how a job ended */
  NSH_PROGRESS, /* sign of life of the running job */
  NSH_LOG,      /* a line of the running job */
  NSH_OUTPUT,   /* bytes that it has printed: job, descriptor, bytes */
  NSH_WANT_IDS, /* asks for ids */
  NSH_HOOK,     /* a function of nightshift.on has failed: event, error */
  /* host to keeper and zygote */
  NSH_FORK, /* start a child; carries its socket */
  NSH_KILL, /* send a signal to a child */
  /* keeper and zygote to host */
  NSH_LOADED,  /* the handlers are there */
  NSH_LOADERR, /* they are not: a message */
  NSH_SOCKETS, /* sockets that the scripts have opened */
  NSH_FORKED,  /* a child runs, or could not be started */
  NSH_EXITED,  /* a child has ended */
  NSH_HEARD,   /* NSH_KILL was obeyed */
  NSH_SCHEDULE, /* before NSH_LOADED: a schedule that the scripts declare, JSON */
  NSH_ON_DEAD,  /* the same: a job that is to be pushed for dead ones */
  NSH_BATCHED,  /* the same: a handler that takes batches, "jobs µs name" */
  NSH_TYPES
} nsh_type;

/* --------------------------------------------------------------- writing */

/* Starts a frame at the end of 'b'; returns the argument of nsh_end. */
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

/* A batch on its way to a worker: its jobs have one number, one time and one gate. A report
** about each of them comes back, in their order. */
#define NSH_BULK_MAX 1000 /* jobs */

typedef struct nsh_bulk_order {
  uint32_t seq;
  int64_t timeout; /* of the longest of its jobs, µs */
  size_t n;        /* follow one by one: nsh_put_job, nsh_get_job */
} nsh_bulk_order;

/* 'n' jobs must follow at once; nsh_end closes the frame. */
size_t nsh_begin_bulk(ns_buf *b, const nsh_bulk_order *o);
void nsh_put_job(ns_buf *b, const ns_job *job);
/* False: malformed. Behind the last job: nsh_done. */
bool nsh_get_bulk(nsh_frame *f, nsh_bulk_order *o);
bool nsh_get_job(nsh_frame *f, ns_job *job);

/* A worker's report about a finished job. */
typedef struct nsh_report {
  uint32_t seq;
  ns_kind kind;
  int64_t micros;     /* the handler's wall time */
  int64_t delay;      /* FAIL, AGAIN: µs; -1: the job's backoff */
  int64_t go_on;      /* WAIT, AGAIN: see ns_verdict */
  int64_t most;       /* WAIT, FAIL: see ns_verdict */
  int64_t stop;       /* AGAIN: see ns_verdict */
  ns_bytes result, error, state, signal;
  bool leaves;      /* it takes no more jobs and is about to exit */
  size_t nchildren; /* follow one by one: nsh_get_child */
} nsh_report;

/* The children must follow at once, nsh_put_child each. */
size_t nsh_begin_report(ns_buf *b, const nsh_report *r);
void nsh_put_child(ns_buf *b, const ns_push *child);
/* False: malformed. Then 'nchildren' calls of nsh_get_child, then nsh_done.
** nchildren is plausible: no more than the frame has bytes for. */
bool nsh_get_report(nsh_frame *f, nsh_report *r);
bool nsh_get_child(nsh_frame *f, ns_push *child);

/* --------------------------------------------------------------------- rings */

/* A ring of bytes in shared memory: one process writes, another one reads.
**
** Invariants: the bytes from tail to head are the reader's, all other bytes the writer's. Each
** side moves its own count only when it is done with the bytes. So a side that is killed at any
** instant leaves behind exactly the bytes that it had published. Neither side trusts the
** other's words: counts are checked and offsets cannot leave the ring. */

/* Bytes; a power of two. Few in a debug build, so that most frames go round. */
#ifdef NS_DEBUG
#define NSH_RING 512u
#else
#define NSH_RING 16384u
#endif

typedef struct nsh_ring {
  alignas(64) _Atomic uint32_t head; /* bytes ever written, mod 2^32 */
  _Atomic uint32_t crowded;          /* the writer waits for room */
  alignas(64) _Atomic uint32_t tail; /* bytes ever read */
  _Atomic uint32_t starved;          /* the reader sleeps until there is more */
  alignas(64) char bytes[NSH_RING];
} nsh_ring;

/* The ring is not in use: makes it empty. */
void nsh_ring_reset(nsh_ring *r);

/* ----------------------------------------------------------------- writer */

/* Publishes as many of the 'n' bytes as there is room for, at once; how many.
** With less than 'n' the reader will find the ring crowded: see below. */
size_t nsh_ring_put(nsh_ring *r, const char *p, size_t n);

/* Wakes a reader that sleeps. */
void nsh_ring_wake(nsh_ring *r);

/* Sleeps until there may be room, or a signal comes. */
void nsh_ring_await_room(nsh_ring *r);

/* ----------------------------------------------------------------- reader */

/* Takes up to 'room' bytes; how many. -1: the counts make no sense. */
int64_t nsh_ring_take(nsh_ring *r, char *out, size_t room);

/* After a take: true, once, when the writer waits for the room it made. */
bool nsh_ring_relieved(nsh_ring *r);

/* Wakes a writer that sleeps. */
void nsh_ring_wake_writer(nsh_ring *r);

/* Sleeps until there may be bytes, or 'us' have passed. True: there are some. */
#define NSH_RING_EVER (-1)
bool nsh_ring_await(nsh_ring *r, int64_t us);

/* ------------------------------------------------------------------- wake-up */

/* The wake-up: how workers tell their host that they have put something into
** their rings. One pipe serves all of them, so a worker costs the host no
** descriptor.
**
** A worker with pending bytes sets a bit of its own, and writes a byte into the pipe only if
** the host sleeps. Invariant: the host takes the bits after it has set its mark that it sleeps;
** a worker checks that mark after setting its bit. So no worker depends on another worker's
** byte. A worker that is killed or stopped between the two is late with its own bytes only. */

#define NSH_WORKERS_MAX 20000
#define NSH_PENDING_WORDS ((NSH_WORKERS_MAX + 63) / 64)

/* Shared by the host and all workers. Zero: nothing is pending, the host sleeps. */
typedef struct nsh_pending {
  alignas(64) _Atomic uint32_t awake;
  alignas(64) _Atomic uint64_t bits[NSH_PENDING_WORDS];
} nsh_pending;

/* ------------------------------------------------------------------- host */

/* The two ends, close-on-exec, none of them ever blocks; the host reads [0].
** False: errno says why. */
bool nsh_wakeup_make(int ends[2]);

/* Takes the bytes that have come. */
void nsh_wakeup_drain(int end);

/* Says that the host sleeps; true: stay awake, there is something pending. */
bool nsh_pending_sleep(nsh_pending *pending, size_t workers);

/* Says that it is awake. */
void nsh_pending_wake(nsh_pending *pending);

/* Takes the bits of workers 64 * word and up. */
uint64_t nsh_pending_take(nsh_pending *pending, size_t word);

/* There is no worker 'index' any more. */
void nsh_pending_forget(nsh_pending *pending, size_t index);

/* ----------------------------------------------------------------- worker */

/* A worker's end, and how to know it from whatever else gets its number. */
typedef struct nsh_waker {
  int end;
  dev_t dev;
  ino_t ino;
} nsh_waker;

void nsh_waker_init(nsh_waker *k, int end);

/* Worker 'index' has something pending. False: there is no wake-up pipe any more, as the host is
** gone or a handler has closed it. */
bool nsh_pending_set(nsh_pending *pending, uint32_t index, const nsh_waker *k);

/* Is the host gone? Waits for it up to 'ms'. */
bool nsh_wakeup_closed(const nsh_waker *k, int ms);

/* --------------------------------------------------------------------- slots */

/* The memory a worker shares with its host: one slot per worker, mapped
** before the first fork, so every process of the host has it.
**
** All their messages pass here, so 20,000 workers need no descriptor. Frames travel in two
** rings. The worker's own ring is read after its death as well, so no finished job is
** forgotten. The gate decides, job by job, whether a job that was sent ahead is started by the
** worker or taken back by the host. Both change it by compare-and-swap, so each job goes to
** exactly one of them. 'told' and 'lost' tell a running handler that it is to stop and that its
** claim is gone. 'text' says how the running job fails, should its worker have to be killed
** before it can report that itself.
**
** Invariant: jobs have ascending numbers. Jobs below gate.next were started or taken back; jobs
** from gate.next to gate.end may be started. */

#define NSH_SAID 3648                /* bytes of a text, with its zero */
#define NSH_GONE_WORDS ((NSH_BULK_MAX + 63) / 64)
#define NSH_INTERRUPT_SIGNAL SIGUSR2 /* from zygote to worker: worker/interrupt.c */

/* Why a job is to stop. */
typedef enum nsh_why {
  NSH_WHY_NONE,
  NSH_WHY_TIMEOUT,  /* it runs too long: it fails */
  NSH_WHY_LOST,     /* its claim is gone: its end does not matter */
  NSH_WHY_STOP,     /* the host stops: it is given back */
  NSH_WHY_MEMORY,   /* it is over its memory limit and goes on: it fails */
  NSH_WHY_CANCELLED /* as LOST */
} nsh_why;

typedef struct nsh_slot {
  alignas(4096) _Atomic uint64_t gate; /* next << 32 | end */
  _Atomic int64_t started_at;          /* monotonic µs, of the job last started */
  _Atomic uint32_t current;            /* that job's number */
  _Atomic uint32_t lost;               /* number of the job with a lost claim, + 1 */
  _Atomic uint32_t told;               /* number of the job that is to stop, + 1 */
  _Atomic uint32_t why;                /* nsh_why; stored before 'told' */
  _Atomic uint32_t over;               /* number of the job over its memory limit, + 1 */
  _Atomic uint32_t said;               /* number of the job that 'text' is about, + 1 */
  _Atomic int64_t timeout;             /* of the handler of the job last started, µs; 0: the job's */
  _Atomic int64_t most;                /* its attempts, as of a verdict */
  _Atomic uint64_t gone[NSH_GONE_WORDS]; /* jobs of the running batch with lost claims, a bit each */
  nsh_ring in;                         /* host to worker */
  nsh_ring out;                        /* worker to host */
  char text[NSH_SAID];                 /* UTF-8 */
} nsh_slot;

/* All slots of a host. */
typedef struct nsh_slots {
  /* Monotonic µs. After that instant nothing may be started: the host has not heard from the
  ** database for so long that other hosts may have its jobs. 0: no such limit. */
  _Atomic int64_t valid_until;
  _Atomic bool stopping; /* the host drains or stops: long handlers had better end */
  nsh_pending pending;
  nsh_slot slot[];
} nsh_slots;

/* Maps 'n' zeroed slots, shared with all later children. NULL: no memory. */
nsh_slots *nsh_slots_map(size_t n);
void nsh_slots_unmap(nsh_slots *slots, size_t n);

/* Host: it drains or stops, from now on. Worker: does it? */
void nsh_slots_stop(nsh_slots *slots);
bool nsh_slots_stopping(const nsh_slots *slots);

/* Host, any thread: claims hold at least until then. */
void nsh_slots_fresh(nsh_slots *slots, int64_t until);

/* Either side: may jobs be started? */
bool nsh_slots_valid(const nsh_slots *slots, int64_t now);

/* Host, before worker 'index' is forked: nothing may start, the rings are
** empty, nothing is pending. */
void nsh_slots_reset(nsh_slots *slots, size_t index);

/* Host: jobs before number 'end' may be started. */
void nsh_slot_allow(nsh_slot *s, uint32_t end);

/* Host: takes back the jobs that have not been started. Returns the number of the first job
** taken back; the next job to be sent is gate.end as before. */
uint32_t nsh_slot_recall(nsh_slot *s);

/* Worker: the limits that the handler of the running job has set; 0: none. */
void nsh_slot_limit(nsh_slot *s, int64_t timeout, int64_t most);

/* Host: job 'seq' is to stop. */
void nsh_slot_tell(nsh_slot *s, uint32_t seq, nsh_why why);

/* Host: the claim of job 'at' of the running batch is lost. Worker: is it? And, before a batch is
** started: none is. */
void nsh_slot_lose(nsh_slot *s, uint32_t at);
bool nsh_slot_lost(nsh_slot *s, uint32_t at);
void nsh_slot_lose_none(nsh_slot *s);

/* Worker: why job 'seq' is to stop; NONE: it may go on. */
nsh_why nsh_slot_told(nsh_slot *s, uint32_t seq);

/* Worker: how job 'seq' fails if it has to be killed. */
void nsh_slot_say(nsh_slot *s, uint32_t seq, const char *text);

/* Host, after the worker's death: its words on job 'seq'; absent: none. Borrowed until the slot
** is used again. */
ns_bytes nsh_slot_said(nsh_slot *s, uint32_t seq);

/* Host: was job 'seq' (not taken back) started? */
bool nsh_slot_started(nsh_slot *s, uint32_t seq);

/* Worker: true when job 'seq' is its to run; false: it was taken back. */
bool nsh_slot_start(nsh_slot *s, uint32_t seq, int64_t now);

/* a comes before b; numbers wrap around. */
static inline bool nsh_before(uint32_t a, uint32_t b) {
  return (int32_t)(a - b) < 0;
}

/* -------------------------------------------------------------------- titles */

/* The titles of processes, which ps shows in place of their arguments. They are written into
** memory alone, so each job may have one. Without room for titles these functions do nothing. */

/* Finds the room; 'argv' is that of main, and still as the kernel made it. */
void nsh_title_find(char **argv);

/* From here on titles may be set. 'argv' is not read any more. */
void nsh_title_begin(void);

/* "nightshift: TEXT" */
void nsh_title_set(const char *text);

/* "nightshift: host MACHINE HOLDER work jobs.lua --workers 8": with the program's arguments. */
void nsh_title_host(const char *machine, int64_t holder);

/* "nightshift: worker 3 idle"; from here on this process is that worker. */
void nsh_title_worker(int64_t number);

/* Worker: "idle", or "email.send 1234", for the job that begins. */
void nsh_title_idle(void);
void nsh_title_job(ns_bytes name, int64_t id);

#endif
