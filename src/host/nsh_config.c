/*
** Reading the configuration table of nightshift.host.work. The option reader
** is the binding's, so both refuse a misspelt key in the same words.
*/
#include "nsh_config.h"

#include <lauxlib.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include "nsl_conv.h"

#define WHAT "work: "

/* What the plain options are read into, before they are checked. */
typedef struct asked {
  int64_t workers, drain_within, drain_timeout, memory;
  bool drain, keep_env;
  const char *log, *url, *user, *shared;
} asked;

static const nsl_field fields[] = {
    {"files", NSL_TABLE, 0},
    {"workers", NSL_INT, offsetof(asked, workers)},
    {"queues", NSL_TABLE, 0},
    {"drain", NSL_BOOL, offsetof(asked, drain)},
    {"drain_within", NSL_INT, offsetof(asked, drain_within)},
    {"drain_timeout", NSL_INT, offsetof(asked, drain_timeout)},
    {"user", NSL_CSTR, offsetof(asked, user)},
    {"memory", NSL_INT, offsetof(asked, memory)},
    {"keep_env", NSL_BOOL, offsetof(asked, keep_env)},
    {"log", NSL_CSTR, offsetof(asked, log)},
    {"url", NSL_CSTR, offsetof(asked, url)},
    {"connection", NSL_TABLE, 0},
    {"shared", NSL_CSTR, offsetof(asked, shared)},
    {NULL, NSL_ANY, 0}};

typedef struct connection {
  ns_config db;
  int64_t port;
} connection;

#define TEXT(name) {#name, NSL_CSTR, offsetof(connection, db.name)}
static const nsl_field connection_fields[] = {
    TEXT(url),   TEXT(host), TEXT(user), TEXT(password),
    TEXT(database), TEXT(socket), TEXT(file), TEXT(group),
    TEXT(tls),   TEXT(ca),   TEXT(cert), TEXT(key),
    {"port", NSL_INT, offsetof(connection, port)},
    {"connect_timeout", NSL_INT, offsetof(connection, db.connect_timeout)},
    {"read_timeout", NSL_INT, offsetof(connection, db.read_timeout)},
    {"max_payload", NSL_INT, offsetof(connection, db.max_payload)},
    {NULL, NSL_ANY, 0}};

/* ------------------------------------------------------------------ parts */

static ns_status check_counts(const asked *a, ns_err *err) {
  if (a->workers < 1 || a->workers > NSH_WORKERS_MAX)
    return ns_fail(err, NS_EINVALID, WHAT "workers must be 1 to %d, got %lld",
                   NSH_WORKERS_MAX, (long long)a->workers);
  if (a->drain_within < 0 || a->drain_timeout < 0)
    return ns_fail(err, NS_EINVALID, WHAT "%s must not be negative",
                   a->drain_within < 0 ? "drain_within" : "drain_timeout");
  if (a->memory < 0)
    return ns_fail(err, NS_EINVALID, WHAT "memory must not be negative");
  if (strcmp(a->log, "text") != 0 && strcmp(a->log, "json") != 0)
    return ns_fail(err, NS_EINVALID, WHAT "log must be text or json, got '%s'",
                   a->log);
  return NS_OK;
}

static ns_status check_user(const char *user, ns_err *err) {
  if (user == NULL)
    return NS_OK;
  if (geteuid() != 0)
    return ns_fail(err, NS_EINVALID,
                   WHAT "only root can run workers as another user");
  if (getpwnam(user) == NULL)
    return ns_fail(err, NS_EINVALID, WHAT "there is no user '%s'", user);
  return NS_OK;
}

static ns_status read_plain(lua_State *L, int idx, nsh_config *cfg,
                            ns_err *err) {
  asked a = {.workers = sysconf(_SC_NPROCESSORS_ONLN),
             .drain_within = 60 * INT64_C(1000000),
             .drain_timeout = 30 * INT64_C(1000000), .log = "text"};
  ns_status st = nsl_readfields(L, idx, fields, WHAT, &a, err);
  if (st != NS_OK || (st = check_counts(&a, err)) != NS_OK ||
      (st = check_user(a.user, err)) != NS_OK)
    return st;
  cfg->workers = (size_t)a.workers;
  cfg->drain = a.drain;
  cfg->drain_within = a.drain_within;
  cfg->drain_timeout = a.drain_timeout;
  cfg->user = a.user;
  cfg->memory = a.memory;
  cfg->json = strcmp(a.log, "json") == 0;
  cfg->keep_env = a.keep_env;
  cfg->db.url = a.url;
  cfg->shared = a.shared;
  return NS_OK;
}

static ns_status read_connection(lua_State *L, int idx, nsh_config *cfg,
                                 ns_err *err) {
  connection c = {.db = cfg->db};
  ns_status st = NS_OK;
  if (nsl_rawfield(L, idx, "connection") == LUA_TTABLE)
    st = nsl_readfields(L, -1, connection_fields, WHAT "connection: ", &c, err);
  lua_pop(L, 1);
  if (st != NS_OK)
    return st;
  if (c.port < 0 || c.port > 65535 || c.db.connect_timeout < 0 ||
      c.db.read_timeout < 0 || c.db.max_payload < 0)
    return ns_fail(err, NS_EINVALID,
                   WHAT "connection: a number is out of its range");
  c.db.port = (unsigned)c.port;
  c.db.host_session = true;
  cfg->db = c.db;
  return NS_OK;
}

/* The list is on top; its strings stay in it. */
static ns_status read_files(lua_State *L, nsh_config *cfg, ns_err *err) {
  for (size_t i = 0; i < cfg->nfiles; i++) {
    size_t n;
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      luaL_error(L, WHAT "files must be strings, got a %s",
                 luaL_typename(L, -1));
    cfg->files[i] = lua_tolstring(L, -1, &n);
    lua_pop(L, 1);
    if (n == 0 || strlen(cfg->files[i]) != n)
      return ns_fail(err, NS_EINVALID, WHAT "file %zu has no usable name",
                     i + 1);
  }
  if (cfg->nfiles == 0)
    return ns_fail(err, NS_EINVALID, WHAT "no handler files were given");
  return NS_OK;
}

static ns_status read_queue(lua_State *L, nsh_feed *feed, ns_err *err) {
  static const nsl_field queue_fields[] = {
      {"name", NSL_BYTES, 0}, {"weight", NSL_INT, sizeof(ns_bytes)},
      {NULL, NSL_ANY, 0}};
  struct {
    ns_bytes name;
    int64_t weight;
  } q = {NS_NONE, 1};
  ns_status st;
  luaL_checktype(L, -1, LUA_TTABLE);
  st = nsl_readfields(L, -1, queue_fields, WHAT "queues: ", &q, err);
  if (st != NS_OK)
    return st;
  if (q.name.p == NULL || q.name.n == 0)
    return ns_fail(err, NS_EINVALID, WHAT "queues: a queue has no name");
  if (q.weight < 1 || q.weight > 1000000)
    return ns_fail(err, NS_EINVALID,
                   WHAT "queues: the weight of '%.*s' must be 1 to 1000000, "
                   "got %lld", (int)q.name.n, q.name.p, (long long)q.weight);
  *feed = (nsh_feed){q.name, (int)q.weight};
  return NS_OK;
}

static ns_status read_queues(lua_State *L, nsh_config *cfg, ns_err *err) {
  ns_status st = NS_OK;
  for (size_t i = 0; i < cfg->nqueues && st == NS_OK; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    st = read_queue(L, &cfg->queues[i], err);
    lua_pop(L, 1);
  }
  return st;
}

static size_t list_length(lua_State *L, int idx, const char *name) {
  size_t n = 0;
  if (nsl_rawfield(L, idx, name) == LUA_TTABLE)
    n = lua_rawlen(L, -1);
  lua_pop(L, 1);
  return n;
}

/* The arrays share one userdata: file names, then queues. */
ns_status nsh_config_read(lua_State *L, int idx, nsh_config *cfg,
                          ns_err *err) {
  ns_status st;
  idx = lua_absindex(L, idx);
  *cfg = (nsh_config){.db = NS_CONFIG_INIT};
  luaL_checktype(L, idx, LUA_TTABLE);
  cfg->nfiles = list_length(L, idx, "files");
  cfg->nqueues = list_length(L, idx, "queues");
  cfg->queues = lua_newuserdatauv(L, cfg->nqueues * sizeof *cfg->queues +
                                         cfg->nfiles * sizeof *cfg->files + 1,
                                  0);
  cfg->files = (const char **)(void *)(cfg->queues + cfg->nqueues);
  if ((st = read_plain(L, idx, cfg, err)) != NS_OK ||
      (st = read_connection(L, idx, cfg, err)) != NS_OK)
    return st;
  nsl_rawfield(L, idx, "files");
  st = read_files(L, cfg, err);
  lua_pop(L, 1);
  if (st == NS_OK && cfg->nqueues > 0) {
    nsl_rawfield(L, idx, "queues");
    st = read_queues(L, cfg, err);
    lua_pop(L, 1);
  }
  return st;
}

/* ------------------------------------------------------------- for workers */

static void set_text(lua_State *L, const char *name, const char *s) {
  if (s != NULL)
    nsl_setbytes(L, name, ns_str(s));
}

static void set_seconds(lua_State *L, const char *name, int64_t us) {
  if (us <= 0)
    return;
  lua_pushnumber(L, (lua_Number)us / 1e6);
  lua_setfield(L, -2, name);
}

void nsh_config_pushdb(lua_State *L, const nsh_config *cfg) {
  const nsl_field *f = connection_fields;
  connection c = {.db = cfg->db};
  lua_newtable(L);
  for (; f->kind == NSL_CSTR; f++) {
    const char *s;
    memcpy(&s, (const char *)&c + f->offset, sizeof s);
    set_text(L, f->name, s);
  }
  if (cfg->db.port > 0)
    nsl_setint(L, "port", cfg->db.port);
  if (cfg->db.max_payload > 0)
    nsl_setint(L, "max_payload", cfg->db.max_payload);
  set_seconds(L, "connect_timeout", cfg->db.connect_timeout);
  set_seconds(L, "read_timeout", cfg->db.read_timeout);
}
