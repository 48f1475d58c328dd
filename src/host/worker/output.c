/*
** What handlers print: print, io.write, io.stdout, io.stderr, and C code that writes by stdio.
**
** In the zygote both streams are replaced by ones that call us, before Lua takes hold of them.
** Each piece that stdio writes is told to the host, as a frame of the running job among its
** other frames. What the host was told is not lost when the worker is killed.
**
** Programs that handlers start have the host's own descriptors. They may outlive the job, the
** worker and the host, and a pipe of ours would end them then. Their output is not told.
**
** Invariant: the streams are a worker's or a zygote's; seed, keeper and host have their own. (Not
** asserted: the host logs with write.)
*/
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "worker/worker.h"

#define PIECE 2048 /* bytes of a frame */

static bool (*tell)(int fd, ns_bytes piece); /* NULL: there is no worker yet */
static bool over[STDERR_FILENO + 1]; /* by descriptor: a line of the host's may stand there */

/* As write(2) does, but all of it. */
static bool write_all(int fd, const char *p, size_t n) {
  while (n > 0) {
    ssize_t got = write(fd, p, n);
    if (got < 0 && errno != EINTR)
      return false;
    if (got > 0) {
      p += got;
      n -= (size_t)got;
    }
  }
  return true;
}

/* stdio's error is that of the descriptor, where bytes go there. */
static ssize_t write_stream(void *cookie, const char *p, size_t n) {
  int fd = (int)(intptr_t)cookie;
  bool told = tell != NULL;
  for (size_t at = 0; told && at < n; at += PIECE)
    told = tell(fd, (ns_bytes){p + at, n - at < PIECE ? n - at : PIECE});
  if (!told && over[fd])
    write_all(fd, "\x1b[K", 3);
  return told || write_all(fd, p, n) ? (ssize_t)n : 0;
}

#ifdef __GLIBC__

static void replace_stream(FILE **stream, int fd, int mode) {
  static const cookie_io_functions_t calls = {.write = write_stream};
  FILE *ours = fopencookie((void *)(intptr_t)fd, "w", calls);
  if (ours == NULL)
    return;
  fflush(*stream);
  setvbuf(ours, NULL, mode, BUFSIZ);
  *stream = ours;
}

void nsh_output_install(void) {
  replace_stream(&stdout, STDOUT_FILENO, _IOLBF);
  replace_stream(&stderr, STDERR_FILENO, _IONBF);
}

#else
void nsh_output_install(void) {
}
#endif

void nsh_output_over_line(void) {
  for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
    over[fd] = isatty(fd);
}

void nsh_output_to(bool (*fn)(int fd, ns_bytes piece)) {
  tell = fn;
}
