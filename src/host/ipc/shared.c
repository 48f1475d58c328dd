/*
** Memory of the host and its workers: shared slots, rings, the wake-up, the host's own.
**
** The gate of a slot packs two job numbers into one atomic word. All orders are sequentially
** consistent, which costs nothing beside a job. The wake-up is a pipe because a worker can
** neither shut it down for the rest nor take their bytes away. A byte that a handler writes
** into it by mistake is a byte like any other.
**
** Rings. A side that will sleep sets its mark first and looks once more; a side that publishes
** looks afterwards whether the other one sleeps. With sequentially consistent orders one of the
** two sees the other. So no wake-up is lost, and none is sent to a side that is awake. A reader
** sleeps on the count of bytes written. A writer sleeps on a word of its own, which the reader
** takes back. On the count of bytes read it could miss its wake-up: when it filled the ring
** again between a take and the look afterwards.
*/
#include "ipc/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base.h"

/* ----------------------------------------------------- the host's own memory */

void nsh_must(bool ok) {
  if (ok)
    return;
  ns_log(NS_LOG_ERROR, "host.no_memory", NULL, 0);
  ns_log_flush(NS_SECOND / 10);
  abort();
}

void *nsh_alloc(size_t n) {
  void *p = calloc(1, n > 0 ? n : 1);
  nsh_must(p != NULL);
  return p;
}

/* ------------------------------------------------------------------- wake-up */

bool nsh_wakeup_make(int ends[2]) {
  return pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0;
}

void nsh_wakeup_drain(int end) {
  char bytes[4096];
  while (read(end, bytes, sizeof bytes) == (ssize_t)sizeof bytes)
    ;
}

bool nsh_pending_sleep(nsh_pending *pending, size_t workers) {
  atomic_store(&pending->awake, 0);
  for (size_t i = 0; i * 64 < workers; i++)
    if (atomic_load(&pending->bits[i]) != 0)
      return true;
  return false;
}

void nsh_pending_wake(nsh_pending *pending) {
  atomic_store(&pending->awake, 1);
}

uint64_t nsh_pending_take(nsh_pending *pending, size_t word) {
  return atomic_load(&pending->bits[word]) == 0 ? 0 : atomic_exchange(&pending->bits[word], 0);
}

void nsh_pending_forget(nsh_pending *pending, size_t index) {
  atomic_fetch_and(&pending->bits[index / 64], ~(UINT64_C(1) << (index % 64)));
}

void nsh_waker_init(nsh_waker *k, int end) {
  struct stat st = {0};
  fstat(end, &st);
  *k = (nsh_waker){end, st.st_dev, st.st_ino};
}

/* A handler may have closed all it found and opened something else. */
static bool is_ours(const nsh_waker *k) {
  struct stat st;
  return fstat(k->end, &st) == 0 && st.st_ino == k->ino && st.st_dev == k->dev;
}

/* A full pipe wakes the host as well. */
static bool wake_host(const nsh_waker *k) {
  return is_ours(k) && (write(k->end, "", 1) == 1 || errno == EAGAIN);
}

bool nsh_pending_set(nsh_pending *pending, uint32_t index, const nsh_waker *k) {
  uint64_t bit = UINT64_C(1) << (index % 64);
  if (atomic_fetch_or(&pending->bits[index / 64], bit) & bit)
    return true; /* said before and not taken: it knocked then */
  return atomic_load(&pending->awake) || wake_host(k);
}

bool nsh_wakeup_closed(const nsh_waker *k, int ms) {
  struct pollfd end = {k->end, 0, 0};
  return poll(&end, 1, ms) > 0; /* the host has closed its end, or a handler ours */
}

/* --------------------------------------------------------------------- slots */

static uint64_t pack(uint32_t next, uint32_t end) {
  return (uint64_t)next << 32 | end;
}

static size_t bytes(size_t n) {
  return sizeof(nsh_slots) + n * sizeof(nsh_slot);
}

nsh_slots *nsh_slots_map(size_t n) {
  void *p = mmap(NULL, bytes(n), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

void nsh_slots_unmap(nsh_slots *slots, size_t n) {
  if (slots != NULL)
    munmap(slots, bytes(n));
}

void nsh_slots_fresh(nsh_slots *slots, int64_t until) {
  atomic_store(&slots->valid_until, until);
}

void nsh_slots_stop(nsh_slots *slots) {
  atomic_store(&slots->stopping, true);
}

bool nsh_slots_stopping(const nsh_slots *slots) {
  return atomic_load(&slots->stopping);
}

bool nsh_slots_valid(const nsh_slots *slots, int64_t now) {
  int64_t until = atomic_load(&slots->valid_until);
  return until == 0 || now <= until;
}

void nsh_slots_reset(nsh_slots *slots, size_t index) {
  nsh_slot *s = &slots->slot[index];
  atomic_store(&s->gate, 0);
  atomic_store(&s->started_at, 0);
  atomic_store(&s->current, 0);
  atomic_store(&s->lost, 0);
  atomic_store(&s->told, 0);
  atomic_store(&s->over, 0);
  atomic_store(&s->said, 0);
  nsh_ring_reset(&s->in);
  nsh_ring_reset(&s->out);
  nsh_pending_forget(&slots->pending, index);
}

void nsh_slot_allow(nsh_slot *s, uint32_t end) {
  uint64_t old = atomic_load(&s->gate);
  while (!atomic_compare_exchange_weak(&s->gate, &old, pack((uint32_t)(old >> 32), end)))
    ;
}

uint32_t nsh_slot_recall(nsh_slot *s) {
  uint64_t old = atomic_load(&s->gate);
  while (!atomic_compare_exchange_weak(&s->gate, &old, pack((uint32_t)old, (uint32_t)old)))
    ;
  return (uint32_t)(old >> 32);
}

void nsh_slot_tell(nsh_slot *s, uint32_t seq, nsh_why why) {
  atomic_store(&s->why, why);
  atomic_store(&s->told, seq + 1);
}

void nsh_slot_lose(nsh_slot *s, uint32_t at) {
  if (at < NSH_BULK_MAX)
    atomic_fetch_or(&s->gone[at / 64], UINT64_C(1) << (at % 64));
}

bool nsh_slot_lost(nsh_slot *s, uint32_t at) {
  return at < NSH_BULK_MAX && (atomic_load(&s->gone[at / 64]) >> (at % 64) & 1) != 0;
}

void nsh_slot_lose_none(nsh_slot *s) {
  for (size_t i = 0; i < NSH_GONE_WORDS; i++)
    atomic_store(&s->gone[i], 0);
}

nsh_why nsh_slot_told(nsh_slot *s, uint32_t seq) {
  return atomic_load(&s->told) == seq + 1 ? (nsh_why)atomic_load(&s->why) : NSH_WHY_NONE;
}

void nsh_slot_say(nsh_slot *s, uint32_t seq, const char *text) {
  size_t n = strnlen(text, NSH_SAID - 1);
  atomic_store(&s->said, 0);
  memcpy(s->text, text, n);
  s->text[n] = '\0';
  atomic_store(&s->said, seq + 1);
}

/* The memory was a handler's to write to: nothing about it is taken for sure. */
ns_bytes nsh_slot_said(nsh_slot *s, uint32_t seq) {
  ns_bytes text = {s->text, strnlen(s->text, NSH_SAID)};
  if (atomic_load(&s->said) != seq + 1 || text.n == NSH_SAID || !ns_utf8_valid(text))
    return NS_NONE;
  return text;
}

bool nsh_slot_started(nsh_slot *s, uint32_t seq) {
  return nsh_before(seq, (uint32_t)(atomic_load(&s->gate) >> 32));
}

void nsh_slot_limit(nsh_slot *s, int64_t timeout, int64_t most) {
  atomic_store(&s->timeout, timeout);
  atomic_store(&s->most, most);
}

/* The time is stored first: a reader that sees the job started sees its time, too. A swap that
** fails because the host raised 'end' is simply tried again. */
bool nsh_slot_start(nsh_slot *s, uint32_t seq, int64_t now) {
  uint64_t old = atomic_load(&s->gate);
  if ((uint32_t)(old >> 32) == seq) {
    nsh_slot_limit(s, 0, 0);
    atomic_store(&s->current, seq);
    atomic_store(&s->started_at, now);
  }
  while ((uint32_t)(old >> 32) == seq)
    if (atomic_compare_exchange_weak(&s->gate, &old, pack(seq + 1, (uint32_t)old)))
      return true;
  return false;
}

/* --------------------------------------------------------------------- rings */

#define MASK (NSH_RING - 1)

/* At most 'us'; negative: any time. */
static void sleep_on(_Atomic uint32_t *word, uint32_t while_it_is, int64_t us) {
  struct timespec most = {(time_t)(us / NS_SECOND), (long)(us % NS_SECOND) * 1000};
  syscall(SYS_futex, word, FUTEX_WAIT, while_it_is, us < 0 ? NULL : &most, NULL, 0);
}

static void wake_sleepers(_Atomic uint32_t *word) {
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
    wake_sleepers(&r->head);
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
  wake_sleepers(&r->crowded);
}

bool nsh_ring_await(nsh_ring *r, int64_t us) {
  uint32_t tail = atomic_load(&r->tail);
  atomic_store(&r->starved, 1);
  if (atomic_load(&r->head) == tail)
    sleep_on(&r->head, tail, us);
  atomic_store(&r->starved, 0);
  return atomic_load(&r->head) != tail;
}
