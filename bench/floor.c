/*
** The floor: what bare SQL through libmariadb reaches on Nightshift's tables,
** with nothing above it that could cost time. The bench divides by it.
**
**   floor SOCKET DATABASE push JOBS BATCH    array-bound pushes
**   floor SOCKET DATABASE single JOBS        one job per transaction
**   floor SOCKET DATABASE claim JOBS BATCH HISTORY    claim + ack, one
**                                            connection; HISTORY 0 or 1
**
** Prints one JSON line. The database is a scratch one: its tables exist and
** are emptied first. Any error ends the program with status 1.
**
** Invariant: a claimed batch is settled by the cycle after the one that
** claimed it, in one transaction with the next claim, as the dispatcher does.
*/
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <mysql.h>

#define PAYLOAD 100 /* bytes, quotes included */
#define MAX_BATCH 10000
#define LANE_END "9223372036854775807"
#define NOW "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

/* Columns of up to MAX_BATCH jobs, in the shape that array binding wants. */
typedef struct batch {
  size_t n;
  int64_t id[MAX_BATCH], run[MAX_BATCH], created[MAX_BATCH], nonce[MAX_BATCH];
  int64_t ready_at[MAX_BATCH];
  char bytes[MAX_BATCH][PAYLOAD + 1];
  char *payload[MAX_BATCH]; /* payload[i] == bytes[i] */
  unsigned long length[MAX_BATCH];
  int64_t lease;
  char list[MAX_BATCH * 32]; /* [[id,run],…] as the lease row has it */
  unsigned long list_n;
} batch;

static MYSQL *my;

static void die(const char *what, const char *why) {
  fprintf(stderr, "floor: %s: %s\n", what, why);
  exit(1);
}

static void query(const char *sql) {
  if (mysql_real_query(my, sql, strlen(sql)) != 0)
    die(sql, mysql_error(my));
}

static MYSQL_STMT *prepare(const char *sql) {
  MYSQL_STMT *s = mysql_stmt_init(my);
  if (s == NULL || mysql_stmt_prepare(s, sql, strlen(sql)) != 0)
    die(sql, s ? mysql_stmt_error(s) : "no memory");
  return s;
}

/* Runs 's' once for each of 'rows' rows of the bound columns. */
static void execute(MYSQL_STMT *s, MYSQL_BIND *params, size_t rows) {
  unsigned int n = (unsigned int)rows;
  if (params && n > 1 && mysql_stmt_attr_set(s, STMT_ATTR_ARRAY_SIZE, &n) != 0)
    die("array size", mysql_stmt_error(s));
  if (params && mysql_stmt_bind_param(s, params) != 0)
    die("bind", mysql_stmt_error(s));
  if (mysql_stmt_execute(s) != 0)
    die("execute", mysql_stmt_error(s));
  if (n > 1) {
    n = 0;
    mysql_stmt_attr_set(s, STMT_ATTR_ARRAY_SIZE, &n);
  }
}

static MYSQL_BIND integers(int64_t *column) {
  MYSQL_BIND b = {0};
  b.buffer_type = MYSQL_TYPE_LONGLONG;
  b.buffer = column;
  return b;
}

/* A column of strings: for one row the text itself, else its pointers. */
static MYSQL_BIND strings(char **column, unsigned long *lengths, size_t rows) {
  MYSQL_BIND b = {0};
  b.buffer_type = MYSQL_TYPE_STRING;
  b.buffer = rows > 1 ? (void *)column : column[0];
  b.length = lengths;
  return b;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ------------------------------------------------------------------ push */

#define INSERT_JOB                                                             \
  "INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank,"   \
  " max_attempts, max_crashes, backoff, timeout, created, due, nonce)"         \
  " VALUES (?, 1, 'noop', ?, 100, 155, 10, 3, 5000000, 3600000000, ?, ?, ?)"

#define INSERT_READY                                                           \
  "INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)"       \
  " VALUES (1, 155, ?, ?, 1)"

static MYSQL_STMT *insert_job, *insert_ready, *read_clock;

static void prepare_push(void) {
  insert_job = prepare(INSERT_JOB);
  insert_ready = prepare(INSERT_READY);
  read_clock = prepare("SELECT " NOW);
}

/* The server's clock, which every stored time comes from. */
static int64_t server_now(void) {
  int64_t t = 0;
  MYSQL_BIND column = integers(&t);
  execute(read_clock, NULL, 1);
  if (mysql_stmt_bind_result(read_clock, &column) != 0 ||
      mysql_stmt_fetch(read_clock) != 0)
    die("clock", mysql_stmt_error(read_clock));
  mysql_stmt_free_result(read_clock);
  return t;
}

/* 'n' new jobs, ids from 'first' on; row i enters ready i µs after row 0. */
static void fill(batch *b, int64_t first, size_t n, int64_t at) {
  b->n = n;
  for (size_t i = 0; i < n; i++) {
    b->id[i] = first + (int64_t)i;
    b->nonce[i] = b->id[i] * INT64_C(2654435761);
    b->created[i] = b->ready_at[i] = at + (int64_t)i;
    memset(b->bytes[i], 'x', PAYLOAD);
    b->bytes[i][0] = b->bytes[i][PAYLOAD - 1] = '"';
    b->length[i] = PAYLOAD;
  }
}

static void push(batch *b) {
  MYSQL_BIND job[] = {integers(b->id), strings(b->payload, b->length, b->n),
                      integers(b->created), integers(b->created),
                      integers(b->nonce)};
  MYSQL_BIND ready[] = {integers(b->ready_at), integers(b->id)};
  query("START TRANSACTION");
  execute(insert_job, job, b->n);
  execute(insert_ready, ready, b->n);
  query("COMMIT");
}

static void push_all(batch *b, size_t jobs, size_t size) {
  for (size_t done = 0; done < jobs; done += b->n) {
    size_t n = jobs - done < size ? jobs - done : size;
    fill(b, 1 + (int64_t)done, n, server_now());
    push(b);
  }
}

/* A single push takes its times from the server inside the insert. */
static void push_singly(batch *b, size_t jobs) {
  MYSQL_STMT *job = prepare(
      "INSERT INTO nightshift_job (id, queue_id, name, payload, priority,"
      " rank, max_attempts, max_crashes, backoff, timeout, created, due, nonce)"
      " VALUES (?, 1, 'noop', ?, 100, 155, 10, 3, 5000000, 3600000000, " NOW
      ", " NOW ", ?)");
  MYSQL_STMT *ready =
      prepare("INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id,"
              " run) VALUES (1, 155, " NOW ", ?, 1)");
  for (size_t i = 0; i < jobs; i++) {
    fill(b, 1 + (int64_t)i, 1, 0);
    MYSQL_BIND row[] = {integers(b->id), strings(b->payload, b->length, 1),
                        integers(b->nonce)};
    query("START TRANSACTION");
    execute(job, row, 1);
    execute(ready, row, 1);
    query("COMMIT");
  }
}

/* --------------------------------------------------------- claim and ack */

static MYSQL_STMT *claim_rows, *insert_lease, *select_jobs, *insert_finished,
    *delete_job, *delete_lease;

static void prepare_claim(size_t size) {
  char sql[512];
  snprintf(sql, sizeof sql,
           "DELETE FROM nightshift_ready WHERE queue_id = 1 AND rank = 155"
           " AND ready_at >= ? AND ready_at < " LANE_END
           " ORDER BY rank, ready_at, job_id LIMIT %zu"
           " RETURNING ready_at, job_id, run",
           size);
  claim_rows = prepare(sql);
  insert_lease = prepare("INSERT INTO nightshift_lease (id, holder, claimed,"
                         " jobs) VALUES (?, 1, " NOW ", ?)");
  select_jobs = prepare(
      "SELECT j.id, j.created, j.nonce, j.payload FROM JSON_TABLE(?, '$[*]'"
      " COLUMNS (id BIGINT PATH '$[0]', run INT PATH '$[1]')) t"
      " STRAIGHT_JOIN nightshift_job j ON j.id = t.id AND j.run = t.run");
  insert_finished = prepare(
      "INSERT INTO nightshift_finished (id, queue_id, name, payload, priority,"
      " outcome, run, attempts, polls, crashes, lost, max_attempts,"
      " max_crashes, backoff, timeout, created, finished_at, on_fail,"
      " nonce, holder) VALUES (?, 1, 'noop', ?, 100, 'done', 1, 0, 0, 0, 0,"
      " 10, 3, 5000000, 3600000000, ?, " NOW ", 'cancel', ?, 1)");
  delete_job = prepare("DELETE FROM nightshift_job WHERE id = ? AND run = ?");
  delete_lease = prepare("DELETE FROM nightshift_lease WHERE id = ?");
}

/* Takes ready rows from '*from' on, which then moves behind them. */
static void claim(batch *b, int64_t *from) {
  int64_t ready_at, id, run;
  MYSQL_BIND lower = integers(from);
  MYSQL_BIND row[] = {integers(&ready_at), integers(&id), integers(&run)};
  execute(claim_rows, &lower, 1);
  if (mysql_stmt_bind_result(claim_rows, row) != 0)
    die("claim", mysql_stmt_error(claim_rows));
  b->n = 0;
  while (mysql_stmt_fetch(claim_rows) == 0) {
    b->id[b->n] = id;
    b->run[b->n] = run;
    b->n++;
    *from = ready_at;
  }
  mysql_stmt_free_result(claim_rows);
}

static void add_lease(batch *b, int64_t lease) {
  char *p = b->list;
  for (size_t i = 0; i < b->n; i++)
    p += sprintf(p, "%s[%lld,%lld]", i ? "," : "[", (long long)b->id[i],
                 (long long)b->run[i]);
  *p++ = ']';
  b->list_n = (unsigned long)(p - b->list);
  b->lease = lease;
  char *list = b->list;
  MYSQL_BIND row[] = {integers(&b->lease), strings(&list, &b->list_n, 1)};
  execute(insert_lease, row, 1);
}

static void read_jobs(batch *b) {
  char *list = b->list;
  MYSQL_BIND param = strings(&list, &b->list_n, 1);
  int64_t id, created, nonce;
  char payload[PAYLOAD + 1];
  unsigned long length = 0;
  MYSQL_BIND row[] = {integers(&id),
                      integers(&created),
                      integers(&nonce),
                      {.buffer_type = MYSQL_TYPE_STRING,
                       .buffer = payload,
                       .buffer_length = sizeof payload,
                       .length = &length}};
  execute(select_jobs, &param, 1);
  if (mysql_stmt_bind_result(select_jobs, row) != 0)
    die("read", mysql_stmt_error(select_jobs));
  size_t i = 0;
  for (; mysql_stmt_fetch(select_jobs) == 0; i++) {
    b->id[i] = id;
    b->created[i] = created;
    b->nonce[i] = nonce;
    b->length[i] = length;
    memcpy(b->bytes[i], payload, length);
  }
  mysql_stmt_free_result(select_jobs);
  if (i != b->n)
    die("read", "a claimed job is missing");
}

static void settle(batch *b, bool history) {
  MYSQL_BIND done[] = {integers(b->id), strings(b->payload, b->length, b->n),
                       integers(b->created), integers(b->nonce)};
  MYSQL_BIND token[] = {integers(b->id), integers(b->run)};
  MYSQL_BIND lease = integers(&b->lease);
  if (history)
    execute(insert_finished, done, b->n);
  execute(delete_job, token, b->n);
  execute(delete_lease, &lease, 1);
}

/* One cycle: settle what was claimed before, claim the next batch. */
static void cycle(batch *before, batch *next, int64_t *from, bool history) {
  static int64_t lease;
  if (before->n)
    settle(before, history);
  claim(next, from);
  if (next->n) {
    add_lease(next, ++lease);
    read_jobs(next);
  }
  query("COMMIT");
}

static void claim_all(batch *a, batch *b, size_t jobs, bool history) {
  int64_t from = 0;
  size_t done = 0;
  a->n = 0;
  query("SET autocommit = 0");
  do {
    cycle(a, b, &from, history);
    batch *swap = a;
    a = b;
    b = swap;
    done += a->n;
  } while (a->n);
  if (done != jobs)
    die("claim", "not every job was claimed");
}

/* ------------------------------------------------------------------ main */

static void empty_tables(void) {
  static const char *const tables[] = {"job", "ready", "lease", "finished",
                                       "scheduled"};
  char sql[64];
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
    snprintf(sql, sizeof sql, "TRUNCATE nightshift_%s", tables[i]);
    query(sql);
  }
  query("INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)"
        " VALUES (1, 155, " LANE_END ", 0, 0)");
}

static void connect_to(const char *socket, const char *database) {
  my = mysql_init(NULL);
  if (!mysql_real_connect(my, NULL, NULL, NULL, database, 0, socket, 0))
    die("connect", mysql_error(my));
  query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
  query("SET NAMES utf8mb4");
}

static batch *new_batch(void) {
  batch *b = calloc(1, sizeof *b);
  if (b == NULL)
    die("start", "no memory");
  for (size_t i = 0; i < MAX_BATCH; i++)
    b->payload[i] = b->bytes[i];
  return b;
}

static void usage(void) {
  fputs("usage: floor SOCKET DATABASE push JOBS BATCH | single JOBS | "
        "claim JOBS BATCH HISTORY\n",
        stderr);
  exit(2);
}

int main(int argc, char **argv) {
  if (argc < 5)
    usage();
  const char *what = argv[3];
  size_t jobs = strtoul(argv[4], NULL, 10);
  size_t size = argc > 5 ? strtoul(argv[5], NULL, 10) : 1;
  bool history = argc > 6 && argv[6][0] == '1';
  if (jobs == 0 || size == 0 || size > MAX_BATCH)
    usage();
  batch *a = new_batch(), *b = new_batch();
  connect_to(argv[1], argv[2]);
  empty_tables();
  prepare_push();
  bool claims = strcmp(what, "claim") == 0;
  if (claims) {
    push_all(a, jobs, 1000);
    prepare_claim(size);
  }
  double start = now();
  if (claims)
    claim_all(a, b, jobs, history);
  else if (strcmp(what, "push") == 0)
    push_all(a, jobs, size);
  else if (strcmp(what, "single") == 0)
    push_singly(a, jobs);
  else
    usage();
  double seconds = now() - start;
  printf("{\"what\":\"%s\",\"side\":\"floor\",\"jobs\":%zu,\"batch\":%zu,"
         "\"history\":%s,\"seconds\":%.6f,\"rate\":%.1f}\n",
         what, jobs, size, history ? "true" : "false", seconds,
         (double)jobs / seconds);
  mysql_close(my);
  free(a);
  free(b);
  return 0;
}
