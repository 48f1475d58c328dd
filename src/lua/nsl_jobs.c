/*
** Jobs between Lua tables and the core: entries of a push, verdicts, claimed
** jobs, and the verbs on them.
**
** Invariant: what is read from Lua is copied into one boxed batch before the
** core is called, and what the core gives back stays in a box while it becomes
** Lua tables. One hole is left on purpose: when memory ends while claimed jobs
** are being pushed, they stay claimed until the handle is closed.
*/
#include "nsl_db.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CLAIM 100000 /* jobs of one claim; far beyond what pays */

/* --------------------------------------------------------- reading entries */

/* What one push entry is read into; the priority is narrowed afterwards. */
typedef struct entry {
  ns_push push;
  int64_t priority;
} entry;

static const nsl_field entry_fields[] = {
    {"name", NSL_BYTES, offsetof(entry, push.name)},
    {"payload", NSL_ANY, 0},
    {"queue", NSL_BYTES, offsetof(entry, push.queue)},
    {"id", NSL_INT, offsetof(entry, push.id)},
    {"delay", NSL_INT, offsetof(entry, push.delay)},
    {"priority", NSL_INT, offsetof(entry, priority)},
    {"decay", NSL_INT, offsetof(entry, push.decay)},
    {"max_attempts", NSL_INT, offsetof(entry, push.max_attempts)},
    {"max_crashes", NSL_INT, offsetof(entry, push.max_crashes)},
    {"max_polls", NSL_INT, offsetof(entry, push.max_polls)},
    {"backoff", NSL_INT, offsetof(entry, push.backoff)},
    {"timeout", NSL_INT, offsetof(entry, push.timeout)},
    {"deadline", NSL_INT, offsetof(entry, push.deadline)},
    {"unique", NSL_BYTES, offsetof(entry, push.unique)},
    {"parent", NSL_INT, offsetof(entry, push.parent)},
    {"after", NSL_BYTES, offsetof(entry, push.after)},
    {"on_fail_run", NSL_INT, offsetof(entry, push.on_fail_run)},
    {NULL, NSL_ANY, 0}};

/* Encodes the value on top into the batch and pops it. */
static ns_status keepjson(lua_State *L, nsl_batch *b, const char *what,
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
  st = keepjson(L, b, path, max, &to->payload, err);
  b->n += st == NS_OK;
  return st;
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

/* A plain entry on top: what our own Lua has made of a job without options. */
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

/* The entry table on top, with named fields or plain; 'what' is "" or "job 3: ". */
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
  nsl_rawfield(L, -1, "payload");
  return addentry(L, b, what, max, &e.push, err);
}

/* Reads the list on top; 'noun' names an item: "job", "child". */
static ns_status readlist(lua_State *L, nsl_batch *b, const char *noun,
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

/* The batch is complete: turns offsets into pointers. */
static ns_status settlebytes(nsl_batch *b, ns_err *err) {
  if (b->bytes.oom)
    return ns_fail(err, NS_ENOMEM, "out of memory for the jobs");
  for (size_t i = 0; i < b->n; i++) {
    ns_push *job = &b->jobs[i];
    job->name = nsl_kept(&b->bytes, job->name);
    job->queue = nsl_kept(&b->bytes, job->queue);
    job->unique = nsl_kept(&b->bytes, job->unique);
    job->after = nsl_kept(&b->bytes, job->after);
    job->payload = nsl_kept(&b->bytes, job->payload);
  }
  return NS_OK;
}

static void free_batch(void *p) {
  nsl_batch *b = p;
  free(b->jobs);
  ns_buf_free(&b->bytes);
}

/* -------------------------------------------------------- reading verdicts */

/* What a verdict table is read into. */
typedef struct ending {
  ns_verdict v;
  ns_bytes kind;
} ending;

static const nsl_field verdict_fields[] = {
    {"id", NSL_INT, offsetof(ending, v.id)},
    {"run", NSL_INT, offsetof(ending, v.run)},
    {"lease", NSL_INT, offsetof(ending, v.lease)},
    {"kind", NSL_BYTES, offsetof(ending, kind)},
    {"result", NSL_ANY, 0},
    {"error", NSL_BYTES, offsetof(ending, v.error)},
    {"state", NSL_ANY, 0},
    {"delay", NSL_INT, offsetof(ending, v.delay)},
    {"go_on", NSL_INT, offsetof(ending, v.go_on)},
    {"signal", NSL_BYTES, offsetof(ending, v.signal)},
    {"log", NSL_BYTES, offsetof(ending, v.log)},
    {"children", NSL_TABLE, 0},
    {NULL, NSL_ANY, 0}};

static const struct {
  const char *name;
  ns_kind kind;
} kinds[] = {{"ack", NS_ACK},         {"fail", NS_FAIL},
             {"again", NS_AGAIN},     {"discard", NS_DISCARD},
             {"release", NS_RELEASE}, {"crash", NS_CRASH},
             {"missing", NS_MISSING}, {"wait", NS_WAIT}};

static ns_kind findkind(lua_State *L, ns_bytes s) {
  for (size_t i = 0; s.p != NULL && i < sizeof kinds / sizeof kinds[0]; i++)
    if (strlen(kinds[i].name) == s.n && memcmp(kinds[i].name, s.p, s.n) == 0)
      return kinds[i].kind;
  return (ns_kind)luaL_error(L,
                             "verdict: bad 'kind' %s (known: ack, fail, again, "
                             "discard, release, wait, crash, missing)",
                             s.p != NULL ? s.p : "(absent)");
}

/* An optional value field of the table at 'idx' as JSON. */
static ns_status readvalue(lua_State *L, int idx, const char *name,
                           nsl_batch *b, int64_t max, ns_bytes *out,
                           ns_err *err) {
  if (nsl_rawfield(L, idx, name) == LUA_TNIL) {
    lua_pop(L, 1);
    return NS_OK;
  }
  return keepjson(L, b, name, max, out, err);
}

static ns_status readchildren(lua_State *L, int idx, nsl_batch *b, int64_t max,
                              ns_err *err) {
  ns_status st = NS_OK;
  if (nsl_rawfield(L, idx, "children") == LUA_TTABLE)
    st = readlist(L, b, "child", max, err);
  lua_pop(L, 1);
  return st;
}

/* Reads the plain fields; the strings are copied at once. */
static ns_status readhead(lua_State *L, int idx, nsl_verdict *out,
                          ns_err *err) {
  ending e = {.v = {.delay = -1}};
  ns_status st = nsl_readfields(L, idx, verdict_fields, "verdict: ", &e, err);
  if (st != NS_OK)
    return st;
  if (e.v.id <= 0 || e.v.run <= 0)
    return (ns_status)luaL_error(L, "verdict: 'id' and 'run' of the job are "
                                    "needed");
  if (e.v.delay < -1)
    return ns_fail(err, NS_EINVALID, "verdict: the delay is negative");
  e.v.kind = findkind(L, e.kind);
  e.v.error = nsl_keep(&out->batch.bytes, e.v.error);
  e.v.log = nsl_keep(&out->batch.bytes, e.v.log);
  e.v.signal = nsl_keep(&out->batch.bytes, e.v.signal);
  out->verdict = e.v;
  return NS_OK;
}

static void free_verdict(void *p) {
  free_batch(&((nsl_verdict *)p)->batch);
}

nsl_verdict *nsl_toverdict(lua_State *L, int idx, int64_t max, ns_err *err) {
  nsl_verdict *out;
  ns_verdict *v;
  nsl_batch *b;
  idx = lua_absindex(L, idx);
  luaL_checktype(L, idx, LUA_TTABLE);
  luaL_checkstack(L, 8, NULL);
  out = nsl_box(L, sizeof *out, free_verdict);
  v = &out->verdict;
  b = &out->batch;
  if (readhead(L, idx, out, err) != NS_OK ||
      readvalue(L, idx, "result", b, max, &v->result, err) != NS_OK ||
      readvalue(L, idx, "state", b, max, &v->state, err) != NS_OK ||
      readchildren(L, idx, b, max, err) != NS_OK ||
      settlebytes(b, err) != NS_OK)
    return NULL;
  v->error = nsl_kept(&b->bytes, v->error);
  v->log = nsl_kept(&b->bytes, v->log);
  v->signal = nsl_kept(&b->bytes, v->signal);
  v->result = nsl_kept(&b->bytes, v->result);
  v->state = nsl_kept(&b->bytes, v->state);
  v->children = b->jobs;
  v->nchildren = b->n;
  return out;
}

/* ------------------------------------------------------------ pushing jobs */

/* Decodes into t[name]; absent leaves it nil, and null does, unless that means
** something. A text that is not JSON becomes t[name .. "_error"] = why. */
static void setjson(lua_State *L, const char *name, ns_bytes text, bool nulls) {
  ns_err err;
  if (text.p == NULL)
    return;
  if (nsl_decode(L, text, &err) != NS_OK) {
    if (err.status == NS_ENOMEM) /* says nothing about the text */
      luaL_error(L, "%s", err.message);
    lua_pushfstring(L, "%s_error", name);
    lua_pushfstring(L, "%s: %s", name, err.message);
    lua_rawset(L, -3);
  } else if (lua_islightuserdata(L, -1) && !nulls)
    lua_pop(L, 1);
  else
    lua_setfield(L, -2, name);
}

/* 0 is "none" and leaves it nil */
static void setpositive(lua_State *L, const char *name, int64_t i) {
  if (i > 0)
    nsl_setint(L, name, i);
}

static void setkey(lua_State *L, const ns_job *job) {
  char key[48];
  snprintf(key, sizeof key, "%" PRIx64 "-%016" PRIx64, (uint64_t)job->id,
           (uint64_t)job->nonce);
  lua_pushstring(L, key);
  lua_setfield(L, -2, "key");
}

/* Fills the table on top. */
static void setjob(lua_State *L, const ns_job *job) {
  luaL_checkstack(L, 6, NULL);
  nsl_setint(L, "id", job->id);
  nsl_setint(L, "run", job->run);
  nsl_setint(L, "lease", job->lease);
  nsl_setbytes(L, "queue", job->queue);
  nsl_setbytes(L, "name", job->name);
  setjson(L, "payload", job->payload, false);
  setjson(L, "state", job->state, false);
  nsl_setint(L, "attempts", job->attempts);
  nsl_setint(L, "polls", job->polls);
  nsl_setint(L, "crashes", job->crashes);
  nsl_setint(L, "max_attempts", job->max_attempts);
  if (job->max_polls >= 0)
    nsl_setint(L, "max_polls", job->max_polls);
  nsl_setint(L, "priority", job->priority);
  setpositive(L, "parent", job->parent);
  setpositive(L, "root", job->root);
  nsl_setint(L, "phase", job->phase);
  nsl_setbytes(L, "awaits", job->awaits);
  setjson(L, "signal", job->signal, true);
  nsl_setint(L, "created", job->created);
  nsl_setint(L, "due", job->due);
  setpositive(L, "deadline", job->deadline);
  nsl_setint(L, "timeout", job->timeout);
  setkey(L, job);
}

void nsl_pushjob(lua_State *L, const ns_job *job) {
  luaL_checkstack(L, 4, NULL);
  lua_createtable(L, 0, 24); /* room for what Lua adds */
  setjob(L, job);
}

static void pushinfo(lua_State *L, const ns_info *info) {
  nsl_pushjob(L, &info->job);
  nsl_setbytes(L, "where", info->where);
  nsl_setbytes(L, "reason", info->reason);
  nsl_setbytes(L, "error", info->error);
  setjson(L, "result", info->result, false);
  nsl_setbytes(L, "unique", info->unique);
  setpositive(L, "finished_at", info->finished_at);
  nsl_setint(L, "unmet", info->unmet);
  if (info->paused != 0)
    nsl_setint(L, "paused", info->paused);
  setpositive(L, "holder", info->holder);
  nsl_setint(L, "max_crashes", info->max_crashes);
  nsl_setint(L, "decay", info->decay);
  if (info->progress >= 0) {
    lua_pushnumber(L, info->progress);
    lua_setfield(L, -2, "progress");
  }
  nsl_setbytes(L, "status", info->status_text);
}

/* ------------------------------------------------------ push, claim, settle */

static void pushids(lua_State *L, const nsl_batch *b) {
  lua_createtable(L, (int)b->n, 0);
  for (size_t i = 0; i < b->n; i++) {
    lua_pushinteger(L, b->jobs[i].id);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
}

/***
Pushes jobs in one transaction: all or none. Durations are microseconds.
@function db:push
@tparam string queue
@tparam {table,...} jobs each {name, payload, id, queue, parent}, without
options, or {name=, payload=, queue=, id=, delay=, priority=,
max_attempts=, max_crashes=, max_polls=, backoff=, timeout=, deadline=, unique=,
parent=}
@treturn[1] {integer,...} ids
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `INVALID`, `TOO_BIG`, `DUPLICATE`, `GONE`, `BUSY`
@raise for an unknown key or a wrong type
*/
static int db_push(lua_State *L) {
  ns_err err;
  ns_bytes queue;
  nsl_batch *b;
  nsl_checkdb(L);
  queue = nsl_checkbytes(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  b = nsl_box(L, sizeof *b, free_batch);
  lua_insert(L, 3); /* stack: db; queue; box; jobs */
  if (readlist(L, b, "job", nsl_maxjson(L), &err) != NS_OK ||
      settlebytes(b, &err) != NS_OK ||
      ns_push_jobs(nsl_checkdb(L), queue, b->jobs, b->n, &err) != NS_OK) {
    nsl_unbox(b);
    return nsl_fail(L, &err);
  }
  pushids(L, b);
  nsl_unbox(b);
  return 1;
}

static void free_jobs(void *p) {
  ns_jobs_free(p);
}

/***
Claims jobs of one queue.
@function db:claim
@tparam string queue
@tparam[opt=1] integer limit
@tparam[opt=0] integer wait µs to wait for the first job
@tparam[opt=0] integer lease µs that the claim lasts untouched; 0: as the handle
@tparam[opt=false] boolean strict by priority only: no aging
@treturn[1] {table,...} jobs: id, run, lease, queue, name, payload, state,
attempts, polls, crashes, max_attempts, max_polls, priority, parent, root,
created, due, deadline, timeout, key; `payload_error` in place of a payload
that is not JSON. Empty when there is none.
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `GONE`, `BUSY`, `INVALID`
*/
static int db_claim(lua_State *L) {
  ns_err err;
  ns_bytes queue;
  ns_jobs *jobs;
  lua_Integer limit = luaL_optinteger(L, 3, 1);
  int64_t wait = nsl_optmicros(L, 4);
  int64_t lease = nsl_optmicros(L, 5);
  nsl_checkdb(L);
  queue = nsl_checkbytes(L, 2);
  ns_claim_strictly(nsl_checkdb(L), lua_toboolean(L, 6));
  luaL_argcheck(L, limit >= 1 && limit <= MAX_CLAIM, 3,
                "1 to 100000 expected");
  jobs = nsl_box(L, sizeof *jobs, free_jobs);
  if (ns_claim(nsl_checkdb(L), queue, (size_t)limit, wait, lease, jobs,
               &err) != NS_OK) {
    nsl_unbox(jobs);
    return nsl_fail(L, &err);
  }
  lua_createtable(L, (int)jobs->n, 0);
  for (size_t i = 0; i < jobs->n; i++) {
    nsl_pushjob(L, &jobs->items[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  nsl_unbox(jobs);
  return 1;
}

/***
Ends a claim.
@function db:settle
@tparam table verdict id, run, lease, kind (`ack`, `fail`, `again`, `discard`,
`release`, `wait`, `crash`, `missing`), result, error, state, delay (µs; nil: the
job's backoff), go_on (`wait`: 1: run again whatever became of the children; `again`: 1: once more past the deadline), log, children (entries as of push, with ids)
@treturn[1] boolean true
@treturn[1] boolean whether the job is dead now
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `STALE`, `INVALID`, `TOO_BIG`, `GONE`, `BUSY`
*/
static int db_settle(lua_State *L) {
  ns_err err;
  nsl_verdict *v;
  ns_status st;
  bool dead;
  nsl_checkdb(L);
  if ((v = nsl_toverdict(L, 2, nsl_maxjson(L), &err)) == NULL)
    return nsl_fail(L, &err);
  st = ns_settle(nsl_checkdb(L), &v->verdict, &err);
  dead = v->verdict.dead;
  nsl_unbox(v);
  if (st != NS_OK)
    return nsl_fail(L, &err);
  lua_pushboolean(L, 1);
  lua_pushboolean(L, dead);
  return 2;
}

/* The verdicts of the list at 2, boxed; their bytes belong to boxes in a table on
** top. NULL: 'err' says why. [-0, +2, v] */
static ns_verdict *readverdicts(lua_State *L, size_t n, ns_err *err) {
  ns_verdict *all = nsl_box(L, (n + 1) * sizeof *all, NULL);
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    nsl_verdict *v;
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    v = nsl_toverdict(L, -1, nsl_maxjson(L), err);
    if (v == NULL)
      return NULL;
    all[i] = v->verdict;
    lua_rawseti(L, -3, (lua_Integer)i + 1); /* stack: table; verdict */
    lua_pop(L, 1);
  }
  return all;
}

/* One that somebody holds by itself, which waits for it. */
static ns_status settleall(ns_db *db, ns_verdict *v, size_t n, ns_err *err) {
  ns_status st = ns_cycle(db, v, n, NULL, NULL, NULL, err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (v[i].status != NS_OK)
      st = ns_settle(db, &v[i], err);
  return st;
}

/***
Ends claims together. In a transaction: one that cannot be ended is for the caller
to roll back.
@function db:settle_all
@tparam {table,...} verdicts as of settle
@return true, or nil, message, code as of settle
*/
static int db_settle_all(lua_State *L) {
  ns_err err;
  ns_verdict *v;
  size_t n;
  nsl_checkdb(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  n = lua_rawlen(L, 2);
  luaL_argcheck(L, n <= MAX_CLAIM, 2, "too many verdicts");
  if ((v = readverdicts(L, n, &err)) == NULL)
    return nsl_fail(L, &err);
  return nsl_result(L, settleall(nsl_checkdb(L), v, n, &err), &err);
}

/***
Shows how far a running job is, and tells whether its claim still holds.
@function db:touch
@tparam integer id
@tparam integer run
@tparam[opt] number progress 0 to 1
@tparam[opt] string text
@return true, or nil, message, code `STALE`, `GONE`, `INVALID`
*/
static int db_touch(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  int64_t run = luaL_checkinteger(L, 3);
  double progress = luaL_optnumber(L, 4, -1);
  ns_bytes text = nsl_optbytes(L, 5);
  if (!lua_isnoneornil(L, 4) && !(progress >= 0 && progress <= 1)) {
    ns_fail(&err, NS_EINVALID, "progress must be 0 to 1, got %g", progress);
    return nsl_fail(L, &err);
  }
  return nsl_result(L, ns_touch(db, id, run, getpid(), progress, text, &err),
                    &err);
}

/* -------------------------------------------------------- from the outside */

static void free_info(void *p) {
  ns_info_free(p);
}

/***
Everything about one job, live or finished.
@function db:info
@tparam integer id
@treturn[1] table the fields of a claimed job, and where, reason, error, result,
unique, finished_at, unmet, holder, max_crashes, progress, status
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `NOT_FOUND`, `GONE`
*/
static int db_info(lua_State *L) {
  ns_err err;
  ns_info *info;
  int64_t id = luaL_checkinteger(L, 2);
  nsl_checkdb(L);
  info = nsl_box(L, sizeof *info, free_info);
  if (ns_job_info(nsl_checkdb(L), id, info, &err) != NS_OK)
    return nsl_fail(L, &err);
  pushinfo(L, info);
  nsl_unbox(info);
  return 1;
}

/***
Ends a live job as cancelled.
@function db:cancel
@tparam integer id
@tparam[opt] string reason
@return true, or nil, message, code `NOT_FOUND`, `STATE`
*/
static int db_cancel(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  ns_bytes reason = nsl_optbytes(L, 3);
  return nsl_result(L, ns_cancel(db, id, reason, &err), &err);
}

/***
Runs a finished job again with fresh budgets.
@function db:retry
@tparam integer id
@return true, or nil, message, code `NOT_FOUND`, `STATE`, `DUPLICATE`
*/
static int db_retry(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  return nsl_result(L, ns_retry(db, luaL_checkinteger(L, 2), &err), &err);
}

/***
Makes a scheduled job ready now.
@function db:run_now
@tparam integer id
@return true, or nil, message, code `NOT_FOUND`, `STATE`
*/
static int db_run_now(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  return nsl_result(L, ns_run_now(db, luaL_checkinteger(L, 2), &err), &err);
}

/***
Gives a live job another priority.
@function db:reprioritise
@tparam integer id
@tparam integer priority
@return true, or nil, message, code
*/
static int db_reprioritise(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  int64_t priority = luaL_checkinteger(L, 3);
  return nsl_result(L, ns_reprioritise(db, id, priority, &err), &err);
}

/***
When a live job is not started any more.
@function db:deadline
@tparam integer id
@tparam integer deadline µs from now; -1: none any more
@return true, or nil, message, code
*/
static int db_deadline(lua_State *L) {
  ns_err err;
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  int64_t deadline = luaL_checkinteger(L, 3);
  return nsl_result(L, ns_deadline(db, id, deadline, &err), &err);
}

/***
Does something to a job and all below it.
@function db:tree
@tparam string verb `cancel`, `pause`, `resume`, `priority`, `run_now`, `deadline`,
`retry`
@tparam integer id
@tparam[opt=0] integer n the priority, or the deadline (µs from now; -1: none)
@tparam[opt] string text why it is cancelled
@return how many jobs were changed, or nil, message, code `NOT_FOUND`, `STATE`,
`DUPLICATE`
*/
static int db_tree(lua_State *L) {
  static const char *const names[] = {
      [NS_TREE_CANCEL] = "cancel", [NS_TREE_PAUSE] = "pause",
      [NS_TREE_RESUME] = "resume", [NS_TREE_PRIORITY] = "priority",
      [NS_TREE_RUN_NOW] = "run_now", [NS_TREE_DEADLINE] = "deadline",
      [NS_TREE_RETRY] = "retry", NULL};
  ns_err err;
  int64_t changed = 0;
  ns_db *db = nsl_checkdb(L);
  ns_verb verb = (ns_verb)luaL_checkoption(L, 2, NULL, names);
  int64_t id = luaL_checkinteger(L, 3);
  int64_t n = luaL_optinteger(L, 4, 0);
  ns_bytes text = nsl_optbytes(L, 5);
  if (ns_tree_do(db, verb, id, n, text, &changed, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_pushinteger(L, changed);
  return 1;
}

/***
How many of a job and all below it are in which state.
@function db:progress
@tparam integer id
@treturn[1] table done, dead, cancelled, running, waiting, scheduled, ready, total
@treturn[2] nil
@treturn[2] string message
@treturn[2] string code `NOT_FOUND`
*/
static int db_progress(lua_State *L) {
  ns_err err;
  ns_progress p;
  ns_db *db = nsl_checkdb(L);
  if (ns_tree_progress(db, luaL_checkinteger(L, 2), &p, &err) != NS_OK)
    return nsl_fail(L, &err);
  lua_createtable(L, 0, 8);
  nsl_setint(L, "done", p.done);
  nsl_setint(L, "dead", p.dead);
  nsl_setint(L, "cancelled", p.cancelled);
  nsl_setint(L, "running", p.running);
  nsl_setint(L, "waiting", p.waiting);
  nsl_setint(L, "scheduled", p.scheduled);
  nsl_setint(L, "ready", p.ready);
  nsl_setint(L, "total", p.total);
  return 1;
}

const luaL_Reg nsl_jobverbs[] = {
    {"cancel", db_cancel}, {"claim", db_claim},   {"info", db_info},
    {"push", db_push},     {"retry", db_retry},   {"run_now", db_run_now},
    {"deadline", db_deadline}, {"progress", db_progress},
    {"reprioritise", db_reprioritise}, {"tree", db_tree},
    {"settle", db_settle}, {"settle_all", db_settle_all}, {"touch", db_touch},   {NULL, NULL}};
