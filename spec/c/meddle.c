/*
** Meddling with a process from inside: loaded by LD_PRELOAD, or by `require`
** into a Lua program.
**
** MEDDLE_CLOCK=FILE   the wall clock is off by as many seconds as the file's
**                     eight bytes say, a signed number; it may be changed at
**                     any time. The monotonic clock is left alone.
** MEDDLE_UPTIME=FILE  the same of the monotonic clock, and that alone: not of the coarse one,
**                     which libraries look at
** MEDDLE_LOCALE=1    the process begins with the locale of its environment, as programs with a
**                     graphical toolkit or curses do
** MEDDLE_STORM=MS     a signal with a handler that does nothing, that often, and
**                     without SA_RESTART: system calls end with EINTR
** `require "meddle"` starts such a storm, twice a millisecond.
*/
#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define WALL_TIME 1000000000 /* seconds: no machine has been up for that long */

static const volatile int64_t *offset, *uptime;

static int64_t off(void) {
  return offset != NULL ? *offset : 0;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  int r = (int)syscall(SYS_clock_gettime, clock, t);
  if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    t->tv_sec += (time_t)off();
  if (r == 0 && clock == CLOCK_MONOTONIC && uptime != NULL)
    t->tv_sec += (time_t)*uptime;
  return r;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
  struct timespec t;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &t);
  tv->tv_sec = t.tv_sec;
  tv->tv_usec = (suseconds_t)(t.tv_nsec / 1000);
  return 0;
}

time_t time(time_t *out) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (out != NULL)
    *out = t.tv_sec;
  return t.tv_sec;
}

/* The kernel waits by its own clock: a moment of ours is translated. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond,
                           pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *,
                     const struct timespec *);
  struct timespec t = *until;
  if (real == NULL) {
    void *found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (found == NULL)
      found = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    memcpy(&real, &found, sizeof real);
  }
  if (t.tv_sec > WALL_TIME)
    t.tv_sec -= (time_t)off();
  return real(cond, mutex, &t);
}

static void nothing(int sig) {
  (void)sig;
}

static void storm(long us) {
  struct sigaction act = {.sa_handler = nothing};
  struct itimerval often = {{0, us}, {0, us}};
  sigaction(SIGALRM, &act, NULL);
  setitimer(ITIMER_REAL, &often, NULL);
}

/* The number in a file, as it is at any time; NULL: there is none. */
static const volatile int64_t *shown_in(const char *path) {
  int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *p;
  if (fd < 0)
    return NULL;
  p = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  return p != MAP_FAILED ? p : NULL;
}

static __attribute__((constructor)) void begin(void) {
  const char *ms = getenv("MEDDLE_STORM");
  offset = shown_in(getenv("MEDDLE_CLOCK"));
  uptime = shown_in(getenv("MEDDLE_UPTIME"));
  if (getenv("MEDDLE_LOCALE") != NULL)
    setlocale(LC_ALL, "");
  if (ms != NULL)
    storm(atol(ms) * 1000);
}

/* Without a word of Lua's, so that it loads into any program. */
int luaopen_meddle(void *L);

int luaopen_meddle(void *L) {
  (void)L;
  storm(500);
  return 0;
}
