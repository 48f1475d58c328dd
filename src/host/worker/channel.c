/*
** What a worker and its host tell each other. Frames are written into the ring at once. Telling the
** host of it costs a system call, so that of a verdict may wait, for nsh_channel_flush or a ring
** that is full.
**
** Reports say how the call of a handler has ended, for the job or for each of its batch. There is
** exactly one for each job, whatever happened. They are built in the channel's frame. There is one
** worker per process, so their state is static: Lua's errors may jump over it.
**
** What handlers print: print, io.write, io.stdout, io.stderr, and C code that writes by stdio. In
** the zygote both streams are replaced by ones that call us, before Lua takes hold of them. Each
** piece that stdio writes is told to the host, as a frame of the running job among its other
** frames. What the host was told is not lost when the worker is killed. Programs that handlers
** start have the host's own descriptors. They may outlive the job, the worker and the host, and a
** pipe of ours would end them then. Their output is not told.
**
** Invariant: the streams are a worker's or a zygote's; seed, keeper and host have their own. (Not
** asserted: the host logs with write.)
*/
#include "worker/worker.h"

#include <errno.h>
#include <lauxlib.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base.h"
#include "nsl.h"

#define STOP_LOOK (NS_SECOND / 4) /* while ids are waited for: is the job to stop? */
#define IDS_FIRST 16
#define IDS_LAST 4096
#define KEEP_ROOM 262144 /* bytes of input; more is freed after the job */
#define ERROR_MAX 65600 /* bytes of an error text */
#define PIECE 2048 /* bytes of a frame */

void nsh_channel_leave(int status) {
  fflush(stdout);
  _exit(status);
}

void nsh_channel_open(nsh_channel *w, nsh_slots *slots, uint32_t index, int wakeup) {
  w->slots = slots;
  w->slot = &slots->slot[index];
  w->index = index;
  nsh_waker_init(&w->waker, wakeup);
}

/* ------------------------------------------------------------ frames to the host */

/* Without a wake-up pipe a frame in the ring is not lost: the host finds it when it learns of
** our end. */
static void tell_host(nsh_channel *w) {
  w->waiting = 0;
  w->untold = false;
  if (!nsh_pending_set(&w->slots->pending, w->index, &w->waker))
    nsh_channel_leave(0);
}

void nsh_channel_flush(nsh_channel *w) {
  if (w->untold)
    tell_host(w);
}

/* Should we die in the middle, the host drops the piece it has. */
static void put_frame(nsh_channel *w) {
  const char *p = w->frame.p;
  size_t n = w->frame.n;
  for (;;) {
    size_t put = nsh_ring_put(&w->slot->out, p, n);
    w->untold = true;
    if (put == n)
      return;
    p += put;
    n -= put;
    tell_host(w); /* of a full ring */
    nsh_ring_await_room(&w->slot->out);
  }
}

void nsh_channel_put(nsh_channel *w) {
  put_frame(w);
}

void nsh_channel_post(nsh_channel *w, int64_t now) {
  put_frame(w);
  if (w->waiting == 0)
    w->waiting = now;
}

void nsh_channel_post_now(nsh_channel *w) {
  put_frame(w);
  tell_host(w);
}

/* ---------------------------------------------------------- frames from the host */

void nsh_channel_receive(nsh_channel *w) {
  nsh_ring *in = &w->slot->in;
  char *room;
  int64_t n;
  if (w->at > 0) {
    memmove(w->in.p, w->in.p + w->at, w->in.n - w->at);
    w->in.n -= w->at;
    w->at = 0;
  }
  if (w->in.n == 0 && w->in.cap > KEEP_ROOM)
    ns_buf_free(&w->in); /* a large job is over */
  if ((room = ns_buf_room(&w->in, NSH_RING)) == NULL)
    nsh_channel_leave(1);
  while ((n = nsh_ring_take(in, room, NSH_RING)) == 0) {
    nsh_title_idle();
    nsh_ring_await(in, NSH_RING_EVER);
  }
  if (n < 0)
    nsh_channel_leave(1);
  w->in.n += (size_t)n;
  if (nsh_ring_relieved(in))
    tell_host(w);
}

size_t nsh_channel_peek(nsh_channel *w, size_t at, nsh_frame *f) {
  int64_t n;
  if (at >= w->in.n)
    return 0;
  n = nsh_next(w->in.p + at, w->in.n - at, f);
  if (n < 0)
    nsh_channel_leave(1);
  return (size_t)n;
}

void nsh_channel_drop(nsh_channel *w, size_t at, size_t n) {
  memmove(w->in.p + at, w->in.p + at + n, w->in.n - at - n);
  w->in.n -= n;
}

/* --------------------------------------------------------- ids for children */

static void ask_for_ids(nsh_channel *w) {
  size_t start;
  w->block = w->block == 0 ? IDS_FIRST : w->block < IDS_LAST ? w->block * 2 : IDS_LAST;
  ns_buf_reset(&w->frame);
  start = nsh_begin(&w->frame, NSH_WANT_IDS);
  nsh_put_int(&w->frame, (int64_t)w->block);
  if (nsh_end(&w->frame, start))
    nsh_channel_post_now(w);
}

static void read_ids(nsh_channel *w, nsh_frame *f) {
  size_t n = (size_t)nsh_get_int(f);
  w->nids = w->atid = 0;
  if (f->bad || n > IDS_LAST || !ns_grow(&w->ids, &w->capids, n, sizeof *w->ids))
    return;
  for (size_t i = 0; i < n; i++)
    w->ids[i] = nsh_get_int(f);
  w->nids = nsh_done(f) ? n : 0;
}

/* Waits for the answer; the jobs that came before it stay in the buffer. While the server
** is away that takes as long as it does, unless the job is stopped. */
static void await_ids(nsh_channel *w) {
  size_t at = w->at;
  for (;;) {
    nsh_frame f;
    size_t n = nsh_channel_peek(w, at, &f);
    if (n == 0) {
      size_t ahead = at - w->at;
      while (!nsh_ring_await(&w->slot->in, STOP_LOOK))
        if (nsh_interrupt_asked())
          return;
      nsh_channel_receive(w);
      at = w->at + ahead;
    } else if (f.type == NSH_IDS) {
      read_ids(w, &f);
      nsh_channel_drop(w, at, n);
      return;
    } else
      at += n;
  }
}

bool nsh_channel_take_id(nsh_channel *w, int64_t *id) {
  if (w->atid == w->nids) {
    ask_for_ids(w);
    await_ids(w);
  }
  if (w->atid == w->nids)
    return false;
  *id = w->ids[w->atid++];
  return true;
}

/* ------------------------------------------------------------------- reports */

static nsh_call *run;      /* that is being reported */
static ns_buf result_text; /* JSON of a plain result */

static nsh_report make_report(ns_kind kind) {
  return (nsh_report){.seq = run->seq, .kind = kind, .delay = -1,
                      .micros = run->ended - run->started,
                      .leaves = run->spent && run->unreported == 0};
}

/* The frame of a job's end is built in the frame; false: it is too large. */
static bool build_report(const nsh_report *r, const ns_push *children) {
  size_t start;
  ns_buf_reset(&run->channel->frame);
  start = nsh_begin_report(&run->channel->frame, r);
  for (size_t i = 0; i < r->nchildren; i++)
    nsh_put_child(&run->channel->frame, &children[i]);
  return nsh_end(&run->channel->frame, start);
}

static void report_failure(ns_bytes error) {
  nsh_report r = make_report(NS_FAIL);
  r.most = atomic_load(&run->channel->slot->most);
  r.error = (ns_bytes){error.p, error.n < ERROR_MAX ? error.n : ERROR_MAX};
  if (!build_report(&r, NULL))
    nsh_channel_leave(1);
}

/* The handler simply returned: its result is at index 1. */
static void report_result(lua_State *L) {
  nsh_report r = make_report(NS_ACK);
  ns_err err;
  ns_buf_reset(&result_text);
  if (!lua_isnil(L, 1)) {
    if (nsl_encode(L, 1, "result", run->max_json, &result_text, &err) != NS_OK) {
      report_failure(ns_str(err.message));
      return;
    }
    r.result = ns_buf_bytes(&result_text);
  }
  if (!build_report(&r, NULL))
    report_failure(ns_str("the result is over 64 MiB"));
}

/* The verdict table is at index 2. */
static void report_verdict(lua_State *L) {
  ns_err err;
  nsl_verdict *box = nsl_toverdict(L, 2, run->max_json, &err);
  nsh_report r;
  if (box == NULL) {
    report_failure(ns_str(err.message));
    return;
  }
  if (box->verdict.kind == NS_FAIL && nsh_memory_limit_blamed(box->verdict.error)) {
    nsl_unbox(box);
    run->over = true; /* reported as such */
    return;
  }
  r = make_report(box->verdict.kind);
  r.delay = box->verdict.delay;
  r.go_on = box->verdict.go_on;
  r.most = box->verdict.most;
  r.stop = box->verdict.stop;
  r.result = box->verdict.result;
  r.error = box->verdict.error;
  r.state = box->verdict.state;
  r.signal = box->verdict.signal;
  r.nchildren = box->verdict.nchildren;
  if (!build_report(&r, box->verdict.children))
    report_failure(ns_str("the verdict with its children is over 64 MiB"));
  nsl_unbox(box);
}

/* Reports that the handler was stopped; a verdict that it gave meanwhile does not count. */
static void report_stopped(nsh_why why) {
  nsh_report r = make_report(NS_RELEASE);
  if (why == NSH_WHY_TIMEOUT)
    report_failure(nsh_interrupt_text());
  else if (!build_report(&r, NULL))
    nsh_channel_leave(1);
}

/* Protected. Arguments: result and verdict. */
static int report_what_came(lua_State *L) {
  if (lua_isnil(L, 2))
    report_result(L);
  else
    report_verdict(L);
  return 0;
}

/* Result and verdict are the first two of three on the stack. */
static void report_end(lua_State *L) {
  lua_settop(L, 2);
  lua_pushcfunction(L, report_what_came);
  lua_insert(L, 1);
  if (lua_pcall(L, 2, 0, 0) == LUA_OK && !run->over)
    return;
  run->spent = true;
  if (run->over)
    report_failure(nsh_memory_limit_text());
  else
    report_failure(lua_isstring(L, -1) ? nsh_lua_text(L, -1)
                                       : ns_str("the job's end could not be told"));
}

/* Reports the end of a call that is not what the handler says. False: it is. */
static bool report_fault(void) {
  if (run->limited)
    report_failure(nsh_memory_limit_text());
  else if (run->why != NSH_WHY_NONE)
    report_stopped(run->why);
  else if (!run->ok)
    report_failure(run->error.p != NULL ? run->error : ns_str("the job could not be run"));
  else if (run->left.p != NULL)
    report_failure(run->left);
  return run->limited || run->why != NSH_WHY_NONE || !run->ok || run->left.p != NULL;
}

/* -------------------------------------------------------- reports of a batch */

enum { RESULTS = 1, VERDICTS, SPENT, OWN };

/* Has the handler given job 'i' of the batch a verdict itself? Then that counts, however the call
** ended. But what was left behind undoes it, unless a transaction has written it. */
static bool has_own_verdict(lua_State *L, lua_Integer i) {
  bool own;
  if (!run->ok)
    return false;
  lua_rawgeti(L, OWN, i);
  own = lua_toboolean(L, -1);
  lua_pop(L, 1);
  if (!own || run->left.p == NULL)
    return own;
  lua_rawgeti(L, VERDICTS, i);
  lua_getfield(L, -1, "go_on");
  own = lua_tointeger(L, -1) == 1;
  lua_pop(L, 2);
  return own;
}

/* The result or verdict of job 'i'. */
static void report_member(lua_State *L, lua_Integer i) {
  run->over = false;
  lua_pushcfunction(L, report_what_came);
  lua_rawgeti(L, RESULTS, i);
  lua_rawgeti(L, VERDICTS, i);
  if (lua_pcall(L, 2, 0, 0) == LUA_OK && !run->over)
    return;
  run->spent = true;
  report_failure(run->over ? nsh_memory_limit_text() : ns_str("the job's end could not be told"));
}

/* ------------------------------------------------------- reports that are posted */

void nsh_report_job(lua_State *L, nsh_call *call) {
  run = call;
  if (!report_fault())
    report_end(L);
  lua_settop(L, 0);
  nsh_channel_post(run->channel, run->ended);
}

void nsh_report_batch(lua_State *L, nsh_call *call) {
  int top = lua_gettop(L);
  run = call;
  for (run->unreported = run->members; run->unreported-- > 0;) {
    lua_Integer i = (lua_Integer)(run->members - run->unreported);
    if (has_own_verdict(L, i) || !report_fault())
      report_member(L, i);
    lua_settop(L, top);
    nsh_channel_post(run->channel, run->ended);
  }
  run->unreported = 0;
  lua_settop(L, 0);
}

/* ------------------------------------------------------- what handlers print */

static bool (*tell)(int fd, ns_bytes piece); /* NULL: there is no worker yet */
static bool over[STDERR_FILENO + 1]; /* by descriptor: a line of the host's may stand there */

/* As write(2) does, but all of it. */
static bool write_all(int fd, const char *p, size_t n) {
  while (n > 0) {
    ssize_t got = write(fd, p, n);
    if (got < 0 && errno != EINTR)
      return false;
    if (got > 0) {
      p += got;
      n -= (size_t)got;
    }
  }
  return true;
}

/* stdio's error is that of the descriptor, where bytes go there. */
static ssize_t write_stream(void *cookie, const char *p, size_t n) {
  int fd = (int)(intptr_t)cookie;
  bool told = tell != NULL;
  for (size_t at = 0; told && at < n; at += PIECE)
    told = tell(fd, (ns_bytes){p + at, n - at < PIECE ? n - at : PIECE});
  if (!told && over[fd])
    write_all(fd, "\x1b[K", 3);
  return told || write_all(fd, p, n) ? (ssize_t)n : 0;
}

#ifdef __GLIBC__

static void replace_stream(FILE **stream, int fd, int mode) {
  static const cookie_io_functions_t calls = {.write = write_stream};
  FILE *ours = fopencookie((void *)(intptr_t)fd, "w", calls);
  if (ours == NULL)
    return;
  fflush(*stream);
  setvbuf(ours, NULL, mode, BUFSIZ);
  *stream = ours;
}

void nsh_output_install(void) {
  replace_stream(&stdout, STDOUT_FILENO, _IOLBF);
  replace_stream(&stderr, STDERR_FILENO, _IONBF);
}

#else
void nsh_output_install(void) {
}
#endif

void nsh_output_over_line(void) {
  for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
    over[fd] = isatty(fd);
}

void nsh_output_to(bool (*fn)(int fd, ns_bytes piece)) {
  tell = fn;
}
