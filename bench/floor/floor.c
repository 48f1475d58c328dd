/*
** The floor: the rates of bare SQL through libmariadb on Nightshift's tables, without a layer
** above it that could cost time. The bench divides by it.
**
**   floor SOCKET DATABASE WHAT [JOBS [BATCH]] [OPTION=NUMBER…]    options: see bench.h
** WHAT is one of
**   push           array-bound pushes of 'batch' jobs
**   single         one job per transaction
**   transaction    one job and one row of an application's table
**   claim          claim + ack of jobs that were pushed before
**   latency        one job at a time, pushed and then claimed: the time from
**                  before its push to its payload
**   flows          'jobs' parents, each with ten children that it waits for:
**                  pushed 100 a transaction, then claimed and acked
** One connection. Prints one JSON line. The database is a scratch one: its tables exist and are
** emptied first. Any error ends the program with status 1.
**
** Invariant: the cycle after a claim settles its batch, in one transaction with the next claim,
** as the dispatcher does.
*/
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mysql.h>

#include "bench.h"

#define LANE_END "9223372036854775807"
#define NOW "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

#define ROWS BENCH_MAX_BATCH

/* Columns of up to ROWS jobs, in the shape that array binding wants. */
typedef struct batch {
  size_t n;
  int64_t id[ROWS], run[ROWS], created[ROWS], nonce[ROWS], ready_at[ROWS];
  char *payload[ROWS]; /* each has room for asked.payload bytes */
  unsigned long length[ROWS];
  int64_t lease;
  char list[ROWS * 32]; /* [[id,run],…] as the lease row has it */
  unsigned long list_n;
} batch;

static bench_options asked;
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
    bench_payload(b->payload[i], asked.payload);
    b->length[i] = asked.payload;
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

static void push_all(batch *b, size_t size) {
  for (size_t done = 0; done < asked.jobs; done += b->n) {
    size_t n = asked.jobs - done < size ? asked.jobs - done : size;
    fill(b, 1 + (int64_t)done, n, server_now());
    push(b);
  }
}

static MYSQL_STMT *single_job, *single_ready, *insert_order;

/* A single push takes its times from the server inside the insert. */
static void prepare_single(void) {
  single_job = prepare(
      "INSERT INTO nightshift_job (id, queue_id, name, payload, priority,"
      " rank, max_attempts, max_crashes, backoff, timeout, created, due, nonce)"
      " VALUES (?, 1, 'noop', ?, 100, 155, 10, 3, 5000000, 3600000000, " NOW
      ", " NOW ", ?)");
  single_ready =
      prepare("INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id,"
              " run) VALUES (1, 155, " NOW ", ?, 1)");
  insert_order = prepare("INSERT INTO bench_order (note) VALUES ('paid')");
}

static void push_one(batch *b, size_t i, bool with_order) {
  fill(b, 1 + (int64_t)i, 1, 0);
  MYSQL_BIND row[] = {integers(b->id), strings(b->payload, b->length, 1),
                      integers(b->nonce)};
  query("START TRANSACTION");
  if (with_order)
    execute(insert_order, NULL, 1);
  execute(single_job, row, 1);
  execute(single_ready, row, 1);
  query("COMMIT");
}

static void push_singly(batch *b, bool with_order) {
  for (size_t i = 0; i < asked.jobs; i++)
    push_one(b, i, with_order);
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

static char *payload_read; /* asked.payload bytes: the one that is being fetched */

static void read_jobs(batch *b) {
  char *list = b->list;
  MYSQL_BIND param = strings(&list, &b->list_n, 1);
  int64_t id, created, nonce;
  unsigned long length = 0;
  MYSQL_BIND row[] = {integers(&id),
                      integers(&created),
                      integers(&nonce),
                      {.buffer_type = MYSQL_TYPE_STRING,
                       .buffer = payload_read,
                       .buffer_length = asked.payload,
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
    memcpy(b->payload[i], payload_read, length);
  }
  mysql_stmt_free_result(select_jobs);
  if (i != b->n)
    die("read", "a claimed job is missing");
}

static void settle(batch *b) {
  MYSQL_BIND done[] = {integers(b->id), strings(b->payload, b->length, b->n),
                       integers(b->created), integers(b->nonce)};
  MYSQL_BIND token[] = {integers(b->id), integers(b->run)};
  MYSQL_BIND lease = integers(&b->lease);
  if (asked.history)
    execute(insert_finished, done, b->n);
  execute(delete_job, token, b->n);
  execute(delete_lease, &lease, 1);
}

/* One cycle: settle what was claimed before, claim the next batch. */
static void cycle(batch *before, batch *next, int64_t *from) {
  static int64_t lease;
  if (before->n)
    settle(before);
  claim(next, from);
  if (next->n) {
    add_lease(next, ++lease);
    read_jobs(next);
  }
  query("COMMIT");
}

static void claim_all(batch *a, batch *b) {
  int64_t from = 0;
  size_t done = 0;
  a->n = 0;
  query("SET autocommit = 0");
  do {
    cycle(a, b, &from);
    batch *swap = a;
    a = b;
    b = swap;
    done += a->n;
  } while (a->n);
  if (done != asked.jobs)
    die("claim", "not every job was claimed");
}

/* --------------------------------------------------------------- latency */

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Pushes and claims in turns, a few ms apart, and prints the line itself. */
static void measure_latency(batch *a, batch *b) {
  double *took = calloc(asked.jobs, sizeof *took);
  const struct timespec pause = {.tv_nsec = 3000000};
  int64_t from = 0;
  if (took == NULL)
    die("latency", "no memory");
  for (size_t i = 0; i < asked.jobs; i++) {
    nanosleep(&pause, NULL);
    double start = bench_clock();
    push_one(a, i, false);
    query("START TRANSACTION");
    b->n = 0;
    cycle(b, a, &from);
    took[i] = (bench_clock() - start) * 1e3;
    settle(a);
    if (a->n != 1)
      die("latency", "the job was not claimed");
  }
  qsort(took, asked.jobs, sizeof *took, by_size);
  printf("{\"what\":\"latency\",\"jobs\":%zu,\"p50_ms\":%.3f,"
         "\"p99_ms\":%.3f,\"max_ms\":%.3f}\n",
         asked.jobs, took[asked.jobs / 2], took[asked.jobs * 99 / 100], took[asked.jobs - 1]);
  free(took);
}

/* ----------------------------------------------------------------- flows */

#define CHILDREN 10
#define FLOWS_AT_ONCE 100

static MYSQL_STMT *insert_member, *insert_edge, *insert_child, *select_members,
    *finish_member, *delete_edge, *meet, *free_parents;

/* What a batch of a flow's jobs has besides: parents (0: it is one), and how
** many of their children are in it. */
typedef struct family {
  int64_t parent[ROWS], unmet[ROWS];
  char missing[ROWS]; /* an indicator: it has no parent */
  size_t nmet;
  int64_t met[ROWS], met_by[ROWS]; /* parents, each once */
} family;

static void prepare_flows(void) {
  insert_member = prepare(
      "INSERT INTO nightshift_job (id, queue_id, name, payload, priority, rank,"
      " max_attempts, max_crashes, backoff, timeout, created, due, nonce,"
      " parent, root, unmet) VALUES (?, 1, 'noop', ?, 100, 155, 10, 3, 5000000,"
      " 3600000000, ?, ?, ?, ?, ?, ?)");
  insert_edge =
      prepare("INSERT INTO nightshift_edge (on_id, job_id) VALUES (?, ?)");
  insert_child = prepare(
      "INSERT INTO nightshift_child (parent, seq, id) VALUES (?, ?, ?)");
  select_members = prepare(
      "SELECT j.id, j.created, j.nonce, j.payload, COALESCE(j.parent, 0)"
      " FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]',"
      " run INT PATH '$[1]')) t"
      " STRAIGHT_JOIN nightshift_job j ON j.id = t.id AND j.run = t.run");
  finish_member = prepare(
      "INSERT INTO nightshift_finished (id, queue_id, name, payload, priority,"
      " outcome, run, attempts, polls, crashes, lost, max_attempts,"
      " max_crashes, backoff, timeout, created, finished_at, on_fail,"
      " nonce, holder, parent, root) VALUES (?, 1, 'noop', ?, 100, 'done', 1, 0,"
      " 0, 0, 0, 10, 3, 5000000, 3600000000, ?, " NOW ", 'cancel', ?, 1, ?, ?)");
  delete_edge =
      prepare("DELETE FROM nightshift_edge WHERE on_id = ? AND job_id = ?");
  meet = prepare("UPDATE nightshift_job SET unmet = unmet - ? WHERE id = ?");
  free_parents = prepare(
      "INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)"
      " SELECT j.queue_id, j.rank, " NOW " + t.place, j.id, j.run"
      " FROM JSON_TABLE(?, '$[*]' COLUMNS (place FOR ORDINALITY,"
      " id BIGINT PATH '$')) t"
      " STRAIGHT_JOIN nightshift_job j ON j.id = t.id WHERE j.unmet = 0");
}

static MYSQL_BIND parents(family *f) {
  MYSQL_BIND b = integers(f->parent);
  b.u.indicator = f->missing;
  return b;
}

/* 'n' flows from the one numbered 'first' on: a parent, then its children. */
static void fill_flows(batch *b, family *f, size_t first, size_t n, int64_t at) {
  fill(b, 1 + (int64_t)(first * (CHILDREN + 1)), n * (CHILDREN + 1), at);
  for (size_t i = 0; i < b->n; i++) {
    bool is_parent = i % (CHILDREN + 1) == 0;
    f->missing[i] = is_parent ? STMT_INDICATOR_NULL : STMT_INDICATOR_NONE;
    f->parent[i] = b->id[i - i % (CHILDREN + 1)];
    f->unmet[i] = is_parent ? CHILDREN : 0;
  }
}

/* Leaves the children only. */
static void drop_parents(batch *b, family *f) {
  size_t n = 0;
  for (size_t i = 0; i < b->n; i++)
    if (f->unmet[i] == 0) {
      b->id[n] = b->id[i];
      b->ready_at[n] = b->ready_at[i];
      f->parent[n] = f->parent[i];
      f->unmet[n++] = (int64_t)i; /* seq */
    }
  b->n = n;
}

static void push_flows(batch *b, family *f, size_t first, size_t n) {
  fill_flows(b, f, first, n, server_now());
  MYSQL_BIND job[] = {integers(b->id), strings(b->payload, b->length, b->n),
                      integers(b->created), integers(b->created),
                      integers(b->nonce), parents(f), parents(f),
                      integers(f->unmet)};
  MYSQL_BIND ready[] = {integers(b->ready_at), integers(b->id)};
  MYSQL_BIND edge[] = {integers(b->id), integers(f->parent)};
  MYSQL_BIND child[] = {integers(f->parent), integers(f->unmet),
                        integers(b->id)};
  query("START TRANSACTION");
  execute(insert_member, job, b->n);
  drop_parents(b, f);
  execute(insert_edge, edge, b->n);
  execute(insert_child, child, b->n);
  execute(insert_ready, ready, b->n);
  query("COMMIT");
}

static void read_members(batch *b, family *f) {
  char *list = b->list;
  MYSQL_BIND param = strings(&list, &b->list_n, 1);
  int64_t id, created, nonce, parent;
  unsigned long length = 0;
  MYSQL_BIND row[] = {integers(&id),
                      integers(&created),
                      integers(&nonce),
                      {.buffer_type = MYSQL_TYPE_STRING,
                       .buffer = payload_read,
                       .buffer_length = asked.payload,
                       .length = &length},
                      integers(&parent)};
  execute(select_members, &param, 1);
  if (mysql_stmt_bind_result(select_members, row) != 0)
    die("read", mysql_stmt_error(select_members));
  for (size_t i = 0; mysql_stmt_fetch(select_members) == 0; i++) {
    b->id[i] = id;
    b->created[i] = created;
    b->nonce[i] = nonce;
    b->length[i] = length;
    f->parent[i] = parent;
    f->missing[i] = parent ? STMT_INDICATOR_NONE : STMT_INDICATOR_NULL;
    memcpy(b->payload[i], payload_read, length);
  }
  mysql_stmt_free_result(select_members);
}

/* The edges of children that have ended, and their parents: children stand
** beside their siblings. */
static void tell_parents(batch *b, family *f) {
  size_t n = 0;
  char *p = b->list;
  f->nmet = 0;
  for (size_t i = 0; i < b->n; i++) {
    if (f->parent[i] == 0)
      continue;
    b->id[n] = b->id[i];
    f->parent[n] = f->parent[i];
    if (f->nmet == 0 || f->met[f->nmet - 1] != f->parent[n]) {
      f->met[f->nmet] = f->parent[n];
      f->met_by[f->nmet++] = 0;
      p += sprintf(p, "%s%lld", f->nmet > 1 ? "," : "[", (long long)f->parent[n]);
    }
    f->met_by[f->nmet - 1]++;
    n++;
  }
  if (n == 0)
    return;
  *p++ = ']';
  b->list_n = (unsigned long)(p - b->list);
  char *list = b->list;
  MYSQL_BIND edge[] = {integers(b->id), integers(f->parent)};
  MYSQL_BIND met[] = {integers(f->met_by), integers(f->met)};
  MYSQL_BIND ids = strings(&list, &b->list_n, 1);
  execute(delete_edge, edge, n);
  execute(meet, met, f->nmet);
  execute(free_parents, &ids, 1);
}

static void settle_members(batch *b, family *f) {
  MYSQL_BIND done[] = {integers(b->id), strings(b->payload, b->length, b->n),
                       integers(b->created), integers(b->nonce), parents(f),
                       parents(f)};
  MYSQL_BIND token[] = {integers(b->id), integers(b->run)};
  MYSQL_BIND lease = integers(&b->lease);
  execute(finish_member, done, b->n);
  execute(delete_job, token, b->n);
  execute(delete_lease, &lease, 1);
  tell_parents(b, f);
}

/* Returns how many were claimed and settled. */
static size_t claim_flows(batch *b, family *f) {
  int64_t from = 0;
  size_t done = 0;
  b->n = 0;
  query("SET autocommit = 0");
  do {
    if (b->n)
      settle_members(b, f);
    claim(b, &from);
    if (b->n) {
      add_lease(b, (int64_t)done + 1);
      read_members(b, f);
    }
    query("COMMIT");
    done += b->n;
  } while (b->n);
  return done;
}

/* Prints the line itself: rates are of parents. */
static void measure_flows(batch *b) {
  family *f = calloc(1, sizeof *f);
  if (f == NULL)
    die("flows", "no memory");
  prepare_flows();
  double start = bench_clock();
  for (size_t done = 0; done < asked.jobs; done += FLOWS_AT_ONCE)
    push_flows(b, f, done, asked.jobs - done < FLOWS_AT_ONCE ? asked.jobs - done
                                                             : FLOWS_AT_ONCE);
  double pushed = bench_clock();
  if (claim_flows(b, f) != asked.jobs * (CHILDREN + 1))
    die("flows", "not every job was claimed");
  double seconds = bench_clock() - pushed;
  pushed -= start;
  printf("{\"what\":\"flows\",\"jobs\":%zu,\"push_rate\":%.1f,"
         "\"rate\":%.1f,\"both_rate\":%.1f}\n",
         asked.jobs, (double)asked.jobs / pushed, (double)asked.jobs / seconds,
         (double)asked.jobs / (pushed + seconds));
  free(f);
}

/* ------------------------------------------------------------------ main */

static void empty_tables(void) {
  static const char *const tables[] = {"job", "ready", "lease", "finished",
                                       "scheduled", "edge", "child"};
  char sql[64];
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
    snprintf(sql, sizeof sql, "TRUNCATE nightshift_%s", tables[i]);
    query(sql);
  }
  query("INSERT INTO nightshift_ready (queue_id, rank, ready_at, job_id, run)"
        " VALUES (1, 155, " LANE_END ", 0, 0)");
  query("CREATE OR REPLACE TABLE bench_order (id BIGINT AUTO_INCREMENT PRIMARY"
        " KEY, note VARCHAR(100)) ENGINE=InnoDB");
}

static void connect_to(const char *socket, const char *database) {
  my = mysql_init(NULL);
  if (!mysql_real_connect(my, NULL, NULL, NULL, database, 0, socket, 0))
    die("connect", mysql_error(my));
  query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
  query("SET NAMES utf8mb4");
}

static batch *new_batch(void) {
  size_t rows = FLOWS_AT_ONCE * (CHILDREN + 1); /* the largest push but for bulk */
  rows = asked.batch > rows ? asked.batch : rows;
  batch *b = calloc(1, sizeof *b);
  char *bytes = calloc(rows, asked.payload);
  if (b == NULL || bytes == NULL)
    die("start", "no memory");
  for (size_t i = 0; i < rows; i++)
    b->payload[i] = bytes + i * asked.payload;
  return b;
}

static void free_batch(batch *b) {
  free(b->payload[0]);
  free(b);
}

/* Does what was asked for; false: it is none of ours. */
static bool measure(batch *a, batch *b) {
  bool claims = strcmp(asked.what, "claim") == 0;
  if (strcmp(asked.what, "flows") == 0) {
    measure_flows(a);
    return true;
  } else if (strcmp(asked.what, "latency") == 0) {
    measure_latency(a, b);
    return true;
  }
  if (claims)
    push_all(a, bench_fill(&asked));
  double start = bench_clock();
  if (claims)
    claim_all(a, b);
  else if (strcmp(asked.what, "push") == 0)
    push_all(a, asked.batch);
  else if (strcmp(asked.what, "single") == 0)
    push_singly(a, false);
  else if (strcmp(asked.what, "transaction") == 0)
    push_singly(a, true);
  else
    return false;
  bench_print(&asked, bench_clock() - start);
  return true;
}

int main(int argc, char **argv) {
  if (argc < 4 || !bench_read(&asked, argc - 3, argv + 3)) {
    fputs("usage: floor SOCKET DATABASE push|single|transaction|claim|latency|flows"
          BENCH_USAGE, stderr);
    return 2;
  }
  batch *a = new_batch(), *b = new_batch();
  payload_read = malloc(asked.payload);
  if (payload_read == NULL)
    die("start", "no memory");
  connect_to(argv[1], argv[2]);
  empty_tables();
  prepare_push();
  prepare_single();
  prepare_claim(asked.batch);
  bool known = measure(a, b);
  if (!known)
    fprintf(stderr, "floor: what is '%s'?\n", asked.what);
  mysql_close(my);
  free(payload_read);
  free_batch(a);
  free_batch(b);
  return known ? 0 : 2;
}
