/*
** The worker's end of its two rings: frames from the host, frames to it.
**
** Invariant: what is in the ring is not lost, whatever becomes of the worker; a
** frame that it died in the middle of is dropped by the host. A worker whose host
** is gone leaves.
*/
#ifndef NSH_WORKER_CHANNEL_H
#define NSH_WORKER_CHANNEL_H

#include "ipc/frame.h"
#include "ipc/shared_slot.h"

typedef struct nsh_channel {
  nsh_slots *slots;
  nsh_slot *slot;
  uint32_t index;
  nsh_waker bell;
  ns_buf in;       /* received */
  size_t at;       /* of the first frame not taken yet */
  ns_buf frame;    /* the one being built, to be posted */
  bool untold;     /* the host does not know of all that is in the ring */
  int64_t waiting; /* monotonic µs: since when a verdict is among it; 0: none is */
} nsh_channel;

void nsh_channel_open(nsh_channel *w, nsh_slots *slots, uint32_t index, int bell);

/* Sends a verdict that is in 'frame'. The host hears of it with the next flush. */
void nsh_channel_post(nsh_channel *w, int64_t now);

/* Sends any other frame; the host is to know at once. */
void nsh_channel_post_now(nsh_channel *w);

void nsh_channel_flush(nsh_channel *w);

/* Waits for more bytes; the frames not taken stay at the same distance from 'at'. */
void nsh_channel_receive(nsh_channel *w);

/* Looks at the frame at 'at'; its bytes, 0: it is not complete. */
size_t nsh_channel_peek(nsh_channel *w, size_t at, nsh_frame *f);

/* Takes the 'n' bytes at 'at' out from among the others. */
void nsh_channel_drop(nsh_channel *w, size_t at, size_t n);

/* Ends the worker; what it printed is not lost. */
void nsh_channel_leave(int status) __attribute__((noreturn));

#endif
