/*
** Reads /proc/self/fd; where that cannot be read nothing is found.
*/
#include "process/sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* Calls 'fn' for each socket but those of input and output. */
static void each(void (*fn)(void *arg, int fd, ino_t inode), void *arg) {
  DIR *folder = opendir("/proc/self/fd");
  const struct dirent *entry;
  while (folder != NULL && (entry = readdir(folder)) != NULL) {
    struct stat st;
    int fd = atoi(entry->d_name);
    if (fd > 2 && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode))
      fn(arg, fd, st.st_ino);
  }
  if (folder != NULL)
    closedir(folder);
}

static void note(void *arg, int fd, ino_t inode) {
  nsh_sockets *s = arg;
  (void)fd;
  if (s->n < NSH_SOCKETS_MAX)
    s->items[s->n++] = inode;
}

void nsh_sockets_note(nsh_sockets *s) {
  s->n = 0;
  each(note, s);
}

/* Where it leads to, as far as can be said. */
static void describe(int fd, ns_buf *text) {
  union {
    struct sockaddr_storage any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
    struct sockaddr_un un;
  } to = {0};
  char host[INET6_ADDRSTRLEN] = "?";
  socklen_t n = sizeof to;
  if (getpeername(fd, (struct sockaddr *)&to, &n) != 0)
    ns_buf_addf(text, "descriptor %d (not connected)", fd);
  else if (to.any.ss_family == AF_INET)
    ns_buf_addf(text, "descriptor %d (%s:%u)", fd,
                inet_ntop(AF_INET, &to.in.sin_addr, host, sizeof host),
                ntohs(to.in.sin_port));
  else if (to.any.ss_family == AF_INET6)
    ns_buf_addf(text, "descriptor %d ([%s]:%u)", fd,
                inet_ntop(AF_INET6, &to.in6.sin6_addr, host, sizeof host),
                ntohs(to.in6.sin6_port));
  else
    ns_buf_addf(text, "descriptor %d (%.100s)", fd,
                to.un.sun_path[0] != '\0' ? to.un.sun_path : "unix socket");
}

typedef struct search {
  const nsh_sockets *then;
  bool (*ours)(int fd);
  ns_buf *text;
} search;

static void compare(void *arg, int fd, ino_t inode) {
  const search *s = arg;
  for (size_t i = 0; i < s->then->n; i++)
    if (s->then->items[i] == inode)
      return;
  if (s->ours(fd))
    return;
  if (s->text->n > 0)
    ns_buf_adds(s->text, ", ");
  describe(fd, s->text);
}

void nsh_sockets_since(const nsh_sockets *then, bool (*ours)(int fd), ns_buf *text) {
  search s = {then, ours, text};
  each(compare, &s);
}
