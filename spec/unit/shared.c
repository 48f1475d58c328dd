/*
** Dying inside the shared dict. The dict is built with NS_CRASH, so it calls ns_crash_here
** before and after each store where order matters. Every change is tried once for each of these
** places: a child begins it and is killed there. Then the dict must be sound, its other keys
** untouched, and the change done or not done, never half. The repair is killed everywhere as
** well. Prints one line per group; aborts at the first check that fails.
*/
#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "shared/shared.h"

#define CHECK(x)                                                              \
  do                                                                          \
    if (!(x)) {                                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                 \
      abort();                                                                \
    }                                                                         \
  while (0)

#define LEAST ((size_t)64 << 10)

void ns_crash_here(void);

static long countdown; /* 0: live */

void ns_crash_here(void) {
  if (countdown > 0 && --countdown == 0)
    kill(getpid(), SIGKILL);
}

static ns_region *map(bool evict) {
  ns_region *r = NULL;
  CHECK(ns_region_map(&r, LEAST, evict, NULL) == NS_OK);
  return r;
}

/* ---------------------------------------------------------------------- values */

static ns_bytes text(char c, size_t n) {
  static char room[8192];
  CHECK(n <= sizeof room);
  memset(room, c, n);
  return (ns_bytes){room, n};
}

static ns_item bytes(char c, size_t n) {
  return (ns_item){.type = NS_ITEM_BYTES, .s = text(c, n)};
}

static ns_item number(int64_t i) {
  return (ns_item){.type = NS_ITEM_INT, .i = i};
}

static void put(ns_region *r, const char *key, ns_item item) {
  CHECK(ns_shared_set(&r->shared, ns_str(key), &item, false, NULL, NULL) ==
        NS_OK);
}

/* Has the key exactly this value? NONE: no value. */
static bool has(ns_region *r, const char *key, ns_item want) {
  ns_buf b = NS_BUF_INIT;
  ns_item item;
  bool same;
  CHECK(ns_shared_get(&r->shared, ns_str(key), &item, &b, NULL) == NS_OK);
  same = item.type == want.type && item.i == want.i && item.s.n == want.s.n &&
         (want.s.n == 0 || memcmp(item.s.p, want.s.p, want.s.n) == 0);
  ns_buf_free(&b);
  return same;
}

static const ns_item nothing = {.type = NS_ITEM_NONE};

/* ------------------------------------------------------------------- the sweep */

/* A change of the key "key": from 'before' to 'after'. */
typedef struct change {
  const char *name;
  ns_item before, after;
  void (*make)(ns_region *r, const struct change *c);
  bool evict; /* in a full dict that gives way: neighbours may go */
} change;

static void make_set(ns_region *r, const change *c) {
  put(r, "key", c->after);
}

static void make_add(ns_region *r, const change *c) {
  bool done;
  CHECK(ns_shared_set(&r->shared, ns_str("key"), &c->after, true, &done,
                      NULL) == NS_OK && done);
}

static void make_incr(ns_region *r, const change *c) {
  ns_item by = number(c->after.i - c->before.i);
  ns_item init = number(0);
  ns_item sum;
  CHECK(ns_shared_incr(&r->shared, ns_str("key"), &by, &init, &sum, NULL) ==
        NS_OK);
}

static void make_cas(ns_region *r, const change *c) {
  bool done;
  CHECK(ns_shared_cas(&r->shared, ns_str("key"), &c->before, &c->after, &done,
                      NULL) == NS_OK && done);
}

static void make_delete(ns_region *r, const change *c) {
  bool done;
  (void)c;
  CHECK(ns_shared_delete(&r->shared, ns_str("key"), &done, NULL) == NS_OK);
}

/* Its time has come: the next look removes it. */
static void make_expire(ns_region *r, const change *c) {
  ns_sleep_us(2000);
  CHECK(has(r, "key", c->after));
}

/* Neighbours on both sides, in a dict that has holes; full if it may evict. */
static ns_region *prepare(const change *c) {
  ns_region *r = map(c->evict);
  ns_item before = c->before;
  put(r, "hole", bytes('h', 500));
  put(r, "left", bytes('l', 200));
  if (c->make == make_expire)
    before.expires = ns_mono_us() + 1000;
  if (before.type != NS_ITEM_NONE)
    put(r, "key", before);
  put(r, "right", number(7));
  CHECK(ns_shared_delete(&r->shared, ns_str("hole"), &(bool){false}, NULL) ==
        NS_OK);
  for (int i = 0; c->evict && i < 800; i++) {
    char key[16];
    snprintf(key, sizeof key, "n%d", i);
    put(r, key, bytes('n', 100));
  }
  return r;
}

/* Runs fn in a child that dies at place number 'at'; false: it came through. */
static bool dies(long at, void (*fn)(ns_region *, const change *),
                 ns_region *r, const change *c) {
  int status;
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    countdown = at;
    fn(r, c);
    _exit(0);
  }
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL
                            : WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

/* Takes the latch, which repairs. */
static void look(ns_region *r, const change *c) {
  (void)c;
  has(r, "no such key", nothing);
}

static void restore(ns_region *r, const change *c) {
  if (c->before.type != NS_ITEM_NONE)
    put(r, "key", c->before);
  else
    CHECK(ns_shared_delete(&r->shared, ns_str("key"), &(bool){false}, NULL) ==
          NS_OK);
}

/* After a death in the change: all or nothing, and life goes on. */
static void check(ns_region *r, const change *c) {
  look(r, c);
  CHECK(ns_dict_sound(r->shared.dict));
  CHECK(has(r, "key", c->before) || has(r, "key", c->after) ||
        (c->evict && has(r, "key", nothing)));
  if (!c->evict)
    CHECK(has(r, "left", bytes('l', 200)) && has(r, "right", number(7)));
  restore(r, c);
  if (c->make != make_expire)
    c->make(r, c);
  CHECK(c->make == make_expire || has(r, "key", c->after));
  CHECK(ns_dict_sound(r->shared.dict));
}

/* Every place in the change; after some of them, places in the repair. The
** number of places. */
static long sweep(const change *c) {
  for (long at = 1;; at++) {
    ns_region *r = prepare(c);
    bool died = dies(at, c->make, r, c);
    if (died && at % 7 == 0)
      for (long in = 1; dies(in, look, r, c); in += in / 2 + 1)
        ;
    if (died)
      check(r, c);
    else
      CHECK(has(r, "key", c->after) && ns_dict_sound(r->shared.dict));
    ns_region_unmap(r);
    if (!died)
      return at - 1;
  }
}

static void crashes(void) {
  static char room[2][512];
  ns_item long_one = {.type = NS_ITEM_BYTES, .s = {room[0], 300}};
  ns_item other = {.type = NS_ITEM_BYTES, .s = {room[1], 150}};
  const change changes[] = {
      {"insert a number", nothing, number(5), make_set, false},
      {"insert bytes", nothing, long_one, make_set, false},
      {"number for number", number(5), number(6), make_set, false},
      {"bytes for number", number(5), long_one, make_set, false},
      {"number for bytes", long_one, number(5), make_set, false},
      {"bytes for bytes", long_one, other, make_set, false},
      {"add", nothing, other, make_add, false},
      {"incr", number(5), number(9), make_incr, false},
      {"incr from nothing", nothing, number(9), make_incr, false},
      {"cas", long_one, other, make_cas, false},
      {"cas to nothing", long_one, nothing, make_cas, false},
      {"delete", long_one, nothing, make_delete, false},
      {"expire", long_one, nothing, make_expire, false},
      {"insert into a full one", nothing, long_one, make_set, true},
      {"replace in a full one", other, long_one, make_set, true},
  };
  memset(room[0], 'L', sizeof room[0]);
  memset(room[1], 'O', sizeof room[1]);
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    long places = sweep(&changes[i]);
    CHECK(places > 1);
    printf("%s: %ld places\n", changes[i].name, places);
  }
}

/* ----------------------------------------------------------------------- locks */

static unsigned lock(ns_region *r, unsigned units, int64_t timeout,
                     ns_status want) {
  unsigned unit = 0;
  ns_err err;
  ns_status st =
      ns_mutex_lock(r->locks, ns_str("name"), units, timeout, NULL, NULL, &unit, &err);
  CHECK(st == want);
  return unit;
}

static void lock_and_unlock(ns_region *r, const change *c) {
  (void)c;
  ns_mutex_unlock(r->locks, ns_str("name"), 2, lock(r, 2, 0, NS_OK), NULL);
}

/* Killed anywhere in lock and unlock, the unit is free again. */
static void lock_crashes(void) {
  long at = 1;
  ns_region *r = map(false);
  while (dies(at, lock_and_unlock, r, NULL)) {
    CHECK(ns_mutex_unlock(r->locks, ns_str("name"), 2, lock(r, 2, 0, NS_OK),
                          NULL) == NS_OK);
    at++;
  }
  CHECK(at > 10);
  ns_region_unmap(r);
}

static void many_names(ns_region *r, const change *c) {
  (void)c;
  for (int i = 0; i < 60000; i++) {
    char name[16];
    unsigned unit;
    int n = snprintf(name, sizeof name, "%d", i);
    if (ns_mutex_lock(r->locks, (ns_bytes){name, (size_t)n}, 0, 0, NULL, NULL, &unit,
                      NULL) != NS_OK) {
      CHECK(i > 20000);
      return;
    }
  }
  CHECK(false);
}

/* What the dead held does not fill the table for ever. */
static void lock_table(void) {
  ns_region *r = map(false);
  CHECK(!dies(0, many_names, r, NULL));
  many_names(r, NULL);
  CHECK(ns_mutex_unlock_all(r->locks, NULL) == NS_OK);
  many_names(r, NULL);
  ns_region_unmap(r);
}

/* ----------------------------------------------------------------------- sizes */

static void sizes(void) {
  static const struct {
    const char *text;
    size_t size;
    bool evict;
  } good[] = {{"64K", 64 << 10, false}, {"65536", 65536, false},
              {"1M", 1 << 20, false},   {"2m,evict", 2 << 20, true},
              {"1G", 1 << 30, false}};
  static const char *const bad[] = {"",    "M",   "63K",  "1T",      "65G",
                                    "1MB", "-1M", "1M ",  "1M,lru",  "0",
                                    ",evict", "99999999999999999999",
                                    "18446744073709551616", "1.5M"};
  size_t size = 0;
  bool evict;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    CHECK(ns_region_parse(good[i].text, &size, &evict, NULL) == NS_OK);
    CHECK(size == good[i].size && evict == good[i].evict);
  }
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    CHECK(ns_region_parse(bad[i], &size, &evict, NULL) == NS_EINVALID);
}

/* ----------------------------------------------------------------------- latch */

#define TURNS 8
#define TURN_US INT64_C(900000) /* together longer than a latch is waited for */

/* Takes it again at once: a waiter has hardly a chance. */
static void take_turns(ns_latch *l) {
  for (int i = 0; i < TURNS; i++) {
    CHECK(ns_latch_take(l, NULL, NULL, NULL) == NS_OK);
    ns_sleep_us(TURN_US);
    ns_latch_drop(l);
  }
  _exit(0);
}

/* A latch that changes hands is waited for, however long it takes. */
static void busy_latch(void) {
  ns_region *r = map(false);
  ns_latch *l = &r->shared.latch;
  int status;
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0)
    take_turns(l);
  while (ns_latch_try(l)) { /* not before it has begun */
    ns_latch_drop(l);
    ns_sleep_us(1000);
  }
  CHECK(ns_latch_take(l, NULL, NULL, NULL) == NS_OK);
  ns_latch_drop(l);
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  sizes();
  puts("sizes");
  crashes();
  puts("crashes");
  lock_crashes();
  puts("crashes in lock and unlock");
  lock_table();
  puts("the table of locks");
  busy_latch();
  puts("a latch that many want");
  return 0;
}
