/*
** The memory a worker shares with its host: one slot per worker, mapped
** before the first fork, so every process of the host has it.
**
** All they say to each other passes here, so 20,000 workers need no descriptor.
** Frames travel in two rings; what a worker has put into its own is read after
** its death as well, so no finished job is forgotten. The gate decides, job by
** job, whether a job that was sent ahead is started by the worker or taken back
** by the host: both change it by compare-and-swap, so each job goes to exactly
** one of them. 'told' and 'lost' tell a running handler that it is to stop and
** that its claim is gone. 'text' says how the running job fails, should its
** worker have to be killed before it can report that itself.
**
** Invariant: jobs have ascending numbers; those below gate.next were started
** or taken back; those from gate.next to gate.end may be started.
*/
#ifndef NSH_IPC_SHARED_SLOT_H
#define NSH_IPC_SHARED_SLOT_H

#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/ring_buffer.h"
#include "ipc/wakeup.h"
#include "ns_buf.h"

#define NSH_SAID 3776 /* bytes of a text, with its zero */
#define NSH_INTERRUPT_SIGNAL SIGUSR2 /* from zygote to worker: worker/interrupt.h */

/* Why a job is to stop. */
typedef enum nsh_why {
  NSH_WHY_NONE,
  NSH_WHY_TIMEOUT, /* it runs too long: it fails */
  NSH_WHY_LOST,    /* its claim is gone: nobody wants to know how it ends */
  NSH_WHY_STOP,    /* the host stops: it is given back */
  NSH_WHY_MEMORY,  /* it is over its memory limit and goes on: it fails */
  NSH_WHY_CANCELLED /* as LOST */
} nsh_why;

typedef struct nsh_slot {
  alignas(4096) _Atomic uint64_t gate; /* next << 32 | end */
  _Atomic int64_t started_at;  /* monotonic µs, of the job last started */
  _Atomic uint32_t current;    /* that job's number */
  _Atomic uint32_t lost;       /* number of the job whose claim is lost, + 1 */
  _Atomic uint32_t told;       /* number of the job that is to stop, + 1 */
  _Atomic uint32_t why;        /* nsh_why; stored before 'told' */
  _Atomic uint32_t over;       /* number of the job over its memory limit, + 1 */
  _Atomic uint32_t said;       /* number of the job that 'text' is about, + 1 */
  nsh_ring in;                 /* host to worker */
  nsh_ring out;                /* worker to host */
  char text[NSH_SAID];         /* UTF-8 */
} nsh_slot;

/* All slots of a host. */
typedef struct nsh_slots {
  /* Monotonic µs. After that instant nothing may be started: the host has not
  ** heard from the database for so long that others may have been given its
  ** jobs. 0: no such limit. */
  _Atomic int64_t valid_until;
  nsh_news news;
  nsh_slot slot[];
} nsh_slots;

/* Maps 'n' zeroed slots, shared with all later children. NULL: no memory. */
nsh_slots *nsh_slots_map(size_t n);
void nsh_slots_unmap(nsh_slots *slots, size_t n);

/* Host, any thread: claims hold at least until then. */
void nsh_slots_fresh(nsh_slots *slots, int64_t until);

/* Either side: may jobs be started? */
bool nsh_slots_valid(const nsh_slots *slots, int64_t now);

/* Host, before worker 'index' is forked: nothing may start, the rings are
** empty, nobody has news. */
void nsh_slots_reset(nsh_slots *slots, size_t index);

/* Host: jobs before number 'end' may be started. */
void nsh_slot_allow(nsh_slot *s, uint32_t end);

/* Host: what has not been started will not be. Returns the number of the
** first job taken back; the next job to be sent is gate.end as before. */
uint32_t nsh_slot_recall(nsh_slot *s);

/* Host: job 'seq' is to stop. */
void nsh_slot_tell(nsh_slot *s, uint32_t seq, nsh_why why);

/* Worker: why job 'seq' is to stop; NONE: it may go on. */
nsh_why nsh_slot_told(nsh_slot *s, uint32_t seq);

/* Worker: how job 'seq' fails if it has to be killed. */
void nsh_slot_say(nsh_slot *s, uint32_t seq, const char *text);

/* Host, after the worker's death: what it said of job 'seq'; absent: nothing.
** Borrowed until the slot is used again. */
ns_bytes nsh_slot_said(nsh_slot *s, uint32_t seq);

/* Host: was job 'seq' (not taken back) started? */
bool nsh_slot_started(nsh_slot *s, uint32_t seq);

/* Worker: true when job 'seq' is its to run; false: it was taken back. */
bool nsh_slot_start(nsh_slot *s, uint32_t seq, int64_t now);

/* a comes before b; numbers wrap around. */
static inline bool nsh_before(uint32_t a, uint32_t b) {
  return (int32_t)(a - b) < 0;
}

#endif
