/*
** Addresses of HTTP servers: their text, sockets that listen there, and asking the server of
** another host.
**
** Invariant: each wait for another server ends with its time limit. (Not asserted: it is about
** time.)
*/
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base.h"
#include "http/http.h"

/* Cuts "HOST:PORT", "[HOST]:PORT", ":PORT" or "PORT" in two; without a host it is the loopback. */
static bool cut_address(const char *text, char host[NSH_ADDRESS], const char **port) {
  const char *colon = strrchr(text, ':');
  size_t n = colon != NULL ? (size_t)(colon - text) : 0;
  const char *from = text;
  *port = colon != NULL ? colon + 1 : text;
  if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
    from++;
    n -= 2;
  }
  snprintf(host, NSH_ADDRESS, "%.*s", (int)n, n > 0 ? from : "");
  if (n == 0)
    snprintf(host, NSH_ADDRESS, "127.0.0.1");
  return n < NSH_ADDRESS && **port != '\0' && strspn(*port, "0123456789") == strlen(*port) &&
         strtol(*port, NULL, 10) <= 65535 && strlen(*port) <= 5;
}

static ns_status find_address(const char *option, const char *text, struct addrinfo **found,
                              ns_err *err) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  char host[NSH_ADDRESS];
  const char *port;
  int failed;
  *found = NULL;
  if (!cut_address(text, host, &port))
    return ns_fail(err, NS_EINVALID, "%s: '%s' is not ADDRESS:PORT, as 127.0.0.1:9108 is", option,
                   text);
  failed = getaddrinfo(host, port, &hints, found);
  return failed == 0 ? NS_OK
                     : ns_fail(err, NS_EINVALID, "%s: '%s' is no address: %s", option, host,
                               gai_strerror(failed));
}

/* A socket that listens there; -1, and errno. */
static int listen_at(const struct addrinfo *a) {
  int on = 1;
  int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
  if (fd < 0)
    return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 64) == 0)
    return fd;
  on = errno;
  close(fd);
  errno = on;
  return -1;
}

/* What it has got, which tells the port when none was named. */
static void name_address(int fd, char out[NSH_ADDRESS]) {
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  char host[80], port[8];
  out[0] = '\0';
  if (getsockname(fd, (struct sockaddr *)&a, &n) == 0 &&
      getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) == 0)
    snprintf(out, NSH_ADDRESS, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

int nsh_address_listen(const char *option, const char *text, char out[NSH_ADDRESS], ns_err *err) {
  struct addrinfo *found;
  int fd;
  if (find_address(option, text, &found, err) != NS_OK)
    return -1;
  fd = listen_at(found);
  freeaddrinfo(found);
  if (fd < 0)
    ns_fail(err, NS_EINVALID, "%s: cannot listen on %s: %s", option, text, strerror(errno));
  else
    name_address(fd, out);
  return fd;
}

/* ------------------------------------------------------------ asking another */

#define TEXT_MAX 4096

/* Connects, or -1 and errno; no wait is longer than 'timeout'. */
static int connect_to(const struct addrinfo *a, int64_t timeout) {
  struct timeval t = {(time_t)(timeout / NS_SECOND), (suseconds_t)(timeout % NS_SECOND)};
  int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
  int why;
  if (fd < 0)
    return -1;
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
    return fd;
  why = errno == EINPROGRESS ? ETIMEDOUT : errno;
  close(fd);
  errno = why;
  return -1;
}

/* Sends the question and reads to the end. False: errno. */
static bool exchange_text(int fd, const char *path, ns_buf *text) {
  ns_buf request = NS_BUF_INIT;
  char *room;
  ssize_t n;
  ns_buf_addf(&request, "GET %s HTTP/1.0\r\n\r\n", path);
  n = send(fd, request.p, request.n, MSG_NOSIGNAL);
  ns_buf_free(&request);
  while (n > 0 && text->n < TEXT_MAX && (room = ns_buf_room(text, TEXT_MAX)) != NULL) {
    n = recv(fd, room, TEXT_MAX, 0);
    text->n += n > 0 ? (size_t)n : 0;
  }
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    errno = ETIMEDOUT;
  return n >= 0;
}

/* The status, and the text without its head; 0: that is no answer of HTTP. */
static int take_status(ns_buf *text) {
  int status = 0;
  char *body;
  ns_buf_addc(text, '\0');
  body = text->oom ? NULL : strstr(text->p, "\r\n\r\n");
  if (body == NULL || strncmp(text->p, "HTTP/1.", 7) != 0)
    return 0;
  status = (int)strtol(text->p + 8, NULL, 10);
  text->n = strlen(body + 4);
  memmove(text->p, body + 4, text->n);
  return status;
}

ns_status nsh_http_get(const char *address, const char *path, int64_t timeout, int *status,
                       ns_buf *text, ns_err *err) {
  struct addrinfo *found;
  ns_status st = find_address("--http", address, &found, err);
  int fd;
  *status = 0;
  if (st != NS_OK)
    return st;
  fd = connect_to(found, timeout);
  freeaddrinfo(found);
  if (fd < 0)
    return ns_fail(err, NS_EGONE, "%s: %s", address, strerror(errno));
  if (!exchange_text(fd, path, text))
    st = ns_fail(err, NS_EGONE, "%s does not answer: %s", address, strerror(errno));
  else if ((*status = take_status(text)) == 0)
    st = ns_fail(err, NS_EGONE, "%s does not speak HTTP", address);
  close(fd);
  return st;
}
