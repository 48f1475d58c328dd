/*
** Ringing: waking a listener after a commit. And other holders, in the order of their ids;
** behind the last comes the first.
**
** Invariant: a ring is due for rows that a transaction has written, and is sent once it is
** committed. (The hook below is the only place that sends a ring that is due.) A holder does
** not watch itself, the dead, or holders without a lock.
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

const ns_hooks ns_wake_ring_hooks = {.committed = committed};

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
