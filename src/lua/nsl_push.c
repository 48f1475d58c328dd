/*
** Pushing jobs: entries, as tables with named fields or as the plain lists that
** our own Lua makes of jobs without options, and the verb.
**
** Invariant: entries read from Lua are copied into one boxed batch before the core is called.
*/
#include "nsl.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"

/* --------------------------------------------------------- reading entries */

/* One push entry, just read; the priority is narrowed afterwards. */
typedef struct entry {
  ns_push push;
  int64_t priority;
  ns_bytes json; /* the payload, encoded before; absent: it is a value */
} entry;

static const nsl_field entry_fields[] = {
    {"name", NSL_BYTES, offsetof(entry, push.name)},
    {"payload", NSL_ANY, 0},
    {"queue", NSL_BYTES, offsetof(entry, push.queue)},
    {"id", NSL_INT, offsetof(entry, push.id)},
    {"again", NSL_INT, offsetof(entry, push.again)},
    {"anyhow", NSL_INT, offsetof(entry, push.anyhow)},
    {"delay", NSL_INT, offsetof(entry, push.delay)},
    {"at", NSL_INT, offsetof(entry, push.at)},
    {"tags", NSL_BYTES, offsetof(entry, push.tags)},
    {"group", NSL_BYTES, offsetof(entry, push.group)},
    {"priority", NSL_INT, offsetof(entry, priority)},
    {"decay", NSL_INT, offsetof(entry, push.decay)},
    {"max_attempts", NSL_INT, offsetof(entry, push.max_attempts)},
    {"max_crashes", NSL_INT, offsetof(entry, push.max_crashes)},
    {"max_polls", NSL_INT, offsetof(entry, push.max_polls)},
    {"backoff", NSL_INT, offsetof(entry, push.backoff)},
    {"timeout", NSL_INT, offsetof(entry, push.timeout)},
    {"deadline", NSL_INT, offsetof(entry, push.deadline)},
    {"unique", NSL_BYTES, offsetof(entry, push.unique)},
    {"period", NSL_INT, offsetof(entry, push.period)},
    {"on_conflict", NSL_INT, offsetof(entry, push.on_conflict)},
    {"parent", NSL_INT, offsetof(entry, push.parent)},
    {"after", NSL_BYTES, offsetof(entry, push.after)},
    {"on_fail_run", NSL_INT, offsetof(entry, push.on_fail_run)},
    {"max_phases", NSL_INT, offsetof(entry, push.max_phases)},
    {"json", NSL_BYTES, offsetof(entry, json)},
    {NULL, NSL_ANY, 0}};

ns_status nsl_batch_json(lua_State *L, nsl_batch *b, const char *what,
                         int64_t max, ns_bytes *out, ns_err *err) {
  size_t at = b->bytes.n;
  ns_status st = nsl_encode(L, -1, what, max, &b->bytes, err);
  lua_pop(L, 1);
  if (st == NS_OK)
    *out = nsl_view(at, b->bytes.n - at);
  return st;
}

#define WHAT_MAX 40

/* "job 3: ", for each job of a list, and so without printf. */
static void number_item(char what[WHAT_MAX], const char *noun, size_t i) {
  char digits[24];
  char *p = digits + sizeof digits - 1;
  for (*p = '\0'; i > 0; i /= 10)
    *--p = (char)('0' + i % 10);
  stpcpy(stpcpy(stpcpy(stpcpy(what, noun), " "), p), ": ");
}

/* Encodes the payload on top, and pops it: the job is read. */
static ns_status addentry(lua_State *L, nsl_batch *b, const char *what,
                          int64_t max, const ns_push *push, ns_err *err) {
  char path[WHAT_MAX + sizeof "payload"];
  ns_push *to = &b->jobs[b->n];
  ns_status st;
  *to = *push;
  stpcpy(stpcpy(path, what), "payload");
  st = nsl_batch_json(L, b, path, max, &to->payload, err);
  b->n += st == NS_OK;
  return st;
}

/* The payload was encoded before: the job is read. */
static ns_status addjson(nsl_batch *b, const char *what, int64_t max,
                         const entry *e, ns_err *err) {
  if (e->json.n > (uint64_t)max)
    return ns_fail(err, NS_ETOOBIG,
                   "%spayload: %zu bytes of JSON, the limit is %" PRId64
                   " (max_payload when the database is opened)",
                   what, e->json.n, max);
  b->jobs[b->n] = e->push;
  b->jobs[b->n++].payload = nsl_keep(&b->bytes, e->json);
  return NS_OK;
}

enum { P_NAME = 1, P_PAYLOAD, P_ID, P_QUEUE, P_PARENT }; /* of a plain entry */

/* Item 'at' of the table on top, 0 when there is none. [-0, +0, -] */
static int64_t plainint(lua_State *L, int at) {
  int64_t i;
  lua_rawgeti(L, -1, at);
  i = lua_tointeger(L, -1);
  lua_pop(L, 1);
  return i;
}

/* Reads a plain entry on top, made by our own Lua from a job without options. */
static ns_status readplain(lua_State *L, nsl_batch *b, const char *what,
                           int64_t max, ns_err *err) {
  ns_push push = ns_push_new("", NULL);
  push.id = plainint(L, P_ID);
  push.parent = plainint(L, P_PARENT);
  lua_rawgeti(L, -1, P_NAME);
  push.name.p = lua_tolstring(L, -1, &push.name.n);
  push.name = nsl_keep(&b->bytes, push.name);
  if (lua_rawgeti(L, -2, P_QUEUE) == LUA_TSTRING) {
    push.queue.p = lua_tolstring(L, -1, &push.queue.n);
    push.queue = nsl_keep(&b->bytes, push.queue);
  }
  lua_pop(L, 2);
  lua_rawgeti(L, -1, P_PAYLOAD);
  return addentry(L, b, what, max, &push, err);
}

static bool isplain(lua_State *L) {
  bool yes = lua_rawgeti(L, -1, P_NAME) == LUA_TSTRING;
  lua_pop(L, 1);
  return yes;
}

/* Reads the entry table on top, with named fields or plain; 'what' is "" or "job 3: ". */
static ns_status readentry(lua_State *L, nsl_batch *b, const char *what,
                           int64_t max, ns_err *err) {
  ns_status st;
  entry e = {.push = ns_push_new("", NULL), .priority = NS_PRIORITY};
  e.push.name = NS_NONE;
  if (!lua_istable(L, -1))
    luaL_error(L, "%sa job is a table, got %s", what, luaL_typename(L, -1));
  if (isplain(L))
    return readplain(L, b, what, max, err);
  if ((st = nsl_readfields(L, -1, entry_fields, what, &e, err)) != NS_OK)
    return st;
  if (e.push.name.p == NULL)
    luaL_error(L, "%sthe job has no 'name'", what);
  if (e.priority < 0 || e.priority > 255)
    return ns_fail(err, NS_EINVALID,
                   "%spriority must be 0 to 255, got %" PRId64, what,
                   e.priority);
  e.push.priority = (int)e.priority;
  e.push.name = nsl_keep(&b->bytes, e.push.name);
  e.push.queue = nsl_keep(&b->bytes, e.push.queue);
  e.push.unique = nsl_keep(&b->bytes, e.push.unique);
  e.push.after = nsl_keep(&b->bytes, e.push.after);
  e.push.tags = nsl_keep(&b->bytes, e.push.tags);
  e.push.group = nsl_keep(&b->bytes, e.push.group);
  if (e.json.p != NULL)
    return addjson(b, what, max, &e, err);
  nsl_rawfield(L, -1, "payload");
  return addentry(L, b, what, max, &e.push, err);
}

ns_status nsl_batch_read(lua_State *L, nsl_batch *b, const char *noun,
                         int64_t max, ns_err *err) {
  char what[WHAT_MAX] = "";
  size_t n = lua_rawlen(L, -1);
  ns_status st = NS_OK;
  if (!ns_grow(&b->jobs, &b->cap, n, sizeof *b->jobs))
    return ns_fail(err, NS_ENOMEM, "out of memory for %zu jobs", n);
  for (size_t i = 1; i <= n && st == NS_OK; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i);
    if (n > 1)
      number_item(what, noun, i);
    st = readentry(L, b, what, max, err);
    lua_pop(L, 1);
  }
  return st;
}

/* In the bytes of the batch, or absent, or empty. */
static bool is_kept(const nsl_batch *b, ns_bytes s) {
  return s.n == 0 || (s.p >= b->bytes.p && s.p + s.n <= b->bytes.p + b->bytes.n);
}

ns_status nsl_batch_finish(nsl_batch *b, ns_err *err) {
  if (b->bytes.oom)
    return ns_fail(err, NS_ENOMEM, "out of memory for the jobs");
  for (size_t i = 0; i < b->n; i++) {
    ns_push *job = &b->jobs[i];
    job->name = nsl_kept(&b->bytes, job->name);
    job->queue = nsl_kept(&b->bytes, job->queue);
    job->unique = nsl_kept(&b->bytes, job->unique);
    job->after = nsl_kept(&b->bytes, job->after);
    job->tags = nsl_kept(&b->bytes, job->tags);
    job->group = nsl_kept(&b->bytes, job->group);
    job->payload = nsl_kept(&b->bytes, job->payload);
    ns_assert(is_kept(b, job->name) && is_kept(b, job->payload));
  }
  return NS_OK;
}

void nsl_batch_free(void *batch) {
  nsl_batch *b = batch;
  free(b->jobs);
  ns_buf_free(&b->bytes);
}

/* ---------------------------------------------------------------- the verb */

static void pushids(lua_State *L, const nsl_batch *b) {
  lua_createtable(L, (int)b->n, 0);
  for (size_t i = 0; i < b->n; i++) {
    lua_pushinteger(L, b->jobs[i].id);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/* A table of words by place for the ids that are no new jobs'; how many values: none for none. */
static int pushoutcomes(lua_State *L, const nsl_batch *b) {
  static const char *const words[] = {[NS_KEPT] = "kept", [NS_REPLACED] = "replaced"};
  size_t first = 0;
  while (first < b->n && b->jobs[first].outcome == NS_PUSHED)
    first++;
  if (first == b->n)
    return 0;
  lua_newtable(L);
  for (size_t i = first; i < b->n; i++)
    if (b->jobs[i].outcome != NS_PUSHED) {
      lua_pushstring(L, words[b->jobs[i].outcome]);
      lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
  return 1;
}

/* Fails. Behind GONE come the ids, when the jobs may have been written. */
static int pushfail(lua_State *L, const nsl_batch *b, const ns_err *err) {
  int n = nsl_fail(L, err);
  if (err->status != NS_EGONE || b->n == 0 || b->jobs[0].outcome != NS_IN_DOUBT)
    return n;
  pushids(L, b);
  return n + 1;
}

/***
Pushes jobs in one transaction: all or none. Durations are microseconds.
@function db:push
@tparam string queue
@tparam {table,...} jobs each {name, payload, id, queue, parent}, without
options, or {name=, payload=, queue=, id=, delay=, priority=,
max_attempts=, max_crashes=, max_polls=, backoff=, timeout=, deadline=, unique=,
period=, on_conflict=, parent=, group=, anyhow=}, with a payload that may also be `json`, encoded
before
@treturn[1] {integer,...} ids
@treturn[1] ?table by place: `kept` or `replaced` where the id is no new job's; nothing when all are
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `INVALID`, `TOO_BIG`, `DUPLICATE`, `GONE`, `BUSY`, `FULL`
@treturn[2] ?integer|{integer,...} `DUPLICATE`: the job that has the key; `GONE`: the ids, when
it is not known whether the jobs are written
@raise for an unknown key or a wrong type
*/
static int db_push(lua_State *L) {
  ns_err err;
  ns_bytes queue;
  nsl_batch *b;
  int more;
  nsl_checkdb(L);
  queue = nsl_checkbytes(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  b = nsl_box(L, sizeof *b, nsl_batch_free);
  lua_insert(L, 3); /* stack: db; queue; box; jobs */
  if (nsl_batch_read(L, b, "job", nsl_maxjson(L), &err) != NS_OK ||
      nsl_batch_finish(b, &err) != NS_OK ||
      ns_push_jobs(nsl_checkdb(L), queue, b->jobs, b->n, &err) != NS_OK) {
    more = pushfail(L, b, &err);
    nsl_unbox(b);
    return more;
  }
  pushids(L, b);
  more = pushoutcomes(L, b);
  nsl_unbox(b);
  return 1 + more;
}

const luaL_Reg nsl_pushverbs[] = {{"push", db_push}, {NULL, NULL}};
