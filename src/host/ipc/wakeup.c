/*
** The bell. It is a pipe because a worker can neither shut it down for the
** others nor take their knocks away; what a handler writes into it by mistake
** is a knock like any other.
*/
#include "ipc/wakeup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

bool nsh_wakeup_make(int ends[2]) {
  return pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0;
}

void nsh_wakeup_hear(int end) {
  char knocks[4096];
  while (read(end, knocks, sizeof knocks) == (ssize_t)sizeof knocks)
    ;
}

bool nsh_news_sleep(nsh_news *news, size_t workers) {
  atomic_store(&news->awake, 0);
  for (size_t i = 0; i * 64 < workers; i++)
    if (atomic_load(&news->bits[i]) != 0)
      return true;
  return false;
}

void nsh_news_wake(nsh_news *news) {
  atomic_store(&news->awake, 1);
}

uint64_t nsh_news_take(nsh_news *news, size_t word) {
  return atomic_load(&news->bits[word]) == 0
             ? 0
             : atomic_exchange(&news->bits[word], 0);
}

void nsh_news_forget(nsh_news *news, size_t index) {
  atomic_fetch_and(&news->bits[index / 64], ~(UINT64_C(1) << (index % 64)));
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

/* A full pipe has knocks enough. */
static bool knock(const nsh_waker *k) {
  return is_ours(k) && (write(k->end, "", 1) == 1 || errno == EAGAIN);
}

bool nsh_news_tell(nsh_news *news, uint32_t index, const nsh_waker *k) {
  uint64_t bit = UINT64_C(1) << (index % 64);
  if (atomic_fetch_or(&news->bits[index / 64], bit) & bit)
    return true; /* said before and not taken: it knocked then */
  return atomic_load(&news->awake) || knock(k);
}

bool nsh_wakeup_dead(const nsh_waker *k, int ms) {
  struct pollfd end = {k->end, 0, 0};
  return poll(&end, 1, ms) > 0; /* nobody hears, or it is closed */
}
