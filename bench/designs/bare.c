/*
** The published designs as they were described: SQL through libmariadb, and nothing
** of Nightshift.
**
** A design is a row of statements, each of which may be missing; see bare_sql. In a statement
** {claim} stands for a text that is new for each claim, {id} for a row's id, {overdue} for
** seconds.
**
** Invariant: a statement that the server refuses because of the crowd (1205, 1213) is counted
** and rolled back. The caller tries the claim again, as those programs do.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mysql.h>

#include "bench.h"

#define REFUSED_WAIT 1205
#define REFUSED_DEADLOCK 1213
#define RESET_EVERY 1.0 /* seconds between looks at overdue claims, of one worker */
#define POLL 0.01       /* seconds between looks at a table without rows */
#define TRIES 1000      /* of a mark outside a transaction */

typedef struct bare_sql {
  const char *way;
  const char *table;
  const char *enter; /* before the claim: a transaction, a named lock */
  const char *mark;  /* takes rows before they are known */
  const char *find;  /* their ids */
  const char *take;  /* takes a row that was found */
  const char *leave; /* after the claim */
  const char *late;  /* takes it after that */
  const char *done;  /* it has run */
  const char *close; /* ends a transaction that was open while it ran */
  const char *reset; /* claims that are overdue */
} bare_sql;

#define QUEUED                                                                 \
  "SELECT id FROM queue_table q WHERE status = 'queued' AND attempts > 0"      \
  " AND (retry_after IS NULL OR retry_after <= NOW()) AND (parent_id IS NULL"  \
  " OR (SELECT p.status FROM queue_table p WHERE p.id = q.parent_id)"          \
  " = 'processed') ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED"
#define IN_PROGRESS                                                            \
  "UPDATE queue_table SET status = 'in_progress', attempts = attempts - 1"     \
  " WHERE id = {id}"
#define PROCESSED "UPDATE queue_table SET status = 'processed' WHERE id = {id}"

static const bare_sql designs[] = {
    /* Blocks under a fresh claim id; overdue ones are reset. */
    {.way = "bare",
     .table = "migration_task",
     .mark = "UPDATE migration_task SET status = 'processing',"
             " claimedBy = '{claim}', claimedAt = NOW()"
             " WHERE status = 'open' ORDER BY id LIMIT 10",
     .find = "SELECT id FROM migration_task"
             " WHERE status = 'processing' AND claimedBy = '{claim}'",
     .done = "UPDATE migration_task SET status = 'complete', completedAt = NOW()"
             " WHERE id = {id} AND claimedBy = '{claim}'",
     .reset = "UPDATE migration_task SET status = 'open', claimedBy = NULL,"
              " claimedAt = NULL, iteration = iteration + 1 WHERE status ="
              " 'processing' AND claimedAt < NOW() - INTERVAL {overdue} SECOND"},
    /* The row is locked as long as it runs. */
    {.way = "bare",
     .table = "job_queue",
     .enter = "START TRANSACTION",
     .find = "SELECT id FROM job_queue WHERE state = 'NEW' ORDER BY id LIMIT 1"
             " FOR UPDATE",
     .take = "UPDATE job_queue SET state = 'WORKING', started = NOW(),"
             " updated = NOW() WHERE id = {id}",
     .done = "UPDATE job_queue SET state = 'DONE', updated = NOW()"
             " WHERE id = {id}",
     .close = "COMMIT"},
    /* The state is written while the row is locked … */
    {.way = "bare",
     .table = "queue_table",
     .enter = "START TRANSACTION",
     .find = QUEUED,
     .take = IN_PROGRESS,
     .leave = "COMMIT",
     .done = PROCESSED},
    /* … and after the lock is gone, so that other workers find it queued in between. */
    {.way = "outside",
     .table = "queue_table",
     .enter = "START TRANSACTION",
     .find = QUEUED,
     .leave = "COMMIT",
     .late = IN_PROGRESS,
     .done = PROCESSED},
    /* One worker claims at a time; the date of the last checkout tells. */
    {.way = "bare",
     .table = "checkout",
     .enter = "SELECT GET_LOCK('checkout', 10)",
     .find = "SELECT id FROM checkout WHERE last_checkout IS NULL"
             " AND done_at IS NULL ORDER BY id LIMIT 1",
     .take = "UPDATE checkout SET last_checkout = NOW(), by_whom = '{claim}'"
             " WHERE id = {id}",
     .leave = "SELECT RELEASE_LOCK('checkout')",
     .done = "UPDATE checkout SET done_at = NOW()"
             " WHERE id = {id} AND by_whom = '{claim}'",
     .reset = "UPDATE checkout SET last_checkout = NULL, by_whom = ''"
              " WHERE done_at IS NULL"
              " AND last_checkout < NOW() - INTERVAL {overdue} SECOND"},
    /* The claim is the open transaction; locked rows are passed by. */
    {.way = "bare",
     .table = "worker_queue",
     .enter = "START TRANSACTION",
     .find = "SELECT id FROM worker_queue WHERE is_done = FALSE"
             " AND failure_count < 3 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED",
     .done = "UPDATE worker_queue SET is_done = TRUE WHERE id = {id}",
     .close = "COMMIT"},
};

struct crew_worker {
  const bare_sql *sql;
  MYSQL *my;
  size_t number, claims, refused;
  char claim[40];
  int overdue;
  double gap, reset_at;
  int64_t ids[CREW_BATCH];
};

/* ------------------------------------------------------------- statements */

/* The text of a statement with its marks filled in. */
static void fill(char *to, size_t room, const char *sql, const crew_worker *w,
                 int64_t id) {
  char number[24], seconds[16];
  snprintf(number, sizeof number, "%lld", (long long)id);
  snprintf(seconds, sizeof seconds, "%d", w->overdue);
  const struct {
    const char *mark, *text;
  } known[] = {{"{claim}", w->claim}, {"{id}", number}, {"{overdue}", seconds}};
  size_t n = 0;
  while (*sql != '\0' && n + sizeof w->claim < room) {
    const char *text = NULL;
    for (size_t i = 0; text == NULL && i < sizeof known / sizeof *known; i++)
      if (strncmp(sql, known[i].mark, strlen(known[i].mark)) == 0) {
        text = known[i].text;
        sql += strlen(known[i].mark);
      }
    if (text != NULL)
      n += (size_t)sprintf(to + n, "%s", text);
    else
      to[n++] = *sql++;
  }
  to[n] = '\0';
}

/* Reads up to CREW_BATCH ids from the rows of a statement, if it gave rows. */
static size_t read_ids(crew_worker *w, int64_t *ids) {
  MYSQL_RES *rows = mysql_store_result(w->my);
  MYSQL_ROW row;
  size_t n = 0;
  if (rows == NULL)
    return 0;
  while ((row = mysql_fetch_row(rows)) != NULL && n < CREW_BATCH)
    ids[n++] = row[0] != NULL ? strtoll(row[0], NULL, 10) : 0;
  mysql_free_result(rows);
  return n;
}

/* Runs a statement, if there is one. False: the crowd was in the way. */
static bool run(crew_worker *w, const char *sql, int64_t id, size_t *n) {
  char text[1024];
  int64_t none[CREW_BATCH];
  if (sql == NULL)
    return true;
  fill(text, sizeof text, sql, w, id);
  if (mysql_real_query(w->my, text, strlen(text)) == 0) {
    size_t found = read_ids(w, n != NULL ? w->ids : none);
    if (n != NULL)
      *n = found;
    return true;
  }
  unsigned int code = mysql_errno(w->my);
  if (code != REFUSED_WAIT && code != REFUSED_DEADLOCK)
    crew_die(text, mysql_error(w->my));
  w->refused++;
  return false;
}

/* Leaves nothing open or locked. */
static void undo(crew_worker *w) {
  run(w, "ROLLBACK", 0, NULL);
  if (w->sql->leave != NULL)
    run(w, w->sql->leave, 0, NULL);
}

/* Outside a transaction a statement is simply sent again. */
static void insist(crew_worker *w, const char *sql, int64_t id) {
  for (int i = 0; i < TRIES; i++)
    if (run(w, sql, id, NULL))
      return;
  crew_die(sql, "refused for good");
}

/* ------------------------------------------------------------- the worker */

static crew_worker *bare_open(const crew_ask *ask, size_t number) {
  crew_worker *w = calloc(1, sizeof *w);
  if (w == NULL)
    crew_die("start", "no memory");
  for (size_t i = 0; i < sizeof designs / sizeof *designs; i++)
    if (strcmp(designs[i].table, ask->table) == 0 &&
        strcmp(designs[i].way, ask->way) == 0)
      w->sql = &designs[i];
  w->number = number;
  w->overdue = ask->overdue;
  w->gap = ask->gap;
  w->my = mysql_init(NULL);
  if (!mysql_real_connect(w->my, NULL, NULL, NULL, ask->database, 0, ask->socket,
                          0))
    crew_die("connect", mysql_error(w->my));
  return w;
}

/* One worker looks for all. */
static void reset_overdue(crew_worker *w) {
  if (w->sql->reset == NULL || w->number != 0 || bench_clock() < w->reset_at)
    return;
  run(w, w->sql->reset, 0, NULL);
  w->reset_at = bench_clock() + RESET_EVERY;
}

static size_t bare_claim(crew_worker *w, int64_t ids[CREW_BATCH]) {
  const bare_sql *s = w->sql;
  size_t n = 0;
  bool kept = s->close != NULL; /* the transaction stays open */
  reset_overdue(w);
  snprintf(w->claim, sizeof w->claim, "%ld-%zu", (long)getpid(), ++w->claims);
  bool ok = run(w, s->enter, 0, NULL) && run(w, s->mark, 0, NULL) &&
            run(w, s->find, 0, &n);
  for (size_t i = 0; ok && i < n; i++)
    ok = run(w, s->take, w->ids[i], NULL);
  if (!ok || (n == 0 && kept)) {
    undo(w);
    return 0;
  }
  if (!run(w, s->leave, 0, NULL))
    return 0;
  if (s->late != NULL)
    crew_nap(w->gap);
  for (size_t i = 0; s->late != NULL && i < n; i++)
    insist(w, s->late, w->ids[i]);
  memcpy(ids, w->ids, sizeof w->ids);
  return n;
}

/* A mark that is part of a transaction is lost with it. */
static bool bare_done(crew_worker *w, size_t i) {
  if (w->sql->close == NULL) {
    insist(w, w->sql->done, w->ids[i]);
    return true;
  }
  if (run(w, w->sql->done, w->ids[i], NULL) && run(w, w->sql->close, 0, NULL))
    return true;
  undo(w);
  return false;
}

static void bare_rest(crew_worker *w, double until) {
  (void)w;
  if (bench_clock() + POLL < until)
    crew_nap(POLL);
}

static size_t bare_refused(const crew_worker *w) { return w->refused; }

static unsigned long bare_session(const crew_worker *w) {
  return mysql_thread_id(w->my);
}

static void bare_close(crew_worker *w) {
  mysql_close(w->my);
  free(w);
}

const crew_way *crew_bare(const crew_ask *ask) {
  static const crew_way way = {bare_open, bare_claim, bare_done, bare_rest,
                               bare_refused, bare_session, bare_close};
  for (size_t i = 0; i < sizeof designs / sizeof *designs; i++)
    if (strcmp(designs[i].table, ask->table) == 0 &&
        strcmp(designs[i].way, ask->way) == 0)
      return &way;
  return NULL;
}
