/*
** The bell: how workers tell their host that they have put something into
** their rings. One pipe serves all of them, so a worker costs the host no
** descriptor.
**
** Who has news says so by a bit of its own, and knocks (a byte into the pipe)
** only if the host sleeps. Invariant: the host takes the bits after it has said
** that it sleeps, and a worker looks whether it does after setting its bit; so
** nobody depends on another worker's knock, and one that is killed or stopped
** between the two is late with its own news only.
*/
#ifndef NSH_IPC_WAKEUP_H
#define NSH_IPC_WAKEUP_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NSH_WORKERS_MAX 20000
#define NSH_NEWS_WORDS ((NSH_WORKERS_MAX + 63) / 64)

/* Shared by the host and all workers. Zero: nobody has news, the host sleeps. */
typedef struct nsh_news {
  alignas(64) _Atomic uint32_t awake;
  alignas(64) _Atomic uint64_t bits[NSH_NEWS_WORDS];
} nsh_news;

/* ------------------------------------------------------------------- host */

/* The two ends, close-on-exec, none of them ever blocks; the host hears [0].
** False: errno says why. */
bool nsh_wakeup_make(int ends[2]);

/* Takes the knocks that have come. */
void nsh_wakeup_hear(int end);

/* Says that the host sleeps; true: stay awake, there are news. */
bool nsh_news_sleep(nsh_news *news, size_t workers);

/* Says that it is awake. */
void nsh_news_wake(nsh_news *news);

/* Takes the bits of workers 64 * word and up. */
uint64_t nsh_news_take(nsh_news *news, size_t word);

/* Nobody is worker 'index' any more. */
void nsh_news_forget(nsh_news *news, size_t index);

/* ----------------------------------------------------------------- worker */

/* A worker's end, and how to know it from whatever else gets its number. */
typedef struct nsh_waker {
  int end;
  dev_t dev;
  ino_t ino;
} nsh_waker;

void nsh_waker_init(nsh_waker *k, int end);

/* Worker 'index' has news. False: there is no bell any more, as the host is
** gone or a handler has closed it. */
bool nsh_news_tell(nsh_news *news, uint32_t index, const nsh_waker *k);

/* Is the host gone? Waits for it up to 'ms'. */
bool nsh_wakeup_dead(const nsh_waker *k, int ms);

#endif
