/*
** The name is an abstract address of a unix socket: the kernel gives it to one
** process of the machine (or the container), and takes it back with the process.
** There is no file that could be left, or be removed.
*/
#include "process/single.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ns_hash.h"

int nsh_single_take(ns_bytes name) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  int n = snprintf(at.sun_path + 1, sizeof at.sun_path - 1,
                   "nightshift-single-%016" PRIx64, ns_hash(name));
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int why;
  if (fd < 0)
    return -1;
  if (bind(fd, (struct sockaddr *)&at,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
    return 1;
  why = errno;
  close(fd);
  errno = why;
  return why == EADDRINUSE ? 0 : -1;
}
