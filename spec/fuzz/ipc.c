/*
** Fuzzes the frames between the host's processes. Any bytes, as a damaged or hostile worker
** might send them, are read to their end and change nothing. A frame that was read whole
** survives another trip through writer and reader.
*/
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "ipc/ipc.h"

/* Inside the frame, or absent. */
static void within(ns_bytes s, const char *from, const char *to) {
  FUZZ_CHECK(s.p == NULL ? s.n == 0
                         : s.p >= from && s.n <= (size_t)(to - s.p));
}

static bool same(ns_bytes a, ns_bytes b) {
  return (a.p == NULL) == (b.p == NULL) && a.n == b.n &&
         (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

/* The one frame in 'b'. */
static nsh_frame reread(const ns_buf *b) {
  nsh_frame f;
  FUZZ_CHECK(nsh_next(b->p, b->n, &f) == (int64_t)b->n);
  return f;
}

static void order(nsh_frame f) {
  const char *from = f.p;
  ns_buf b = NS_BUF_INIT;
  ns_buf again = NS_BUF_INIT;
  nsh_order o = {0};
  bool whole = nsh_get_order(&f, &o);
  within(o.job.name, from, f.end);
  within(o.job.queue, from, f.end);
  within(o.job.payload, from, f.end);
  within(o.job.state, from, f.end);
  within(o.job.awaits, from, f.end);
  if (whole) { /* written twice, it is the same twice */
    nsh_order copy = {0};
    FUZZ_CHECK(nsh_put_order(&b, &o));
    f = reread(&b);
    FUZZ_CHECK(nsh_get_order(&f, &copy) && nsh_put_order(&again, &copy));
    FUZZ_CHECK(same(ns_buf_bytes(&b), ns_buf_bytes(&again)));
    FUZZ_CHECK(same(o.job.payload, copy.job.payload));
    FUZZ_CHECK(same(o.job.awaits, copy.job.awaits));
    FUZZ_CHECK(o.job.phase == copy.job.phase);
  }
  ns_buf_free(&b);
  ns_buf_free(&again);
}

/* Copies a report with its children; false: malformed. */
static bool copy_report(nsh_frame *f, ns_buf *out) {
  const char *from = f->p;
  nsh_report r;
  ns_push child;
  size_t start;
  if (!nsh_get_report(f, &r))
    return false;
  within(r.result, from, f->end);
  within(r.error, from, f->end);
  within(r.state, from, f->end);
  within(r.signal, from, f->end);
  start = nsh_begin_report(out, &r);
  for (size_t i = 0; i < r.nchildren; i++) {
    if (!nsh_get_child(f, &child))
      return false;
    within(child.name, from, f->end);
    within(child.payload, from, f->end);
    within(child.queue, from, f->end);
    within(child.unique, from, f->end);
    within(child.after, from, f->end);
    nsh_put_child(out, &child);
  }
  return nsh_done(f) && nsh_end(out, start);
}

static void report(nsh_frame f) {
  ns_buf b = NS_BUF_INIT;
  ns_buf again = NS_BUF_INIT;
  if (copy_report(&f, &b)) {
    f = reread(&b);
    FUZZ_CHECK(copy_report(&f, &again));
    FUZZ_CHECK(same(ns_buf_bytes(&b), ns_buf_bytes(&again)));
  }
  ns_buf_free(&b);
  ns_buf_free(&again);
}

/* A reader that expects something else than what is there. */
static void misread(nsh_frame f) {
  const char *from = f.p;
  for (int i = 0; i < 8; i++) {
    nsh_get_int(&f);
    within(nsh_get_bytes(&f), from, f.end);
    nsh_get_real(&f);
    FUZZ_CHECK(f.p >= from && f.p <= f.end);
  }
}

/* A piece that was cut off is not a frame yet; the buffer ends where it does,
** so that a read past it is seen. */
static void cut(const char *p, size_t n) {
  char *piece = malloc(n);
  nsh_frame f;
  FUZZ_CHECK(piece != NULL);
  memcpy(piece, p, n);
  FUZZ_CHECK(nsh_next(piece, n, &f) == 0);
  free(piece);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *p = (const char *)data;
  nsh_frame f;
  int64_t n;
  while (size > 0 && (n = nsh_next(p, size, &f)) > 0) {
    FUZZ_CHECK((size_t)n <= size && f.end == p + n);
    order(f);
    report(f);
    misread(f);
    cut(p, (size_t)n - 1);
    p += n;
    size -= (size_t)n;
  }
  return 0;
}
