/*
** Between two jobs of a worker. All of it is a handful of system calls that never wait,
** and that cost as much as the rest of a job that does nothing: so they are left out in
** a process where nobody can have changed anything but the locale. Lua's own libraries
** cannot; a library that was loaded since may.
*/
#include "worker/restore.h"

#include <fcntl.h>
#include <link.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

static struct {
  unsigned long long libraries; /* that have been loaded in all, before any script */
  int folder; /* -1: it could not be opened, or is gone */
  mode_t mask;
  sigset_t signals;
  char *locale;
} was;

/* The first object knows how many have been loaded so far. */
static int read_loaded(struct dl_phdr_info *info, size_t size, void *arg) {
  *(unsigned long long *)arg = info->dlpi_adds;
  return (int)size;
}

static unsigned long long loaded(void) {
  unsigned long long n = 0;
  dl_iterate_phdr(read_loaded, &n);
  return n;
}

void nsh_restore_begin(void) {
  was.libraries = loaded();
}

void nsh_restore_note(void) {
  const char *locale = setlocale(LC_ALL, NULL);
  was.folder = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  was.mask = umask(0);
  umask(was.mask);
  sigprocmask(SIG_SETMASK, NULL, &was.signals);
  was.locale = locale != NULL ? strdup(locale) : NULL;
}

static void restore_locale(void) {
  const char *now = setlocale(LC_ALL, NULL);
  uselocale(LC_GLOBAL_LOCALE); /* of this thread there is none */
  if (was.locale != NULL && (now == NULL || strcmp(now, was.locale) != 0))
    setlocale(LC_ALL, was.locale);
}

bool nsh_restore(void) {
  static const struct itimerval none;
  restore_locale();
  if (loaded() == was.libraries)
    return true;
  setitimer(ITIMER_REAL, &none, NULL); /* alarm() is this one */
  setitimer(ITIMER_VIRTUAL, &none, NULL);
  setitimer(ITIMER_PROF, &none, NULL);
  sigprocmask(SIG_SETMASK, &was.signals, NULL);
  umask(was.mask);
  return was.folder < 0 || fchdir(was.folder) == 0;
}
