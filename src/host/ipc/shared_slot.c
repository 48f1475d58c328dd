/*
** Shared slots. The gate packs two job numbers into one atomic word; all
** orders are sequentially consistent, which costs nothing beside a job.
*/
#include "ipc/shared_slot.h"

#include <string.h>
#include <sys/mman.h>

static uint64_t pack(uint32_t next, uint32_t end) {
  return (uint64_t)next << 32 | end;
}

static size_t bytes(size_t n) {
  return sizeof(nsh_slots) + n * sizeof(nsh_slot);
}

nsh_slots *nsh_slots_map(size_t n) {
  void *p = mmap(NULL, bytes(n), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

void nsh_slots_unmap(nsh_slots *slots, size_t n) {
  if (slots != NULL)
    munmap(slots, bytes(n));
}

void nsh_slots_fresh(nsh_slots *slots, int64_t until) {
  atomic_store(&slots->valid_until, until);
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
  nsh_news_forget(&slots->news, index);
}

void nsh_slot_allow(nsh_slot *s, uint32_t end) {
  uint64_t old = atomic_load(&s->gate);
  while (!atomic_compare_exchange_weak(&s->gate, &old,
                                       pack((uint32_t)(old >> 32), end)))
    ;
}

uint32_t nsh_slot_recall(nsh_slot *s) {
  uint64_t old = atomic_load(&s->gate);
  while (!atomic_compare_exchange_weak(
      &s->gate, &old, pack((uint32_t)old, (uint32_t)old)))
    ;
  return (uint32_t)(old >> 32);
}

void nsh_slot_tell(nsh_slot *s, uint32_t seq, nsh_why why) {
  atomic_store(&s->why, why);
  atomic_store(&s->told, seq + 1);
}

nsh_why nsh_slot_told(nsh_slot *s, uint32_t seq) {
  return atomic_load(&s->told) == seq + 1 ? (nsh_why)atomic_load(&s->why)
                                          : NSH_WHY_NONE;
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
  if (atomic_load(&s->said) != seq + 1 || text.n == NSH_SAID ||
      !ns_utf8_valid(text))
    return NS_NONE;
  return text;
}

bool nsh_slot_started(nsh_slot *s, uint32_t seq) {
  return nsh_before(seq, (uint32_t)(atomic_load(&s->gate) >> 32));
}

/* The time is stored first: who sees the job started sees since when. A swap
** that fails because the host raised 'end' is simply tried again. */
bool nsh_slot_start(nsh_slot *s, uint32_t seq, int64_t now) {
  uint64_t old = atomic_load(&s->gate);
  if ((uint32_t)(old >> 32) == seq) {
    atomic_store(&s->current, seq);
    atomic_store(&s->started_at, now);
  }
  while ((uint32_t)(old >> 32) == seq)
    if (atomic_compare_exchange_weak(&s->gate, &old,
                                     pack(seq + 1, (uint32_t)old)))
      return true;
  return false;
}
