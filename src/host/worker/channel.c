/*
** Frames are written into the ring at once. Telling the host of it costs a system
** call, so that of a verdict may wait, for nsh_channel_flush or a ring that is full.
*/
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base.h"

#define STOP_LOOK (NS_SECOND / 4) /* while ids are waited for: is the job to stop? */
#define IDS_FIRST 16
#define IDS_LAST 4096
#define KEEP_ROOM 262144 /* bytes of input; more is freed after the job */

void nsh_channel_leave(int status) {
  fflush(stdout);
  _exit(status);
}

void nsh_channel_open(nsh_channel *w, nsh_slots *slots, uint32_t index, int wakeup) {
  w->slots = slots;
  w->slot = &slots->slot[index];
  w->index = index;
  nsh_waker_init(&w->waker, wakeup);
}

/* ----------------------------------------------------------------- output */

/* Without a wake-up pipe a frame in the ring is not lost: the host finds it when it learns of
** our end. */
static void tell_host(nsh_channel *w) {
  w->waiting = 0;
  w->untold = false;
  if (!nsh_pending_set(&w->slots->pending, w->index, &w->waker))
    nsh_channel_leave(0);
}

void nsh_channel_flush(nsh_channel *w) {
  if (w->untold)
    tell_host(w);
}

/* Should we die in the middle, the host drops the piece it has. */
static void put_frame(nsh_channel *w) {
  const char *p = w->frame.p;
  size_t n = w->frame.n;
  for (;;) {
    size_t put = nsh_ring_put(&w->slot->out, p, n);
    w->untold = true;
    if (put == n)
      return;
    p += put;
    n -= put;
    tell_host(w); /* of a full ring */
    nsh_ring_await_room(&w->slot->out);
  }
}

void nsh_channel_put(nsh_channel *w) {
  put_frame(w);
}

void nsh_channel_post(nsh_channel *w, int64_t now) {
  put_frame(w);
  if (w->waiting == 0)
    w->waiting = now;
}

void nsh_channel_post_now(nsh_channel *w) {
  put_frame(w);
  tell_host(w);
}

/* ------------------------------------------------------------------ input */

void nsh_channel_receive(nsh_channel *w) {
  nsh_ring *in = &w->slot->in;
  char *room;
  int64_t n;
  if (w->at > 0) {
    memmove(w->in.p, w->in.p + w->at, w->in.n - w->at);
    w->in.n -= w->at;
    w->at = 0;
  }
  if (w->in.n == 0 && w->in.cap > KEEP_ROOM)
    ns_buf_free(&w->in); /* a large job is over */
  if ((room = ns_buf_room(&w->in, NSH_RING)) == NULL)
    nsh_channel_leave(1);
  while ((n = nsh_ring_take(in, room, NSH_RING)) == 0) {
    nsh_title_idle();
    nsh_ring_await(in, NSH_RING_EVER);
  }
  if (n < 0)
    nsh_channel_leave(1);
  w->in.n += (size_t)n;
  if (nsh_ring_relieved(in))
    tell_host(w);
}

size_t nsh_channel_peek(nsh_channel *w, size_t at, nsh_frame *f) {
  int64_t n;
  if (at >= w->in.n)
    return 0;
  n = nsh_next(w->in.p + at, w->in.n - at, f);
  if (n < 0)
    nsh_channel_leave(1);
  return (size_t)n;
}

void nsh_channel_drop(nsh_channel *w, size_t at, size_t n) {
  memmove(w->in.p + at, w->in.p + at + n, w->in.n - at - n);
  w->in.n -= n;
}

/* --------------------------------------------------------- ids for children */

static void ask_for_ids(nsh_channel *w) {
  size_t start;
  w->block = w->block == 0 ? IDS_FIRST : w->block < IDS_LAST ? w->block * 2 : IDS_LAST;
  ns_buf_reset(&w->frame);
  start = nsh_begin(&w->frame, NSH_WANT_IDS);
  nsh_put_int(&w->frame, (int64_t)w->block);
  if (nsh_end(&w->frame, start))
    nsh_channel_post_now(w);
}

static void read_ids(nsh_channel *w, nsh_frame *f) {
  size_t n = (size_t)nsh_get_int(f);
  w->nids = w->atid = 0;
  if (f->bad || n > IDS_LAST || !ns_grow(&w->ids, &w->capids, n, sizeof *w->ids))
    return;
  for (size_t i = 0; i < n; i++)
    w->ids[i] = nsh_get_int(f);
  w->nids = nsh_done(f) ? n : 0;
}

/* Waits for the answer; the jobs that came before it stay in the buffer. While the server
** is away that takes as long as it does, unless the job is stopped. */
static void await_ids(nsh_channel *w) {
  size_t at = w->at;
  for (;;) {
    nsh_frame f;
    size_t n = nsh_channel_peek(w, at, &f);
    if (n == 0) {
      size_t ahead = at - w->at;
      while (!nsh_ring_await(&w->slot->in, STOP_LOOK))
        if (nsh_interrupt_asked())
          return;
      nsh_channel_receive(w);
      at = w->at + ahead;
    } else if (f.type == NSH_IDS) {
      read_ids(w, &f);
      nsh_channel_drop(w, at, n);
      return;
    } else
      at += n;
  }
}

bool nsh_channel_take_id(nsh_channel *w, int64_t *id) {
  if (w->atid == w->nids) {
    ask_for_ids(w);
    await_ids(w);
  }
  if (w->atid == w->nids)
    return false;
  *id = w->ids[w->atid++];
  return true;
}
