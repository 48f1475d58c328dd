/*
** Checks of the host's parts that are pure functions: frames, rings, slots, pacing, batches,
** names, lines, log lines. And the windows of core's looks below floors and its pauses. Prints
** one line per group; aborts at the first check that fails.
*/
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"
#include "claim/claim.h"
#include "dispatcher/dispatcher.h"
#include "handle.h"
#include "host.h"
#include "ipc/ipc.h"
#include "pool/pool.h"

#define CHECK(x)                                                              \
  do                                                                          \
    if (!(x)) {                                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                 \
      abort();                                                                \
    }                                                                         \
  while (0)

#define SAME(a, b) ((a).n == (b).n && memcmp((a).p, (b).p, (a).n) == 0)

/* ---------------------------------------------------------------- frames */

static nsh_order sample_order(void) {
  nsh_order o = {.seq = 0xFFFFFFF0u, .hold = true};
  o.job = (ns_job){.id = INT64_MAX, .run = 3, .lease = -1, .nonce = INT64_MIN,
                   .timeout = 7, .deadline = 8, .max_polls = -1,
                   .queue = ns_str("q"), .name = ns_str("n"),
                   .payload = (ns_bytes){"a\0b", 3}, .state = NS_NONE};
  return o;
}

static void order_round_trip(void) {
  ns_buf b = NS_BUF_INIT;
  nsh_order in = sample_order();
  nsh_order out = {0};
  nsh_frame f;
  CHECK(nsh_put_order(&b, &in));
  CHECK(nsh_next(b.p, b.n, &f) == (int64_t)b.n && f.type == NSH_JOB);
  CHECK(nsh_get_order(&f, &out));
  CHECK(out.seq == in.seq && out.hold && out.job.id == INT64_MAX);
  CHECK(out.job.nonce == INT64_MIN && out.job.lease == -1);
  CHECK(out.job.max_polls == -1 && out.job.deadline == 8);
  CHECK(SAME(out.job.payload, in.job.payload) && out.job.state.p == NULL);
  ns_buf_free(&b);
}

/* A batch of 'n' as its frame says, with two jobs. True: it is read to its end. */
static bool reads_bulk(size_t n) {
  ns_buf b = NS_BUF_INIT;
  nsh_order in = sample_order();
  nsh_bulk_order out = {0};
  ns_job jobs[2] = {{0}};
  nsh_frame f;
  size_t start = nsh_begin_bulk(&b, &(nsh_bulk_order){.seq = 5, .timeout = 6, .n = n});
  bool ok;
  nsh_put_job(&b, &in.job);
  nsh_put_job(&b, &in.job);
  CHECK(nsh_end(&b, start));
  CHECK(nsh_next(b.p, b.n, &f) == (int64_t)b.n && f.type == NSH_BULK);
  ok = nsh_get_bulk(&f, &out) && out.seq == 5 && out.timeout == 6 && out.n == n;
  for (size_t i = 0; ok && i < n; i++)
    ok = nsh_get_job(&f, &jobs[i % 2]);
  ok = ok && nsh_done(&f) && SAME(jobs[1].payload, in.job.payload) && jobs[1].id == INT64_MAX;
  ns_buf_free(&b);
  return ok;
}

static void bulk_round_trip(void) {
  CHECK(reads_bulk(2));
  CHECK(!reads_bulk(0) && !reads_bulk(1) && !reads_bulk(3) && !reads_bulk(NSH_BULK_MAX + 1));
}

static void put_report(ns_buf *b, size_t nchildren) {
  nsh_report r = {.seq = 5, .kind = NS_AGAIN, .micros = 12, .delay = -1,
                  .state = ns_str("{}"), .nchildren = nchildren};
  ns_push child = ns_push_new("child", "[1]");
  size_t start = nsh_begin_report(b, &r);
  child.id = 99;
  child.group = ns_str("tenant:7");
  child.priority = 7;
  for (size_t i = 0; i < nchildren; i++)
    nsh_put_child(b, &child);
  CHECK(nsh_end(b, start));
}

static void report_round_trip(void) {
  ns_buf b = NS_BUF_INIT;
  nsh_report r;
  nsh_frame f;
  ns_push child;
  put_report(&b, 3);
  CHECK(nsh_next(b.p, b.n, &f) == (int64_t)b.n);
  CHECK(nsh_get_report(&f, &r) && r.seq == 5 && r.kind == NS_AGAIN);
  CHECK(r.nchildren == 3 && r.result.p == NULL && r.state.n == 2);
  for (size_t i = 0; i < 3; i++) {
    CHECK(nsh_get_child(&f, &child) && child.id == 99 && child.priority == 7);
    CHECK(child.max_polls == -1 && child.payload.n == 3);
    CHECK(child.tags.p == NULL && child.group.n == 8 && memcmp(child.group.p, "tenant:7", 8) == 0);
  }
  CHECK(nsh_done(&f));
  CHECK(!nsh_get_child(&f, &child)); /* there is no fourth */
  ns_buf_free(&b);
}

/* Every prefix of a frame asks for more; none reads beyond its end. */
static void cut_frames(void) {
  ns_buf b = NS_BUF_INIT;
  nsh_frame f;
  put_report(&b, 1);
  for (size_t n = 0; n < b.n; n++) {
    char *exact = malloc(n > 0 ? n : 1); /* so that sanitizers see a step over */
    memcpy(exact, b.p, n);
    CHECK(nsh_next(exact, n, &f) == 0);
    free(exact);
  }
  ns_buf_free(&b);
}

static void bad_heads(void) {
  nsh_frame f;
  CHECK(nsh_next("\0\0\0\0\1", 5, &f) == -1);           /* no type */
  CHECK(nsh_next("\377\377\377\377\1", 5, &f) == -1);    /* too long */
  CHECK(nsh_next("\1\0\0\0\0", 5, &f) == -1);           /* type 0 */
  CHECK(nsh_next("\1\0\0\0\177", 5, &f) == -1);         /* unknown type */
}

/* What is read out of bytes that any process may have written. */
static void read_anything(const char *p, size_t n) {
  nsh_frame f;
  nsh_order o;
  nsh_report r;
  ns_push child;
  nsh_frame again;
  if (nsh_next(p, n, &f) <= 0)
    return;
  again = f;
  nsh_get_order(&again, &o);
  again = f;
  if (nsh_get_report(&again, &r)) {
    CHECK(r.nchildren <= n);
    for (size_t i = 0; i < r.nchildren && nsh_get_child(&again, &child); i++)
      CHECK(child.payload.n <= n);
  }
  again = f;
  nsh_get_real(&again);
  nsh_get_bytes(&again);
}

/* Valid frames with random damage. */
static void damaged_frames(void) {
  ns_buf b = NS_BUF_INIT;
  nsh_order o = sample_order();
  for (int round = 0; round < 50000; round++) {
    char *exact;
    ns_buf_reset(&b);
    if (round & 1)
      put_report(&b, ns_random() % 3);
    else
      CHECK(nsh_put_order(&b, &o));
    exact = malloc(b.n);
    memcpy(exact, b.p, b.n);
    for (uint64_t k = ns_random() % 4; k < 4; k++)
      exact[ns_random() % b.n] = (char)ns_random();
    read_anything(exact, b.n);
    free(exact);
  }
  ns_buf_free(&b);
}

static void too_large(void) {
  ns_buf b = NS_BUF_INIT;
  size_t n = (size_t)NSH_FRAME_MAX;
  char *big = calloc(1, n);
  nsh_order o = sample_order();
  ns_buf_adds(&b, "before");
  o.job.payload = (ns_bytes){big, n};
  CHECK(!nsh_put_order(&b, &o));
  CHECK(b.n == 6 && !b.oom); /* as it was, and usable */
  o.job.payload = ns_str("1");
  CHECK(nsh_put_order(&b, &o));
  free(big);
  ns_buf_free(&b);
}

static void frames(void) {
  order_round_trip();
  bulk_round_trip();
  report_round_trip();
  cut_frames();
  bad_heads();
  damaged_frames();
  too_large();
  puts("frames");
}

/* ----------------------------------------------------------------- rings */

static void *shared(size_t n) {
  void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
  CHECK(p != MAP_FAILED);
  return p;
}

/* Pieces of all sizes go through unchanged, and round the end many times. */
static void ring_round_trip(void) {
  nsh_ring *r = shared(sizeof *r);
  static char in[3 * NSH_RING];
  static char out[3 * NSH_RING];
  uint8_t next = 0;
  uint8_t seen = 0;
  size_t held = 0;
  atomic_store(&r->head, UINT32_MAX - 5000); /* counts go round as well */
  atomic_store(&r->tail, UINT32_MAX - 5000);
  for (int i = 0; i < 4000; i++) {
    size_t n = ns_random() % sizeof in;
    int64_t got;
    size_t put;
    for (size_t k = 0; k < n; k++)
      in[k] = (char)(uint8_t)(next + k);
    put = nsh_ring_put(r, in, n);
    CHECK(put == (n < NSH_RING - held ? n : NSH_RING - held));
    CHECK(put == n || nsh_ring_relieved(r));
    next = (uint8_t)(next + put);
    held += put;
    got = nsh_ring_take(r, out, ns_random() % sizeof out);
    CHECK(got >= 0 && (size_t)got <= held);
    for (int64_t k = 0; k < got; k++)
      CHECK((uint8_t)out[k] == seen++);
    held -= (size_t)got;
  }
  munmap(r, sizeof *r);
}

static void ring_nonsense(void) {
  nsh_ring *r = shared(sizeof *r);
  char out[16];
  atomic_store(&r->head, NSH_RING + 1);
  CHECK(nsh_ring_take(r, out, sizeof out) == -1);
  CHECK(nsh_ring_put(r, "x", 1) == 0);
  atomic_store(&r->tail, NSH_RING + 2);
  CHECK(nsh_ring_take(r, out, sizeof out) == -1);
  munmap(r, sizeof *r);
}

/* A writer that never stops by itself: frames with ascending numbers. */
static void write_frames(nsh_ring *r) {
  ns_buf b = NS_BUF_INIT;
  for (int64_t i = 0;; i++) {
    size_t start;
    size_t put = 0;
    ns_buf_reset(&b);
    start = nsh_begin(&b, NSH_LOG);
    nsh_put_int(&b, i);
    nsh_put_bytes(&b, (ns_bytes){(const char *)r, (size_t)(i % 300)});
    CHECK(nsh_end(&b, start));
    while ((put += nsh_ring_put(r, b.p + put, b.n - put)) < b.n)
      nsh_ring_await_room(r);
  }
}

/* Reads until the writer has been killed, and then what it left: whole frames
** in order, and at most a piece of one. */
static void read_frames(nsh_ring *r, pid_t writer, int64_t frames) {
  static char bytes[NSH_RING];
  ns_buf b = NS_BUF_INIT;
  int64_t expected = 0;
  bool over = false;
  for (;;) {
    nsh_frame f;
    int64_t size;
    int64_t n = nsh_ring_take(r, bytes, sizeof bytes);
    CHECK(n >= 0);
    if (nsh_ring_relieved(r))
      nsh_ring_wake_writer(r);
    ns_buf_add(&b, bytes, (size_t)n);
    while ((size = nsh_next(b.p, b.n, &f)) > 0) {
      CHECK(nsh_get_int(&f) == expected++);
      CHECK(nsh_get_bytes(&f).n == (size_t)((expected - 1) % 300));
      CHECK(nsh_done(&f));
      memmove(b.p, b.p + size, b.n - (size_t)size);
      b.n -= (size_t)size;
    }
    CHECK(size == 0);
    if (over && n == 0)
      break;
    if (!over && expected > frames) {
      kill(writer, SIGKILL);
      CHECK(waitpid(writer, NULL, 0) == writer);
      over = true;
    }
  }
  ns_buf_free(&b);
}

static void ring_killed_writer(void) {
  nsh_ring *r = shared(sizeof *r);
  for (int i = 0; i < 50; i++) {
    pid_t writer;
    nsh_ring_reset(r);
    if ((writer = fork()) == 0)
      write_frames(r);
    read_frames(r, writer, (int64_t)(ns_random() % 3000));
  }
  munmap(r, sizeof *r);
}

/* A reader that sleeps whenever it finds nothing hears of every byte. */
static void ring_wakes(void) {
  nsh_ring *r = shared(sizeof *r);
  char out[64];
  int status;
  pid_t reader = fork();
  if (reader == 0) {
    for (int64_t all = 0; all < 100000;) {
      int64_t n = nsh_ring_take(r, out, sizeof out);
      if (nsh_ring_relieved(r))
        nsh_ring_wake_writer(r);
      if (n == 0)
        nsh_ring_await(r, NSH_RING_EVER);
      all += n;
    }
    _exit(0);
  }
  for (int i = 0; i < 100000; i++) {
    while (nsh_ring_put(r, "x", 1) == 0)
      nsh_ring_await_room(r);
    nsh_ring_wake(r);
  }
  CHECK(waitpid(reader, &status, 0) == reader && status == 0);
  munmap(r, sizeof *r);
}

/* Once a writer that had filled the ring again between a take and the look who waits for it
** slept for ever. The look took back what it had said. */
static void ring_refilled(void) {
  enum { TIMES = 20000 };
  nsh_ring *r = shared(sizeof *r);
  static char bytes[NSH_RING];
  size_t all = 0;
  pid_t writer = fork();
  alarm(60); /* both */
  if (writer == 0) {
    for (int i = 0; i < TIMES; i++)
      for (size_t at = 0; (at += nsh_ring_put(r, bytes + at, NSH_RING - at)) < NSH_RING;)
        nsh_ring_await_room(r);
    _exit(0);
  }
  while (all < (size_t)TIMES * NSH_RING) {
    all += (size_t)nsh_ring_take(r, bytes, sizeof bytes);
    for (int i = 0; i < 500 && atomic_load(&r->head) - atomic_load(&r->tail) < NSH_RING; i++)
      continue;
    if (nsh_ring_relieved(r))
      nsh_ring_wake_writer(r);
  }
  alarm(0);
  CHECK(waitpid(writer, NULL, 0) == writer);
  munmap(r, sizeof *r);
}

static void rings(void) {
  ring_round_trip();
  ring_nonsense();
  ring_killed_writer();
  ring_wakes();
  ring_refilled();
  puts("rings");
}

/* ------------------------------------------------------------------- bell */

/* Who sets a bit while the host sleeps knocks, and no other side does. */
static void bell(void) {
  nsh_slots *all = nsh_slots_map(130);
  nsh_pending *pending = &all->pending;
  nsh_waker k;
  char byte;
  int ends[2];
  CHECK(nsh_wakeup_make(ends));
  nsh_waker_init(&k, ends[1]);
  nsh_pending_wake(pending);
  CHECK(nsh_pending_set(pending, 129, &k) && read(ends[0], &byte, 1) == -1);
  CHECK(nsh_pending_sleep(pending, 130) && nsh_pending_take(pending, 2) == 2);
  CHECK(nsh_pending_take(pending, 2) == 0 && !nsh_pending_sleep(pending, 130));
  CHECK(nsh_pending_set(pending, 3, &k) && read(ends[0], &byte, 1) == 1);
  CHECK(nsh_pending_set(pending, 3, &k) && read(ends[0], &byte, 1) == -1);
  nsh_pending_forget(pending, 3);
  CHECK(!nsh_pending_sleep(pending, 130));
  CHECK(!nsh_wakeup_closed(&k, 0));
  close(ends[0]);
  CHECK(nsh_wakeup_closed(&k, 1000));
  dup2(STDERR_FILENO, ends[1]); /* something else has its number now */
  CHECK(!nsh_pending_set(pending, 4, &k));
  close(ends[1]);
  CHECK(!nsh_pending_set(pending, 5, &k));
  nsh_slots_unmap(all, 130);
  puts("bell");
}

/* ----------------------------------------------------------------- slots */

static void slots(void) {
  nsh_slots *all = nsh_slots_map(2);
  nsh_slot *s = &all->slot[1];
  CHECK(all != NULL && sizeof *s % 4096 == 0);
  CHECK(nsh_slots_valid(all, INT64_MAX)); /* until it is set */
  nsh_slots_fresh(all, 1000);
  CHECK(nsh_slots_valid(all, 1000) && !nsh_slots_valid(all, 1001));
  nsh_slots_reset(all, 1);
  nsh_slot_allow(s, 3); /* jobs 0, 1, 2 */
  CHECK(nsh_slot_start(s, 0, 100) && !nsh_slot_start(s, 0, 101));
  CHECK(nsh_slot_started(s, 0) && !nsh_slot_started(s, 1));
  CHECK(atomic_load(&s->started_at) == 100);
  CHECK(nsh_slot_recall(s) == 1);      /* 1 and 2 come back */
  CHECK(!nsh_slot_start(s, 1, 0) && !nsh_slot_start(s, 2, 0));
  nsh_slot_allow(s, 4);
  CHECK(nsh_slot_start(s, 3, 200) && atomic_load(&s->current) == 3);
  CHECK(nsh_slot_recall(s) == 4);      /* nothing left to take back */
  CHECK(nsh_before(0xFFFFFFFFu, 0) && !nsh_before(0, 0xFFFFFFFFu));
  CHECK(nsh_slot_told(s, 3) == NSH_WHY_NONE);
  nsh_slot_tell(s, 3, NSH_WHY_LOST);
  CHECK(nsh_slot_told(s, 3) == NSH_WHY_LOST);
  CHECK(nsh_slot_told(s, 4) == NSH_WHY_NONE);
  nsh_slots_unmap(all, 2);
  puts("slots");
}

/* ---------------------------------------------------------------- limits */

static void write_file(const char *root, const char *path, const char *text) {
  char command[1024];
  snprintf(command, sizeof command, "mkdir -p '%s%.*s' && printf '%s' > '%s%s'",
           root, (int)(strrchr(path, '/') - path), path, text, root, path);
  CHECK(system(command) == 0);
}

static bool refused(const nsh_limits *have, size_t workers, const char *words) {
  ns_err err;
  return nsh_limits_check(have, workers, &err) == NS_EINVALID &&
         strstr(err.message, words) != NULL;
}

/* A machine of files, with control groups of the second and the first kind. */
static void limits(void) {
  char root[] = "/tmp/nightshift-units-XXXXXX";
  char command[64];
  nsh_config cfg = {.workers = 500};
  nsh_limits have;
  ns_err err;
  CHECK(mkdtemp(root) != NULL);
  nsh_limits_read(&have, root, &cfg);
  CHECK(have.pids == NSH_UNLIMITED && have.group_tasks == NSH_UNLIMITED &&
        have.memory == NSH_UNLIMITED && have.group_memory == NSH_UNLIMITED);
  write_file(root, "/proc/loadavg", "0.1 0.2 0.3 2/300 4711\\n");
  write_file(root, "/proc/sys/kernel/pid_max", "32768\\n");
  write_file(root, "/proc/sys/kernel/threads-max", "800\\n");
  write_file(root, "/proc/meminfo", "MemTotal: 9 kB\\nMemAvailable:  2048 kB\\n");
  write_file(root, "/proc/self/cgroup", "0::/a/b\\n");
  write_file(root, "/sys/fs/cgroup/a/pids.max", "50\\n");
  write_file(root, "/sys/fs/cgroup/a/pids.current", "20\\n");
  write_file(root, "/sys/fs/cgroup/a/b/pids.max", "max\\n");
  write_file(root, "/sys/fs/cgroup/a/b/memory.max", "1048576\\n");
  nsh_limits_read(&have, root, &cfg);
  CHECK(have.pids == 32468 && have.tasks == 500 && have.group_tasks == 30);
  CHECK(have.memory == 2 << 20 && have.group_memory == 1 << 20);
  write_file(root, "/proc/self/cgroup", "7:cpu,pids:/x\\n4:memory:/y\\n0::/\\n");
  write_file(root, "/sys/fs/cgroup/pids/x/pids.max", "40\\n");
  write_file(root, "/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "3145728\\n");
  nsh_limits_read(&have, root, &cfg);
  CHECK(have.group_tasks == 40 && have.group_memory == 3 << 20);
  have = (nsh_limits){1000, 1000, 1000, 1000, 1000, INT64_C(1) << 40,
                      INT64_C(1) << 40};
  CHECK(nsh_limits_check(&have, 900, &err) == NS_OK);
  CHECK(refused(&have, 20000, "20000 workers need 20016 more processes of their "
                              "user, there are 1000: raise the user's limit"));
  have.user_tasks = NSH_UNLIMITED;
  CHECK(refused(&have, 20000, "this control group") &&
        refused(&have, 20000, "raise pids.max"));
  have.group_tasks = NSH_UNLIMITED;
  CHECK(refused(&have, 20000, "raise sysctl kernel.pid_max"));
  have.pids = NSH_UNLIMITED;
  CHECK(refused(&have, 20000, "raise sysctl kernel.threads-max"));
  have.tasks = NSH_UNLIMITED;
  CHECK(nsh_limits_check(&have, 20000, &err) == NS_OK);
  have.group_memory = INT64_C(1) << 30;
  CHECK(refused(&have, 20000, "there are 1024: raise memory.max"));
  have.memory = INT64_C(1) << 20;
  CHECK(refused(&have, 20000, "MiB of memory, there is 1: raise what is free"));
  have.files = 63;
  CHECK(refused(&have, 1, "1 workers need 64 open files, there are 63: raise the "
                          "limit of open files (ulimit -Hn"));
  snprintf(command, sizeof command, "rm -rf %s", root);
  CHECK(system(command) == 0);
  puts("limits");
}

/* ---------------------------------------------------------------- pacing */

static void learn(nsh_pace *p, int64_t micros, int times) {
  while (times-- > 0)
    nsh_pace_ran(p, micros);
}

static void pacing(void) {
  nsh_pace p = NSH_PACE_INIT;
  CHECK(nsh_pace_window(&p) == 1 && nsh_pace_target(&p, 8) == 8);
  learn(&p, 5, 10);
  CHECK(nsh_pace_window(&p) == 64 && nsh_pace_target(&p, 8) == 8 * 257);
  CHECK(nsh_pace_brief(&p));
  learn(&p, INT64_C(3600000000), 1); /* one of an hour is forgotten soon */
  learn(&p, 5, 600);
  CHECK(nsh_pace_window(&p) > 16);
  learn(&p, 2000, 2000);
  CHECK(nsh_pace_window(&p) == 1 && nsh_pace_target(&p, 8) <= 8 * 3);
  learn(&p, 1000000, 2000);
  CHECK(nsh_pace_target(&p, 8) == 8 && !nsh_pace_brief(&p));
  CHECK(nsh_pace_target(&p, 20000) == 20000);
  p = NSH_PACE_INIT;
  learn(&p, 5, 10);
  nsh_pace_claimed(&p, 1 << 20); /* large payloads: not thousands at once */
  CHECK(nsh_pace_target(&p, 8) <= 72);
  puts("pacing");
}

static void storms(void) {
  nsh_crash_loop s = {0, 0, 0};
  int64_t now = 1000;
  for (int i = 0; i < 5; i++)
    nsh_crash_loop_crash(&s, now++);
  CHECK(nsh_crash_loop_delay(&s) == 0);
  nsh_crash_loop_crash(&s, now++);
  CHECK(nsh_crash_loop_delay(&s) == 100000);
  nsh_crash_loop_crash(&s, now++);
  CHECK(nsh_crash_loop_delay(&s) == 200000);
  for (int i = 0; i < 2000; i++)
    nsh_crash_loop_crash(&s, now++);
  CHECK(nsh_crash_loop_delay(&s) == 10000000);
  nsh_crash_loop_over(&s);
  CHECK(nsh_crash_loop_delay(&s) == 0);
  for (int i = 0; i < 20; i++) /* one every five seconds is no storm */
    nsh_crash_loop_crash(&s, now += 5000000);
  CHECK(nsh_crash_loop_delay(&s) == 0);
  puts("storms");
}

/* --------------------------------------------------------- batches, names */

static void batches(void) {
  nsh_batch a = NSH_BATCH_INIT;
  nsh_batch b = NSH_BATCH_INIT;
  char *big = calloc(1, 300000);
  for (int i = 0; i < 140; i++) {
    ns_verdict v = {.id = i, .delay = -1, .nchildren = 2};
    v.error = nsh_batch_keep(&a, (ns_bytes){big, (size_t)(i % 7) * 40000});
    v.children = nsh_batch_children(&a, 2);
    v.children[1].name = nsh_batch_keep(&a, ns_str("x"));
    nsh_batch_add(&a, &v);
  }
  for (size_t i = 0; i < a.n; i++)
    nsh_batch_copy(&b, &a.items[i]);
  nsh_batch_free(&a);
  for (size_t i = 0; i < b.n; i++) {
    CHECK(b.items[i].id == (int64_t)i && b.items[i].delay == -1);
    CHECK(b.items[i].error.n == (i % 7) * 40000);
    CHECK(SAME(b.items[i].children[1].name, ns_str("x")));
    CHECK(b.items[i].children[0].name.p == NULL);
  }
  nsh_batch_clear(&b);
  CHECK(b.n == 0);
  nsh_batch_free(&b);
  free(big);
  puts("batches");
}

/* How many files without a name are mapped to be written; a sanitizer maps some
** to be read. */
static int files_mapped(void) {
  FILE *f = fopen("/proc/self/maps", "r");
  char text[4096];
  int n = 0;
  while (f != NULL && fgets(text, sizeof text, f) != NULL)
    n += strstr(text, " rw-s ") != NULL && strstr(text, "/tmp/") != NULL &&
         strstr(text, "(deleted)") != NULL;
  if (f != NULL)
    fclose(f);
  return n;
}

static void spilling(void) {
  nsh_batch b = NSH_BATCH_INIT;
  char *big = malloc(300000);
  ns_bytes kept[20];
  unsetenv("TMPDIR");
  for (size_t i = 0; i < 20; i++) {
    memset(big, (int)('a' + i), 300000);
    kept[i] = nsh_batch_spill(&b, (ns_bytes){big, i * 15000});
    CHECK(nsh_batch_keep(&b, ns_str("between")).n == 7);
  }
  CHECK(files_mapped() == 15); /* those over 64 KiB */
  for (size_t i = 0; i < 20; i++) {
    memset(big, (int)('a' + i), 300000);
    CHECK(SAME(kept[i], ((ns_bytes){big, i * 15000})));
    CHECK(kept[i].p[kept[i].n] == '\0');
  }
  nsh_batch_clear(&b);
  CHECK(files_mapped() == 0);
  CHECK(nsh_batch_spill(&b, NS_NONE).p == NULL);
  setenv("TMPDIR", "/nowhere", 1);
  CHECK(nsh_batch_spill(&b, (ns_bytes){big, 100000}).n == 100000);
  CHECK(files_mapped() == 0);
  nsh_batch_free(&b);
  free(big);
  puts("spilling");
}

static void names(void) {
  nsh_names t = {NULL, 0, 0};
  char text[32];
  nsh_name *first = nsh_names_get(&t, ns_str("job0"));
  for (int i = 0; i < 2000; i++) {
    snprintf(text, sizeof text, "job%d", i % 1000);
    CHECK(strcmp(nsh_names_get(&t, ns_str(text))->text, text) == 0);
  }
  CHECK(t.n == 1000 && nsh_names_get(&t, ns_str("job0")) == first);
  first->tasks = 1;
  for (int i = 0; i < 20000; i++) { /* a pusher may choose as many as it likes */
    snprintf(text, sizeof text, "x%d", i);
    nsh_names_get(&t, ns_str(text));
    if (i % 10 == 0)
      nsh_names_get(&t, ns_str("often"))->pace.micros = 7;
  }
  CHECK(t.n <= NSH_NAMES_MAX + 1 && t.cap <= 4096);
  CHECK(nsh_names_get(&t, ns_str("job0")) == first);
  CHECK(nsh_names_get(&t, ns_str("often"))->pace.micros == 7);
  nsh_names_free(&t);
  puts("names");
}

/* ----------------------------------------------------------------- lines */

static size_t asked;

static bool is_odd(void *arg, const ns_job *job) {
  (void)arg;
  asked++;
  return job->id % 2 == 1;
}

/* Jobs 'from' … 'from' + n - 1 of one load. */
static void join(nsh_prefetch *b, int64_t from, size_t n) {
  nsh_load *load = calloc(1, sizeof *load);
  char *at;
  for (size_t i = 0; i < n; i++)
    ns_claim_jobs_add(&load->jobs, 0, &at)->id = from + (int64_t)i;
  load->left = n;
  for (size_t i = 0; i < n; i++)
    nsh_prefetch_add(b, &(nsh_waiting){&load->jobs.items[i], load, i, NULL});
}

/* Makes the jobs of a line, from its 'first' on, one batch of the rest. */
static void make_bulk(nsh_prefetch *b) {
  nsh_bulk *k = calloc(1, sizeof *k);
  nsh_waiting w;
  k->items = calloc(b->n, sizeof *k->items);
  k->n = b->n;
  for (size_t i = 0; i < k->n; i++)
    k->items[i] = b->items[(b->first + i) & (b->cap - 1)];
  b->n = 0;
  w = k->items[0];
  w.bulk = k;
  nsh_prefetch_add(b, &w);
}

/* A batch is one place of a line, as long as it has a job. */
static void line_of_batch(void) {
  nsh_prefetch b = {NULL, 0, 0, 0};
  join(&b, 1, 5);
  make_bulk(&b);
  CHECK(b.n == 1 && nsh_waiting_jobs(nsh_prefetch_first(&b)) == 5);
  CHECK(nsh_prefetch_drop(&b, is_odd, NULL) == 0 && b.n == 1);
  CHECK(nsh_prefetch_first(&b)->job->id == 2 && nsh_waiting_jobs(nsh_prefetch_first(&b)) == 2);
  nsh_prefetch_pop(&b);
  join(&b, 7, 1);
  make_bulk(&b);
  CHECK(nsh_prefetch_drop(&b, is_odd, NULL) == 1 && b.n == 0);
  nsh_prefetch_free(&b);
}

/* However many leave at once, each is looked at once; the rest keep their order. */
static void lines(void) {
  nsh_prefetch b = {NULL, 0, 0, 0};
  join(&b, 0, 60);
  for (int i = 0; i < 50; i++)
    nsh_prefetch_pop(&b);
  join(&b, 100, 40); /* past the end of the ring */
  CHECK(nsh_prefetch_drop(&b, is_odd, NULL) == 25 && asked == 50 && b.n == 25);
  for (int64_t id = 50; id < 140; id = id == 58 ? 100 : id + 2, nsh_prefetch_pop(&b))
    CHECK(nsh_prefetch_first(&b)->job->id == id);
  CHECK(b.n == 0);
  join(&b, 1, 1);
  CHECK(nsh_prefetch_drop(&b, is_odd, NULL) == 1 && b.n == 0);
  nsh_prefetch_free(&b);
  line_of_batch();
  puts("lines");
}

/* ---------------------------------------------------------------- pauses */

/* Of any length from nothing on: the shortest is none without an end. */
static void pauses(void) {
  ns_db db = {0};
  for (int i = 0; i < 100; i++) {
    int64_t most = 2;
    ns_db_pause_up_to(&db, &most, 2);
    CHECK(most == 2);
  }
  puts("pauses");
}

/* ------------------------------------------------------------- log lines */

static ns_bytes line(char out[NS_LOG_LINE], ns_form form, const ns_field *f,
                     size_t n) {
  size_t len = ns_log_format(out, form, INT64_C(1700000000123456),
                             NS_LOG_WARN, "an.event", f, n);
  CHECK(len > 0 && len <= NS_LOG_LINE && out[len - 1] == '\n');
  CHECK(memchr(out, '\n', len) == out + len - 1); /* one line, whatever */
  return (ns_bytes){out, len};
}

#define HEAD "ts=2023-11-14T22:13:20.123Z level=warn event=an.event"
#define JSON_HEAD                                                             \
  "{\"ts\":\"2023-11-14T22:13:20.123Z\",\"level\":\"warn\","                  \
  "\"event\":\"an.event\""

static void log_lines(void) {
  char out[NS_LOG_LINE];
  char *big = malloc(100000);
  ns_bytes got =
      line(out, NS_FORM_LOGFMT, NS_FIELDS(ns_fi("id", -5), ns_fs("a", "plain"),
                                 ns_fs("b", "two words"), ns_fs("none", NULL),
                                 ns_fb("c", (ns_bytes){"q\"\\\n\0\xff\xc3\xbc", 8}),
                                 ns_fs("d", "")));
  CHECK(SAME(got, ns_str(HEAD " id=-5 a=plain b=\"two words\" "
                              "c=\"q\\\"\\\\\\n\\0\\xff\xc3\xbc\" d=\"\"\n")));
  got = line(out, NS_FORM_JSON, NS_FIELDS(ns_fi("id", 5),
                                  ns_fb("c", (ns_bytes){"\t\0\xff\xc3\xbc", 5})));
  CHECK(SAME(got, ns_str(JSON_HEAD ",\"id\":5,\"c\":\"\\t\\u0000\\ufffd"
                                   "\xc3\xbc\"}\n")));
  got = line(out, NS_FORM_JOURNAL, NS_FIELDS(ns_fi("id", 5), ns_fs("queue", "two words"),
                                             ns_fs("none", NULL), ns_fs("error", "a\nb\x1f=\"")));
  CHECK(SAME(got, ns_str("PRIORITY=4\x1fSYSLOG_IDENTIFIER=nightshift\x1f"
                         "NIGHTSHIFT_EVENT=an.event\x1fNIGHTSHIFT_JOB=5\x1f"
                         "NIGHTSHIFT_QUEUE=two words\x1fNIGHTSHIFT_ERROR=a\\nb\\x1f=\"\x1f"
                         "MESSAGE=event=an.event id=5 queue=\"two words\" "
                         "error=\"a\\nb\\x1f=\\\"\"\n")));
  memset(big, '\n', 100000);
  for (ns_form form = NS_FORM_LOGFMT; form <= NS_FORM_JOURNAL; form++) {
    bool json = form == NS_FORM_JSON;
    ns_bytes value = {big, 100000};
    got = line(out, form, NS_FIELDS(ns_fb("x", value), ns_fb("y", value),
                                    ns_fi("z", 1)));
    CHECK(got.n > NS_LOG_LINE - 64);
    CHECK(!json || memcmp(got.p + got.n - 3, "\"}\n", 3) == 0);
  }
  free(big);
  puts("log lines");
}

static void utf8(void) {
  CHECK(ns_utf8("a", 1) == 1 && ns_utf8("\xc3\xbc", 2) == 2);
  CHECK(ns_utf8("\xe2\x82\xac", 3) == 3 && ns_utf8("\xf0\x9f\x99\x82", 4) == 4);
  CHECK(ns_utf8("\xc3", 1) == 0 && ns_utf8("\xc3(", 2) == 0);
  CHECK(ns_utf8("\xc0\x80", 2) == 0 && ns_utf8("\xe0\x80\x80", 3) == 0);
  CHECK(ns_utf8("\xed\xa0\x80", 3) == 0 && ns_utf8("\xf4\x90\x80\x80", 4) == 0);
  CHECK(ns_utf8("\x80", 1) == 0 && ns_utf8("\xff", 1) == 0);
  puts("utf8");
}

/* A look at all that took 'cost' µs, 'cost' µs ago; how long until the next. */
static int64_t looks_again_in(ns_scan_window *w, int64_t cost) {
  int64_t start = ns_mono_us() - cost;
  w->open = true;
  ns_claim_window_seen(w, (ns_scan_range){0, INT64_C(1) << 50, false}, cost);
  ns_claim_window_rest(w, start);
  return ns_claim_window_when(w) - ns_mono_us();
}

/* Once the machine's being slow for 0.3 s put off the next look by a minute. */
static void windows(void) {
  ns_scan_window w = {0};
  CHECK(looks_again_in(&w, 300) <= NS_LOOK_MIN && w.width == 0);
  CHECK(looks_again_in(&w, 300000) <= NS_SECOND && w.width > 0);
  CHECK(looks_again_in(&w, 300) <= NS_LOOK_MIN && w.width == 0);
  CHECK(looks_again_in(&w, 300000) <= NS_SECOND);
  CHECK(looks_again_in(&w, 20000) > 3 * NS_SECOND); /* believed, and 1/200 */
  CHECK(looks_again_in(&w, 300000) <= 10 * NS_SECOND);
  puts("windows");
}

/* A name is one process's, and free once that has ended. */
static void single(void) {
  char name[64];
  char another[64];
  int status = 1;
  int ready[2];
  int go[2];
  char byte = 0;
  pid_t pid;
  snprintf(name, sizeof name, "units %d", (int)getpid());
  snprintf(another, sizeof another, "others %d", (int)getpid());
  CHECK(pipe(ready) == 0 && pipe(go) == 0);
  if ((pid = fork()) == 0) {
    byte = (char)nsh_single_take(ns_str(name));
    _exit(write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1 ? 0 : 1);
  }
  CHECK(read(ready[0], &byte, 1) == 1 && byte == 1);
  CHECK(nsh_single_take(ns_str(name)) == 0);
  CHECK(nsh_single_take(ns_str(another)) == 1);
  CHECK(write(go[1], &byte, 1) == 1);
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  CHECK(nsh_single_take(ns_str(name)) == 1);
  puts("single");
}

int main(void) {
  signal(SIGPIPE, SIG_IGN);
  frames();
  rings();
  bell();
  slots();
  limits();
  pacing();
  storms();
  batches();
  spilling();
  names();
  lines();
  pauses();
  log_lines();
  utf8();
  windows();
  single();
  return 0;
}
