/*
** Ringing: waking a listener after a commit, and programs that wait for the ends of jobs. And other
** holders, in the order of their ids; behind the last comes the first.
**
** A wait for ends has a connection of its own. There it writes an edge on each live job, under
** minus the connection's number, and sleeps. Who ends a job reads its edges in any case, and cuts
** these, as those of any job that is gone. After its commit it ends the sleep with KILL QUERY: see
** ns_wake_ended. So an end that no program waits for costs nothing more. The statement that sleeps
** looks at the edges first, so no end is missed. An end whose program died before it could ring is
** found with the next slice.
**
** The connection owns a named lock that says that it may be rung. It sleeps by waiting for another
** one, which the handle's own connection has: see listener.c for why that is no SLEEP().
**
** Invariants: a ring is due for rows that a transaction has written, and is sent once it is
** committed. (The hook below is the only place that sends a ring that is due.) A holder does
** not watch itself, the dead, or holders without a lock. When a wait for ends is over its edges are
** gone, or its connection is. Edges of a connection that is gone are cut with the end of their job.
*/
#include "wake/wake.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base.h"
#include "db/db.h"
#include "handle.h"
#include "link/link.h"
#include "nightshift_admin.h"

ns_status ns_ring(ns_db *db, ns_err *err) {
  ns_err none;
  ns_status st;
  if (err == NULL)
    err = &none;
  if ((st = ns_db_ready(db, err)) != NS_OK)
    return st;
  db->count.rings++;
  return ns_db_run(db, NS_SQL_LISTEN_RING, NULL, err);
}

static void committed(ns_db *db, bool written) {
  bool due = db->ring_due;
  db->ring_due = false;
  if (written && due)
    ns_ring(db, NULL);
}

static void forget(ns_db *db) {
  ns_buf_free(&db->waiters);
}

const ns_hooks ns_wake_ring_hooks = {.committed = committed, .forked = forget, .closing = forget};

/* -------------------------------------------- may we call what we live by? */

static const struct {
  const char *name;
  ns_sql sql;
} calls[] = {{"nightshift_listen", NS_SQL_DOCTOR_CALL_LISTEN},
             {"nightshift_nudge", NS_SQL_DOCTOR_CALL_NUDGE},
             {"nightshift_ring", NS_SQL_DOCTOR_CALL_RING}};

#define CALLS (sizeof calls / sizeof calls[0])

void ns_calls_send(ns_db *db) {
  if (ns_db_ready(db, NULL) == NS_OK)
    for (size_t i = 0; i < CALLS; i++)
      ns_db_foresee(db, calls[i].sql, NULL);
}

const char *ns_calls_told(ns_db *db, size_t i, ns_err *err) {
  ns_err_clear(err);
  if (i < CALLS)
    ns_db_run(db, calls[i].sql, NULL, err);
  else
    ns_db_foresee_end(db);
  return i < CALLS ? calls[i].name : NULL;
}

/* ------------------------------------------------------------- other holders */

#define WATCHED_MIN 16 /* a death must not hide behind holders that sleep */

#define YOUNGER (2 * NS_SECOND) /* than its row: another process */

enum { P_ID, P_HOST, P_PID, P_PLACE, P_DEAD, P_BEAT, P_SILENT, P_AGE, P_FREE, P_PAST,
       P_ELSEWHERE };

void ns_wake_place(char out[NS_PLACE]) {
  char boot[40] = "";
  char space[24] = "";
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot - 1) : 0;
  if (fd >= 0)
    close(fd);
  boot[n > 0 ? strcspn(boot, "\n") : 0] = '\0';
  n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  space[n > 0 ? n : 0] = '\0';
  if (boot[0] == '\0') /* no /proc: at least not the same as everywhere */
    gethostname(boot, sizeof boot - 1);
  snprintf(out, NS_PLACE, "%.36s %.23s", boot, space);
}

/* "pid (name) S ppid …" of a process; "" when there is none to be read. */
static void read_stat(pid_t pid, char *text, size_t size) {
  char path[40];
  ssize_t n;
  int fd;
  text[0] = '\0';
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
    return;
  n = read(fd, text, size - 1);
  close(fd);
  text[n > 0 ? n : 0] = '\0';
}

/* µs since the process was started; -1: not known. 'state' is where the text
** of its state begins, the third field; the start is the 22nd. */
static int64_t process_age(const char *state) {
  struct timespec up;
  unsigned long long ticks;
  const char *p = state;
  for (int field = 3; p != NULL && field < 22; field++)
    if ((p = strchr(p, ' ')) != NULL)
      p++;
  if (p == NULL || sscanf(p, "%llu", &ticks) != 1 || clock_gettime(CLOCK_BOOTTIME, &up) != 0)
    return -1;
  return up.tv_sec * NS_SECOND + up.tv_nsec / 1000 -
         (int64_t)(ticks * NS_SECOND / (unsigned long long)sysconf(_SC_CLK_TCK));
}

bool ns_wake_process_is(pid_t pid, int64_t age) {
  char text[512];
  const char *state;
  read_stat(pid, text, sizeof text);
  state = strrchr(text, ')');
  return state != NULL && strchr("ZX", state[2]) == NULL && process_age(state + 2) + YOUNGER >= age;
}

/* Looks for its process, where that is to be seen. A zombie is gone, though its
** parent has not waited for it yet. */
static void look_for_process(ns_peer *p, const char *here, const ns_value *row) {
  char text[512];
  ns_bytes place = row[P_PLACE].s;
  pid_t pid = (pid_t)row[P_PID].i;
  const char *state;
  if (place.n != strlen(here) || memcmp(place.p, here, place.n) != 0)
    return;
  read_stat(pid, text, sizeof text);
  state = strrchr(text, ')'); /* the name may hold anything */
  p->gone = state == NULL ? kill(pid, 0) != 0 && errno == ESRCH : strchr("ZX", state[2]) != NULL;
  p->alive = state != NULL && !p->gone && strchr("Tt", state[2]) == NULL &&
             process_age(state + 2) + YOUNGER >= row[P_AGE].i;
}

bool ns_wake_peers_add(ns_peers *p, const ns_value *row) {
  if (!ns_grow(&p->items, &p->cap, p->n + 1, sizeof *p->items))
    return false;
  p->items[p->n] = (ns_peer){.id = row[P_ID].i,
                             .beat = row[P_BEAT].i,
                             .silent = row[P_SILENT].i,
                             .is_host = row[P_HOST].i != 0,
                             .dead = row[P_DEAD].i != 0,
                             .free = row[P_FREE].i != 0,
                             .elsewhere = row[P_ELSEWHERE].i != 0};
  if (p->here[0] == '\0')
    ns_wake_place(p->here);
  look_for_process(&p->items[p->n++], p->here, row);
  return true;
}

void ns_wake_peers_free(ns_peers *p) {
  free(p->items);
  *p = (ns_peers){0};
}

int64_t ns_wake_peers_watched(const ns_peers *p, int64_t me, bool is_host, ns_buf *others) {
  int64_t neighbour = 0;
  size_t first = 0;
  size_t watched = 0;
  ns_buf_reset(others);
  while (first < p->n && p->items[first].id <= me)
    first++;
  for (size_t i = 0; i < p->n; i++) {
    const ns_peer *x = &p->items[(first + i) % p->n];
    if (x->id == me || x->dead || x->free)
      continue;
    if (neighbour == 0)
      neighbour = x->id;
    else
      ns_db_list_add_id(others, x->id);
    if (++watched >= WATCHED_MIN && (!is_host || x->is_host))
      break;
  }
  ns_db_list_end(others);
  ns_assert(neighbour != me && (neighbour != 0 || watched == 0));
  return neighbour;
}

/* --------------------------------------------- programs that wait for ends */

#define SLICE (10 * NS_SECOND) /* from one look at the edges to the next */
#define ER_QUERY_INTERRUPTED 1317

/* A wait under way. */
typedef struct waiter {
  ns_link *link;
  ns_value list; /* "[id,…]" */
  ns_value me;   /* minus the number of the connection */
} waiter;

static ns_status run_on(waiter *w, ns_sql sql, const ns_value *params, const ns_value **row,
                        ns_err *err) {
  const char *text = ns_sql_texts[sql];
  ns_stmt *stmt;
  ns_status st = ns_link_prepare(w->link, &stmt, NULL, text, strlen(text), err);
  if (st == NS_OK)
    st = ns_stmt_run(w->link, stmt, params, err);
  return st == NS_OK && row != NULL ? ns_stmt_fetch(w->link, stmt, row, err) : st;
}

/* Sleeps until one of the edges is cut, and counts the rest. '*left' negative: it only counts. A
** ring ends the statement; then the next one counts. */
static ns_status sleep_once(waiter *w, int64_t wait, int64_t *left, ns_err *err) {
  char seconds[NS_NUMBER_SIZE];
  const ns_value *row = NULL;
  const ns_value params[] = {w->list, w->me, ns_vint(*left),
                             ns_vtext(ns_str(ns_number_seconds(wait, seconds)))};
  ns_status st = run_on(w, NS_SQL_WAIT_SLEEP, params, &row, err);
  if (st == NS_OK && row != NULL)
    *left = row[0].i;
  if (st == NS_OK || err->sqlerr != ER_QUERY_INTERRUPTED)
    return st;
  ns_err_clear(err);
  return NS_OK;
}

/* The lock that the other connection waits for. It goes with a lost connection: it is taken anew. */
static ns_status keep_asleep(ns_db *db, const waiter *w, ns_err *err) {
  ns_status st = ns_db_ready(db, err);
  return st == NS_OK ? ns_db_run(db, NS_SQL_WAIT_HOLD, &w->me, err) : st;
}

static ns_status sleep_until(ns_db *db, waiter *w, int64_t until, size_t *left, ns_err *err) {
  int64_t n = -1;
  int64_t now = 0;
  ns_status st = sleep_once(w, 0, &n, err);
  while (st == NS_OK && n != 0 && (now = ns_mono_us()) < until)
    if ((st = keep_asleep(db, w, err)) == NS_OK)
      st = sleep_once(w, until - now < SLICE ? until - now : SLICE, &n, err);
  *left = n > 0 ? (size_t)n : 0;
  return st;
}

static ns_status wait_on(ns_db *db, waiter *w, int64_t until, size_t *left, ns_err *err) {
  ns_err none;
  ns_status st;
  w->me = ns_vint(-ns_link_thread(w->link));
  st = run_on(w, NS_SQL_WAIT_RUNG, &w->me, NULL, err);
  if (st == NS_OK)
    st = run_on(w, NS_SQL_WAIT_ENTER, (ns_value[]){w->me, w->list}, NULL, err);
  if (st == NS_OK)
    st = sleep_until(db, w, until, left, err);
  for (int tries = 0; tries < 3; tries++) /* a late ring may end it */
    if (run_on(w, NS_SQL_WAIT_LEAVE, (ns_value[]){w->list, w->me}, NULL, &none) == NS_OK)
      break;
  ns_db_run(db, NS_SQL_WAIT_LET_GO, &w->me, &none);
  return st;
}

ns_status ns_wait(ns_db *db, ns_bytes ids, int64_t wait, size_t *left, ns_err *err) {
  waiter w = {.list = ns_vtext(ids)};
  int64_t until = ns_mono_us() + wait;
  ns_config cfg;
  ns_status st;
  *left = 0;
  ns_err_clear(err);
  if (ns_in_transaction(db))
    return ns_fail(err, NS_ESTATE,
                   "a wait inside a transaction would keep its locks from the jobs; wait before it, "
                   "or after it");
  if ((st = ns_db_ready(db, err)) != NS_OK)
    return st;
  cfg = ns_db_config_value(db);
  cfg.waits = NULL; /* waiting is its purpose */
  if (cfg.read_timeout < 2 * SLICE) /* only silence lasts longer */
    cfg.read_timeout = 2 * SLICE;
  cfg.host_session = false;
  if ((st = ns_link_open(&w.link, &cfg, err)) != NS_OK)
    return st;
  st = wait_on(db, &w, until, left, err);
  ns_link_close(w.link, false);
  return st;
}

#define MOST 20000 /* bytes of the list of those that are rung together; the rest find out later */

void ns_wake_note(ns_db *db, int64_t job) {
  if (db->waiters.n < MOST)
    ns_db_list_add_id(&db->waiters, -job);
}

void ns_wake_ended(ns_db *db) {
  ns_value list;
  ns_err none;
  if (ns_db_list_is_empty(&db->waiters) || ns_in_transaction(db))
    return;
  list = ns_db_list_end(&db->waiters);
  if (!db->waiters.oom)
    ns_db_run(db, NS_SQL_WAIT_RING, &list, &none);
  ns_buf_free(&db->waiters);
}
