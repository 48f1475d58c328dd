/*
** A proxy on unix sockets that cuts one connection at a chosen moment of a
** COMMIT: the ambiguity that every client has to resolve.
**
** usage: cut LISTEN TARGET before|after NTH
**   before  the NTH COMMIT is not passed on; both sides are closed
**   after   it is passed on, and its reply is thrown away
** Prints "listening" when it is ready and "cut" when it has cut. Everything
** else passes unchanged, the reconnects too.
*/
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PAIRS 64

typedef struct pair {
  int client, server; /* -1: free */
  int doomed;         /* its COMMIT is on the way: drop the reply */
} pair;

static pair pairs[PAIRS];
static const char *target;
static int after, nth;

static int address(const char *path, struct sockaddr_un *a) {
  memset(a, 0, sizeof *a);
  a->sun_family = AF_UNIX;
  snprintf(a->sun_path, sizeof a->sun_path, "%s", path);
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static void say(const char *word) {
  puts(word);
  fflush(stdout);
}

static void hang_up(pair *p) {
  close(p->client);
  close(p->server);
  p->client = p->server = -1;
}

static void admit(int listener) {
  struct sockaddr_un a;
  int client = accept(listener, NULL, NULL);
  int server = address(target, &a);
  pair *p = pairs;
  while (p < pairs + PAIRS && p->client >= 0)
    p++;
  if (p == pairs + PAIRS || connect(server, (struct sockaddr *)&a, sizeof a)) {
    close(client);
    close(server);
    return;
  }
  *p = (pair){client, server, 0};
}

/* A COM_QUERY packet that says exactly COMMIT. */
static int is_commit(const char *b, ssize_t n) {
  return n == 11 && b[4] == 3 && memcmp(b + 5, "COMMIT", 6) == 0;
}

static int pass(int from, int to, char *b, size_t size, ssize_t *n) {
  *n = read(from, b, size);
  return *n > 0 && (to < 0 || write(to, b, (size_t)*n) == *n);
}

static void from_client(pair *p) {
  static char b[65536];
  ssize_t n;
  if (!pass(p->client, -1, b, sizeof b, &n)) {
    hang_up(p);
    return;
  }
  if (is_commit(b, n) && --nth == 0) {
    p->doomed = 1;
    if (!after) {
      hang_up(p);
      say("cut");
      return;
    }
  }
  if (write(p->server, b, (size_t)n) != n)
    hang_up(p);
}

static void from_server(pair *p) {
  static char b[65536];
  ssize_t n;
  int doomed = p->doomed;
  if (!pass(p->server, doomed ? -1 : p->client, b, sizeof b, &n) || doomed) {
    hang_up(p);
    if (doomed)
      say("cut");
  }
}

static void turn(int listener) {
  struct pollfd fds[1 + 2 * PAIRS];
  fds[0] = (struct pollfd){listener, POLLIN, 0};
  for (int i = 0; i < PAIRS; i++) {
    fds[1 + 2 * i] = (struct pollfd){pairs[i].client, POLLIN, 0};
    fds[2 + 2 * i] = (struct pollfd){pairs[i].server, POLLIN, 0};
  }
  if (poll(fds, 1 + 2 * PAIRS, -1) < 0)
    return;
  for (int i = 0; i < PAIRS; i++) {
    if (fds[1 + 2 * i].revents && pairs[i].client >= 0)
      from_client(&pairs[i]);
    if (fds[2 + 2 * i].revents && pairs[i].server >= 0)
      from_server(&pairs[i]);
  }
  if (fds[0].revents)
    admit(listener);
}

int main(int argc, char **argv) {
  struct sockaddr_un a;
  int listener;
  if (argc != 5) {
    fputs("usage: cut LISTEN TARGET before|after NTH\n", stderr);
    return 2;
  }
  for (int i = 0; i < PAIRS; i++)
    pairs[i].client = pairs[i].server = -1;
  target = argv[2];
  after = strcmp(argv[3], "after") == 0;
  nth = atoi(argv[4]);
  listener = address(argv[1], &a);
  if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 64)) {
    perror("cut");
    return 1;
  }
  say("listening");
  for (;;)
    turn(listener);
}
