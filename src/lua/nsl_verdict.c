/*
** Verdicts: from a Lua table to the core's struct, and the verbs that end claims. The host's
** workers read theirs here, too.
**
** Invariant: a verdict that has been read borrows nothing from its table; with the
** bytes of its children it lives in one box. (Not asserted: as nsl.h says, spec/oom shows it.)
*/
#include "nsl.h"

#include <stddef.h>
#include <string.h>

/* -------------------------------------------------------- reading verdicts */

/* A verdict table as read. */
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
    {"most", NSL_INT, offsetof(ending, v.most)},
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
past the deadline), log, children (entries as of push, with ids)
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
    {"lives", NSL_BYTES, offsetof(ns_source_texts, lives)},
    {"done", NSL_BYTES, offsetof(ns_source_texts, done)},
    {"dead", NSL_BYTES, offsetof(ns_source_texts, dead)},
    {"shows_dead", NSL_BOOL, offsetof(ns_source_texts, shows_dead)},
    {"ends", NSL_BYTES, offsetof(ns_source_texts, ends)},
    {NULL, NSL_ANY, 0}};

/***
From now on verdicts write what the rows of an adopted table are to say.
@function db:serve
@tparam integer source its id
@tparam table texts hold, lost, lives, done, dead, shows_dead, ends: see ns_source_texts
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
  return nsl_result(L, st == NS_OK ? ns_source_serve(db, id, &texts, &err) : st, &err);
}

const luaL_Reg nsl_verdictverbs[] = {{"serve", db_serve},
                                     {"settle", db_settle},
                                     {"settle_all", db_settle_all},
                                     {NULL, NULL}};
