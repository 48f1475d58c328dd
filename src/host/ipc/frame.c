/*
** The frame codec. Jobs and children are written field by field from tables of
** offsets, so that writer and reader cannot disagree about the order.
*/
#include "ipc/ipc.h"

#include <string.h>

#include "base.h"

#define HEAD 5 /* u32 length of type and fields, u8 type */

enum { TAG_INT = 'i', TAG_REAL = 'r', TAG_BYTES = 's', TAG_ABSENT = '-' };

/* --------------------------------------------------------------- writing */

size_t nsh_begin(ns_buf *b, nsh_type type) {
  size_t start = b->n;
  char head[HEAD] = {0};
  head[HEAD - 1] = (char)type;
  ns_buf_add(b, head, sizeof head);
  return start;
}

static void put_tagged(ns_buf *b, char tag, const void *p, size_t n) {
  char *room = ns_buf_room(b, n + 1);
  if (room == NULL)
    return;
  room[0] = tag;
  memcpy(room + 1, p, n);
  b->n += n + 1;
}

void nsh_put_int(ns_buf *b, int64_t i) {
  put_tagged(b, TAG_INT, &i, sizeof i);
}

void nsh_put_real(ns_buf *b, double d) {
  put_tagged(b, TAG_REAL, &d, sizeof d);
}

void nsh_put_bytes(ns_buf *b, ns_bytes s) {
  uint32_t n = (uint32_t)s.n;
  if (s.p == NULL)
    ns_buf_addc(b, TAG_ABSENT);
  else if (s.n > NSH_FRAME_MAX)
    b->oom = true; /* nsh_end takes the frame back */
  else {
    put_tagged(b, TAG_BYTES, &n, sizeof n);
    ns_buf_add(b, s.p, s.n);
  }
}

bool nsh_end(ns_buf *b, size_t start) {
  size_t n = b->n - start - (HEAD - 1);
  uint32_t len = (uint32_t)n;
  if (b->oom || b->n < start + HEAD || n > NSH_FRAME_MAX) {
    b->n = start;
    b->oom = false;
    return false;
  }
  memcpy(b->p + start, &len, sizeof len);
  return true;
}

/* --------------------------------------------------------------- reading */

int64_t nsh_next(const char *p, size_t n, nsh_frame *f) {
  uint32_t len;
  if (n < sizeof len)
    return 0;
  memcpy(&len, p, sizeof len);
  if (len < 1 || len > NSH_FRAME_MAX)
    return -1;
  if (n < HEAD)
    return 0;
  if (p[HEAD - 1] < 1 || p[HEAD - 1] >= NSH_TYPES)
    return -1;
  if (n - sizeof len < len)
    return 0;
  *f = (nsh_frame){(nsh_type)p[HEAD - 1], p + HEAD, p + sizeof len + len,
                   false};
  return (int64_t)sizeof len + len;
}

/* The next 'n' bytes of a field tagged 'tag'; NULL: it is something else. */
static const char *take_field(nsh_frame *f, char tag, size_t n) {
  const char *p = f->p;
  ns_assert(f->p <= f->end);
  if (f->bad || (size_t)(f->end - p) < n + 1 || *p != tag) {
    f->bad = true;
    return NULL;
  }
  f->p += n + 1;
  return p + 1;
}

int64_t nsh_get_int(nsh_frame *f) {
  int64_t i = 0;
  const char *p = take_field(f, TAG_INT, sizeof i);
  if (p != NULL)
    memcpy(&i, p, sizeof i);
  return i;
}

double nsh_get_real(nsh_frame *f) {
  double d = 0;
  const char *p = take_field(f, TAG_REAL, sizeof d);
  if (p != NULL)
    memcpy(&d, p, sizeof d);
  return d;
}

ns_bytes nsh_get_bytes(nsh_frame *f) {
  uint32_t n;
  const char *p;
  ns_bytes s;
  if (!f->bad && f->p < f->end && *f->p == TAG_ABSENT) {
    f->p++;
    return NS_NONE;
  }
  if ((p = take_field(f, TAG_BYTES, sizeof n)) == NULL)
    return NS_NONE;
  memcpy(&n, p, sizeof n);
  if ((size_t)(f->end - f->p) < n) {
    f->bad = true;
    return NS_NONE;
  }
  s = (ns_bytes){f->p, n};
  f->p += n;
  return s;
}

bool nsh_done(const nsh_frame *f) {
  return !f->bad && f->p == f->end;
}

/* ------------------------------------------------- structs by their offsets */

#define JOB(field) offsetof(ns_job, field)
static const size_t job_ints[] = {
    JOB(id),      JOB(run),     JOB(lease),        JOB(queue_id),  JOB(attempts),
    JOB(polls),   JOB(crashes), JOB(max_attempts), JOB(max_polls), JOB(priority),
    JOB(parent),  JOB(root),    JOB(created),      JOB(due),       JOB(deadline),
    JOB(timeout), JOB(nonce),   JOB(phase),        JOB(follows),   JOB(row),
};
static const size_t job_bytes[] = {JOB(queue), JOB(name),   JOB(payload), JOB(state),
                                   JOB(group), JOB(awaits), JOB(signal)};

#define PUSH(field) offsetof(ns_push, field)
static const size_t push_ints[] = {
    PUSH(id),        PUSH(delay),   PUSH(max_attempts), PUSH(max_crashes),
    PUSH(max_polls), PUSH(backoff), PUSH(timeout),      PUSH(deadline),
    PUSH(parent),    PUSH(on_fail_run), PUSH(decay), PUSH(max_phases),
    PUSH(period),    PUSH(at),
};
static const size_t push_bytes[] = {PUSH(name),  PUSH(payload), PUSH(queue), PUSH(unique),
                                    PUSH(after), PUSH(tags),    PUSH(group)};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
/* Bytes of a child without any texts. */
#define CHILD_MIN ((COUNT(push_ints) + 1) * 9 + COUNT(push_bytes))

static void put_ints(ns_buf *b, const void *from, const size_t *at, size_t n) {
  int64_t i;
  for (size_t k = 0; k < n; k++) {
    memcpy(&i, (const char *)from + at[k], sizeof i);
    nsh_put_int(b, i);
  }
}

static void get_ints(nsh_frame *f, void *to, const size_t *at, size_t n) {
  for (size_t k = 0; k < n; k++) {
    int64_t i = nsh_get_int(f);
    memcpy((char *)to + at[k], &i, sizeof i);
  }
}

static void put_texts(ns_buf *b, const void *from, const size_t *at, size_t n) {
  ns_bytes s;
  for (size_t k = 0; k < n; k++) {
    memcpy(&s, (const char *)from + at[k], sizeof s);
    nsh_put_bytes(b, s);
  }
}

static void get_texts(nsh_frame *f, void *to, const size_t *at, size_t n) {
  for (size_t k = 0; k < n; k++) {
    ns_bytes s = nsh_get_bytes(f);
    memcpy((char *)to + at[k], &s, sizeof s);
  }
}

/* -------------------------------------------------------------- contents */

bool nsh_put_order(ns_buf *b, const nsh_order *o) {
  size_t start = nsh_begin(b, NSH_JOB);
  nsh_put_int(b, o->seq);
  nsh_put_int(b, o->hold);
  nsh_put_job(b, &o->job);
  return nsh_end(b, start);
}

bool nsh_get_order(nsh_frame *f, nsh_order *o) {
  o->seq = (uint32_t)nsh_get_int(f);
  o->hold = nsh_get_int(f) != 0;
  nsh_get_job(f, &o->job);
  return nsh_done(f);
}

size_t nsh_begin_bulk(ns_buf *b, const nsh_bulk_order *o) {
  size_t start = nsh_begin(b, NSH_BULK);
  nsh_put_int(b, o->seq);
  nsh_put_int(b, o->timeout);
  nsh_put_int(b, (int64_t)o->n);
  return start;
}

void nsh_put_job(ns_buf *b, const ns_job *job) {
  put_ints(b, job, job_ints, COUNT(job_ints));
  put_texts(b, job, job_bytes, COUNT(job_bytes));
}

bool nsh_get_bulk(nsh_frame *f, nsh_bulk_order *o) {
  int64_t n;
  o->seq = (uint32_t)nsh_get_int(f);
  o->timeout = nsh_get_int(f);
  n = nsh_get_int(f);
  if (n < 1 || n > NSH_BULK_MAX)
    f->bad = true;
  o->n = f->bad ? 0 : (size_t)n;
  return !f->bad;
}

bool nsh_get_job(nsh_frame *f, ns_job *job) {
  get_ints(f, job, job_ints, COUNT(job_ints));
  get_texts(f, job, job_bytes, COUNT(job_bytes));
  return !f->bad;
}

size_t nsh_begin_report(ns_buf *b, const nsh_report *r) {
  size_t start = nsh_begin(b, NSH_VERDICT);
  nsh_put_int(b, r->seq);
  nsh_put_int(b, r->kind);
  nsh_put_int(b, r->micros);
  nsh_put_int(b, r->delay);
  nsh_put_int(b, r->go_on);
  nsh_put_int(b, r->most);
  nsh_put_int(b, r->stop);
  nsh_put_bytes(b, r->result);
  nsh_put_bytes(b, r->error);
  nsh_put_bytes(b, r->state);
  nsh_put_bytes(b, r->signal);
  nsh_put_int(b, r->leaves);
  nsh_put_int(b, (int64_t)r->nchildren);
  return start;
}

void nsh_put_child(ns_buf *b, const ns_push *child) {
  put_ints(b, child, push_ints, COUNT(push_ints));
  nsh_put_int(b, child->priority);
  put_texts(b, child, push_bytes, COUNT(push_bytes));
}

bool nsh_get_report(nsh_frame *f, nsh_report *r) {
  int64_t kind;
  int64_t nchildren;
  r->seq = (uint32_t)nsh_get_int(f);
  kind = nsh_get_int(f);
  r->micros = nsh_get_int(f);
  r->delay = nsh_get_int(f);
  r->go_on = nsh_get_int(f);
  r->most = nsh_get_int(f);
  r->stop = nsh_get_int(f);
  r->result = nsh_get_bytes(f);
  r->error = nsh_get_bytes(f);
  r->state = nsh_get_bytes(f);
  r->signal = nsh_get_bytes(f);
  r->leaves = nsh_get_int(f) != 0;
  nchildren = nsh_get_int(f);
  if (kind < NS_ACK || kind > NS_MISSING || nchildren < 0 ||
      (size_t)nchildren > (size_t)(f->end - f->p) / CHILD_MIN)
    f->bad = true;
  r->kind = f->bad ? NS_CRASH : (ns_kind)kind;
  r->nchildren = f->bad ? 0 : (size_t)nchildren;
  return !f->bad;
}

bool nsh_get_child(nsh_frame *f, ns_push *child) {
  *child = (ns_push){0};
  get_ints(f, child, push_ints, COUNT(push_ints));
  child->priority = (int)nsh_get_int(f);
  get_texts(f, child, push_bytes, COUNT(push_bytes));
  return !f->bad;
}
