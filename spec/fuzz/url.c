/*
** Fuzzes database URLs. A URL that parses can be written again from its parts and parses to the
** same parts. One that does not parse leaves nothing behind, and its message never shows the
** password.
*/
#include "fuzz.h"

#include <string.h>

#include "link/link.h"

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

static void check_message(const ns_err *err) {
  FUZZ_CHECK(err->status == NS_EINVALID && err->message[0] != '\0');
  FUZZ_CHECK(memchr(err->message, '\0', sizeof err->message) != NULL);
}

/* Every byte encoded; NULL adds nothing. */
static void add_all(ns_buf *b, const char *s) {
  for (; s != NULL && *s != '\0'; s++)
    ns_buf_addf(b, "%%%02x", (unsigned char)*s);
}

static void add_authority(ns_buf *b, const ns_url *u) {
  add_all(b, u->user);
  if (u->password != NULL) {
    ns_buf_addc(b, ':');
    add_all(b, u->password);
  }
  ns_buf_addc(b, '@');
  add_all(b, u->host);
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

static void round_trip(const ns_url *u) {
  ns_buf b = NS_BUF_INIT;
  ns_url again;
  ns_err err;
  add_url(&b, u);
  FUZZ_CHECK(ns_url_parse(b.p, &again, &err) == NS_OK);
  FUZZ_CHECK(same(u->host, again.host) && same(u->user, again.user));
  FUZZ_CHECK(same(u->password, again.password));
  FUZZ_CHECK(same(u->database, again.database) && u->port == again.port);
  for (size_t i = 0; i < NTEXTS; i++)
    FUZZ_CHECK(same(text_of(u, i), text_of(&again, i)));
  FUZZ_CHECK(u->connect_timeout == again.connect_timeout);
  FUZZ_CHECK(u->max_payload == again.max_payload);
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
    FUZZ_CHECK(strstr(err.message, SECRET) == NULL);
  ns_url_free(&u);
  ns_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ns_buf b = NS_BUF_INIT;
  ns_url u;
  ns_err err;
  ns_buf_add(&b, data, size);
  ns_buf_addc(&b, '\0');
  if (ns_url_parse(b.p, &u, &err) == NS_OK)
    round_trip(&u);
  else {
    check_message(&err);
    FUZZ_CHECK(u.text == NULL && u.host == NULL && u.password == NULL);
  }
  ns_url_free(&u);
  keep_secret(b.p);
  ns_buf_free(&b);
  return 0;
}
