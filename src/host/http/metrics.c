/*
** The counts of ended runs, and the text of all metrics of a host.
**
** Invariant: the number of series has a bound, whatever names are pushed. A histogram's buckets
** add up to its count. (Asserted where they are written.)
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "http/http.h"

#define PAIRS_MAX 200  /* of queue and name; behind them one per queue for the rest */
#define QUEUES_MAX 100 /* behind them one for the rest */
#define OTHER "other"

/* ------------------------------------------------------------ histograms */

/* Upper bounds of the buckets, µs; their texts are what Prometheus compares. */
static const struct {
  int64_t micros;
  const char *text;
} bounds[] = {{5000, "0.005"},     {10000, "0.01"},    {25000, "0.025"},   {50000, "0.05"},
              {100000, "0.1"},     {250000, "0.25"},   {500000, "0.5"},    {1000000, "1"},
              {2500000, "2.5"},    {5000000, "5"},     {10000000, "10"},   {30000000, "30"},
              {60000000, "60"},    {300000000, "300"}, {1800000000, "1800"}};

#define BOUNDS (sizeof bounds / sizeof bounds[0])

typedef struct histogram {
  int64_t buckets[BOUNDS + 1]; /* of each alone; the last: longer than all bounds */
  int64_t sum, count;
} histogram;

static void observe(histogram *h, int64_t micros) {
  size_t i = 0;
  while (i < BOUNDS && micros > bounds[i].micros)
    i++;
  h->buckets[i]++;
  h->sum += micros;
  h->count++;
}

/* -------------------------------------------------------- the counts of jobs */

#define KINDS (NS_LOST + 1)

typedef struct queue_counts {
  char *text;
  size_t n;
  uint64_t hash;
  histogram waited;
} queue_counts;

typedef struct pair {
  size_t queue; /* its number */
  char *text;   /* of the job */
  size_t n;
  uint64_t hash;
  int64_t ends[KINDS];
  histogram ran;
} pair;

struct nsh_metrics {
  pthread_mutex_t lock;
  queue_counts queues[QUEUES_MAX + 1];
  size_t nqueues;
  pair pairs[PAIRS_MAX + QUEUES_MAX + 1];
  size_t npairs;
  int64_t since; /* monotonic µs: the host's birth */
};

nsh_metrics *nsh_metrics_new(void) {
  nsh_metrics *m = nsh_alloc(sizeof *m);
  pthread_mutex_init(&m->lock, NULL);
  m->since = ns_mono_us();
  return m;
}

void nsh_metrics_free(nsh_metrics *m) {
  if (m == NULL)
    return;
  for (size_t i = 0; i < m->nqueues; i++)
    free(m->queues[i].text);
  for (size_t i = 0; i < m->npairs; i++)
    free(m->pairs[i].text);
  pthread_mutex_destroy(&m->lock);
  free(m);
}

static bool is_same(const char *text, size_t n, ns_bytes name) {
  return n == name.n && memcmp(text, name.p, n) == 0;
}

static char *copy_name(ns_bytes name) {
  char *text = nsh_alloc(name.n + 1);
  memcpy(text, name.p, name.n);
  return text;
}

/* The entry of a queue, made when new; the last stands for all that came too late. */
static size_t find_queue(nsh_metrics *m, ns_bytes name) {
  uint64_t hash = ns_hash(name);
  for (size_t i = 0; i < m->nqueues; i++)
    if (m->queues[i].hash == hash && is_same(m->queues[i].text, m->queues[i].n, name))
      return i;
  if (m->nqueues > QUEUES_MAX)
    return QUEUES_MAX;
  if (m->nqueues == QUEUES_MAX) {
    name = ns_str(OTHER);
    hash = ns_hash(name);
  }
  m->queues[m->nqueues] = (queue_counts){.text = copy_name(name), .n = name.n, .hash = hash};
  return m->nqueues++;
}

static pair *find_pair(nsh_metrics *m, size_t queue, ns_bytes name) {
  uint64_t hash = ns_hash(name);
  for (size_t i = 0; i < m->npairs; i++) {
    pair *p = &m->pairs[i];
    if (p->hash == hash && p->queue == queue && is_same(p->text, p->n, name))
      return p;
  }
  return NULL;
}

/* The entry of a queue and name, made when new; of the names that came too late one per queue. */
static pair *pair_of(nsh_metrics *m, size_t queue, ns_bytes name) {
  pair *p = find_pair(m, queue, name);
  if (p == NULL && m->npairs >= PAIRS_MAX) {
    name = ns_str(OTHER);
    p = find_pair(m, queue, name);
  }
  if (p != NULL)
    return p;
  ns_assert(m->npairs < sizeof m->pairs / sizeof m->pairs[0]);
  p = &m->pairs[m->npairs++];
  *p = (pair){.queue = queue, .text = copy_name(name), .n = name.n, .hash = ns_hash(name)};
  return p;
}

/* Did a handler run, so that its time counts? */
static bool has_run(ns_kind kind) {
  return kind != NS_RELEASE && kind != NS_MISSING && kind != NS_EXPIRE;
}

void nsh_metrics_ran(nsh_metrics *m, const nsh_ran *ran) {
  size_t queue;
  pair *p;
  pthread_mutex_lock(&m->lock);
  queue = find_queue(m, ran->queue);
  p = pair_of(m, queue, ran->name);
  p->ends[ran->kind]++;
  if (has_run(ran->kind)) {
    observe(&p->ran, ran->micros);
    if (ran->waited >= 0)
      observe(&m->queues[queue].waited, ran->waited);
  }
  pthread_mutex_unlock(&m->lock);
}

/* ------------------------------------------------------------------- text */

/* A label's value: a backslash, a quote and a newline are escaped. */
static void add_value(ns_buf *out, ns_bytes value) {
  ns_buf whole = NS_BUF_INIT;
  ns_buf_add_utf8(&whole, value);
  for (size_t i = 0; i < whole.n; i++) {
    char c = whole.p[i];
    if (c == '\n')
      ns_buf_adds(out, "\\n");
    else {
      if (c == '\\' || c == '"')
        ns_buf_addc(out, '\\');
      ns_buf_addc(out, c);
    }
  }
  ns_buf_free(&whole);
}

void nsh_metrics_family(ns_buf *out, const char *name, const char *type, const char *help) {
  ns_buf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void nsh_metrics_sample(ns_buf *out, const char *name, const nsh_label *labels, size_t n,
                        const char *value) {
  ns_buf_adds(out, name);
  for (size_t i = 0; i < n; i++) {
    ns_buf_addf(out, "%c%s=\"", i == 0 ? '{' : ',', labels[i].key);
    add_value(out, labels[i].value);
    ns_buf_addc(out, '"');
  }
  ns_buf_addf(out, "%s %s\n", n > 0 ? "}" : "", value);
}

void nsh_metrics_single(ns_buf *out, const char *name, const char *type, const char *help,
                        const char *value) {
  nsh_metrics_family(out, name, type, help);
  nsh_metrics_sample(out, name, NULL, 0, value);
}

static char *integer(char text[NS_NUMBER_SIZE], int64_t n) {
  snprintf(text, NS_NUMBER_SIZE, "%lld", (long long)n);
  return text;
}

static void add_count(ns_buf *out, const char *name, const char *help, int64_t n) {
  char text[NS_NUMBER_SIZE];
  nsh_metrics_single(out, name, "counter", help, integer(text, n));
}

static void add_gauge(ns_buf *out, const char *name, const char *help, int64_t n) {
  char text[NS_NUMBER_SIZE];
  nsh_metrics_single(out, name, "gauge", help, integer(text, n));
}

/* 'labels' has room for one more behind its 'n'. */
static void add_histogram(ns_buf *out, const char *name, const histogram *h, nsh_label *labels,
                          size_t n) {
  char part[80];
  char text[NS_NUMBER_SIZE];
  int64_t sum = 0;
  snprintf(part, sizeof part, "%s_bucket", name);
  for (size_t i = 0; i <= BOUNDS; i++) {
    sum += h->buckets[i];
    labels[n] = (nsh_label){"le", ns_str(i < BOUNDS ? bounds[i].text : "+Inf")};
    nsh_metrics_sample(out, part, labels, n + 1, integer(text, sum));
  }
  ns_assert(sum == h->count);
  snprintf(part, sizeof part, "%s_sum", name);
  nsh_metrics_sample(out, part, labels, n, ns_number_seconds(h->sum, text));
  snprintf(part, sizeof part, "%s_count", name);
  nsh_metrics_sample(out, part, labels, n, integer(text, h->count));
}

/* Prometheus sees no increase in a series that begins with 1. So what alerts look at is there, with
** 0, from the first run of a name on. */
static bool is_shown(const pair *p, size_t kind) {
  return p->ends[kind] > 0 || kind == NS_ACK || kind == NS_FAIL || kind == NS_CRASH;
}

static void add_ends(ns_buf *out, const pair *p, nsh_label labels[3]) {
  char text[NS_NUMBER_SIZE];
  for (size_t i = 0; i < KINDS; i++)
    if (is_shown(p, i)) {
      labels[2] = (nsh_label){"outcome", ns_str(nsh_run_outcome((ns_kind)i))};
      nsh_metrics_sample(out, "nightshift_jobs_finished_total", labels, 3,
                         integer(text, p->ends[i]));
    }
}

static void label_pair(const nsh_metrics *m, const pair *p, nsh_label labels[3]) {
  const queue_counts *q = &m->queues[p->queue];
  labels[0] = (nsh_label){"queue", {q->text, q->n}};
  labels[1] = (nsh_label){"job", {p->text, p->n}};
}

/* The counts as they are now; the names stay those of 'm'. The caller frees it by free. */
static nsh_metrics *copy_counts(nsh_metrics *m) {
  nsh_metrics *copy = nsh_alloc(sizeof *copy);
  pthread_mutex_lock(&m->lock);
  copy->nqueues = m->nqueues;
  copy->npairs = m->npairs;
  memcpy(copy->queues, m->queues, m->nqueues * sizeof *m->queues);
  memcpy(copy->pairs, m->pairs, m->npairs * sizeof *m->pairs);
  pthread_mutex_unlock(&m->lock);
  return copy;
}

/* The runs by queue and name. */
static void add_runs(const nsh_metrics *m, ns_buf *out) {
  nsh_label labels[3];
  nsh_metrics_family(out, "nightshift_jobs_finished_total", "counter",
                     "Runs that have ended here, by outcome.");
  for (size_t i = 0; i < m->npairs; i++) {
    label_pair(m, &m->pairs[i], labels);
    add_ends(out, &m->pairs[i], labels);
  }
  nsh_metrics_family(out, "nightshift_job_duration_seconds", "histogram",
                     "How long handlers ran.");
  for (size_t i = 0; i < m->npairs; i++) {
    label_pair(m, &m->pairs[i], labels);
    if (m->pairs[i].ran.count > 0)
      add_histogram(out, "nightshift_job_duration_seconds", &m->pairs[i].ran, labels, 2);
  }
  nsh_metrics_family(out, "nightshift_job_wait_seconds", "histogram",
                     "From a job's due instant to its start; not of jobs that waited for other jobs.");
  for (size_t i = 0; i < m->nqueues; i++) {
    const queue_counts *q = &m->queues[i];
    labels[0] = (nsh_label){"queue", {q->text, q->n}};
    if (q->waited.count > 0)
      add_histogram(out, "nightshift_job_wait_seconds", &q->waited, labels, 1);
  }
}

/* What the parts of the host have counted anyway. */
typedef struct snapshot {
  ns_counters db;
  ns_workers workers;
  int64_t held, unsettled;
} snapshot;

static snapshot take_snapshot(nsh_exchange *e) {
  snapshot s;
  nsh_exchange_lock(e);
  s = (snapshot){e->counters, e->workers, (int64_t)e->outstanding, (int64_t)e->unsettled};
  nsh_exchange_unlock(e);
  return s;
}

static void add_jobs(ns_buf *out, const snapshot *s, nsh_exchange *e, const nsh_pulse *pulse) {
  nsh_counts *c = &e->counts;
  add_count(out, "nightshift_jobs_claimed_total", "Jobs that were claimed.", s->db.claimed);
  add_count(out, "nightshift_job_retries_total",
            "Failures, crashes and losses after which the job runs again.",
            atomic_load(&c->retries));
  add_count(out, "nightshift_jobs_dead_total", "Verdicts that made a job dead.",
            atomic_load(&c->dead));
  add_count(out, "nightshift_job_timeouts_total", "Jobs stopped for their timeout.",
            pulse->timeouts);
  add_gauge(out, "nightshift_jobs_held", "Claimed jobs without a verdict so far.", s->held);
  add_gauge(out, "nightshift_verdicts_waiting", "Verdicts that are not written yet.",
            s->unsettled);
  add_count(out, "nightshift_verdicts_settled_total", "Verdicts that were written.",
            s->db.settled);
  add_count(out, "nightshift_verdicts_stale_total",
            "Verdicts that came too late: the job was another holder's.", s->db.stale);
  add_count(out, "nightshift_leases_lost_total",
            "Claims that turned out to be lost while the job ran.",
            atomic_load(&c->leases_lost));
  add_count(out, "nightshift_rescued_jobs_total", "Jobs given back for dead holders.",
            atomic_load(&c->rescued));
  add_count(out, "nightshift_rescued_holders_total", "Dead holders that this host has found.",
            atomic_load(&c->holders));
  add_count(out, "nightshift_mended_jobs_total", "Jobs that were nowhere and were put back.",
            atomic_load(&c->mended));
}

static void add_workers(ns_buf *out, const snapshot *s, const nsh_pulse *pulse) {
  const ns_workers *w = &s->workers;
  int64_t busy = w->busy < w->up ? w->busy : w->up; /* a leaving one may be busy, too */
  const struct {
    const char *state;
    int64_t n;
  } states[] = {{"idle", w->up - busy}, {"busy", busy}, {"leaving", w->leaving}};
  char text[NS_NUMBER_SIZE];
  nsh_metrics_family(out, "nightshift_workers", "gauge", "Worker processes by state.");
  for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
    nsh_metrics_sample(out, "nightshift_workers",
                       &(nsh_label){"state", ns_str(states[i].state)}, 1,
                       integer(text, states[i].n));
  add_gauge(out, "nightshift_workers_wanted", "Worker processes that there are to be.",
            pulse->wanted);
  add_count(out, "nightshift_worker_forks_total", "Worker processes that were made.",
            pulse->forks);
}

static void add_conflicts(ns_buf *out, const ns_counters *db) {
  char text[NS_NUMBER_SIZE];
  nsh_metrics_family(out, "nightshift_db_conflicts_total", "counter",
                     "Deadlocks and long lock waits by statement.");
  for (size_t i = 0; i < NS_CONFLICTS; i++) {
    const ns_conflict *c = &db->conflicts[i];
    const int64_t counts[] = {c->deadlocks, c->lock_waits};
    static const char *const kinds[] = {"deadlock", "lock_wait"};
    for (size_t k = 0; k < 2; k++)
      if (counts[k] > 0)
        nsh_metrics_sample(out, "nightshift_db_conflicts_total",
                           (const nsh_label[]){{"statement", ns_str(c->statement)},
                                               {"kind", ns_str(kinds[k])}},
                           2, integer(text, counts[k]));
  }
}

static void add_database(ns_buf *out, const snapshot *s, nsh_exchange *e) {
  char text[NS_NUMBER_SIZE];
  add_gauge(out, "nightshift_db_connections",
            "Connections to the database, without those that handlers open.",
            (int64_t)ns_connections());
  add_count(out, "nightshift_db_deadlocks_total", "Deadlocks, after which a transaction ran again.",
            s->db.deadlocks);
  add_count(out, "nightshift_db_lock_waits_total",
            "Lock waits that were too long, after which a transaction ran again.",
            s->db.lock_waits);
  add_conflicts(out, &s->db);
  add_count(out, "nightshift_db_reconnects_total", "Connections that were made anew.",
            s->db.reconnects);
  add_count(out, "nightshift_db_slow_answers_total", "Answers that took more than a second.",
            s->db.slow);
  nsh_metrics_family(out, "nightshift_db_errors_total", "counter",
                     "Errors of the database, by the code of the reference.");
  for (size_t i = 1; i < NSH_CODES; i++)
    nsh_metrics_sample(out, "nightshift_db_errors_total",
                       &(nsh_label){"code", ns_str(ns_code((ns_status)i))}, 1,
                       integer(text, atomic_load(&e->counts.errors[i])));
}

static void add_build(ns_buf *out, const nsh_facts *facts) {
  const nsh_label labels[] = {{"version", ns_str(NS_VERSION)},
                              {"lua", ns_str(facts->lua)},
                              {"mariadb", ns_str(facts->server)}};
  nsh_metrics_family(out, "nightshift_build_info", "gauge",
                     "1; the versions of program, interpreter and server.");
  nsh_metrics_sample(out, "nightshift_build_info", labels, 3, "1");
}

static void add_health(ns_buf *out, const nsh_metrics *m, nsh_exchange *e, const nsh_facts *facts) {
  char text[NS_NUMBER_SIZE];
  int64_t rounded = atomic_load(&e->rounded_at);
  int64_t now = ns_mono_us();
  nsh_metrics_single(out, "nightshift_host_uptime_seconds", "gauge", "Since the host has begun.",
                     ns_number_seconds(now - m->since, text));
  add_gauge(out, "nightshift_ready", "What /readyz says; 1: the host takes jobs.", facts->ready);
  nsh_metrics_single(out, "nightshift_claim_loop_age_seconds", "gauge",
                     "Since the claim loop has last gone round; up to 10 in an idle host.",
                     ns_number_seconds(now - rounded, text));
  add_gauge(out, "nightshift_database_up", "1: the figures of the database could be read.",
            facts->database);
}

void nsh_metrics_write(nsh_metrics *m, nsh_exchange *e, const nsh_facts *facts, ns_buf *out) {
  snapshot s = take_snapshot(e);
  nsh_metrics *copy = copy_counts(m); /* the loop does not wait for the text */
  add_build(out, facts);
  add_health(out, m, e, facts);
  add_runs(copy, out);
  free(copy);
  add_jobs(out, &s, e, &facts->pulse);
  add_workers(out, &s, &facts->pulse);
  add_database(out, &s, e);
}
