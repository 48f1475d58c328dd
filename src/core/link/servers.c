/*
** A list of servers, of which one at a time can write: a primary and its replicas. Connecting
** takes the first one that answers and can write. Of a replica, of a server that was demoted and
** of a node that is not ready the library makes no session.
**
** A list is a text, "a,b:3307,[::1]:3306,/run/s.sock": names or addresses, each maybe with a port,
** or paths of unix sockets. A text with a comma is a list, even of one server ("a:3307,").
**
** Invariants: a link to a server of a list has its place there, from 1 on, for all of its life. Of
** one server alone the place is 0, and nothing of this file costs a statement. While a connection
** is used its server is asked again whether it can write: it may have been demoted. No assert:
** only the server knows.
*/
#include "link/mariadb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "ns_sql_names.h"

#define CONNECT_EACH NS_SECOND /* unless a time is given: one that is cut off delays the next */
#define ASK_AGAIN NS_SECOND    /* whether the server can write still, while it is used */
#define ASKS 2                 /* how often at most, when the first answer took long */
#define ASK_LIMIT (10 * NS_SECOND) /* for that answer, unless read_timeout is less: a cluster that
                                   ** loses a node stands still for five or six */
#define REASON 110             /* bytes of the words about each server */

/* ---------------------------------------------------------------------- text */

bool ns_link_servers_are(const char *hosts) {
  return hosts != NULL && (strchr(hosts, ',') != NULL || hosts[0] == '/');
}

static ns_status refuse_entry(const char *what, ns_err *err) {
  return ns_fail(err, NS_EINVALID,
                 "the list of hosts: %s; write each as NAME, NAME:PORT, [IPV6]:PORT or the path of "
                 "a unix socket",
                 what);
}

/* Digits to the end of a text of 'n' bytes; 0: it is no port. */
static unsigned read_port(const char *s, size_t n) {
  unsigned port = 0;
  for (size_t i = 0; i < n; i++) {
    if (s[i] < '0' || s[i] > '9' || port > 65535)
      return 0;
    port = port * 10 + (unsigned)(s[i] - '0');
  }
  return port <= 65535 ? port : 0;
}

/* How many bytes of an entry are its address, and where its port begins; 0: it has none. Several
** colons are those of an address without brackets. */
static size_t address_of(const char *s, size_t n, size_t *port) {
  const char *end = memchr(s, s[0] == '[' ? ']' : ':', n);
  size_t at = end != NULL ? (size_t)(end - s) : n;
  *port = 0;
  if (s[0] == '/' || end == NULL)
    return n;
  if (s[0] == '[') {
    *port = at + 1 < n ? at + 2 : 0;
    return at;
  }
  if (memchr(end + 1, ':', n - at - 1) != NULL)
    return n;
  *port = at + 1;
  return at;
}

static ns_status read_entry(const char *s, size_t n, ns_server *out, ns_err *err) {
  size_t port;
  size_t length = address_of(s, n, &port);
  size_t skip = s[0] == '[';
  out->socket = s[0] == '/';
  out->port = 0;
  if (length >= sizeof out->host)
    return refuse_entry("one is too long", err);
  if (length <= skip || (skip && (s[length] != ']' || (port > 0 && s[length + 1] != ':'))))
    return refuse_entry("one is no address", err);
  memcpy(out->host, s + skip, length - skip);
  out->host[length - skip] = '\0';
  if (port > 0 && (out->port = read_port(s + port, n - port)) == 0)
    return refuse_entry("the port of one is not a number from 1 to 65535", err);
  return NS_OK;
}

ns_status ns_link_servers_next(const char **list, ns_server *out, ns_err *err) {
  size_t n = strcspn(*list, ",");
  const char *entry = *list;
  *list += n + (entry[n] == ',');
  return n == 0 ? refuse_entry("one is empty", err) : read_entry(entry, n, out, err);
}

ns_status ns_link_servers_check(const char *list, ns_err *err) {
  ns_server one;
  ns_status st;
  do
    st = ns_link_servers_next(&list, &one, err);
  while (st == NS_OK && *list != '\0');
  return st;
}

/* ---------------------------------------------------------------- connecting */

/* The configuration for one of the list; it borrows from both. */
static ns_config config_of(const ns_config *cfg, const ns_server *s) {
  ns_config one = *cfg;
  one.host = s->socket ? NULL : s->host;
  one.socket = s->socket ? s->host : NULL;
  if (s->port > 0)
    one.port = s->port;
  if (one.connect_timeout <= 0)
    one.connect_timeout = CONNECT_EACH;
  return one;
}

const ns_config *ns_link_servers_config(const ns_config *cfg, unsigned place, ns_server *at,
                                   ns_config *room) {
  const char *list = cfg->host;
  for (unsigned i = 0; i < place; i++)
    if (ns_link_servers_next(&list, at, NULL) != NS_OK)
      return cfg;
  if (place == 0)
    return cfg;
  *room = config_of(cfg, at);
  return room;
}

/* With all that was sent before. */
static ns_status ask_now(ns_link *l, ns_err *err) {
  const int64_t limit = l->await.limit;
  ns_status st = ns_link_send(l, ns_sql_texts[NS_SQL_SERVER_WRITABLE], err);
  l->ask_at = ns_mono_us() + ASK_AGAIN;
  if (limit <= 0 || limit > ASK_LIMIT)
    l->await.limit = ASK_LIMIT;
  if (st == NS_OK)
    st = ns_link_answers(l, NULL, err);
  l->await.limit = limit;
  if (st != NS_OK)
    l->dead = true;
  return st;
}

/* An answer that took longer is of a time before a pause of the server, so the next one counts. */
ns_status ns_link_servers_ask(ns_link *l, ns_err *err) {
  ns_status st = NS_OK;
  if (l->place == 0 && !l->cluster)
    return NS_OK;
  for (int i = 0; i < ASKS && st == NS_OK && !l->dead && l->due == 0 && ns_mono_us() >= l->ask_at;
       i++)
    st = ask_now(l, err);
  return st;
}

static ns_status try_server(ns_link **out, const ns_config *cfg, const ns_server *s,
                            unsigned place, ns_err *err) {
  ns_config one = config_of(cfg, s);
  ns_status st = ns_link_open_one(out, &one, err);
  if (st != NS_OK)
    return st;
  (*out)->place = place;
  if ((st = ask_now(*out, err)) == NS_OK)
    return NS_OK;
  ns_link_close(*out, false);
  *out = NULL;
  return st;
}

/* A server that may be there soon makes the whole GONE, whatever is wrong with another one. */
static void note_reason(ns_err *all, const ns_err *one, const ns_server *s) {
  size_t n = strlen(all->message);
  bool first = all->status == NS_OK;
  snprintf(all->message + n, sizeof all->message - n, "%s%.60s: %.*s",
           first ? "no server of the list can be used: " : "; ", s->host, REASON, one->message);
  if (first || (one->status == NS_EGONE && all->status != NS_EGONE)) {
    all->status = one->status;
    all->sqlerr = one->sqlerr;
  }
}

static bool is_over(const ns_config *cfg) {
  return (cfg->interrupted != NULL && cfg->interrupted(cfg->interrupted_arg)) ||
         (cfg->end_by != 0 && ns_mono_us() >= cfg->end_by);
}

static ns_status try_each(ns_link **out, const ns_config *cfg, ns_err *err) {
  const char *list = cfg->host;
  ns_err all = {0};
  ns_server s;
  ns_err why;
  for (unsigned place = 1; *list != '\0' && !(place > 1 && is_over(cfg)); place++) {
    if (ns_link_servers_next(&list, &s, err) != NS_OK)
      return NS_EINVALID;
    if (try_server(out, cfg, &s, place, &why) == NS_OK)
      return NS_OK;
    if (why.status == NS_EINVALID || why.status == NS_ENOMEM) {
      *err = why;
      return why.status;
    }
    note_reason(&all, &why, &s);
  }
  *err = all;
  return all.status;
}

ns_status ns_link_open_ahead(ns_link **out, const ns_config *cfg, ns_err *err) {
  ns_server s;
  ns_config one;
  const char *path = cfg->host;
  *out = NULL;
  if (cfg->socket != NULL || !ns_link_servers_are(cfg->host))
    return ns_link_open_one(out, cfg, err);
  if (strchr(cfg->host, ',') != NULL)
    return try_each(out, cfg, err);
  if (ns_link_servers_next(&path, &s, err) != NS_OK)
    return NS_EINVALID;
  one = *cfg;
  one.socket = s.host;
  return ns_link_open_one(out, &one, err);
}

ns_status ns_link_open(ns_link **out, const ns_config *cfg, ns_err *err) {
  ns_status st = ns_link_open_ahead(out, cfg, err);
  if (st != NS_OK || (st = ns_link_answers(*out, NULL, err)) == NS_OK)
    return st;
  ns_link_close(*out, false);
  *out = NULL;
  return st;
}

void ns_link_set_cluster(ns_link *l) {
  l->cluster = true;
  l->ask_at = 0;
}

bool ns_link_cluster(const ns_link *l) {
  return l->cluster;
}

unsigned ns_link_place(const ns_link *l) {
  return l->place;
}
