/*
** Seed, keeper and zygotes in the loop: commands to them, and their reports as calls of the
** owner.
*/
#include "process/process.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "ipc/ipc.h"

#define SEED_US (6 * NS_SECOND) /* for the seed to clear up and end */

/* --------------------------------------------------------------------- peers */

static void free_handle(uv_handle_t *h) {
  free(h);
}

/* False: the peer is behind, the command stays. */
static bool send_one(nsh_peer *p, const nsh_command *c) {
  char room[64];
  ns_buf out = {room, 0, sizeof room, false};
  size_t start = nsh_begin(&out, c->type);
  nsh_put_int(&out, c->index);
  nsh_put_int(&out, c->arg);
  nsh_must(nsh_end(&out, start));
  if (!nsh_control_send(p->ctl, &out, c->fd, false) &&
      (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETOOMANYREFS))
    return false; /* any other error: reading finds the end of the peer */
  if (c->fd >= 0)
    close(c->fd);
  return true;
}

static void on_ready(uv_poll_t *poll, int status, int events);

static void flush_commands(nsh_peer *p) {
  size_t sent = 0;
  while (sent < p->n && send_one(p, &p->queue[sent]))
    sent++;
  p->n -= sent;
  memmove(p->queue, p->queue + sent, p->n * sizeof *p->queue);
  uv_poll_start(p->poll, UV_READABLE | (p->n > 0 ? UV_WRITABLE : 0), on_ready);
}

/* Reads all frames there are, now; the callbacks run. */
static void read_peer(nsh_peer *p) {
  static char bytes[NSH_CONTROL_MAX];
  nsh_frame f;
  int fd;
  int got = -1;
  while (p->ctl >= 0 && !p->gone &&
         (got = nsh_control_receive(p->ctl, bytes, &f, &fd, false)) > 0) {
    if (fd >= 0)
      close(fd); /* no peer sends us one */
    p->silence = 0;
    if (p->asked > 0 && (f.type == NSH_FORKED || f.type == NSH_HEARD))
      p->asked--;
    p->frame(p->arg, &f);
  }
  if (p->ctl < 0 || p->gone || got < 0)
    return;
  p->gone = true;
  uv_poll_stop(p->poll);
  if (p->end != NULL)
    p->end(p->arg);
}

static void on_ready(uv_poll_t *poll, int status, int events) {
  nsh_peer *p = poll->data;
  if (events & UV_WRITABLE)
    flush_commands(p);
  if ((events & UV_READABLE) || status < 0)
    read_peer(p);
}

/* 'ctl' changes hands. The callbacks and 'arg' are set already. */
static void open_peer(nsh_peer *p, uv_loop_t *loop, int ctl) {
  p->ctl = ctl;
  p->gone = false;
  p->poll = nsh_alloc(sizeof *p->poll);
  nsh_must(uv_poll_init(loop, p->poll, ctl) == 0);
  p->poll->data = p;
  uv_poll_start(p->poll, UV_READABLE, on_ready);
}

/* Sends now or later; 'fd' changes hands, -1: none. */
static void send_to_peer(nsh_peer *p, nsh_type type, uint32_t index, int64_t arg, int fd) {
  if (p->ctl < 0 || p->gone) {
    if (fd >= 0)
      close(fd);
    return;
  }
  nsh_must(ns_grow(&p->queue, &p->cap, p->n + 1, sizeof *p->queue));
  if (p->asked++ == 0)
    p->silence = 0;
  p->queue[p->n++] = (nsh_command){type, index, arg, fd};
  if (p->n == 1)
    flush_commands(p);
}

/* Does the peer owe an answer? */
static bool owes_answer(const nsh_peer *p) {
  return p->ctl >= 0 && !p->gone && p->asked > 0;
}

/* Closes; safe to repeat, and inside a callback. */
static void close_peer(nsh_peer *p) {
  if (p->ctl < 0)
    return;
  for (size_t i = 0; i < p->n; i++)
    if (p->queue[i].fd >= 0)
      close(p->queue[i].fd);
  free(p->queue);
  p->queue = NULL;
  p->n = p->cap = 0;
  uv_close((uv_handle_t *)p->poll, free_handle);
  p->poll = NULL;
  close(p->ctl);
  p->ctl = -1;
}

#define WATCH_MS 500
#define ZYGOTE_SILENT (4 * NS_SECOND)
#define SILENT (12 * NS_SECOND) /* seed, keeper: they kill sessions for up to 5 s */

static void on_watch(uv_timer_t *timer);

/* A command that will be answered. */
static void ask_peer(nsh_family *b, nsh_peer *p, nsh_type type, uint32_t index, int64_t arg,
                     int fd) {
  send_to_peer(p, type, index, arg, fd);
  if (uv_is_active((uv_handle_t *)&b->watch))
    return;
  b->watched = ns_mono_us();
  uv_timer_start(&b->watch, on_watch, WATCH_MS, WATCH_MS);
}

/* ------------------------------------------------------- reports of zygotes */

/* Absent: it has no element. */
static ns_bytes end_list(ns_buf *list) {
  if (list->n > 0)
    ns_buf_addc(list, ']');
  nsh_must(!list->oom);
  return list->n > 0 ? ns_buf_bytes(list) : NS_NONE;
}

static void forget_declared(nsh_zygote *z) {
  ns_buf_free(&z->schedules);
  ns_buf_free(&z->on_dead);
  ns_buf_free(&z->batched);
}

static void on_loaded(nsh_zygote *z, nsh_frame *f) {
  nsh_family *b = z->family;
  nsh_loaded what;
  ns_bytes version;
  what.count = nsh_get_int(f);
  what.names = nsh_get_bytes(f);
  version = nsh_get_bytes(f);
  what.files = nsh_get_bytes(f);
  if (z->stage != NSH_LOADING || !nsh_done(f))
    return;
  nsh_version_copy(z->version, version);
  z->stage = NSH_READY;
  what.schedules = end_list(&z->schedules);
  what.on_dead = end_list(&z->on_dead);
  what.batched = ns_buf_bytes(&z->batched);
  b->loaded(b->arg, z, &what);
  forget_declared(z);
}

/* An element of 'list', which the scripts declare. */
static void on_declared(nsh_zygote *z, ns_buf *list, nsh_frame *f) {
  int64_t count = nsh_get_int(f);
  ns_bytes text = nsh_get_bytes(f);
  if (z->stage != NSH_LOADING || !nsh_done(f) || count != 0)
    return;
  ns_buf_addc(list, list->n == 0 ? '[' : ',');
  ns_buf_add(list, text.p, text.n);
}

static void on_batched(nsh_zygote *z, nsh_frame *f) {
  int64_t count = nsh_get_int(f);
  ns_bytes text = nsh_get_bytes(f);
  if (z->stage != NSH_LOADING || !nsh_done(f) || count != 0)
    return;
  ns_buf_add(&z->batched, text.p, text.n);
  ns_buf_addc(&z->batched, '\n');
  nsh_must(!z->batched.oom);
}

static void on_load_error(nsh_zygote *z, nsh_frame *f) {
  nsh_family *b = z->family;
  ns_bytes text;
  nsh_get_int(f); /* nothing is counted */
  text = nsh_get_bytes(f);
  if (z->stage != NSH_LOADING || !nsh_done(f))
    return;
  z->stage = NSH_LEAVING;
  b->failed(b->arg, z, text, 0);
}

/* A zygote that was told to go is let go with its last worker. */
static void one_less(nsh_zygote *z) {
  ns_assert(z->stage != NSH_ABSENT); /* its reports come before its death */
  if (z->workers > 0)
    z->workers--;
  if (z->workers == 0 && z->stage == NSH_LEAVING)
    close_peer(&z->peer);
}

static void on_worker(nsh_zygote *z, nsh_frame *f) {
  nsh_family *b = z->family;
  uint32_t index = (uint32_t)nsh_get_int(f);
  int64_t pid = nsh_get_int(f);
  int64_t last = nsh_get_int(f);
  if (!nsh_done(f))
    return;
  if (f->type == NSH_FORKED)
    b->forked(b->arg, z, index, (pid_t)pid, (int)last);
  else
    b->exited(b->arg, z, index, (int)last);
  if (f->type == NSH_EXITED || pid == 0)
    one_less(z);
}

static void on_sockets(nsh_frame *f) {
  int64_t count = nsh_get_int(f);
  ns_bytes text = nsh_get_bytes(f);
  if (nsh_done(f) && count == 0)
    ns_log(NS_LOG_WARN, "script.sockets",
           NS_FIELDS(ns_fb("open", text),
                     ns_fs("advice", "all workers share what scripts open while they "
                                     "are loaded; open it in a handler, or in "
                                     "nightshift.on(\"worker.start\", fn)")));
}

static void on_zygote_frame(void *arg, nsh_frame *f) {
  nsh_zygote *z = arg;
  if (f->type == NSH_SOCKETS)
    on_sockets(f);
  else if (f->type == NSH_LOADED)
    on_loaded(z, f);
  else if (f->type == NSH_SCHEDULE)
    on_declared(z, &z->schedules, f);
  else if (f->type == NSH_ON_DEAD)
    on_declared(z, &z->on_dead, f);
  else if (f->type == NSH_BATCHED)
    on_batched(z, f);
  else if (f->type == NSH_LOADERR)
    on_load_error(z, f);
  else if (f->type == NSH_FORKED || f->type == NSH_EXITED)
    on_worker(z, f);
}

/* ----------------------------------------------------- reports of the keeper */

/* The zygote's process is gone: first everything it still said. */
static void on_death(nsh_zygote *z, int status) {
  nsh_family *b = z->family;
  bool loading;
  read_peer(&z->peer);
  loading = z->stage == NSH_LOADING;
  close_peer(&z->peer);
  z->stage = NSH_ABSENT;
  z->workers = 0;
  forget_declared(z);
  if (loading)
    b->failed(b->arg, z, NS_NONE, status);
  b->died(b->arg, z, status);
}

static void on_keeper_frame(void *arg, nsh_frame *f) {
  nsh_family *b = arg;
  uint32_t index = (uint32_t)nsh_get_int(f);
  int64_t pid = nsh_get_int(f);
  int64_t last = nsh_get_int(f);
  if (!nsh_done(f) || index >= NSH_ZYGOTES ||
      b->zygotes[index].stage == NSH_ABSENT)
    return;
  if (f->type == NSH_EXITED || (f->type == NSH_FORKED && pid == 0))
    on_death(&b->zygotes[index], (int)last);
}

/* Without a seed the host has to clear up itself, and there will be no other keeper. */
static void lose_keeper(nsh_family *b) {
  if (b->keeper_pid > 0)
    nsh_session_kill(b->keeper_pid, NULL, 0);
  b->keeper_died(b->arg, false);
}

static void on_keeper_end(void *arg) {
  nsh_family *b = arg;
  if (b->seed.gone)
    lose_keeper(b);
}

/* ------------------------------------------------------- reports of the seed */

static void call_keeper(nsh_family *b) {
  int pair[2];
  nsh_must(nsh_control_pair(pair));
  b->keeper = (nsh_peer){.frame = on_keeper_frame, .end = on_keeper_end,
                         .arg = b};
  open_peer(&b->keeper, b->loop, pair[0]);
  ask_peer(b, &b->seed, NSH_FORK, 0, 0, pair[1]);
}

/* The keeper's whole session is dead by now. */
static void replace_keeper(nsh_family *b) {
  read_peer(&b->keeper);
  close_peer(&b->keeper);
  call_keeper(b);
  b->keeper_died(b->arg, true);
  for (size_t i = 0; i < NSH_ZYGOTES; i++)
    if (b->zygotes[i].stage != NSH_ABSENT)
      on_death(&b->zygotes[i], -1);
}

static void on_seed_frame(void *arg, nsh_frame *f) {
  nsh_family *b = arg;
  nsh_get_int(f); /* index: there is one */
  int64_t pid = nsh_get_int(f);
  nsh_get_int(f);
  if (!nsh_done(f))
    return;
  b->keeper_pid = f->type == NSH_FORKED ? (pid_t)pid : 0;
  if (f->type == NSH_EXITED)
    replace_keeper(b);
  else if (f->type == NSH_FORKED && pid == 0)
    lose_keeper(b);
}

static void on_seed_end(void *arg) {
  nsh_family *b = arg;
  if (b->keeper.gone)
    lose_keeper(b);
}

/* ----------------------------------------------------------------- silence */

/* A process that is stopped or stuck gets no SIGTERM; its workers die with it. */
static void end_zygote(nsh_zygote *z) {
  ns_log(NS_LOG_ERROR, "zygote.unresponsive", NULL, 0);
  z->condemned = true;
  z->peer.silence = 0;
  nsh_zygote_signal(z, SIGKILL);
}

static void end_keeper(nsh_family *b) {
  ns_log(NS_LOG_ERROR, "keeper.unresponsive", NULL, 0);
  for (size_t i = 0; i < NSH_ZYGOTES; i++)
    b->zygotes[i].condemned = true;
  b->keeper.silence = 0;
  ask_peer(b, &b->seed, NSH_KILL, 0, SIGKILL, -1);
}

/* Only the host is above the seed: all of them go. */
static void end_seed(nsh_family *b) {
  ns_log(NS_LOG_ERROR, "seed.unresponsive", NULL, 0);
  if (b->keeper_pid > 0)
    nsh_session_kill(b->keeper_pid, NULL, 0);
  kill(b->seed_pid, SIGKILL);
}

/* 'micros' more have passed: is 'p' silent for longer than 'most'? Its pending frames are read
** first; time that we slept through ourselves, stopped like it, counts as one look. */
static bool is_silent(nsh_peer *p, int64_t micros, int64_t most) {
  const int64_t look = WATCH_MS * INT64_C(1000);
  read_peer(p);
  if (!owes_answer(p))
    return false;
  p->silence += micros < 2 * look ? micros : look;
  return p->silence > most;
}

static bool anybody_owes(const nsh_family *b) {
  bool owes = owes_answer(&b->keeper) || owes_answer(&b->seed);
  for (size_t i = 0; i < NSH_ZYGOTES; i++)
    owes = owes || owes_answer(&b->zygotes[i].peer);
  return owes;
}

static void on_watch(uv_timer_t *timer) {
  nsh_family *b = timer->data;
  int64_t now = ns_mono_us();
  int64_t micros = now - b->watched;
  b->watched = now;
  for (size_t i = 0; i < NSH_ZYGOTES; i++)
    if (is_silent(&b->zygotes[i].peer, micros, ZYGOTE_SILENT))
      end_zygote(&b->zygotes[i]);
  if (is_silent(&b->keeper, micros, SILENT))
    end_keeper(b);
  if (is_silent(&b->seed, micros, SILENT))
    end_seed(b);
  if (!anybody_owes(b))
    uv_timer_stop(&b->watch);
}

/* ------------------------------------------------------------------- verbs */

void nsh_family_open(nsh_family *b, uv_loop_t *loop, int ctl) {
  b->loop = loop;
  uv_timer_init(loop, &b->watch);
  b->watch.data = b;
  b->seed = (nsh_peer){.frame = on_seed_frame, .end = on_seed_end, .arg = b};
  for (uint32_t i = 0; i < NSH_ZYGOTES; i++)
    b->zygotes[i] = (nsh_zygote){.family = b, .index = i, .peer = {.ctl = -1}};
  open_peer(&b->seed, loop, ctl);
  call_keeper(b);
}

void nsh_family_close(nsh_family *b) {
  for (uint32_t i = 0; i < NSH_ZYGOTES; i++)
    close_peer(&b->zygotes[i].peer);
  close_peer(&b->keeper);
  close_peer(&b->seed);
}

size_t nsh_family_alive(const nsh_family *b) {
  size_t n = 0;
  for (size_t i = 0; i < NSH_ZYGOTES; i++)
    n += b->zygotes[i].stage != NSH_ABSENT;
  return n;
}

/* No worker has that number, so no worker is hit. A zygote that reads its scripts hears
** nothing, and may take long. */
void nsh_family_ping(nsh_family *b) {
  for (size_t i = 0; i < NSH_ZYGOTES; i++)
    if (b->zygotes[i].stage > NSH_LOADING && !owes_answer(&b->zygotes[i].peer))
      nsh_zygote_kill(&b->zygotes[i], UINT32_MAX, 0);
}

void nsh_family_retire(nsh_family *b) {
  for (size_t i = 0; i < NSH_ZYGOTES; i++)
    if (b->zygotes[i].stage != NSH_ABSENT)
      nsh_zygote_retire(&b->zygotes[i]);
}

nsh_zygote *nsh_family_load(nsh_family *b) {
  nsh_zygote *z = b->zygotes;
  int pair[2];
  while (z < b->zygotes + NSH_ZYGOTES && z->stage != NSH_ABSENT)
    z++;
  if (z == b->zygotes + NSH_ZYGOTES || !nsh_control_pair(pair))
    return NULL;
  z->stage = NSH_LOADING;
  z->workers = 0;
  z->condemned = false;
  z->version[0] = '\0';
  z->peer = (nsh_peer){.frame = on_zygote_frame, .arg = z};
  open_peer(&z->peer, b->loop, pair[0]);
  ask_peer(b, &b->keeper, NSH_FORK, z->index, 0, pair[1]);
  return z;
}

void nsh_zygote_fork(nsh_zygote *z, uint32_t index) {
  z->workers++;
  ask_peer(z->family, &z->peer, NSH_FORK, index, 0, -1);
}

void nsh_zygote_kill(nsh_zygote *z, uint32_t index, int sig) {
  ask_peer(z->family, &z->peer, NSH_KILL, index, sig, -1);
}

void nsh_zygote_retire(nsh_zygote *z) {
  z->stage = NSH_LEAVING;
  if (z->workers == 0)
    close_peer(&z->peer);
}

void nsh_zygote_signal(nsh_zygote *z, int sig) {
  ask_peer(z->family, &z->family->keeper, NSH_KILL, z->index, sig, -1);
}

/* ------------------------------------------------------------------- the seed */

void nsh_seed_await(pid_t seed, pid_t keeper) {
  int64_t end = ns_mono_us() + SEED_US;
  int64_t pause = 200;
  pid_t got;
  while ((got = waitpid(seed, NULL, WNOHANG)) == 0 && ns_mono_us() < end) {
    ns_sleep_us(pause);
    pause = pause < 20000 ? pause * 2 : pause;
  }
  if (got != 0)
    return;
  ns_log(NS_LOG_ERROR, "seed.unresponsive", NULL, 0);
  if (keeper > 0)
    nsh_session_kill(keeper, NULL, 0);
  kill(seed, SIGKILL);
  waitpid(seed, NULL, 0);
}

/* ------------------------------------------------------------- ends and versions */

void nsh_exit_describe(char out[96], int status) {
  if (status < 0)
    snprintf(out, 96, "lost together with the process that forked it");
  else if (WIFSIGNALED(status))
    snprintf(out, 96, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else
    snprintf(out, 96, "exited with status %d", WEXITSTATUS(status));
}

void nsh_version_copy(char to[NSH_VERSION_SIZE], ns_bytes s) {
  size_t n = 0;
  while (n < s.n && n < NSH_VERSION_SIZE - 1 && isxdigit((unsigned char)s.p[n])) {
    to[n] = s.p[n];
    n++;
  }
  to[n] = '\0';
}
