/*
** Reading the configuration table of nightshift.host.work. The option reader
** is the binding's, so both refuse a misspelt key in the same words.
*/
#include "config.h"

#include <lauxlib.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

#include "nsl.h"

#define WHAT "work: "
#define PLACES_LEAST 1000 /* workers that any host may be told to have */

/* The plain options as read, before they are checked. */
typedef struct asked {
  int64_t workers, drain_within, drain_timeout, progress, memory, recycle, recycle_memory,
          max_children;
  bool drain, keep_env, strict, forget_done, allow_setuid, log_done;
  const char *log, *output, *url, *user, *shared, *isolation, *http;
} asked;

static const nsl_field fields[] = {{"files", NSL_TABLE, 0},
                                   {"workers", NSL_INT, offsetof(asked, workers)},
                                   {"queues", NSL_TABLE, 0},
                                                                  {"only", NSL_TABLE, 0},
                                   {"adopt", NSL_TABLE, 0},
                                   {"reserve", NSL_TABLE, 0},
                                   {"strict", NSL_BOOL, offsetof(asked, strict)},
                                   {"forget_done", NSL_BOOL, offsetof(asked, forget_done)},
                                   {"drain", NSL_BOOL, offsetof(asked, drain)},
                                   {"drain_within", NSL_INT, offsetof(asked, drain_within)},
                                   {"drain_timeout", NSL_INT, offsetof(asked, drain_timeout)},
                                   {"progress", NSL_INT, offsetof(asked, progress)},
                                   {"keep_env", NSL_BOOL, offsetof(asked, keep_env)},
                                   {"user", NSL_CSTR, offsetof(asked, user)},
                                   {"allow_setuid", NSL_BOOL, offsetof(asked, allow_setuid)},
                                   {"memory", NSL_INT, offsetof(asked, memory)},
                                   {"recycle", NSL_INT, offsetof(asked, recycle)},
                                   {"recycle_memory", NSL_INT, offsetof(asked, recycle_memory)},
                                   {"max_children", NSL_INT, offsetof(asked, max_children)},
                                   {"log", NSL_CSTR, offsetof(asked, log)},
                                   {"output", NSL_CSTR, offsetof(asked, output)},
                                   {"log_done", NSL_BOOL, offsetof(asked, log_done)},
                                   {"http", NSL_CSTR, offsetof(asked, http)},
                                   {"url", NSL_CSTR, offsetof(asked, url)},
                                   {"connection", NSL_TABLE, 0},
                                   {"shared", NSL_CSTR, offsetof(asked, shared)},
                                   {"isolation", NSL_CSTR, offsetof(asked, isolation)},
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
  if (a->max_children < 0)
    return ns_fail(err, NS_EINVALID, WHAT "max_children must not be negative");
  if (a->recycle < 0 || a->recycle_memory < 0)
    return ns_fail(err, NS_EINVALID, WHAT "%s must not be negative",
                   a->recycle < 0 ? "recycle" : "recycle_memory");
  if (a->log != NULL && strcmp(a->log, "logfmt") != 0 && strcmp(a->log, "json") != 0)
    return ns_fail(err, NS_EINVALID, WHAT "log must be logfmt or json, got '%s'", a->log);
  if (a->output != NULL && strcmp(a->output, "raw") != 0 && strcmp(a->output, "log") != 0)
    return ns_fail(err, NS_EINVALID, WHAT "output must be raw or log, got '%s'", a->output);
  if (strcmp(a->isolation, "worker") != 0 && strcmp(a->isolation, "job") != 0)
    return ns_fail(err, NS_EINVALID,
                   WHAT "isolation must be worker or job, got '%s'",
                   a->isolation);
  return NS_OK;
}

bool nsh_config_logs_output(const nsh_config *cfg) {
  return cfg->output == NSH_OUTPUT_LOG ||
         (cfg->output == NSH_OUTPUT_AUTO && ns_log_form() != NS_FORM_LOGFMT);
}

/* A place costs address space only, until it is used. */
static size_t places_for(size_t workers) {
  size_t most = workers < PLACES_LEAST / 2 ? PLACES_LEAST : 2 * workers;
  return most < NSH_WORKERS_MAX ? most : NSH_WORKERS_MAX;
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
             .drain_timeout = 30 * INT64_C(1000000),
             .isolation = "worker"};
  ns_status st = nsl_readfields(L, idx, fields, WHAT, &a, err);
  if (st != NS_OK || (st = check_counts(&a, err)) != NS_OK ||
      (st = check_user(a.user, err)) != NS_OK)
    return st;
  cfg->workers = (size_t)a.workers;
  cfg->most_workers = places_for(cfg->workers);
  cfg->strict = a.strict;
  cfg->forget_done = a.forget_done;
  cfg->drain = a.drain;
  cfg->drain_within = a.drain_within;
  cfg->drain_timeout = a.drain_timeout;
  cfg->progress = a.progress;
  cfg->user = a.user;
  cfg->allow_setuid = a.allow_setuid;
  cfg->memory = a.memory;
  cfg->recycle = a.recycle;
  cfg->max_children = a.max_children;
  cfg->recycle_memory = a.recycle_memory;
  cfg->form = a.log == NULL                 ? NS_FORM_AUTO
              : strcmp(a.log, "json") == 0 ? NS_FORM_JSON
                                           : NS_FORM_LOGFMT;
  cfg->output = a.output == NULL                ? NSH_OUTPUT_AUTO
                : strcmp(a.output, "log") == 0 ? NSH_OUTPUT_LOG
                                               : NSH_OUTPUT_RAW;
  cfg->log_done = a.log_done;
  cfg->http = a.http;
  cfg->lua = LUA_VERSION_MAJOR "." LUA_VERSION_MINOR "." LUA_VERSION_RELEASE;
  cfg->keep_env = a.keep_env;
  cfg->fork_per_job = strcmp(a.isolation, "job") == 0;
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
  c.db.no_look = true; /* the upkeep looks, and counts what it finds */
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

/* A named queue with a number, on top. */
typedef struct numbered {
  ns_bytes name;
  int64_t number;
} numbered;

/* 'fields' reads a numbered. */
static ns_status read_numbered(lua_State *L, const nsl_field *known,
                               const char *what, numbered *q, ns_err *err) {
  ns_status st;
  luaL_checktype(L, -1, LUA_TTABLE);
  st = nsl_readfields(L, -1, known, what, q, err);
  return st == NS_OK && (q->name.p == NULL || q->name.n == 0)
             ? ns_fail(err, NS_EINVALID, "%sa queue has no name", what)
             : st;
}

static ns_status read_queue(lua_State *L, nsh_weighted_queue *queue, ns_err *err) {
  static const nsl_field known[] = {
      {"name", NSL_BYTES, offsetof(numbered, name)},
      {"weight", NSL_INT, offsetof(numbered, number)},
      {NULL, NSL_ANY, 0}};
  numbered q = {NS_NONE, 1};
  ns_status st = read_numbered(L, known, WHAT "queues: ", &q, err);
  if (st != NS_OK)
    return st;
  if (q.number < 1 || q.number > 1000000)
    return ns_fail(err, NS_EINVALID,
                   WHAT "queues: the weight of '%.*s' must be 1 to 1000000, "
                   "got %lld", (int)q.name.n, q.name.p, (long long)q.number);
  *queue = (nsh_weighted_queue){q.name, (int)q.number};
  return NS_OK;
}

/* The list is on top; its strings stay in it. */
static ns_status read_only(lua_State *L, nsh_config *cfg, ns_err *err) {
  for (size_t i = 0; i < cfg->nonly; i++) {
    ns_bytes *name = &cfg->only[i];
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      luaL_error(L, WHAT "only must have strings, got a %s", luaL_typename(L, -1));
    name->p = lua_tolstring(L, -1, &name->n);
    lua_pop(L, 1);
    if (name->n == 0 || name->n > NS_MAX_NAME)
      return ns_fail(err, NS_EINVALID, WHAT "only: a name has 1 to %d bytes",
                     NS_MAX_NAME);
  }
  return NS_OK;
}

/* The list is on top; its strings stay in it. */
static ns_status read_tables(lua_State *L, nsh_config *cfg, ns_err *err) {
  static const nsl_field known[] = {{"table", NSL_BYTES, offsetof(nsh_table, name)},
                                    {"mapping", NSL_BYTES, offsetof(nsh_table, mapping)},
                                    {NULL, NSL_ANY, 0}};
  ns_status st = NS_OK;
  for (size_t i = 0; i < cfg->ntables && st == NS_OK; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    cfg->tables[i] = (nsh_table){NS_NONE, NS_NONE};
    st = nsl_readfields(L, -1, known, WHAT "adopt: ", &cfg->tables[i], err);
    lua_pop(L, 1);
  }
  return st;
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

/* --------------------------------------------------------------- reserves */

static bool same(ns_bytes a, ns_bytes b) {
  return a.n == b.n && memcmp(a.p, b.p, a.n) == 0;
}

size_t nsh_config_pool(const nsh_config *cfg, ns_bytes queue) {
  for (size_t i = 0; i < cfg->nreserves; i++)
    if (same(cfg->reserves[i].name, queue))
      return i + 1;
  return 0;
}

size_t nsh_config_pool_of(const nsh_config *cfg, size_t index) {
  for (size_t i = 0; i < cfg->nreserves; i++) {
    if (index < cfg->reserves[i].workers)
      return i + 1;
    index -= cfg->reserves[i].workers;
  }
  return 0;
}

static size_t count_reserved(const nsh_config *cfg) {
  size_t sum = 0;
  for (size_t i = 0; i < cfg->nreserves; i++)
    sum += cfg->reserves[i].workers;
  return sum;
}

size_t nsh_config_workers(const nsh_config *cfg, size_t pool, size_t workers) {
  return pool > 0 ? cfg->reserves[pool - 1].workers : workers - count_reserved(cfg);
}

/* Do reserved workers serve all of its queues? */
static bool is_all_reserved(const nsh_config *cfg) {
  return cfg->nreserves > 0 && cfg->nqueues == cfg->nreserves;
}

ns_status nsh_config_check_workers(const nsh_config *cfg, int64_t workers, ns_err *err) {
  size_t reserved = count_reserved(cfg);
  size_t least = reserved + (is_all_reserved(cfg) ? 0 : 1);
  if (workers >= (int64_t)least && workers <= (int64_t)cfg->most_workers)
    return NS_OK;
  return ns_fail(err, NS_EINVALID, "it may have %zu to %zu workers%s", least, cfg->most_workers,
                 reserved > 0 ? ", reserved ones among them" : "");
}

static bool is_served(const nsh_config *cfg, ns_bytes name) {
  for (size_t i = 0; i < cfg->nqueues; i++)
    if (same(cfg->queues[i].name, name))
      return true;
  return cfg->nqueues == 0;
}

static ns_status read_reserve(lua_State *L, nsh_config *cfg, size_t i,
                              ns_err *err) {
  static const nsl_field known[] = {
      {"name", NSL_BYTES, offsetof(numbered, name)},
      {"workers", NSL_INT, offsetof(numbered, number)},
      {NULL, NSL_ANY, 0}};
  numbered q = {NS_NONE, 1};
  ns_status st = read_numbered(L, known, WHAT "reserve: ", &q, err);
  if (st != NS_OK)
    return st;
  if (q.number < 1 || q.number > NSH_WORKERS_MAX)
    return ns_fail(err, NS_EINVALID,
                   WHAT "reserve: '%.*s' must have 1 to %d workers, got %lld",
                   (int)q.name.n, q.name.p, NSH_WORKERS_MAX,
                   (long long)q.number);
  for (size_t k = 0; k < i; k++)
    if (same(cfg->reserves[k].name, q.name))
      return ns_fail(err, NS_EINVALID, WHAT "reserve: '%.*s' is named twice",
                     (int)q.name.n, q.name.p);
  if (!is_served(cfg, q.name))
    return ns_fail(err, NS_EINVALID,
                   WHAT "reserve: '%.*s' is not among the queues that are served",
                   (int)q.name.n, q.name.p);
  cfg->reserves[i] = (nsh_reserve){q.name, (size_t)q.number};
  return NS_OK;
}

/* A host that claims a queue's jobs has workers to run them. */
static ns_status check_reserves(const nsh_config *cfg, ns_err *err) {
  size_t sum = count_reserved(cfg);
  if (sum > cfg->workers)
    return ns_fail(err, NS_EINVALID,
                   WHAT "reserve: %zu workers are reserved, but there are only "
                   "%zu", sum, cfg->workers);
  if (sum == cfg->workers && !is_all_reserved(cfg))
    return ns_fail(err, NS_EINVALID,
                   WHAT "reserve: all %zu workers are reserved, and none is left "
                   "for other queues; have more workers, or name the reserved "
                   "queues alone as those to serve", sum);
  return NS_OK;
}

static ns_status read_reserves(lua_State *L, nsh_config *cfg, ns_err *err) {
  ns_status st = NS_OK;
  if (cfg->nreserves >= NSH_POOLS_MAX)
    return ns_fail(err, NS_EINVALID, WHAT "reserve: at most %d queues, got %zu",
                   NSH_POOLS_MAX - 1, cfg->nreserves);
  for (size_t i = 0; i < cfg->nreserves && st == NS_OK; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    st = read_reserve(L, cfg, i, err);
    lua_pop(L, 1);
  }
  return st == NS_OK && cfg->nreserves > 0 ? check_reserves(cfg, err) : st;
}

static size_t list_length(lua_State *L, int idx, const char *name) {
  size_t n = 0;
  if (nsl_rawfield(L, idx, name) == LUA_TTABLE)
    n = lua_rawlen(L, -1);
  lua_pop(L, 1);
  return n;
}

/* The arrays share one userdata: queues, reserves, names, tables, file names. */
ns_status nsh_config_read(lua_State *L, int idx, nsh_config *cfg,
                          ns_err *err) {
  ns_status st;
  idx = lua_absindex(L, idx);
  *cfg = (nsh_config){.db = NS_CONFIG_INIT};
  luaL_checktype(L, idx, LUA_TTABLE);
  cfg->nfiles = list_length(L, idx, "files");
  cfg->nqueues = list_length(L, idx, "queues");
  cfg->nreserves = list_length(L, idx, "reserve");
  cfg->nonly = list_length(L, idx, "only");
  cfg->ntables = list_length(L, idx, "adopt");
  cfg->queues = lua_newuserdatauv(
      L,
      cfg->nqueues * sizeof *cfg->queues + cfg->nreserves * sizeof *cfg->reserves + cfg->nonly * sizeof *cfg->only +
          cfg->ntables * sizeof *cfg->tables + cfg->nfiles * sizeof *cfg->files + 1,
      0);
  cfg->reserves = (nsh_reserve *)(void *)(cfg->queues + cfg->nqueues);
  cfg->only = (ns_bytes *)(void *)(cfg->reserves + cfg->nreserves);
  cfg->tables = (nsh_table *)(void *)(cfg->only + cfg->nonly);
  cfg->files = (const char **)(void *)(cfg->tables + cfg->ntables);
  if ((st = read_plain(L, idx, cfg, err)) != NS_OK ||
      (st = read_connection(L, idx, cfg, err)) != NS_OK)
    return st;
  nsl_rawfield(L, idx, "files");
  st = read_files(L, cfg, err);
  lua_pop(L, 1);
  if (st == NS_OK && cfg->ntables > 0) {
    nsl_rawfield(L, idx, "adopt");
    st = read_tables(L, cfg, err);
    lua_pop(L, 1);
  }
  if (st == NS_OK && cfg->nqueues > 0) {
    nsl_rawfield(L, idx, "queues");
    st = read_queues(L, cfg, err);
    lua_pop(L, 1);
  }
  if (st == NS_OK && cfg->nonly > 0) {
    nsl_rawfield(L, idx, "only");
    st = read_only(L, cfg, err);
    lua_pop(L, 1);
  }
  if (st == NS_OK && cfg->nreserves > 0) {
    nsl_rawfield(L, idx, "reserve");
    st = read_reserves(L, cfg, err);
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
  nsl_setbool(L, "no_look", cfg->db.no_look);
}
