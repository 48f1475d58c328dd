/*
** Rings. A side that sleeps says so first and looks once more; a side that publishes
** looks afterwards whether the other one sleeps. With sequentially consistent
** orders one of the two sees the other, so no wake-up is lost, and none is
** sent to those who are awake. A reader sleeps on the count of what was written. A
** writer sleeps on its own word that it does, which the reader takes back: on the
** count of what was read it would sleep through that when it filled the ring again
** between a take and the look afterwards.
*/
#include "ipc/ipc.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "err.h"

#define MASK (NSH_RING - 1)

/* At most 'us'; negative: any time. */
static void sleep_on(_Atomic uint32_t *word, uint32_t while_it_is, int64_t us) {
  struct timespec most = {(time_t)(us / NS_SECOND), (long)(us % NS_SECOND) * 1000};
  syscall(SYS_futex, word, FUTEX_WAIT, while_it_is, us < 0 ? NULL : &most, NULL, 0);
}

static void wake(_Atomic uint32_t *word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void nsh_ring_reset(nsh_ring *r) {
  atomic_store(&r->head, 0);
  atomic_store(&r->tail, 0);
  atomic_store(&r->crowded, 0);
  atomic_store(&r->starved, 0);
}

static size_t put_some(nsh_ring *r, const char *p, size_t n) {
  uint32_t head = atomic_load(&r->head);
  uint32_t used = head - atomic_load(&r->tail);
  size_t room = used < NSH_RING ? NSH_RING - used : 0;
  size_t end = NSH_RING - (head & MASK); /* bytes until the ring closes */
  size_t first;
  if (n > room)
    n = room;
  first = n < end ? n : end;
  ns_assert(n <= NSH_RING && n - first <= (head & MASK));
  memcpy(r->bytes + (head & MASK), p, first);
  memcpy(r->bytes, p + first, n - first);
  if (n > 0)
    atomic_store(&r->head, head + (uint32_t)n);
  return n;
}

/* The reader may have made room just before it was told to say so. */
size_t nsh_ring_put(nsh_ring *r, const char *p, size_t n) {
  size_t done = put_some(r, p, n);
  if (done == n)
    return n;
  atomic_store(&r->crowded, 1);
  return done + put_some(r, p + done, n - done);
}

void nsh_ring_wake(nsh_ring *r) {
  if (atomic_load(&r->starved))
    wake(&r->head);
}

void nsh_ring_await_room(nsh_ring *r) {
  atomic_store(&r->crowded, 1);
  if (atomic_load(&r->head) - atomic_load(&r->tail) >= NSH_RING)
    sleep_on(&r->crowded, 1, NSH_RING_EVER);
}

int64_t nsh_ring_take(nsh_ring *r, char *out, size_t room) {
  uint32_t tail = atomic_load(&r->tail);
  uint32_t n = atomic_load(&r->head) - tail;
  uint32_t end = NSH_RING - (tail & MASK);
  uint32_t first;
  if (n > NSH_RING)
    return -1;
  if (n > room)
    n = (uint32_t)room;
  first = n < end ? n : end;
  ns_assert(n <= room && n - first <= (tail & MASK));
  memcpy(out, r->bytes + (tail & MASK), first);
  memcpy(out + first, r->bytes, n - first);
  if (n > 0)
    atomic_store(&r->tail, tail + n);
  return n;
}

bool nsh_ring_relieved(nsh_ring *r) {
  return atomic_load(&r->crowded) && atomic_exchange(&r->crowded, 0);
}

void nsh_ring_wake_writer(nsh_ring *r) {
  wake(&r->crowded);
}

bool nsh_ring_await(nsh_ring *r, int64_t us) {
  uint32_t tail = atomic_load(&r->tail);
  atomic_store(&r->starved, 1);
  if (atomic_load(&r->head) == tail)
    sleep_on(&r->head, tail, us);
  atomic_store(&r->starved, 0);
  return atomic_load(&r->head) != tail;
}
