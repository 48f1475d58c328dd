/*
** nightshift.shared without Lua: its verbs, and the region that has its dict and the table of
** locks. The dict follows the header of the region, the table follows the dict. A region is
** mapped before the first fork and has no name anywhere, so it ends with the last process that
** has it.
*/
#include "shared/shared.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base.h"

#define TWO_TO_63 9223372036854775808.0

bool ns_shared_init(ns_shared *s, void *memory, size_t size, bool evict) {
  s->dict = ns_dict_make(memory, size, evict);
  s->size = size;
  return ns_latch_init(&s->latch);
}

static void repair(void *arg) {
  ns_dict_repair(arg);
}

/* Checks the key and takes the latch. */
static ns_status lock_for_key(ns_shared *s, ns_bytes key, ns_err *err) {
  if (key.n < 1 || key.n > NS_DICT_KEY_MAX)
    return ns_fail(err, NS_EINVALID, "a key has 1 to %d bytes, this one has %zu", NS_DICT_KEY_MAX,
                   key.n);
  return ns_latch_take(&s->latch, repair, s->dict, err);
}

/* Drops the latch; the status of the verb. */
static ns_status unlock_after(ns_shared *s, ns_status st, size_t bytes, ns_err *err) {
  ns_latch_drop(&s->latch);
  if (st == NS_EFULL)
    return ns_fail(err, st,
                   "nightshift.shared is full (%zu bytes): delete keys, let "
                   "them expire, or ask for more (nightshift work --shared, "
                   "NIGHTSHIFT_SHARED)",
                   s->size);
  if (st == NS_ETOOBIG)
    return ns_fail(err, st,
                   "a value of %zu bytes does not fit into nightshift.shared, "
                   "which has %zu in all (nightshift work --shared, "
                   "NIGHTSHIFT_SHARED)",
                   bytes, s->size);
  return st;
}

static bool is_number(const ns_item *v) {
  return v->type == NS_ITEM_INT || v->type == NS_ITEM_REAL;
}

static double real_of(const ns_item *v) {
  return v->type == NS_ITEM_INT ? (double)v->i : v->d;
}

/* ---------------------------------------------------------------------- verbs */

ns_status ns_shared_get(ns_shared *s, ns_bytes key, ns_item *item, ns_buf *bytes, ns_err *err) {
  size_t start = bytes->n;
  ns_at at;
  ns_status st = lock_for_key(s, key, err);
  *item = (ns_item){.type = NS_ITEM_NONE};
  if (st != NS_OK)
    return st;
  if ((at = ns_dict_find(s->dict, key, ns_mono_us())) != 0) {
    *item = ns_dict_read(s->dict, at);
    ns_dict_add_bytes(s->dict, at, bytes);
  }
  ns_latch_drop(&s->latch);
  if (bytes->oom)
    return ns_fail(err, NS_ENOMEM, "a value of %zu bytes: out of memory", item->s.n);
  item->s.p = ns_buf_bytes(bytes).p + start;
  return NS_OK;
}

ns_status ns_shared_set(ns_shared *s, ns_bytes key, const ns_item *item, bool absent, bool *done,
                        ns_err *err) {
  int64_t now = ns_mono_us();
  ns_status st = lock_for_key(s, key, err);
  bool free;
  if (st != NS_OK)
    return st;
  free = !absent || ns_dict_find(s->dict, key, now) == 0;
  if (free)
    st = ns_dict_put(s->dict, key, item, now);
  if (done != NULL)
    *done = free;
  return unlock_after(s, st, item->s.n, err);
}

/* The sum of two numbers. */
static ns_status add_numbers(const ns_item *a, const ns_item *b, ns_item *sum, ns_err *err) {
  if (!is_number(a))
    return ns_fail(err, NS_EINVALID, "incr adds to numbers, and the key has a %s",
                   a->type == NS_ITEM_BYTES  ? "string"
                   : a->type == NS_ITEM_BOOL ? "boolean"
                                             : "table");
  sum->type = NS_ITEM_INT;
  if (a->type == NS_ITEM_INT && b->type == NS_ITEM_INT) {
    if (__builtin_add_overflow(a->i, b->i, &sum->i))
      return ns_fail(err, NS_EINVALID,
                     "incr: the sum is beyond 64 bits; the key keeps its "
                     "value");
    return NS_OK;
  }
  sum->type = NS_ITEM_REAL;
  sum->d = real_of(a) + real_of(b);
  return NS_OK;
}

ns_status ns_shared_incr(ns_shared *s, ns_bytes key, const ns_item *by, const ns_item *init,
                         ns_item *sum, ns_err *err) {
  int64_t now = ns_mono_us();
  ns_item old = *init;
  ns_at at;
  ns_status st = lock_for_key(s, key, err);
  if (st != NS_OK)
    return st;
  if ((at = ns_dict_find(s->dict, key, now)) != 0)
    old = ns_dict_read(s->dict, at);
  *sum = (ns_item){.expires = old.expires};
  if ((st = add_numbers(&old, by, sum, err)) == NS_OK)
    st = ns_dict_put(s->dict, key, sum, now);
  return unlock_after(s, st, 0, err);
}

/* Compares like Lua's ==: an int and a float are compared exactly. */
static bool same_number(const ns_item *a, const ns_item *b) {
  if (a->type == b->type)
    return a->type == NS_ITEM_INT ? a->i == b->i : a->d == b->d;
  if (a->type == NS_ITEM_REAL)
    return same_number(b, a);
  return b->d >= -TWO_TO_63 && b->d < TWO_TO_63 && (double)(int64_t)b->d == b->d &&
         (int64_t)b->d == a->i;
}

/* Is 'was' the value of the entry, 0 for none? */
static bool is_value(ns_dict *d, ns_at at, const ns_item *was) {
  ns_item v = {.type = NS_ITEM_NONE};
  if (at != 0)
    v = ns_dict_read(d, at);
  if (is_number(&v) && is_number(was))
    return same_number(&v, was);
  if (v.type != was->type || v.type == NS_ITEM_JSON)
    return false;
  if (v.type == NS_ITEM_BYTES)
    return ns_dict_holds(d, at, was->s);
  return v.type == NS_ITEM_NONE || v.i == was->i;
}

ns_status ns_shared_cas(ns_shared *s, ns_bytes key, const ns_item *was, const ns_item *now,
                        bool *done, ns_err *err) {
  int64_t t = ns_mono_us();
  ns_item item = *now;
  ns_at at;
  ns_status st = lock_for_key(s, key, err);
  if (st != NS_OK)
    return st;
  at = ns_dict_find(s->dict, key, t);
  *done = is_value(s->dict, at, was);
  if (*done && now->type == NS_ITEM_NONE) {
    if (at != 0)
      ns_dict_remove(s->dict, at);
  } else if (*done) {
    item.expires = at != 0 ? ns_dict_read(s->dict, at).expires : 0;
    st = ns_dict_put(s->dict, key, &item, t);
  }
  return unlock_after(s, st, now->s.n, err);
}

ns_status ns_shared_delete(ns_shared *s, ns_bytes key, bool *done, ns_err *err) {
  ns_at at;
  ns_status st = lock_for_key(s, key, err);
  if (st != NS_OK)
    return st;
  at = ns_dict_find(s->dict, key, ns_mono_us());
  *done = at != 0;
  if (at != 0)
    ns_dict_remove(s->dict, at);
  ns_latch_drop(&s->latch);
  return NS_OK;
}

ns_status ns_shared_ttl(ns_shared *s, ns_bytes key, int64_t *us, bool *there, ns_err *err) {
  int64_t now = ns_mono_us();
  ns_at at;
  ns_status st = lock_for_key(s, key, err);
  if (st != NS_OK)
    return st;
  *us = -1;
  *there = (at = ns_dict_find(s->dict, key, now)) != 0;
  if (*there) {
    int64_t expires = ns_dict_read(s->dict, at).expires;
    *us = expires == 0 ? -1 : expires - now;
  }
  ns_latch_drop(&s->latch);
  return NS_OK;
}

/* ----------------------------------------------------------------------- keys */

typedef struct listing {
  ns_bytes prefix;
  ns_buf *out;
} listing;

/* Adds the key, and takes it back if it begins otherwise. */
static void list_key(ns_dict *d, ns_at at, void *arg) {
  const listing *l = arg;
  size_t start = l->out->n;
  size_t n;
  ns_buf_addc(l->out, '\0');
  ns_dict_add_key(d, at, l->out);
  if (l->out->oom)
    return;
  n = l->out->n - start - 1;
  l->out->p[start] = (char)n;
  if (n < l->prefix.n || memcmp(l->out->p + start + 1, l->prefix.p, l->prefix.n) != 0)
    l->out->n = start;
}

ns_status ns_shared_keys(ns_shared *s, ns_bytes prefix, ns_buf *out, ns_err *err) {
  listing l = {prefix, out};
  ns_status st = ns_latch_take(&s->latch, repair, s->dict, err);
  if (st != NS_OK)
    return st;
  ns_dict_each(s->dict, ns_mono_us(), list_key, &l);
  ns_latch_drop(&s->latch);
  if (out->oom)
    return ns_fail(err, NS_ENOMEM, "the list of keys: out of memory");
  return NS_OK;
}

/* ---------------------------------------------------------------- the region */

#define SIZE_LEAST (UINT64_C(64) << 10)
#define SIZE_MOST (UINT64_C(64) << 30)
#define PAGE ((size_t)4096)

static size_t pages(size_t n) {
  return (n + PAGE - 1) & ~(PAGE - 1);
}

/* 0: no unit. */
static unsigned shift_of(char unit) {
  return unit == 'K' || unit == 'k'   ? 10
         : unit == 'M' || unit == 'm' ? 20
         : unit == 'G' || unit == 'g' ? 30
                                      : 0;
}

ns_status ns_region_parse(const char *text, size_t *size, bool *evict, ns_err *err) {
  const char *s = text;
  uint64_t n = 0;
  unsigned shift;
  for (; *s >= '0' && *s <= '9' && n <= SIZE_MOST; s++)
    n = n * 10 + (uint64_t)(*s - '0');
  shift = shift_of(*s);
  if (shift > 0 && n <= SIZE_MOST) {
    n <<= shift;
    s++;
  }
  *evict = strcmp(s, ",evict") == 0;
  if ((*s != '\0' && !*evict) || n < SIZE_LEAST || n > SIZE_MOST)
    return ns_fail(err, NS_EINVALID,
                   "bad size of the shared dict '%.40s': expected 64K to 64G, "
                   "such as 512K, 1M or \"1M,evict\"",
                   text);
  *size = (size_t)n;
  return NS_OK;
}

ns_status ns_region_map(ns_region **out, size_t size, bool evict, ns_err *err) {
  size_t dict = pages(sizeof(ns_region));
  size_t locks = dict + pages(size);
  size_t all = locks + ns_locks_size();
  ns_region *r;
  void *p =
      mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return ns_fail(err, NS_ENOMEM, "shared memory of %zu bytes: %s", all, strerror(errno));
  r = p;
  r->mapped = all;
  r->locks = ns_locks_make((char *)p + locks);
  if (r->locks == NULL || !ns_shared_init(&r->shared, (char *)p + dict, size, evict)) {
    munmap(p, all);
    return ns_fail(err, NS_ENOMEM, "the system has no robust mutexes");
  }
  *out = r;
  return NS_OK;
}

void ns_region_unmap(ns_region *r) {
  if (r != NULL)
    munmap(r, r->mapped);
}

/* ----------------------------------------------------------- of this process */

static _Atomic(ns_region *) ours;

ns_status ns_region_open(const char *text, ns_err *err) {
  const char *env = getenv("NIGHTSHIFT_SHARED");
  ns_region *none = NULL;
  ns_region *r;
  size_t size;
  bool evict;
  ns_status st;
  if (text == NULL)
    text = env != NULL && *env != '\0' ? env : NS_REGION_DEFAULT;
  if ((st = ns_region_parse(text, &size, &evict, err)) != NS_OK ||
      (st = ns_region_map(&r, size, evict, err)) != NS_OK)
    return st;
  if (atomic_compare_exchange_strong(&ours, &none, r))
    return NS_OK;
  ns_region_unmap(r);
  return ns_fail(err, NS_ESTATE,
                 "the shared memory is there already, its "
                 "size cannot change any more");
}

/* Another thread may be faster; then its region is ours. */
ns_region *ns_region_get(ns_err *err) {
  ns_region *r = atomic_load(&ours);
  if (r != NULL)
    return r;
  ns_region_open(NULL, err);
  return atomic_load(&ours);
}
