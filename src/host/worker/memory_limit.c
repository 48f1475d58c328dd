/*
** The memory a job may use, in a worker: what the Lua state may grow while the
** job runs and, as a back-stop for C code, what the process may have.
**
** Invariant: without a limit the allocator is Lua's own. Memory that came from
** either may be given back to the other.
**
** The limit. For its own objects Lua asks twice before it gives up: after the
** first refusal it collects garbage and repeats the request. So only a second
** refusal in a row means that the job needs too much. The buffers of the
** library (string.rep, table.concat, file:read) ask once: such a refusal is
** final, and known by the next request being another one. It counts when the
** job fails of it, or at once when nothing that is collected could help.
**
** One worker per process: the state is static.
*/
#include "worker/channel.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "err.h"

#define SLACK (INT64_C(64) << 20) /* for C code, beside twice the limit */

static struct {
  bool on;
  lua_Alloc alloc; /* the state's own */
  void *ud;
  int64_t grown, limit; /* bytes */
  bool refused;         /* the last request for more */
  void *p;              /* that request */
  size_t old, size;
  bool denied;          /* one was refused for good */
  bool over;
  int64_t base;         /* data of the process beside its Lua state; 0: ? */
  struct rlimit before;
  char text[64];
  nsh_slot *slot;
  uint32_t seq;
} q;

static bool repeated(const void *p, size_t old, size_t size) {
  return q.refused && p == q.p && old == q.old && size == q.size;
}

static void *refuse(void *p, size_t old, size_t size, int64_t more) {
  if (!q.over && (repeated(p, old, size) || more > q.limit)) {
    q.over = true;
    nsh_slot_say(q.slot, q.seq, q.text);
    atomic_store(&q.slot->over, q.seq + 1);
  }
  q.refused = true;
  q.p = p;
  q.old = old;
  q.size = size;
  return NULL;
}

static void *allocate(void *ud, void *p, size_t old, size_t size) {
  int64_t more = (int64_t)size - (p != NULL ? (int64_t)old : 0);
  (void)ud;
  if (more > 0 && q.refused && !repeated(p, old, size)) {
    q.denied = true;
    q.refused = false;
  }
  if (more > 0 && q.grown + more > q.limit)
    return refuse(p, old, size, more);
  void *got = q.alloc(q.ud, p, old, size);
  if (got == NULL && size > 0)
    return refuse(p, old, size, more);
  q.grown += more;
  q.refused = q.refused && more <= 0;
  return got;
}

/* Bytes of data this process has, stacks included. */
static int64_t data_bytes(void) {
  long pages = 0;
  FILE *f = fopen("/proc/self/statm", "re");
  if (f == NULL)
    return 0;
  if (fscanf(f, "%*d %*d %*d %*d %*d %ld", &pages) != 1)
    pages = 0;
  fclose(f);
  return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* Programs that the job starts inherit this. */
static void limit_process(lua_State *L, int64_t bytes) {
  int64_t heap = (int64_t)lua_gc(L, LUA_GCCOUNT) * 1024;
  struct rlimit r;
  if (q.base == 0)
    q.base = data_bytes() - heap;
  if (getrlimit(RLIMIT_DATA, &q.before) != 0)
    return;
  r = q.before;
  r.rlim_cur = (rlim_t)(q.base + heap + 2 * bytes + SLACK);
  if (r.rlim_cur < q.before.rlim_cur)
    setrlimit(RLIMIT_DATA, &r);
}

void nsh_memory_limit_forget(void) {
  q.over = q.denied = q.refused = false;
}

void nsh_memory_limit_begin(lua_State *L, int64_t bytes, nsh_slot *slot, uint32_t seq) {
  const char *unit = bytes % (1 << 20) == 0 ? "MiB"
                     : bytes % 1024 == 0    ? "KiB"
                                            : "bytes";
  int64_t size = *unit == 'M' ? bytes >> 20 : *unit == 'K' ? bytes >> 10 : bytes;
  nsh_memory_limit_end(L);
  limit_process(L, bytes);
  snprintf(q.text, sizeof q.text, "memory limit of %lld %s", (long long)size,
           unit);
  q.grown = 0;
  q.limit = bytes;
  q.slot = slot;
  q.seq = seq;
  nsh_memory_limit_forget();
  q.on = true;
  q.alloc = lua_getallocf(L, &q.ud);
  ns_assert(q.alloc != allocate); /* without a limit it is Lua's own */
  lua_setallocf(L, allocate, NULL);
}

bool nsh_memory_limit_end(lua_State *L) {
  bool over = q.over;
  if (!q.on)
    return false;
  lua_setallocf(L, q.alloc, q.ud);
  setrlimit(RLIMIT_DATA, &q.before);
  q.on = false;
  return over;
}

bool nsh_memory_limit_blamed(ns_bytes error) {
  static const char words[] = "not enough memory";
  return (q.over || q.denied || q.refused) && error.p != NULL &&
         memmem(error.p, error.n, words, sizeof words - 1) != NULL;
}

ns_bytes nsh_memory_limit_text(void) {
  return ns_str(q.text);
}
