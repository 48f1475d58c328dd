/*
** The spool of log lines, and the thread that writes them.
**
** Lines wait in a ring of bytes. The thread copies its next piece out of the ring, and
** blocks in write with nothing locked. At the end it may still be blocked there, so it touches
** static memory only.
*/
#include "base.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define SPOOL_SIZE ((size_t)1 << 20) /* bytes of lines that wait */

static struct {
  pthread_mutex_t lock;
  pthread_cond_t more, less; /* lines have been added; nothing is left to write */
  bool running, stopping;
  bool writing; /* the thread is writing 'chunk' */
  bool (*put)(const char *lines, size_t n);
  size_t (*notice)(char line[NS_LOG_LINE], int64_t dropped);
  int64_t dropped;   /* lines that no line tells of yet */
  int64_t said;      /* lines that a line in the ring tells of */
  size_t until_said; /* bytes to its end; 0: there is none */
  size_t first, n;   /* of 'ring' */
  char ring[SPOOL_SIZE];
  char chunk[NS_LOG_LINE];
} spool = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------ the spool: its ring */

static void enqueue(const char *p, size_t n) {
  size_t at = (spool.first + spool.n) % SPOOL_SIZE;
  size_t part = n < SPOOL_SIZE - at ? n : SPOOL_SIZE - at;
  ns_assert(n > 0 && p[n - 1] == '\n' && spool.n + n <= SPOOL_SIZE);
  memcpy(spool.ring + at, p, part);
  memcpy(spool.ring, p + part, n - part);
  spool.n += n;
}

/* Takes whole lines into the chunk; how many bytes. */
static size_t take_lines(void) {
  size_t n = spool.n < NS_LOG_LINE ? spool.n : NS_LOG_LINE;
  size_t part = n < SPOOL_SIZE - spool.first ? n : SPOOL_SIZE - spool.first;
  memcpy(spool.chunk, spool.ring + spool.first, part);
  memcpy(spool.chunk + part, spool.ring, n - part);
  while (spool.chunk[n - 1] != '\n') {
    ns_assert(n > 1);
    n--;
  }
  spool.first = (spool.first + n) % SPOOL_SIZE;
  spool.n -= n;
  spool.until_said -= n < spool.until_said ? n : spool.until_said;
  return n;
}

static int64_t lines_in_chunk(size_t n) {
  int64_t lines = 0;
  for (size_t i = 0; i < n; i++)
    lines += spool.chunk[i] == '\n';
  return lines;
}

static int64_t lines_in_ring(void) {
  int64_t lines = 0;
  for (size_t i = 0; i < spool.n; i++)
    lines += spool.ring[(spool.first + i) % SPOOL_SIZE] == '\n';
  return lines;
}

/* ---------------------------------------------------------- the spool: its thread */

static void say_dropped(void) {
  char text[NS_LOG_LINE] = "";
  size_t n = spool.notice(text, spool.dropped);
  enqueue(text, n);
  spool.said = spool.dropped;
  spool.until_said = spool.n;
  spool.dropped = 0;
}

/* The lock is held, but not while it writes. */
static void write_some(void) {
  bool tells = spool.until_said > 0;
  size_t n = take_lines();
  bool ok;
  tells = tells && spool.until_said == 0;
  spool.writing = true;
  pthread_mutex_unlock(&spool.lock);
  ok = spool.put(spool.chunk, n);
  pthread_mutex_lock(&spool.lock);
  spool.writing = false;
  if (!ok)
    spool.dropped += lines_in_chunk(n) + (tells ? spool.said - 1 : 0);
  else if (spool.dropped > 0 && spool.n <= SPOOL_SIZE / 2)
    say_dropped();
}

static void *write_spool(void *arg) {
  (void)arg;
  pthread_mutex_lock(&spool.lock);
  while (!spool.stopping || spool.n > 0) {
    if (spool.n > 0)
      write_some();
    else
      pthread_cond_wait(&spool.more, &spool.lock);
    if (spool.n == 0)
      pthread_cond_signal(&spool.less);
  }
  pthread_mutex_unlock(&spool.lock);
  return NULL;
}

bool ns_spool_start(bool (*put)(const char *lines, size_t n),
                    size_t (*notice)(char line[NS_LOG_LINE], int64_t dropped)) {
  pthread_condattr_t attr;
  pthread_t id;
  sigset_t all;
  sigset_t old;
  spool.put = put;
  spool.notice = notice;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&spool.more, NULL);
  pthread_cond_init(&spool.less, &attr);
  pthread_condattr_destroy(&attr);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  spool.running = pthread_create(&id, NULL, write_spool, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (spool.running)
    pthread_detach(id);
  return spool.running;
}

bool ns_spool_add(const char *text, size_t n) {
  bool running;
  pthread_mutex_lock(&spool.lock);
  running = spool.running;
  if (running && spool.dropped > 0 && spool.n == 0 && !spool.writing)
    say_dropped(); /* the report of dropped lines could not be written: it is made again */
  /* room for the line about dropped lines is kept */
  if (running && (spool.dropped > 0 || spool.n + n + NS_LOG_LINE > SPOOL_SIZE))
    spool.dropped++;
  else if (running) {
    enqueue(text, n);
    if (!spool.writing)
      pthread_cond_signal(&spool.more);
  }
  pthread_mutex_unlock(&spool.lock);
  return running;
}

/* The lock is held. */
static void wait_written(int64_t end) {
  struct timespec t = {(time_t)(end / NS_SECOND), (long)(end % NS_SECOND) * 1000};
  while (spool.running && (spool.n > 0 || spool.writing) && ns_mono_us() < end)
    pthread_cond_timedwait(&spool.less, &spool.lock, &t);
}

/* A line that told of some is left, too: it is no loss. */
static void drop_all(void) {
  spool.dropped += lines_in_ring();
  if (spool.until_said > 0)
    spool.dropped += spool.said - 1;
  spool.n = 0;
}

void ns_spool_stop(int64_t us) {
  int64_t end = ns_mono_us() + us;
  pthread_mutex_lock(&spool.lock);
  wait_written(end - us / 4);
  drop_all();
  if (spool.running && spool.dropped > 0) {
    say_dropped();
    pthread_cond_signal(&spool.more);
    wait_written(end);
  }
  spool.running = false;
  spool.stopping = true;
  spool.n = 0;
  pthread_cond_signal(&spool.more);
  pthread_mutex_unlock(&spool.lock);
}
