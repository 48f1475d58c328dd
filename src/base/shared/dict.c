/*
** The dict in shared memory; see shared.h for why it survives.
**
** The stores that may not be swapped go through 'set'. A process is killed between two
** instructions, and all its earlier stores are visible. So only the compiler has to keep to the
** order.
*/
#include "shared/shared.h"

#include <stdatomic.h>
#include <string.h>

#include "base.h"

/* Specs are built to die at any of these. */
#ifdef NS_CRASH
void ns_crash_here(void);
#define MAY_DIE() ns_crash_here()
#else
#define MAY_DIE() ((void)0)
#endif

#define PART 60 /* bytes of a key or value in one cell */

/* A piece of a key or value. */
typedef struct part {
  uint32_t next; /* cell of the next piece, or of the next free cell */
  char bytes[PART];
} part;

/* One of an entry's two values; 'state' says which one is valid. */
typedef struct version {
  int64_t expires;
  union {
    int64_t i;
    double d;
    struct {
      uint32_t n, head;
    } s;
  };
} version;

typedef struct entry {
  uint32_t next; /* in its bucket */
  uint32_t hash;
  uint32_t key;          /* first piece */
  uint32_t key_n;        /* bytes */
  uint32_t state;        /* see pack */
  uint32_t newer, older; /* derived: order of use */
  version v[2];
} entry;

typedef union cell {
  entry e;
  part p;
} cell;

_Static_assert(sizeof(cell) == 64, "a cell is 64 bytes");

struct ns_dict {
  uint32_t *buckets; /* first entries */
  uint8_t *marks;    /* a bit per cell, for repair */
  cell *cells;       /* number 0 is not used: it means "none" */
  uint32_t nbuckets; /* a power of two */
  uint32_t ncells;   /* cells are numbered 1 to this */
  uint32_t seed;
  uint32_t fresh;          /* cells from here on were never used */
  uint32_t free;           /* derived: a chain of cells given back */
  uint32_t nfree;          /* derived: the free cells and the fresh ones */
  uint32_t newest, oldest; /* derived: ends of the order of use */
  int64_t soonest;         /* nothing expires before; 0: nothing at all does */
  bool evict;
};

static void set(uint32_t *word, uint32_t value) {
  MAY_DIE();
  atomic_signal_fence(memory_order_seq_cst);
  *(volatile uint32_t *)word = value;
  atomic_signal_fence(memory_order_seq_cst);
  MAY_DIE();
}

/* ----------------------------------------------------------- an entry's state */

/* Bit 0: which version counts; then the types of both. */
static uint32_t pack(const entry *e, unsigned which, ns_item_type type) {
  unsigned shift = which == 0 ? 8 : 16;
  return (e->state & ~(1u | 0xFFu << shift)) | which | (uint32_t)type << shift;
}

static unsigned current(const entry *e) {
  return e->state & 1u;
}

static ns_item_type type_of(const entry *e) {
  return (ns_item_type)(e->state >> (current(e) == 0 ? 8 : 16) & 0xFFu);
}

static bool is_bytes(ns_item_type t) {
  return t == NS_ITEM_BYTES || t == NS_ITEM_JSON;
}

static bool expired(const entry *e, int64_t now) {
  int64_t at = e->v[current(e)].expires;
  return at != 0 && at <= now;
}

/* ---------------------------------------------------------------------- cells */

/* There is one: callers look at nfree first. */
static uint32_t take(ns_dict *d) {
  uint32_t i = d->free;
  if (i != 0)
    set(&d->free, d->cells[i].p.next);
  else {
    i = d->fresh;
    set(&d->fresh, i + 1);
  }
  set(&d->nfree, d->nfree - 1);
  return i;
}

static void give(ns_dict *d, uint32_t i) {
  set(&d->cells[i].p.next, d->free);
  set(&d->free, i);
  set(&d->nfree, d->nfree + 1);
}

static size_t cells_for(size_t n) {
  return (n + PART - 1) / PART;
}

/* Copies bytes into a chain of cells; its first, 0 when there are no bytes. */
static uint32_t keep(ns_dict *d, ns_bytes s) {
  uint32_t head = 0;
  uint32_t *link = &head;
  for (size_t i = 0; i < s.n; i += PART) {
    uint32_t c = take(d);
    memcpy(d->cells[c].p.bytes, s.p + i, s.n - i < PART ? s.n - i : PART);
    MAY_DIE();
    *link = c;
    link = &d->cells[c].p.next;
    *link = 0;
  }
  return head;
}

static void drop(ns_dict *d, uint32_t head) {
  while (head != 0) {
    uint32_t next = d->cells[head].p.next;
    give(d, head);
    head = next;
  }
}

static bool same(const ns_dict *d, uint32_t head, ns_bytes s) {
  for (size_t i = 0; i < s.n; i += PART) {
    const part *p = &d->cells[head].p;
    if (memcmp(p->bytes, s.p + i, s.n - i < PART ? s.n - i : PART) != 0)
      return false;
    head = p->next;
  }
  return true;
}

static void add_chain(const ns_dict *d, uint32_t head, size_t n, ns_buf *out) {
  for (size_t i = 0; i < n; i += PART) {
    const part *p = &d->cells[head].p;
    ns_buf_add(out, p->bytes, n - i < PART ? n - i : PART);
    head = p->next;
  }
}

/* --------------------------------------------------------------- order of use */

static void list_in(ns_dict *d, uint32_t at) {
  entry *e = &d->cells[at].e;
  e->newer = 0;
  e->older = d->newest;
  *(d->newest != 0 ? &d->cells[d->newest].e.newer : &d->oldest) = at;
  set(&d->newest, at);
}

static void list_out(ns_dict *d, uint32_t at) {
  const entry *e = &d->cells[at].e;
  set(e->newer != 0 ? &d->cells[e->newer].e.older : &d->newest, e->older);
  set(e->older != 0 ? &d->cells[e->older].e.newer : &d->oldest, e->newer);
}

static void touch(ns_dict *d, uint32_t at) {
  if (!d->evict || d->newest == at)
    return;
  list_out(d, at);
  list_in(d, at);
}

/* ------------------------------------------------------------- finding, removing */

static uint32_t hash_of(const ns_dict *d, ns_bytes key) {
  uint32_t h = d->seed; /* FNV-1a */
  for (size_t i = 0; i < key.n; i++)
    h = (h ^ (unsigned char)key.p[i]) * 16777619u;
  return h ^ h >> 15;
}

static uint32_t *bucket(ns_dict *d, uint32_t hash) {
  return &d->buckets[hash & (d->nbuckets - 1)];
}

/* Takes out the entry that '*link' names. */
static void unlink_at(ns_dict *d, uint32_t *link) {
  uint32_t at = *link;
  const entry *e = &d->cells[at].e;
  const version *v = &e->v[current(e)];
  set(link, e->next); /* from here on it is gone */
  list_out(d, at);
  if (is_bytes(type_of(e)))
    drop(d, v->s.head);
  drop(d, e->key);
  give(d, at);
}

void ns_dict_remove(ns_dict *d, ns_at at) {
  uint32_t *link = bucket(d, d->cells[at].e.hash);
  while (*link != at)
    link = &d->cells[*link].e.next;
  unlink_at(d, link);
}

/* The link to a key's entry, or the end of its bucket. */
static uint32_t *locate(ns_dict *d, uint32_t hash, ns_bytes key, int64_t now) {
  uint32_t *link = bucket(d, hash);
  for (; *link != 0; link = &d->cells[*link].e.next) {
    const entry *e = &d->cells[*link].e;
    if (e->hash != hash || e->key_n != key.n || !same(d, e->key, key))
      continue;
    if (!expired(e, now))
      return link;
    ns_dict_remove(d, *link);
    return locate(d, hash, key, now);
  }
  return link;
}

ns_at ns_dict_find(ns_dict *d, ns_bytes key, int64_t now) {
  return *locate(d, hash_of(d, key), key, now);
}

void ns_dict_each(ns_dict *d, int64_t now, void (*fn)(ns_dict *d, ns_at at, void *arg), void *arg) {
  for (uint32_t b = 0; b < d->nbuckets; b++) {
    uint32_t at = d->buckets[b];
    while (at != 0) {
      uint32_t next = d->cells[at].e.next;
      if (!expired(&d->cells[at].e, now))
        fn(d, at, arg);
      at = next;
    }
  }
}

/* Removes expired entries, at most once per expiry. */
static void sweep(ns_dict *d, int64_t now) {
  int64_t soonest = 0;
  if (d->soonest == 0 || now < d->soonest)
    return;
  for (uint32_t b = 0; b < d->nbuckets; b++) {
    uint32_t *link = &d->buckets[b];
    while (*link != 0) {
      const entry *e = &d->cells[*link].e;
      int64_t at = e->v[current(e)].expires;
      if (expired(e, now)) {
        unlink_at(d, link);
        continue;
      }
      if (at != 0 && (soonest == 0 || at < soonest))
        soonest = at;
      link = &d->cells[*link].e.next;
    }
  }
  d->soonest = soonest;
}

/* -------------------------------------------------------------------- reading */

ns_item ns_dict_read(ns_dict *d, ns_at at) {
  const entry *e = &d->cells[at].e;
  const version *v = &e->v[current(e)];
  ns_item item = {.type = type_of(e), .expires = v->expires};
  touch(d, at);
  if (is_bytes(item.type))
    item.s.n = v->s.n;
  else if (item.type == NS_ITEM_REAL)
    item.d = v->d;
  else
    item.i = v->i;
  return item;
}

void ns_dict_add_bytes(const ns_dict *d, ns_at at, ns_buf *out) {
  const entry *e = &d->cells[at].e;
  const version *v = &e->v[current(e)];
  if (is_bytes(type_of(e)))
    add_chain(d, v->s.head, v->s.n, out);
}

void ns_dict_add_key(const ns_dict *d, ns_at at, ns_buf *out) {
  const entry *e = &d->cells[at].e;
  add_chain(d, e->key, e->key_n, out);
}

bool ns_dict_holds(const ns_dict *d, ns_at at, ns_bytes bytes) {
  const entry *e = &d->cells[at].e;
  const version *v = &e->v[current(e)];
  return is_bytes(type_of(e)) && v->s.n == bytes.n && same(d, v->s.head, bytes);
}

/* -------------------------------------------------------------------- writing */

static version make_version(ns_dict *d, const ns_item *item) {
  version v = {.expires = item->expires};
  if (is_bytes(item->type)) {
    v.s.n = (uint32_t)item->s.n;
    v.s.head = keep(d, item->s);
  } else if (item->type == NS_ITEM_REAL)
    v.d = item->d;
  else
    v.i = item->i;
  return v;
}

static void replace(ns_dict *d, uint32_t at, const ns_item *item) {
  entry *e = &d->cells[at].e;
  unsigned which = current(e);
  uint32_t old = is_bytes(type_of(e)) ? e->v[which].s.head : 0;
  e->v[!which] = make_version(d, item);
  set(&e->state, pack(e, !which, item->type)); /* from here on it is new */
  drop(d, old);
  touch(d, at);
}

static void insert(ns_dict *d, uint32_t *link, uint32_t hash, ns_bytes key, const ns_item *item) {
  uint32_t at = take(d);
  entry *e = &d->cells[at].e;
  *e = (entry){.hash = hash, .key_n = (uint32_t)key.n};
  e->key = keep(d, key);
  e->v[0] = make_version(d, item);
  e->state = pack(e, 0, item->type);
  set(link, at); /* from here on it is there */
  list_in(d, at);
}

/* The link for a key once there is room for the rest; NULL: there is none. */
static uint32_t *make_room(ns_dict *d, uint32_t hash, ns_bytes key, const ns_item *item,
                           int64_t now) {
  size_t value = is_bytes(item->type) ? cells_for(item->s.n) : 0;
  for (bool swept = false;; swept = true) {
    uint32_t *link = locate(d, hash, key, now);
    size_t need = *link != 0 ? value : value + 1 + cells_for(key.n);
    if (need <= d->nfree)
      return link;
    if (!swept)
      sweep(d, now);
    else if (d->evict && d->oldest != 0)
      ns_dict_remove(d, d->oldest);
    else
      return NULL;
  }
}

ns_status ns_dict_put(ns_dict *d, ns_bytes key, const ns_item *item, int64_t now) {
  uint32_t hash = hash_of(d, key);
  uint32_t *link;
  ns_assert(key.n >= 1 && key.n <= NS_DICT_KEY_MAX);
  if (is_bytes(item->type) &&
      (item->s.n > INT32_MAX || cells_for(item->s.n) + 1 + cells_for(key.n) > d->ncells))
    return NS_ETOOBIG;
  if ((link = make_room(d, hash, key, item, now)) == NULL)
    return NS_EFULL;
  if (item->expires != 0 && (d->soonest == 0 || item->expires < d->soonest))
    d->soonest = item->expires;
  if (*link != 0)
    replace(d, *link, item);
  else
    insert(d, link, hash, key, item);
  return NS_OK;
}

/* ------------------------------------------------------------- birth and repair */

ns_dict *ns_dict_make(void *memory, size_t size, bool evict) {
  ns_dict *d = memory;
  /* a cell costs itself, at most one bucket, and a bit */
  size_t n = (size - sizeof *d - 64) / (sizeof(cell) + sizeof(uint32_t) + 1);
  if (n > UINT32_MAX - 1)
    n = UINT32_MAX - 1;
  for (d->nbuckets = 1; d->nbuckets <= n / 2; d->nbuckets *= 2)
    ;
  d->ncells = (uint32_t)n - 1; /* number 0 has its place, too */
  d->cells = (cell *)(void *)((char *)memory + ((sizeof *d + 63) & ~63ul));
  d->buckets = (uint32_t *)(void *)(d->cells + n);
  d->marks = (uint8_t *)(d->buckets + d->nbuckets);
  d->seed = (uint32_t)ns_random() | 1u;
  d->fresh = 1;
  d->nfree = d->ncells;
  d->evict = evict;
  return d;
}

/* Marks a cell; false: it was marked before. */
static bool mark(ns_dict *d, uint32_t i) {
  uint8_t bit = (uint8_t)(1u << (i & 7u));
  if (d->marks[i >> 3] & bit)
    return false;
  d->marks[i >> 3] |= bit;
  return true;
}

static bool marked(const ns_dict *d, uint32_t i) {
  return ((unsigned)d->marks[i >> 3] >> (i & 7u) & 1u) != 0;
}

static size_t mark_chain(ns_dict *d, uint32_t head) {
  size_t n = 0;
  for (; head != 0 && mark(d, head); head = d->cells[head].p.next)
    n++;
  return n;
}

/* Marks all cells that the buckets lead to and calls fn, if any, for each entry; returns the
** number of cells. */
static size_t mark_all(ns_dict *d, void (*fn)(ns_dict *d, uint32_t at)) {
  size_t n = 0;
  memset(d->marks, 0, d->fresh / 8 + 1);
  for (uint32_t b = 0; b < d->nbuckets; b++)
    for (uint32_t at = d->buckets[b]; at != 0; at = d->cells[at].e.next) {
      const entry *e = &d->cells[at].e;
      n += mark(d, at);
      n += mark_chain(d, e->key);
      if (is_bytes(type_of(e)))
        n += mark_chain(d, e->v[current(e)].s.head);
      if (fn != NULL)
        fn(d, at);
    }
  return n;
}

void ns_dict_repair(ns_dict *d) {
  d->newest = d->oldest = 0;
  mark_all(d, list_in);
  d->free = 0;
  d->nfree = d->ncells - (d->fresh - 1);
  for (uint32_t i = 1; i < d->fresh; i++)
    if (!marked(d, i))
      give(d, i);
  d->soonest = 1; /* not known */
}

bool ns_dict_sound(ns_dict *d) {
  size_t used = mark_all(d, NULL);
  size_t nfree = d->ncells - (d->fresh - 1);
  uint32_t newer = 0;
  for (uint32_t i = d->free; i != 0; i = d->cells[i].p.next)
    if (!mark(d, i) || ++nfree > d->ncells)
      return false;
  for (uint32_t at = d->newest; at != 0; at = d->cells[at].e.older) {
    if (d->cells[at].e.newer != newer)
      return false;
    newer = at;
  }
  return nfree == d->nfree && used + nfree == d->ncells && d->oldest == newer;
}
