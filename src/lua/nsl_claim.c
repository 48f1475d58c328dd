/*
** Claimed jobs as Lua tables, and the verbs of their holder: claim, touch, and the verbs that end
** claims. Verdicts, from a Lua table to the core's struct; the host's workers read theirs here,
** too.
**
** Invariants: the core's results stay in a box while they become Lua tables. A verdict that has
** been read borrows nothing from its table; with the bytes of its children it lives in one box.
** (Not asserted: as nsl.h says, spec/oom shows it.) One hole is left on purpose: when memory ends
** while claimed jobs are being pushed, they stay claimed until the handle is closed.
*/
#include "nsl.h"

#include "base.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* -------------------------------------------------------------------- tables */

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
  nsl_setjson(L, "payload", job->payload, false);
  nsl_setjson(L, "state", job->state, false);
  nsl_setint(L, "attempts", job->attempts);
  nsl_setint(L, "polls", job->polls);
  nsl_setint(L, "crashes", job->crashes);
  nsl_setint(L, "max_attempts", job->max_attempts);
  if (job->max_polls >= 0)
    nsl_setint(L, "max_polls", job->max_polls);
  nsl_setint(L, "priority", job->priority);
  nsl_setpositive(L, "parent", job->parent);
  nsl_setpositive(L, "root", job->root);
  nsl_setint(L, "phase", job->phase);
  nsl_setpositive(L, "row", job->row);
  if (job->follows & NS_HAS_AFTER)
    nsl_setbool(L, "_follows", true);
  if (job->follows & NS_HAS_TAGS)
    nsl_setbool(L, "_tagged", true);
  nsl_setbytes(L, "group", job->group);
  nsl_setbytes(L, "awaits", job->awaits);
  nsl_setjson(L, "signal", job->signal, true);
  nsl_setseconds(L, "created", job->created);
  nsl_setseconds(L, "due", job->due);
  if (job->deadline > 0)
    nsl_setseconds(L, "deadline", job->deadline);
  nsl_setseconds(L, "timeout", job->timeout);
  setkey(L, job);
}

void nsl_pushjob(lua_State *L, const ns_job *job) {
  luaL_checkstack(L, 4, NULL);
  lua_createtable(L, 0, 24); /* room for fields that Lua adds */
  setjob(L, job);
}

/* --------------------------------------------------------------------- verbs */

static void free_jobs(void *p) {
  ns_jobs_free(p);
}

/* Room for claimed jobs, which goes with the stack if an error is raised. [-0, +1, m] */
static ns_jobs *box_jobs(lua_State *L) {
  return nsl_box(L, sizeof(ns_jobs), free_jobs);
}

/* Pushes the jobs as a list, and frees them. [-0, +1, m] */
static void push_jobs(lua_State *L, ns_jobs *jobs) {
  lua_createtable(L, (int)jobs->n, 0);
  for (size_t i = 0; i < jobs->n; i++) {
    nsl_pushjob(L, &jobs->items[i]);
    lua_rawseti(L, -2, (lua_Integer)i + 1);
  }
  nsl_unbox(jobs);
}

/* The names, if any, that this claim and the next are of. */
static ns_status claim_only(lua_State *L, int arg, ns_err *err) {
  size_t n = lua_isnoneornil(L, arg) ? 0 : lua_rawlen(L, arg);
  ns_bytes *names = NULL;
  if (!lua_isnoneornil(L, arg)) {
    luaL_checktype(L, arg, LUA_TTABLE);
    names = lua_newuserdatauv(L, (n + 1) * sizeof *names, 0);
  }
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, arg, (lua_Integer)i + 1);
    luaL_argcheck(L, lua_type(L, -1) == LUA_TSTRING, arg, "strings expected");
    names[i].p = lua_tolstring(L, -1, &names[i].n); /* the table keeps it */
    lua_pop(L, 1);
  }
  return ns_claim_only(nsl_checkdb(L), names, n, err);
}

/***
Claims jobs of one queue.
@function db:claim
@tparam string queue
@tparam[opt=1] integer limit
@tparam[opt=0] integer wait µs to wait for the first job
@tparam[opt=0] integer lease µs that the claim lasts untouched; 0: as the handle
@tparam[opt=false] boolean strict by priority only: no aging
@tparam[opt] {string,...} names of jobs to claim; nil: all
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
  lua_settop(L, 7); /* pushed values are no arguments */
  queue = nsl_checkbytes(L, 2);
  ns_claim_strictly(nsl_checkdb(L), lua_toboolean(L, 6));
  luaL_argcheck(L, limit >= 1 && limit <= NSL_CLAIM_MAX, 3,
                "1 to 100000 expected");
  jobs = box_jobs(L);
  if (claim_only(L, 7, &err) != NS_OK ||
      ns_claim(nsl_checkdb(L), queue, (size_t)limit, wait, lease, jobs,
               &err) != NS_OK) {
    nsl_unbox(jobs);
    return nsl_fail(L, &err);
  }
  push_jobs(L, jobs);
  return 1;
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
  char number[NS_NUMBER_SIZE];
  if (!lua_isnoneornil(L, 4) && !(progress >= 0 && progress <= 1)) {
    ns_fail(&err, NS_EINVALID, "progress must be 0 to 1, got %s", ns_number(progress, number));
    return nsl_fail(L, &err);
  }
  return nsl_result(L, ns_touch(db, id, run, getpid(), progress, text, &err),
                    &err);
}

/* -------------------------------------------------------- reading verdicts */

/* A verdict table as read. */
typedef struct ending {
  ns_verdict v;
  ns_bytes kind;
  int64_t stop;
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
    {"stop", NSL_INT, offsetof(ending, stop)},
    {"signal", NSL_BYTES, offsetof(ending, v.signal)},
    {"most", NSL_INT, offsetof(ending, v.most)},
    {"began", NSL_INT, offsetof(ending, v.began)},
    {"worker", NSL_INT, offsetof(ending, v.worker)},
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
  return nsl_batch_json(L, b, name, max, out, err);
}

static ns_status readchildren(lua_State *L, int idx, nsl_batch *b, int64_t max,
                              ns_err *err) {
  ns_status st = NS_OK;
  if (nsl_rawfield(L, idx, "children") == LUA_TTABLE)
    st = nsl_batch_read(L, b, "child", max, err);
  lua_pop(L, 1);
  return st;
}

/* Reads the plain fields; the strings are copied at once. */
static ns_status readhead(lua_State *L, int idx, nsl_verdict *out,
                          ns_err *err) {
  ending e = {.v = {.delay = -1, .most = -1}};
  ns_status st = nsl_readfields(L, idx, verdict_fields, "verdict: ", &e, err);
  if (st != NS_OK)
    return st;
  if (e.v.id <= 0 || e.v.run <= 0)
    return (ns_status)luaL_error(L, "verdict: 'id' and 'run' of the job are "
                                    "needed");
  if (e.v.delay < -1)
    return ns_fail(err, NS_EINVALID, "verdict: the delay is negative");
  e.v.kind = findkind(L, e.kind);
  e.v.stop = e.stop == 1 || e.stop == 2 ? (int)e.stop : 0;
  e.v.error = nsl_keep(&out->batch.bytes, e.v.error);
  e.v.log = nsl_keep(&out->batch.bytes, e.v.log);
  e.v.signal = nsl_keep(&out->batch.bytes, e.v.signal);
  out->verdict = e.v;
  return NS_OK;
}

static void free_verdict(void *p) {
  nsl_batch_free(&((nsl_verdict *)p)->batch);
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
      nsl_batch_finish(b, err) != NS_OK)
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

/* --------------------------------------------------------------------- verbs */

/***
Ends a claim.
@function db:settle
@tparam table verdict id, run, lease, kind (`ack`, `fail`, `again`, `discard`,
`release`, `wait`, `crash`, `missing`), result, error, state, delay (µs; nil: the
job's backoff), go_on (`wait`: 1: run again whatever became of the children; `again`: 1: once more
past the deadline), stop (`again`: 1: its group, 2: its queue), log, began and worker (of a host's
job, as in ns_verdict), children (entries as of push, with ids)
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

/* A job that is locked is settled by itself, and waited for. */
static ns_status settleall(ns_db *db, ns_verdict *v, size_t n, ns_err *err) {
  ns_status st = ns_cycle(db, v, n, NULL, NULL, NULL, err);
  for (size_t i = 0; st == NS_OK && i < n; i++)
    if (v[i].status != NS_OK)
      st = ns_settle(db, &v[i], err);
  return st;
}

/***
Ends claims together. For use in a transaction: if a claim cannot be ended the caller rolls
back.
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
  luaL_argcheck(L, n <= NSL_CLAIM_MAX, 2, "too many verdicts");
  if ((v = readverdicts(L, n, &err)) == NULL)
    return nsl_fail(L, &err);
  return nsl_result(L, settleall(nsl_checkdb(L), v, n, &err), &err);
}

static const nsl_field text_fields[] = {
    {"hold", NSL_BYTES, offsetof(ns_source_texts, hold)},
    {"lost", NSL_BYTES, offsetof(ns_source_texts, lost)},
    {"lives", NSL_BYTES, offsetof(ns_source_texts, write[NS_ROW_LIVES])},
    {"done", NSL_BYTES, offsetof(ns_source_texts, write[NS_ROW_DONE])},
    {"dead", NSL_BYTES, offsetof(ns_source_texts, write[NS_ROW_DEAD])},
    {"shows_dead", NSL_BOOL, offsetof(ns_source_texts, shows_dead)},
    {"ends", NSL_BYTES, offsetof(ns_source_texts, ends)},
    {NULL, NSL_ANY, 0}};

/***
From now on verdicts write what the rows of an adopted table are to say.
@function db:serve
@tparam integer source its id
@tparam table texts hold, lost, lives, done, dead, shows_dead, ends: see ns_source_texts; the
handle keeps it
@return true, or nil, message, code `NOMEM`
*/
static int db_serve(lua_State *L) {
  ns_err err;
  ns_source_texts texts = {0};
  ns_db *db = nsl_checkdb(L);
  int64_t id = luaL_checkinteger(L, 2);
  ns_status st;
  luaL_checktype(L, 3, LUA_TTABLE);
  st = nsl_readfields(L, 3, text_fields, "serve: ", &texts, &err);
  luaL_argcheck(L, texts.hold.p != NULL && texts.lost.p != NULL, 3, "'hold' and 'lost' expected");
  nsl_anchor(L, 3, id);
  return nsl_result(L, st == NS_OK ? ns_source_serve(db, id, &texts, &err) : st, &err);
}

const luaL_Reg nsl_claimverbs[] = {{"claim", db_claim}, {"touch", db_touch},
                                   {"serve", db_serve}, {"settle", db_settle},
                                   {"settle_all", db_settle_all}, {NULL, NULL}};
