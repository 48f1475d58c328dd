/*
** The handle: opening and closing it, and the list of its parts. Its connection is in
** db/session.c.
**
** Invariant: each part comes after all parts that it uses. spec/house_spec.lua checks that.
*/
#include "handle.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "db/db.h"

#define CLOSE_MAX (3 * NS_SECOND)

static const ns_hooks *const parts[] = {
    &ns_db_schema_hooks,     &ns_db_minutes_hooks,     &ns_source_hooks,
    &ns_admission_hooks,     &ns_claim_hooks,
    &ns_push_hooks,          &ns_finish_hooks,         &ns_settle_hooks,
    &ns_holder_hooks,        &ns_holder_rescue_hooks,  &ns_holder_audit_hooks,
    &ns_cycle_hooks,         &ns_wake_listen_hooks,    &ns_wake_ring_hooks,
    &ns_holder_slot_hooks,   &ns_finish_pending_hooks,
    &ns_admin_retention_hooks, NULL};

/* -------------------------------------------------------------- config */

/* The string fields of a config, for copying and freeing them alike. */
static const char **cfg_string(ns_config *cfg, size_t i) {
  const char **all[] = {&cfg->url,  &cfg->host,  &cfg->user, &cfg->password,
                        &cfg->database, &cfg->socket, &cfg->file, &cfg->group,
                        &cfg->tls,  &cfg->ca,    &cfg->cert, &cfg->key};
  return i < sizeof all / sizeof all[0] ? all[i] : NULL;
}

static bool cfg_copy(ns_config *to, const ns_config *from) {
  bool ok = true;
  const char **field;
  *to = *from;
  for (size_t i = 0; (field = cfg_string(to, i)) != NULL; i++)
    if (*field != NULL && (*field = strdup(*field)) == NULL)
      ok = false;
  return ok;
}

static void cfg_free(ns_config *cfg) {
  const char **field;
  for (size_t i = 0; (field = cfg_string(cfg, i)) != NULL; i++) {
    free((char *)(uintptr_t)*field);
    *field = NULL;
  }
}

static bool is_unset(const ns_config *cfg) {
  return cfg->url == NULL && cfg->host == NULL && cfg->socket == NULL &&
         cfg->database == NULL && cfg->file == NULL && cfg->group == NULL;
}

/* --------------------------------------------------------- open, close */

/* Set once, when a module is loaded, and read by every thread that opens. */
static ns_status (*_Atomic start_private)(const char *dir, char **url, ns_err *err);

void ns_use_private(ns_status (*start)(const char *dir, char **url, ns_err *err)) {
  atomic_store(&start_private, start);
}

/* Starts or joins the private server; its URL becomes ours; started again,
** it has the same one, which listeners have borrowed. The folder is that of the
** open, wherever the process has gone since. */
static ns_status use_private(ns_db *db, ns_err *err) {
  char *url;
  bool again = db->private_url != NULL;
  ns_status (*start)(const char *, char **, ns_err *) = atomic_load(&start_private);
  ns_status st;
  if (start == NULL)
    return ns_fail(err, NS_EINVALID,
                   "nothing names a server; set 'url', or 'host' or 'socket' and 'database'");
  if ((st = start(db->private_dir, &url, err)) != NS_OK)
    return st;
  if (again) {
    if (strcmp(url, db->private_url) != 0)
      st = ns_fail(err, NS_EGONE,
                   "the private server has moved to another socket; open it "
                   "again");
    free(url);
    return st;
  }
  db->private_url = url;
  db->cfg.url = strdup(url);
  db->private_dir = getcwd(NULL, 0);
  db->restart = use_private;
  return db->cfg.url != NULL && db->private_dir != NULL
             ? NS_OK
             : ns_no_memory(err);
}

static ns_status open_parsed(ns_db *db, ns_err *err) {
  ns_status st = NS_OK;
  bool checked = !db->cfg.no_schema;
  int from;
  if (db->cfg.url != NULL)
    st = ns_url_parse(db->cfg.url, &db->url, err);
  if (st != NS_OK)
    return st;
  if (ns_db_config_value(db).max_payload > 0)
    db->max_payload = (size_t)ns_db_config_value(db).max_payload;
  if (db->private_url != NULL)
    db->cfg.no_schema = true; /* created below */
  st = ns_db_connect(db, err);
  if (st == NS_OK && db->private_url != NULL && checked) {
    st = ns_db_schema_raise(db, false, &from, err);
    db->cfg.no_schema = false;
  }
  return st;
}

/* Rescues holders that died before us and that no other holder has seen: best effort. */
static void look_at_holders_once(ns_db *db) {
  ns_rescued sum;
  ns_err err;
  int64_t again_in;
  if (db->cfg.no_schema || db->cfg.no_look)
    return;
  ns_look(db, &again_in, &sum, &err);
  db->rescue.rescued = sum; /* the first caller that asks is told */
  db->rescue.look_at = ns_mono_us() + again_in;
}

ns_status ns_open(ns_db **out, const ns_config *cfg, ns_err *err) {
  ns_err none;
  ns_db *db = calloc(1, sizeof *db);
  ns_status st = NS_OK;
  *out = NULL;
  if (err == NULL)
    err = &none;
  if (db == NULL)
    return ns_no_memory(err);
  db->owner = getpid();
  db->hooks = parts;
  db->max_payload = NS_MAX_PAYLOAD;
  if (!cfg_copy(&db->cfg, cfg))
    st = ns_no_memory(err);
  if (st == NS_OK && is_unset(cfg))
    st = use_private(db, err);
  if (st == NS_OK)
    st = open_parsed(db, err);
  if (st != NS_OK) {
    ns_close(db);
    return st;
  }
  look_at_holders_once(db);
  *out = db;
  return NS_OK;
}

void ns_close(ns_db *db) {
  if (db == NULL)
    return;
  db->restart = NULL; /* it is not started again for this */
  if (!ns_is_foreign(db)) {
    ns_end_by(db, ns_mono_us() + CLOSE_MAX);
    ns_rollback(db);
    db->cfg.keep_trying = NULL; /* closing waits for no server */
  }
  ns_db_tell_closing(db);
  ns_db_hang_up(db);
  ns_db_queues_free(db);
  ns_url_free(&db->url);
  cfg_free(&db->cfg);
  free(db->private_url);
  free(db->private_dir);
  free(db);
}

ns_counters ns_count(const ns_db *db) {
  ns_counters sum = db->count;
  ns_db_add_slow(db, &sum);
  return sum;
}

int64_t ns_reconnects(const ns_db *db) {
  return db->count.reconnects;
}

/* ---------------------------------------------------- what a prune calls */

void ns_between(ns_db *db, bool (*on)(void *arg), void *arg) {
  db->goes_on = on;
  db->goes_on_arg = arg;
}

void ns_prune_tell(ns_db *db, void (*fn)(void *arg, int64_t deleted), void *arg) {
  db->pruned = fn;
  db->pruned_arg = arg;
}
