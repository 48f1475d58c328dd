/*
** Latches are robust process-shared mutexes: the kernel opens the latches of a thread that
** ends, for any cause, and tells the next taker.
**
** Named locks. The table is a dict, name and unit -> member, under a latch.
** A caller that finds no free unit sleeps on a bell, a futex that unlock rings. No ring comes
** when a holder dies, so sleepers look again now and then: together
** about every LOOK_EVERY, however many they are.
*/
#include "shared/shared.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base.h"

#define LATCH_PATIENCE 5 /* seconds; the work under a latch takes microseconds */

bool ns_latch_init(ns_latch *l) {
  pthread_mutexattr_t a;
  bool ok;
  atomic_init(&l->taken, 0);
  if (pthread_mutexattr_init(&a) != 0)
    return false;
  ok = pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED) == 0 &&
       pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST) == 0 &&
       pthread_mutex_init(&l->mutex, &a) == 0;
  pthread_mutexattr_destroy(&a);
  return ok;
}

/* Thousands of processes that have just been woken share the processors. A wait behind them is
** no sign of a stopped holder. */
static int wait_for(ns_latch *l) {
  struct timespec until;
  uint32_t taken;
  int rc;
  do {
    taken = atomic_load(&l->taken);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LATCH_PATIENCE;
    rc = pthread_mutex_clocklock(&l->mutex, CLOCK_MONOTONIC, &until);
  } while (rc == ETIMEDOUT && atomic_load(&l->taken) != taken);
  return rc;
}

ns_status ns_latch_take(ns_latch *l, void (*repair)(void *), void *arg, ns_err *err) {
  int rc = pthread_mutex_trylock(&l->mutex);
  if (rc == EBUSY)
    rc = wait_for(l);
  if (rc == 0 || rc == EOWNERDEAD)
    atomic_fetch_add(&l->taken, 1);
  if (rc == 0)
    return NS_OK;
  if (rc == EOWNERDEAD) {
    repair(arg);
    rc = pthread_mutex_consistent(&l->mutex);
    ns_assert(rc == 0); /* nothing was repaired twice */
    return NS_OK;
  }
  return ns_fail(err, NS_EBUSY,
                 "the shared memory stayed locked for %d s (%s); is one of the "
                 "processes that use it stopped?",
                 LATCH_PATIENCE, strerror(rc));
}

void ns_latch_drop(ns_latch *l) {
  int rc = pthread_mutex_unlock(&l->mutex);
  ns_assert(rc == 0); /* it was ours */
  (void)rc;
}

bool ns_latch_try(ns_latch *l) {
  int rc = pthread_mutex_trylock(&l->mutex);
  if (rc == EOWNERDEAD)
    pthread_mutex_consistent(&l->mutex);
  return rc == 0 || rc == EOWNERDEAD;
}

/* --------------------------------------------------------------- named locks */

#define MEMBERS 32768u /* processes or threads that use locks */
#define BELLS 4096u
#define TABLE (size_t)(4u << 20) /* bytes; more than 20,000 units held at once */
#define LOOK_EVERY 10000         /* µs */
#define LOOK_LATEST 500000
#define UNHEARD 100 /* then the processes that were counted as waiting are dead */

typedef struct member {
  ns_latch alive; /* held as long as its thread lives */
  bool made;      /* the latch has been initialised */
  uint32_t life;  /* grows with each new thread */
  pid_t pid;      /* for messages */
} member;

/* Names share bells by their hash. A wrong ring costs a look, a ring that went
** to another name's sleeper costs the rest of a LOOK_EVERY. */
typedef struct bell {
  _Atomic uint32_t rings;
  uint32_t waiting;         /* about: the dead are not subtracted until they show */
  _Atomic uint32_t unheard; /* rings in a row that woke no sleeper */
} bell;

struct ns_locks {
  uint64_t id; /* random: another table may come to the same address */
  ns_latch latch;
  ns_dict *held;     /* key: see make_key; an int: see owner */
  uint32_t nmembers; /* how many entries of 'members' were ever used */
  bell bells[BELLS];
  member members[MEMBERS];
};

/* This thread, if it has joined; a forked child has not. */
static _Thread_local struct {
  uint64_t table; /* its id */
  pid_t pid;
  uint32_t index, life;
  size_t holding; /* units */
} me;

static size_t table_at(void) {
  return (sizeof(ns_locks) + 4095) & ~(size_t)4095;
}

size_t ns_locks_size(void) {
  return table_at() + TABLE;
}

ns_locks *ns_locks_make(void *memory) {
  ns_locks *t = memory;
  if (!ns_latch_init(&t->latch))
    return NULL;
  t->id = ns_random() | 1u;
  t->held = ns_dict_make((char *)memory + table_at(), TABLE, false);
  return t;
}

static void repair(void *arg) {
  ns_dict_repair(arg);
}

/* -------------------------------------------------------------------- members */

/* Takes a member's place if no living process has it. */
static bool take_place(ns_locks *t, uint32_t i) {
  member *m = &t->members[i];
  if (!m->made)
    m->made = ns_latch_init(&m->alive);
  if (!m->made || !ns_latch_try(&m->alive))
    return false;
  m->life++;
  m->pid = getpid();
  me.table = t->id;
  me.pid = m->pid;
  me.index = i;
  me.life = m->life;
  me.holding = 0;
  return true;
}

static bool has_joined(const ns_locks *t) {
  return me.table == t->id && me.pid == getpid();
}

/* Places of the dead are found by chance, which keeps the used ones together;
** 'nmembers' grows only when that fails. Under the latch. */
static bool join_table(ns_locks *t) {
  if (has_joined(t))
    return true;
  for (int i = 0; i < 8 && t->nmembers > 0; i++)
    if (take_place(t, (uint32_t)(ns_random() % t->nmembers)))
      return true;
  while (t->nmembers < MEMBERS)
    if (take_place(t, t->nmembers++))
      return true;
  for (uint32_t i = 0; i < MEMBERS; i++)
    if (take_place(t, i))
      return true;
  return false;
}

/* A member as the value of a unit. */
static int64_t owner_value(uint32_t index, uint32_t life) {
  return (int64_t)index << 32 | (int64_t)life;
}

static int64_t myself(void) {
  return owner_value(me.index, me.life);
}

static member *member_of(ns_locks *t, int64_t who) {
  return &t->members[(uint64_t)who >> 32];
}

/* Runs under the latch, so no other process tries the same. */
static bool is_alive(ns_locks *t, int64_t who) {
  member *m = member_of(t, who);
  if (m->life != (uint32_t)who)
    return false;
  if (!ns_latch_try(&m->alive))
    return true;
  ns_latch_drop(&m->alive);
  return false;
}

/* ---------------------------------------------------------------------- units */

#define PREFIX 3 /* bytes of a key before the name */

typedef struct unit_key {
  char bytes[NS_MUTEX_NAME_MAX + PREFIX];
} unit_key;

/* 'm' or 's', the unit's number, the name. */
static ns_bytes make_key(unit_key *k, ns_bytes name, unsigned units, unsigned unit) {
  k->bytes[0] = units == 0 ? 'm' : 's';
  k->bytes[1] = (char)(unit & 0xFF);
  k->bytes[2] = (char)(unit >> 8);
  memcpy(k->bytes + PREFIX, name.p, name.n);
  return (ns_bytes){k->bytes, name.n + PREFIX};
}

static bell *bell_of(ns_locks *t, ns_bytes name) {
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < name.n; i++)
    h = (h ^ (unsigned char)name.p[i]) * 16777619u;
  return &t->bells[(h ^ h >> 15) % BELLS];
}

/* Strikes out a unit of a dead member. */
static void forget_dead(ns_dict *d, ns_at at, void *arg) {
  if (!is_alive(arg, ns_dict_read(d, at).i))
    ns_dict_remove(d, at);
}

/* Writes a unit down as ours. */
static ns_status write_down(ns_locks *t, ns_bytes key, ns_err *err) {
  ns_item item = {.type = NS_ITEM_INT, .i = myself()};
  if (ns_dict_put(t->held, key, &item, 0) == NS_OK)
    return NS_OK;
  ns_dict_each(t->held, 0, forget_dead, t);
  if (ns_dict_put(t->held, key, &item, 0) == NS_OK)
    return NS_OK;
  return ns_fail(err, NS_EFULL,
                 "too many mutexes and semaphores are held at "
                 "once on this host");
}

/* The wish of a caller, and its state so far. */
typedef struct attempt {
  ns_bytes name;
  unsigned units; /* 0: a mutex */
  unsigned unit;
  bool taken;              /* the attempt has 'unit' */
  pid_t holder;            /* not taken: a process that has a unit */
  bool last;               /* the caller will not sleep after this look */
  bool counted;            /* the caller is counted in the bell's 'waiting' */
  uint32_t rings, waiting; /* of the bell, at the last look */
} attempt;

/* Takes a unit if there is one. Under the latch. */
static ns_status try_lock(ns_locks *t, attempt *a, ns_err *err) {
  unit_key k;
  unsigned n = a->units == 0 ? 1 : a->units;
  bool found = false;
  for (unsigned i = 0; i < n; i++) {
    ns_at at = ns_dict_find(t->held, make_key(&k, a->name, a->units, i), 0);
    int64_t who = at != 0 ? ns_dict_read(t->held, at).i : 0;
    if (at != 0 && who == myself())
      return ns_fail(err, NS_ESTATE,
                     "held by this process already, which would wait for "
                     "itself");
    if (found)
      continue;
    found = at == 0 || !is_alive(t, who);
    if (found)
      a->unit = i;
    else
      a->holder = member_of(t, who)->pid;
  }
  if (!found)
    return NS_OK;
  a->taken = true;
  me.holding++; /* first, so that unlock_all never overlooks it */
  return write_down(t, make_key(&k, a->name, a->units, a->unit), err);
}

/* -------------------------------------------------------------------- waiting */

/* Until the bell rings once more, for a while at most. */
static void sleep_on(bell *b, const attempt *a, int64_t left) {
  int64_t us = ns_jitter((int64_t)a->waiting * LOOK_EVERY, 0.5);
  struct timespec t;
  us = us < LOOK_LATEST ? us : LOOK_LATEST;
  us = us < left ? us : left;
  t.tv_sec = (time_t)(us / NS_SECOND);
  t.tv_nsec = (long)(us % NS_SECOND) * 1000;
  syscall(SYS_futex, &b->rings, FUTEX_WAIT, a->rings, &t, NULL, 0);
}

/* Has a sleeper to be woken? Counts the ring. Under the latch. */
static bool count_ring(bell *b) {
  if (atomic_load(&b->unheard) > UNHEARD) {
    b->waiting = 0;
    atomic_store(&b->unheard, 0);
  }
  if (b->waiting == 0)
    return false;
  atomic_fetch_add(&b->rings, 1);
  return true;
}

/* Wakes one sleeper; processes about to sleep see that the bell has rung. */
static void wake_sleeper(bell *b) {
  if (syscall(SYS_futex, &b->rings, FUTEX_WAKE, 1, NULL, NULL, 0) == 0)
    atomic_fetch_add(&b->unheard, 1);
  else
    atomic_store(&b->unheard, 0);
}

/* Looks once; a caller that will sleep is counted as waiting until its next look. */
static ns_status look_for_unit(ns_locks *t, attempt *a, bell *b, ns_err *err) {
  ns_status st = ns_latch_take(&t->latch, repair, t->held, err);
  if (st != NS_OK)
    return st;
  if (a->counted && b->waiting > 0)
    b->waiting--;
  if (join_table(t))
    st = try_lock(t, a, err);
  else
    st = ns_fail(err, NS_EFULL, "more than %u processes use locks", MEMBERS);
  a->counted = st == NS_OK && !a->taken && !a->last;
  if (a->counted)
    a->waiting = ++b->waiting;
  a->rings = atomic_load(&b->rings);
  ns_latch_drop(&t->latch);
  return st;
}

static ns_status check_name(ns_bytes name, unsigned units, ns_err *err) {
  if (name.n < 1 || name.n > NS_MUTEX_NAME_MAX)
    return ns_fail(err, NS_EINVALID, "a name has 1 to %d bytes, this one has %zu",
                   NS_MUTEX_NAME_MAX, name.n);
  if (units > NS_MUTEX_UNITS_MAX)
    return ns_fail(err, NS_EINVALID, "a semaphore has 1 to %d units, not %u", NS_MUTEX_UNITS_MAX,
                   units);
  return NS_OK;
}

static ns_status not_free(const attempt *a, int64_t timeout, ns_err *err) {
  char seconds[NS_NUMBER_SIZE];
  return ns_fail(err, NS_EBUSY, "not free within %s s; process %d holds it",
                 ns_number_seconds(timeout, seconds), (int)a->holder);
}

ns_status ns_mutex_lock(ns_locks *t, ns_bytes name, unsigned units, int64_t timeout,
                        bool (*interrupted)(void *), void *arg, unsigned *unit, ns_err *err) {
  attempt a = {.name = name, .units = units};
  int64_t until = ns_mono_us() + timeout;
  bell *b = bell_of(t, name);
  ns_status st = check_name(name, units, err);
  while (st == NS_OK && !a.taken && !a.last) {
    int64_t left = until - ns_mono_us();
    a.last = left <= 0;
    st = look_for_unit(t, &a, b, err);
    if (a.counted)
      sleep_on(b, &a, left);
    if (a.counted && interrupted != NULL && interrupted(arg))
      until = 0;
  }
  if (st == NS_OK && !a.taken)
    return not_free(&a, timeout, err);
  *unit = a.unit;
  return st;
}

/* Strikes a unit out if it is ours. Under the latch. */
static bool strike_out(ns_locks *t, ns_at at) {
  if (at == 0 || ns_dict_read(t->held, at).i != myself())
    return false;
  ns_dict_remove(t->held, at);
  ns_assert(me.holding > 0 && me.pid == getpid());
  me.holding--;
  return true;
}

ns_status ns_mutex_unlock(ns_locks *t, ns_bytes name, unsigned units, unsigned unit, ns_err *err) {
  bell *b = bell_of(t, name);
  unit_key k;
  bool ours;
  bool heard;
  ns_status st = check_name(name, units, err);
  if (st == NS_OK)
    st = ns_latch_take(&t->latch, repair, t->held, err);
  if (st != NS_OK)
    return st;
  ours = has_joined(t) && strike_out(t, ns_dict_find(t->held, make_key(&k, name, units, unit), 0));
  heard = ours && count_ring(b);
  ns_latch_drop(&t->latch);
  if (heard)
    wake_sleeper(b);
  return ours ? NS_OK : ns_fail(err, NS_ESTATE, "not held by this process");
}

/* Sleepers that are not rung for, because memory is short, look by
** themselves. */
static void release_unit(ns_dict *d, ns_at at, void *arg) {
  ns_locks *t = arg;
  ns_buf key = NS_BUF_INIT;
  ns_dict_add_key(d, at, &key);
  if (strike_out(t, at) && key.n > PREFIX) {
    bell *b = bell_of(t, (ns_bytes){key.p + PREFIX, key.n - PREFIX});
    if (count_ring(b))
      wake_sleeper(b);
  }
  ns_buf_free(&key);
}

ns_status ns_mutex_unlock_all(ns_locks *t, ns_err *err) {
  ns_status st;
  if (!has_joined(t) || me.holding == 0)
    return NS_OK;
  if ((st = ns_latch_take(&t->latch, repair, t->held, err)) != NS_OK)
    return st;
  ns_dict_each(t->held, 0, release_unit, t);
  me.holding = 0;
  ns_latch_drop(&t->latch);
  return NS_OK;
}
