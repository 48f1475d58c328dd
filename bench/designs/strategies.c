/*
** Takes rows of one table by one design with many workers, and counts.
**
**   strategies SOCKET DATABASE URL work|death WAY TABLE [OPTION=NUMBER…]
** WAY is one of
**   bare        the published SQL of the table's design
**   outside     … of queue_table, with the state written after the lock is gone
**   own         Nightshift's own tables, queue "bench"
** work: 'workers' take rows for 'ms' and hold each for 'job_us'; the table has more rows than
** that. death: one worker takes rows and is killed; the time until another has one of them.
** OPTION is workers, batch, ms, job_us, gap_us, overdue and limit (seconds), and first, rows:
** the ids of the table. Prints one JSON line.
**
** Every worker is a process of its own, as it would be on many machines; their counters are in
** shared memory. A job's executions are counted one by one.
**
** Invariant: a counted event has happened before the end of the time; a longer claim is one of
** the times of claims nevertheless.
*/
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <mysql.h>

#include "bench.h"

#define TIMES_MAX 1000000 /* claims with a time that is kept */
#define AT_ONCE 8         /* workers that connect at one time */
#define LEAD 0.3          /* seconds in which the workers begin one after the other */
#define LINGER 0.3        /* seconds that a statement has to end in */
#define LEAVE 10.0        /* … and a handle, to give back its claims */

/* The state of one worker. */
typedef struct seat {
  pid_t pid;            /* 0: gone */
  atomic_ulong session; /* 0: not to be killed */
  _Atomic double asks;  /* since when it has been claiming; 0: it is not */
} seat;

/* The memory that the workers share. */
typedef struct board {
  atomic_size_t ready, ended, claims, empty, refused, undone;
  _Atomic double stop; /* 0: not begun */
  _Atomic double begun; /* the begin of counting */
  atomic_llong held;   /* a row of the worker that is killed; 0: none yet */
  _Atomic double found; /* when another had it */
} board;

static crew_ask asked = {.workers = 1, .batch = 1, .seconds = 1, .job = 0.005,
                         .overdue = 120, .limit = 5};
static bool until_death;
static const crew_way *way;
static long long first_id = 1;
static size_t nrows = 1;
static board *b;
static seat *seats; /* shared, one for each worker */
static atomic_ushort *runs; /* of each row */
static float *times;        /* ms, of claims */

void crew_die(const char *what, const char *why) {
  fprintf(stderr, "strategies: %s: %s\n", what, why);
  exit(1);
}

static void *share(size_t size) {
  void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
  if (p == MAP_FAILED)
    crew_die("start", "no memory");
  return p;
}

void crew_nap(double seconds) {
  struct timespec t = {.tv_sec = (time_t)seconds,
                       .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
  if (seconds > 0)
    nanosleep(&t, NULL);
}

/* ------------------------------------------------------------- the workers */

/* Events while the workers begin are not counted. */
static bool counts(void) {
  double now = bench_clock();
  return now >= b->begun && now < b->stop;
}

static void note_time(double seconds) {
  size_t i = atomic_fetch_add(&b->claims, 1);
  if (i < TIMES_MAX)
    times[i] = (float)(seconds * 1e3);
}

static void execute(int64_t id) {
  if (id < first_id || (size_t)(id - first_id) >= nrows)
    crew_die("run", "a row that was not there");
  atomic_fetch_add(&runs[id - first_id], 1);
  crew_nap(asked.job);
}

static void run_claimed(crew_worker *w, const int64_t *ids, size_t n) {
  for (size_t i = 0; i < n && bench_clock() < b->stop; i++) {
    execute(ids[i]);
    bool marked = way->done(w, i);
    if (counts())
      atomic_fetch_add(marked ? &b->ended : &b->undone, 1);
  }
}

static void work(crew_worker *w, seat *own) {
  int64_t ids[CREW_BATCH];
  crew_nap(LEAD * (double)(own - seats) / (double)asked.workers);
  while (bench_clock() < b->stop) {
    size_t refused = way->refused(w);
    double begun = bench_clock();
    own->asks = begun;
    size_t n = way->claim(w, ids);
    own->asks = 0;
    if (n > 0) {
      if (bench_clock() >= b->begun)
        note_time(bench_clock() - begun);
      run_claimed(w, ids, n);
    } else if (way->refused(w) == refused) {
      atomic_fetch_add(&b->empty, 1);
      way->rest(w, b->stop);
    }
  }
}

/* Takes rows and keeps them. */
static void hold(crew_worker *w, seat *own) {
  (void)own;
  int64_t ids[CREW_BATCH];
  while (way->claim(w, ids) == 0)
    crew_nap(0.01);
  b->held = ids[0];
  for (;;)
    pause();
}

/* Waits for the rows of the worker that is killed. */
static void inherit(crew_worker *w, seat *own) {
  (void)own;
  int64_t ids[CREW_BATCH];
  while (bench_clock() < b->stop) {
    if (way->claim(w, ids) > 0) {
      b->found = bench_clock();
      return;
    }
    way->rest(w, b->stop);
  }
}

/* A worker begins when all are connected. */
static seat *start(size_t number, void (*job)(crew_worker *, seat *)) {
  seat *own = &seats[number];
  pid_t parent = getpid(), pid = fork();
  if (pid != 0) {
    own->pid = pid;
    return own;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent)
    _exit(1);
  srand((unsigned)getpid());
  crew_worker *w = way->open(&asked, number);
  own->session = way->session(w);
  atomic_fetch_add(&b->ready, 1);
  while (job != hold && b->stop == 0)
    crew_nap(0.001);
  job(w, own);
  atomic_fetch_add(&b->refused, way->refused(w));
  way->close(w);
  _exit(0);
}

/* Waits until so many are connected, or 'what' is true. */
static void await_ready(size_t n) {
  while (b->ready < n) {
    int status;
    if (waitpid(-1, &status, WNOHANG) > 0)
      crew_die("start", "a worker has ended");
    crew_nap(0.002);
  }
}

/* --------------------------------------------------------------- the server */

static MYSQL *server;

static long long status_of(const char *name) {
  char sql[100];
  snprintf(sql, sizeof sql, "SHOW GLOBAL STATUS LIKE '%s'", name);
  if (mysql_real_query(server, sql, strlen(sql)) != 0)
    crew_die(sql, mysql_error(server));
  MYSQL_RES *rows = mysql_store_result(server);
  MYSQL_ROW row = mysql_fetch_row(rows);
  long long n = row != NULL ? strtoll(row[1], NULL, 10) : 0;
  mysql_free_result(rows);
  return n;
}

static void connect_server(void) {
  server = mysql_init(NULL);
  if (!mysql_real_connect(server, NULL, NULL, NULL, asked.database, 0,
                          asked.socket, 0))
    crew_die("connect", mysql_error(server));
}

/* ------------------------------------------------------------- their end */

/* A statement that takes longer than the time there was would go on without its
** worker. Its claim counts as long as it has taken until now. */
static void cut_off(seat *own) {
  char sql[40];
  kill(own->pid, SIGKILL);
  if (own->asks > 0)
    note_time(bench_clock() - own->asks);
  snprintf(sql, sizeof sql, "KILL %lu", (unsigned long)own->session);
  if (own->session != 0)
    mysql_real_query(server, sql, strlen(sql)); /* or it has just ended */
}

static bool is_late(const seat *own) {
  return bench_clock() > b->stop + (own->session != 0 ? LINGER : LEAVE);
}

/* Waits for all workers, not for ever; 0, or 1 when one has failed. */
static int gather(size_t n) {
  size_t left = n;
  int failed = 0;
  while (left > 0) {
    crew_nap(0.001);
    for (size_t i = 0; i < n; i++) {
      int status = 0;
      if (seats[i].pid == 0)
        continue;
      if (waitpid(seats[i].pid, &status, WNOHANG) != 0) {
        failed |= WIFEXITED(status) && WEXITSTATUS(status) != 0;
        seats[i].pid = 0;
        left--;
      } else if (is_late(&seats[i])) {
        cut_off(&seats[i]);
      }
    }
  }
  return failed;
}

/* ---------------------------------------------------------------- figures */

static int by_size(const void *x, const void *y) {
  float a = *(const float *)x, c = *(const float *)y;
  return (a > c) - (a < c);
}

static double time_at(size_t n, double share) {
  size_t i = (size_t)((double)n * share);
  return n == 0 ? 0 : (double)times[i < n ? i : n - 1];
}

/* Executions beyond a row's first; '*begun' gets the number of rows that were run. */
static size_t count_again(size_t *begun) {
  size_t n = 0;
  *begun = 0;
  for (size_t i = 0; i < nrows; i++) {
    n += runs[i] > 1 ? runs[i] - 1u : 0;
    *begun += runs[i] > 0;
  }
  return n;
}

static void print_work(long long waits, long long deadlocks) {
  size_t n = b->claims < TIMES_MAX ? b->claims : TIMES_MAX;
  size_t begun, again = count_again(&begun);
  qsort(times, n, sizeof *times, by_size);
  printf("{\"workers\":%zu,\"seconds\":%.3f,\"jobs\":%zu,\"rate\":%.1f,"
         "\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"claims\":%zu,\"empty\":%zu,"
         "\"refused\":%zu,\"undone\":%zu,\"begun\":%zu,\"again\":%zu,\"waits\":%lld,"
         "\"deadlocks\":%lld}\n",
         asked.workers, asked.seconds, (size_t)b->ended,
         (double)b->ended / asked.seconds, time_at(n, 0.5), time_at(n, 0.99), n,
         (size_t)b->empty, (size_t)b->refused, (size_t)b->undone, begun, again,
         waits, deadlocks);
}

static int measure_work(void) {
  for (size_t i = 0; i < asked.workers; i++) {
    await_ready(i < AT_ONCE ? 0 : i - AT_ONCE);
    start(i, work);
  }
  await_ready(asked.workers);
  connect_server();
  b->begun = bench_clock() + LEAD;
  b->stop = b->begun + asked.seconds;
  crew_nap(LEAD);
  long long waits = status_of("Innodb_row_lock_waits");
  long long deadlocks = status_of("Innodb_deadlocks");
  crew_nap(b->stop - bench_clock());
  waits = status_of("Innodb_row_lock_waits") - waits;
  deadlocks = status_of("Innodb_deadlocks") - deadlocks;
  int failed = gather(asked.workers);
  if (!failed)
    print_work(waits, deadlocks);
  mysql_close(server);
  return failed;
}

/* The other worker is waiting when the first is killed. */
static int measure_death(void) {
  seat *victim = start(1, hold);
  while (b->held == 0) {
    if (waitpid(victim->pid, NULL, WNOHANG) > 0)
      crew_die("start", "nothing was held");
    crew_nap(0.002);
  }
  start(0, inherit);
  connect_server();
  await_ready(2);
  b->stop = bench_clock() + asked.limit + 1;
  crew_nap(1);
  if (b->found > 0)
    crew_die("death", "the row was free while its worker lived");
  double killed = bench_clock();
  kill(victim->pid, SIGKILL);
  waitpid(victim->pid, NULL, 0);
  int failed = gather(1);
  if (b->found > 0)
    printf("{\"free_s\":%.3f}\n", b->found - killed);
  else
    printf("{\"limit_s\":%.1f}\n", asked.limit);
  return failed;
}

/* ------------------------------------------------------------------- main */

static void read_option(const char *text) {
  const char *equals = strchr(text, '=');
  size_t n = equals != NULL ? (size_t)(equals - text) : 0;
  long long value = equals != NULL ? strtoll(equals + 1, NULL, 10) : 0;
#define IS(word) (n == sizeof(word) - 1 && strncmp(text, word, n) == 0)
  if (IS("workers"))
    asked.workers = (size_t)value;
  else if (IS("batch"))
    asked.batch = (size_t)value;
  else if (IS("ms"))
    asked.seconds = (double)value / 1e3;
  else if (IS("job_us"))
    asked.job = (double)value / 1e6;
  else if (IS("gap_us"))
    asked.gap = (double)value / 1e6;
  else if (IS("overdue"))
    asked.overdue = (int)value;
  else if (IS("limit"))
    asked.limit = (double)value;
  else if (IS("first"))
    first_id = value;
  else if (IS("rows"))
    nrows = (size_t)value;
  else
    crew_die("what is this option?", text);
#undef IS
}

int main(int argc, char **argv) {
  if (argc < 7)
    crew_die("usage", "SOCKET DATABASE URL work|death WAY TABLE"
                      " [OPTION=NUMBER...]");
  asked.socket = argv[1];
  asked.database = argv[2];
  asked.url = argv[3];
  until_death = strcmp(argv[4], "death") == 0;
  asked.way = argv[5];
  asked.table = argv[6];
  for (int i = 7; i < argc; i++)
    read_option(argv[i]);
  way = crew_bare(&asked);
  if (way == NULL)
    way = crew_ours(&asked);
  if (way == NULL || asked.workers < 1 || asked.batch < 1 ||
      asked.batch > CREW_BATCH)
    crew_die("there is no such way", asked.way);
  b = share(sizeof *b);
  seats = share((asked.workers + 1) * sizeof *seats);
  runs = share(nrows * sizeof *runs);
  times = share(TIMES_MAX * sizeof *times);
  return until_death ? measure_death() : measure_work();
}
