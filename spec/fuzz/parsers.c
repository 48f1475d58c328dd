/*
** Fuzzes the parsers in C: database URLs, durations, and the frames between the host's processes.
** TARGET names the one that a program takes its inputs for.
*/
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ipc/ipc.h"
#include "link/link.h"

#ifndef TARGET
#define TARGET "url"
#endif

/* One input; what libFuzzer calls. A check that fails stops the run, so that it keeps the input. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---------------------------------------------------------------------- URLs */

/*
** A URL that parses can be written again from its parts and parses to the same parts. One that
** does not parse leaves nothing behind, and its message never shows the password.
*/
#define SECRET "hunter2Zx"

/* The parts that are text, in the order of their keys in the query. */
static const struct {
  const char *key;
  size_t at;
} texts[] = {{"unix_socket", offsetof(ns_url, socket)},
             {"ca", offsetof(ns_url, ca)},
             {"cert", offsetof(ns_url, cert)},
             {"key", offsetof(ns_url, key)},
             {"file", offsetof(ns_url, file)},
             {"group", offsetof(ns_url, group)},
             {"tls", offsetof(ns_url, tls)}};
#define NTEXTS (sizeof texts / sizeof texts[0])

static const char *text_of(const ns_url *u, size_t i) {
  const char *s;
  memcpy(&s, (const char *)u + texts[i].at, sizeof s);
  return s;
}

static void check_url_message(const ns_err *err) {
  assert(err->status == NS_EINVALID && err->message[0] != '\0');
  assert(memchr(err->message, '\0', sizeof err->message) != NULL);
}

/* Every byte encoded; NULL adds nothing. */
static void add_all(ns_buf *b, const char *s) {
  for (; s != NULL && *s != '\0'; s++)
    ns_buf_addf(b, "%%%02x", (unsigned char)*s);
}

/* The commas of a list of hosts are not encoded. */
static void add_hosts(ns_buf *b, const char *hosts) {
  for (const char *s = hosts; s != NULL && *s != '\0'; s++)
    if (*s == ',')
      ns_buf_addc(b, ',');
    else
      ns_buf_addf(b, "%%%02x", (unsigned char)*s);
}

/* What parses can be taken apart. */
static void check_list(const char *hosts) {
  ns_server one;
  ns_err err;
  size_t n = 0;
  if (hosts == NULL || strchr(hosts, ',') == NULL)
    return;
  for (; *hosts != '\0'; n++) {
    assert(ns_link_servers_next(&hosts, &one, &err) == NS_OK);
    assert(one.host[0] != '\0' && one.port <= 65535);
  }
  assert(n > 1);
}

static void add_authority(ns_buf *b, const ns_url *u) {
  add_all(b, u->user);
  if (u->password != NULL) {
    ns_buf_addc(b, ':');
    add_all(b, u->password);
  }
  ns_buf_addc(b, '@');
  add_hosts(b, u->host);
  if (u->port != 0)
    ns_buf_addf(b, ":%u", u->port);
}

static void add_url(ns_buf *b, const ns_url *u) {
  ns_buf_adds(b, "MySQL://");
  add_authority(b, u);
  ns_buf_addc(b, '/');
  add_all(b, u->database);
  ns_buf_addc(b, '?');
  for (size_t i = 0; i < NTEXTS; i++)
    if (text_of(u, i) != NULL) {
      ns_buf_addf(b, "&%s=", texts[i].key);
      ns_url_encode(b, text_of(u, i));
    }
  if (u->connect_timeout != 0)
    ns_buf_addf(b, "&connect_timeout=%lldus", (long long)u->connect_timeout);
  if (u->max_payload != 0)
    ns_buf_addf(b, "&max_payload=%lld", (long long)u->max_payload);
  ns_buf_addc(b, '\0');
}

static bool same(const char *a, const char *b) {
  return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static void round_trip_url(const ns_url *u) {
  ns_buf b = NS_BUF_INIT;
  ns_url again;
  ns_err err;
  add_url(&b, u);
  assert(ns_url_parse(b.p, &again, &err) == NS_OK);
  assert(same(u->host, again.host) && same(u->user, again.user));
  assert(same(u->password, again.password));
  assert(same(u->database, again.database) && u->port == again.port);
  for (size_t i = 0; i < NTEXTS; i++)
    assert(same(text_of(u, i), text_of(&again, i)));
  assert(u->connect_timeout == again.connect_timeout);
  assert(u->max_payload == again.max_payload);
  ns_url_free(&again);
  ns_buf_free(&b);
}

/* mysql://user:…SECRET…@…: whatever stands around it, it is not shown. */
static void keep_secret(const char *text) {
  const char *at = strchr(text, '@');
  ns_buf b = NS_BUF_INIT;
  ns_url u;
  ns_err err;
  if (at == NULL || strstr(text, SECRET) != NULL)
    return;
  ns_buf_adds(&b, "mysql://user:");
  ns_buf_add(&b, text, (size_t)(at - text) / 2);
  ns_buf_adds(&b, SECRET);
  ns_buf_adds(&b, text + (at - text) / 2);
  ns_buf_addc(&b, '\0');
  if (ns_url_parse(b.p, &u, &err) != NS_OK)
    assert(strstr(err.message, SECRET) == NULL);
  ns_url_free(&u);
  ns_buf_free(&b);
}

static int fuzz_url(const uint8_t *data, size_t size) {
  ns_buf b = NS_BUF_INIT;
  ns_url u;
  ns_err err;
  ns_buf_add(&b, data, size);
  ns_buf_addc(&b, '\0');
  if (ns_url_parse(b.p, &u, &err) == NS_OK) {
    check_list(u.host);
    round_trip_url(&u);
  } else {
    check_url_message(&err);
    assert(u.text == NULL && u.host == NULL && u.password == NULL);
  }
  ns_url_free(&u);
  keep_secret(b.p);
  ns_buf_free(&b);
  return 0;
}

/* ----------------------------------------------------------------- durations */

/*
** A text that parses is within bounds and, written out in every unit, parses to the same. A text
** that does not leaves the result alone and gives a printable message. The first eight bytes also
** serve as a number of seconds.
*/
static void check_range(int64_t us) {
  assert(us >= 0 && us <= NS_DURATION_MAX);
}

static void check_duration_message(const ns_err *err) {
  assert(err->status == NS_EINVALID && err->message[0] != '\0');
  for (const char *s = err->message; *s != '\0'; s++)
    assert(*s >= ' ' && *s <= '~');
}

/* "1w2d3h4m5s6ms7us", without the units that are zero. */
static void round_trip_duration(int64_t us) {
  static const struct {
    const char *name;
    int64_t us;
  } units[] = {{"w", INT64_C(604800000000)},
               {"d", INT64_C(86400000000)},
               {"h", INT64_C(3600000000)},
               {"m", INT64_C(60000000)},
               {"s", INT64_C(1000000)},
               {"ms", INT64_C(1000)},
               {"us", INT64_C(1)}};
  ns_buf b = NS_BUF_INIT;
  ns_err err;
  int64_t rest = us;
  int64_t again = -1;
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (rest >= units[i].us || (i == 6 && b.n == 0))
      ns_buf_addf(&b, "%lld%s", (long long)(rest / units[i].us), units[i].name);
    rest %= units[i].us;
  }
  assert(ns_duration_parse(ns_buf_bytes(&b), &again, &err) == NS_OK);
  assert(again == us);
  ns_buf_free(&b);
}

static int fuzz_duration(const uint8_t *data, size_t size) {
  int64_t us = -7;
  double seconds;
  ns_err err;
  ns_bytes text = {(const char *)data, size};
  if (ns_duration_parse(text, &us, &err) == NS_OK) {
    check_range(us);
    round_trip_duration(us);
  } else {
    check_duration_message(&err);
    assert(us == -7);
  }
  if (size < sizeof seconds)
    return 0;
  memcpy(&seconds, data, sizeof seconds);
  if (ns_duration_seconds(seconds, &us, &err) == NS_OK)
    check_range(us);
  else
    check_duration_message(&err);
  return 0;
}

/* -------------------------------------------------------------------- frames */

/*
** Any bytes, as a damaged or hostile worker might send them, are read to their end and change
** nothing. A frame that was read whole survives another trip through writer and reader.
*/

/* Inside the frame, or absent. */
static void within(ns_bytes s, const char *from, const char *to) {
  assert(s.p == NULL ? s.n == 0 : s.p >= from && s.n <= (size_t)(to - s.p));
}

static bool same_bytes(ns_bytes a, ns_bytes b) {
  return (a.p == NULL) == (b.p == NULL) && a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

/* The one frame in 'b'. */
static nsh_frame reread(const ns_buf *b) {
  nsh_frame f;
  assert(nsh_next(b->p, b->n, &f) == (int64_t)b->n);
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
  within(o.job.group, from, f.end);
  if (whole) { /* written twice, it is the same twice */
    nsh_order copy = {0};
    assert(nsh_put_order(&b, &o));
    f = reread(&b);
    assert(nsh_get_order(&f, &copy) && nsh_put_order(&again, &copy));
    assert(same_bytes(ns_buf_bytes(&b), ns_buf_bytes(&again)));
    assert(same_bytes(o.job.payload, copy.job.payload));
    assert(same_bytes(o.job.awaits, copy.job.awaits));
    assert(o.job.phase == copy.job.phase);
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
    within(child.tags, from, f->end);
    within(child.group, from, f->end);
    nsh_put_child(out, &child);
  }
  return nsh_done(f) && nsh_end(out, start);
}

static void report(nsh_frame f) {
  ns_buf b = NS_BUF_INIT;
  ns_buf again = NS_BUF_INIT;
  if (copy_report(&f, &b)) {
    f = reread(&b);
    assert(copy_report(&f, &again));
    assert(same_bytes(ns_buf_bytes(&b), ns_buf_bytes(&again)));
  }
  ns_buf_free(&b);
  ns_buf_free(&again);
}

/* The jobs of a batch: no more are read than the frame has. */
static void bulk(nsh_frame f) {
  const char *from = f.p;
  nsh_bulk_order o;
  ns_job job;
  if (!nsh_get_bulk(&f, &o))
    return;
  assert(o.n >= 1 && o.n <= NSH_BULK_MAX);
  for (size_t i = 0; i < o.n && nsh_get_job(&f, &job); i++) {
    within(job.name, from, f.end);
    within(job.payload, from, f.end);
  }
}

/* A reader that expects something else than what is there. */
static void misread(nsh_frame f) {
  const char *from = f.p;
  for (int i = 0; i < 8; i++) {
    nsh_get_int(&f);
    within(nsh_get_bytes(&f), from, f.end);
    nsh_get_real(&f);
    assert(f.p >= from && f.p <= f.end);
  }
}

/* A piece that was cut off is not a frame yet; the buffer ends where it does,
** so that a read past it is seen. */
static void cut(const char *p, size_t n) {
  char *piece = malloc(n);
  nsh_frame f;
  assert(piece != NULL);
  memcpy(piece, p, n);
  assert(nsh_next(piece, n, &f) == 0);
  free(piece);
}

static int fuzz_ipc(const uint8_t *data, size_t size) {
  const char *p = (const char *)data;
  nsh_frame f;
  int64_t n;
  while (size > 0 && (n = nsh_next(p, size, &f)) > 0) {
    assert((size_t)n <= size && f.end == p + n);
    order(f);
    report(f);
    bulk(f);
    misread(f);
    cut(p, (size_t)n - 1);
    p += n;
    size -= (size_t)n;
  }
  return 0;
}

/* -------------------------------------------------------------------- target */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (strcmp(TARGET, "ipc") == 0)
    return fuzz_ipc(data, size);
  return strcmp(TARGET, "url") == 0 ? fuzz_url(data, size) : fuzz_duration(data, size);
}
