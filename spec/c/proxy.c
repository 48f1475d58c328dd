/*
** A proxy between the clients of a spec and their server, which breaks
** connections in exactly chosen ways.
**
** usage: proxy LISTEN TARGET FIFO
**   LISTEN  path of a unix socket to make, or "tcp": a port of 127.0.0.1, or
**           "tcp:ADDRESS": of that one
**   TARGET  path of the server's unix socket
**   FIFO    commands are lines in FIFO.in; each is answered by one in FIFO.out
** Prints "listening", with the port, when it is ready. The commands:
**   cut N          when N more bytes have passed, in any direction and on any connection,
**                  that connection is closed on both sides
**   commit before N | commit after N
**                  the Nth COMMIT is not passed on | its reply is not; a prepared
**                  statement that begins with BEGIN NOT ATOMIC counts as one
**   lasting        the next cut goes on: new connections are refused
**   fired          "yes" when the cut has happened; disarms, and ends "lasting"
**   trace | report forgets | tells the packets that passed: c or s (who sent it;
**                  C: a COMMIT) and how many bytes had passed at its end
**   freeze | strand   all connections | those there are now stand still: open,
**                  but nothing passes, until "thaw"
**   delay MS       each reply comes that much later; it may have a fraction
**   close          closes all connections
**   refuse | admit new connections are closed at once | are served again
**   refuse N       the next N connections are closed at once
**   turns          how often a client has waited since the last time, for each connection in
**                  the order of their coming; exact while there is a delay
**   accepts        how many connections came since the last time, and how many
**                  of them within the busiest second
** One thread, one loop: when a command is answered it is in force.
*/
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PAIRS 256
#define EDGES 4096
#define TIMES 65536
#define WHOLES 32

/* Where one direction of a connection is inside its packets. */
typedef struct framing {
  unsigned char start[21]; /* header, command, and room for WHOLE */
  size_t have;             /* bytes of the packet so far */
} framing;

typedef struct pair {
  int client, server; /* -1: free */
  bool doomed;        /* its COMMIT is on the way: drop the reply */
  bool frozen;
  bool asked;         /* the client has sent something, or waits for the greeting */
  size_t number;      /* of the connection, modulo PAIRS */
  long long held;     /* a reply waits until then, µs; 0: none */
  framing up, down;
  bool preparing; /* a statement that commits; the next reply has its number */
  unsigned char whole[WHOLES][4]; /* the numbers of the last so many; 0: none */
  size_t nwhole;                  /* how many there were */
} pair;

typedef struct edge {
  char who;
  long long at;
} edge;

static pair pairs[PAIRS];
static const char *target;
static long long passed, limit = -1; /* bytes; -1: no cut is armed */
static int commits;                  /* which COMMIT to cut; 0: none */
static long long refusals;           /* connections to be closed at once */
static bool cut_after, fired, lasting, refusing, freezing;
static long long delay; /* µs */
static edge edges[EDGES];
static size_t nedges;
static long long times[TIMES]; /* ms of each accept */
static size_t ntimes;
static unsigned turns[PAIRS]; /* waits of each connection */
static size_t numbered;       /* connections so far */

static long long now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (long long)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ------------------------------------------------------------ connections */

static int unix_socket(const char *path, struct sockaddr_un *a) {
  memset(a, 0, sizeof *a);
  a->sun_family = AF_UNIX;
  snprintf(a->sun_path, sizeof a->sun_path, "%s", path);
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static int listen_unix(const char *path) {
  struct sockaddr_un a;
  int fd = unix_socket(path, &a);
  if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 512))
    return -1;
  puts("listening");
  return fd;
}

static int listen_tcp(const char *address) {
  struct sockaddr_in a = {.sin_family = AF_INET,
                          .sin_addr.s_addr = inet_addr(address)};
  socklen_t size = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(fd, (struct sockaddr *)&a, size) || listen(fd, 512) ||
      getsockname(fd, (struct sockaddr *)&a, &size))
    return -1;
  printf("listening %d\n", ntohs(a.sin_port));
  return fd;
}

static void hang_up(pair *p) {
  close(p->client);
  close(p->server);
  p->client = p->server = -1;
}

static void admit(int listener) {
  struct sockaddr_un a;
  int client = accept(listener, NULL, NULL);
  int server;
  pair *p = pairs;
  if (ntimes < TIMES)
    times[ntimes++] = now_us() / 1000;
  while (p < pairs + PAIRS && p->client >= 0)
    p++;
  server = unix_socket(target, &a);
  if (refusing || refusals > 0 || p == pairs + PAIRS ||
      connect(server, (struct sockaddr *)&a, sizeof a)) {
    close(client);
    close(server);
    refusals -= refusals > 0;
    return;
  }
  *p = (pair){.client = client, .server = server, .frozen = freezing, .asked = true,
              .number = numbered++ % PAIRS};
}

/* ------------------------------------------------------------------ bytes */

static void fire(pair *p) {
  hang_up(p);
  limit = -1;
  commits = 0;
  fired = true;
  refusing = refusing || lasting;
}

#define WHOLE "BEGIN NOT ATOMIC"

/* Begins a packet of a client here that commits: a COM_QUERY that says exactly
** COMMIT, or the execution of a statement that does. */
static bool is_commit(const pair *p, const unsigned char *b, size_t n) {
  if (n >= 11 && b[0] == 7 && b[4] == 3)
    return memcmp(b + 5, "COMMIT", 6) == 0;
  for (size_t i = 0; n >= 9 && b[4] == 0x17 && i < p->nwhole && i < WHOLES; i++)
    if (memcmp(b + 5, p->whole[i], 4) == 0)
      return true;
  return false;
}

static size_t packet_size(const unsigned char *b) {
  return 4 + (b[0] | (size_t)b[1] << 8 | (size_t)b[2] << 16);
}

/* Where in what has just come a COMMIT begins and ends; 'n': nowhere. Packets may
** come together, but this one comes whole. */
static size_t find_commit(const pair *p, const unsigned char *b, size_t n,
                          size_t *end) {
  size_t size;
  for (size_t i = 0; p->up.have == 0 && n - i >= 5; i += size) {
    size = packet_size(b + i);
    *end = i + size;
    if (*end > n)
      break;
    if (is_commit(p, b + i, n - i))
      return i;
  }
  return n;
}

/* Learns the numbers of statements that commit. */
static void learn(pair *p, char who, const framing *f) {
  if (who == 'c' && f->start[4] == 0x16)
    p->preparing = memcmp(f->start + 5, WHOLE, sizeof WHOLE - 1) == 0;
  else if (who == 's' && p->preparing) {
    memcpy(p->whole[p->nwhole++ % WHOLES], f->start + 5, 4);
    p->preparing = false;
  }
}

/* Follows the packets of one direction, noting where each ends. */
static void follow(pair *p, char who, const unsigned char *b, size_t n) {
  framing *f = who == 'c' ? &p->up : &p->down;
  long long start = passed - (long long)n;
  for (size_t i = 0; i < n; i++) {
    bool commits_it;
    if (f->have < sizeof f->start)
      f->start[f->have] = b[i];
    f->have++;
    if (f->have < 4 || f->have < packet_size(f->start))
      continue;
    commits_it = who == 'c' && is_commit(p, f->start, f->have);
    if (nedges < EDGES)
      edges[nedges++] = (edge){commits_it ? 'C' : who, start + (long long)i + 1};
    learn(p, who, f);
    f->have = 0;
  }
}

/* Passes on what may pass; false: the connection is over. */
static bool pass(pair *p, char who, const unsigned char *b, size_t n) {
  int to = who == 'c' ? p->server : p->client;
  bool cut = limit >= 0 && passed + (long long)n >= limit;
  if (cut)
    n = (size_t)(limit - passed);
  for (size_t sent = 0; sent < n;) {
    ssize_t k = write(to, b + sent, n - sent);
    if (k <= 0)
      return false;
    sent += (size_t)k;
  }
  passed += (long long)n;
  follow(p, who, b, n);
  if (cut)
    fire(p);
  return true;
}

static void from_client(pair *p) {
  static unsigned char b[65536];
  ssize_t n = read(p->client, b, sizeof b);
  size_t at;
  size_t end;
  bool cut;
  if (n <= 0) {
    hang_up(p);
    return;
  }
  at = commits > 0 ? find_commit(p, b, (size_t)n, &end) : (size_t)n;
  cut = at < (size_t)n && --commits == 0;
  if (cut) { /* what comes behind it is lost */
    p->doomed = cut_after;
    n = (ssize_t)(cut_after ? end : at);
  }
  p->asked = true;
  if (!pass(p, 'c', b, (size_t)n))
    hang_up(p);
  else if (cut && !cut_after)
    fire(p);
}

static void from_server(pair *p) {
  static unsigned char b[65536];
  ssize_t n;
  if (delay > 0 && p->held == 0) {
    p->held = now_us() + delay;
    return;
  }
  p->held = 0;
  turns[p->number] += p->asked;
  p->asked = false;
  n = read(p->server, b, sizeof b);
  if (n > 0 && p->doomed)
    fire(p);
  else if (n <= 0 || !pass(p, 's', b, (size_t)n))
    hang_up(p);
}

/* --------------------------------------------------------------- commands */

static void each_pair(bool close_it, bool frozen) {
  for (pair *p = pairs; p < pairs + PAIRS; p++)
    if (p->client >= 0) {
      p->frozen = frozen;
      if (close_it)
        hang_up(p);
    }
}

static void report(FILE *out) {
  for (size_t i = 0; i < nedges; i++)
    fprintf(out, "%c%lld ", edges[i].who, edges[i].at);
  fputc('\n', out);
}

static void accepts(FILE *out) {
  size_t most = 0;
  for (size_t i = 0, first = 0; i < ntimes; i++) {
    while (times[i] - times[first] >= 1000)
      first++;
    if (i + 1 - first > most)
      most = i + 1 - first;
  }
  fprintf(out, "%zu %zu\n", ntimes, most);
  ntimes = 0;
}

static void tell_turns(FILE *out) {
  for (size_t i = 0; i < numbered && i < PAIRS; i++)
    fprintf(out, "%u ", turns[i]);
  fputc('\n', out);
  memset(turns, 0, sizeof turns);
}

static void tell_fired(FILE *out) {
  fprintf(out, "%s\n", fired ? "yes" : "no");
  fired = lasting = false;
  limit = -1;
  commits = 0;
}

/* Commands without a number. Returns false for one it does not know. */
static bool do_word(const char *word) {
  if (strcmp(word, "lasting") == 0)
    lasting = true;
  else if (strcmp(word, "trace") == 0)
    passed = 0, nedges = 0;
  else if (strcmp(word, "freeze") == 0)
    freezing = true, each_pair(false, true);
  else if (strcmp(word, "strand") == 0)
    each_pair(false, true);
  else if (strcmp(word, "thaw") == 0)
    freezing = false, each_pair(false, false);
  else if (strcmp(word, "close") == 0)
    each_pair(true, false);
  else if (strcmp(word, "refuse") == 0)
    refusing = true;
  else if (strcmp(word, "admit") == 0)
    refusing = false;
  else
    return false;
  return true;
}

static void command(const char *line, FILE *out) {
  long long n;
  double ms;
  char word[16] = "";
  bool known = true;
  sscanf(line, "%15s", word);
  if (strcmp(word, "report") == 0)
    report(out);
  else if (strcmp(word, "accepts") == 0)
    accepts(out);
  else if (strcmp(word, "turns") == 0)
    tell_turns(out);
  else if (strcmp(word, "fired") == 0)
    tell_fired(out);
  else {
    if (sscanf(line, "cut %lld", &n) == 1)
      passed = 0, fired = false, limit = n;
    else if (sscanf(line, "delay %lf", &ms) == 1)
      delay = (long long)(ms * 1000);
    else if (sscanf(line, "refuse %lld", &n) == 1)
      refusals = n;
    else if (sscanf(line, "commit %15s %lld", word, &n) == 2)
      fired = false, commits = (int)n, cut_after = strcmp(word, "after") == 0;
    else
      known = do_word(word);
    fputs(known ? "ok\n" : "unknown\n", out);
  }
  fflush(out);
}

/* ------------------------------------------------------------------- loop */

/* What to wait for on one side; -1 is left out by poll. */
static int wanted(const pair *p, int fd, bool server, long long now, long long *wait) {
  if (fd < 0 || p->frozen)
    return -1;
  if (!server || p->held <= now)
    return fd;
  if (*wait < 0 || p->held - now < *wait)
    *wait = p->held - now;
  return -1;
}

static void turn(int listener, FILE *in, FILE *out) {
  static struct pollfd fds[2 + 2 * PAIRS];
  char line[80];
  struct timespec rest;
  long long wait = -1; /* µs */
  long long now = now_us();
  fds[0] = (struct pollfd){freezing ? -1 : listener, POLLIN, 0};
  fds[1] = (struct pollfd){fileno(in), POLLIN, 0};
  for (int i = 0; i < PAIRS; i++) {
    pair *p = &pairs[i];
    fds[2 + 2 * i] =
        (struct pollfd){wanted(p, p->client, false, now, &wait), POLLIN, 0};
    fds[3 + 2 * i] =
        (struct pollfd){wanted(p, p->server, true, now, &wait), POLLIN, 0};
  }
  rest = (struct timespec){(time_t)(wait / 1000000), (long)(wait % 1000000 * 1000)};
  if (ppoll(fds, 2 + 2 * PAIRS, wait < 0 ? NULL : &rest, NULL) < 0)
    return;
  for (int i = 0; i < PAIRS; i++) {
    if (fds[2 + 2 * i].revents && pairs[i].client >= 0)
      from_client(&pairs[i]);
    if (fds[3 + 2 * i].revents && pairs[i].server >= 0)
      from_server(&pairs[i]);
  }
  if (fds[0].revents)
    admit(listener);
  if (fds[1].revents && fgets(line, sizeof line, in) != NULL)
    command(line, out);
}

/* Our own writing end keeps the commands from ending when a spec closes its. */
static FILE *fifo(const char *prefix, const char *end, const char *mode) {
  char path[256];
  int fd;
  snprintf(path, sizeof path, "%s.%s", prefix, end);
  fd = open(path, O_RDWR | O_CLOEXEC);
  return fd >= 0 ? fdopen(fd, mode) : NULL;
}

int main(int argc, char **argv) {
  int listener;
  FILE *in;
  FILE *out;
  if (argc != 4) {
    fputs("usage: proxy LISTEN|tcp TARGET FIFO\n", stderr);
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < PAIRS; i++)
    pairs[i].client = pairs[i].server = -1;
  target = argv[2];
  in = fifo(argv[3], "in", "r");
  out = fifo(argv[3], "out", "w");
  listener = strcmp(argv[1], "tcp") == 0       ? listen_tcp("127.0.0.1")
             : strncmp(argv[1], "tcp:", 4) == 0 ? listen_tcp(argv[1] + 4)
                                                : listen_unix(argv[1]);
  if (in == NULL || out == NULL || listener < 0) {
    perror("proxy");
    return 1;
  }
  setvbuf(in, NULL, _IONBF, 0);
  fflush(stdout);
  for (;;)
    turn(listener, in, out);
}
