/*
** Pushes jobs and works them off, in plain C. One is a mail that is sent at once; another has a
** delivery that has to be asked for until the relay is done.
**
**   cc -std=c11 -o mail mail.c $(pkg-config --cflags --libs nightshift)
**   ./mail mysql://app:secret@localhost/shop
**
** The tables have to be there: `nightshift init --url …` makes them.
*/
#include <nightshift.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SECOND INT64_C(1000000)

static int explain(const char *what, const ns_err *err) {
  fprintf(stderr, "mail: %s: %s: %s\n", what, ns_code(err->status), err->message);
  return 1;
}

static ns_status push_mails(ns_db *db, ns_err *err) {
  ns_push mails[2];
  ns_status st;
  mails[0] = ns_push_new("mail.send", "{\"to\":\"ann@example.com\"}");
  mails[1] = ns_push_new("mail.deliver", "{\"to\":\"bob@example.com\"}");
  mails[1].max_polls = 100;
  st = ns_push_jobs(db, ns_str("mail"), mails, 2, err);
  if (st == NS_OK)
    printf("pushed %" PRId64 " and %" PRId64 "\n", mails[0].id, mails[1].id);
  return st;
}

/* A delivery is asked for twice before the relay is through with it. */
static ns_verdict work(const ns_job *job) {
  printf("%.*s, poll %" PRId64 "\n", (int)job->name.n, job->name.p, job->polls);
  if (strncmp(job->name.p, "mail.deliver", job->name.n) == 0 && job->polls < 2)
    return ns_again(job, SECOND / 10, ns_str("{\"relay\":\"busy\"}"));
  return ns_ack(job, ns_str("\"sent\""));
}

/* Claims until no job has come for a second. */
static ns_status work_off(ns_db *db, ns_err *err) {
  ns_status st;
  for (;;) {
    ns_jobs jobs = NS_JOBS_INIT;
    size_t n;
    st = ns_claim(db, ns_str("mail"), 10, SECOND, 0, &jobs, err);
    n = jobs.n;
    for (size_t i = 0; st == NS_OK && i < n; i++) {
      ns_verdict verdict = work(&jobs.items[i]);
      st = ns_settle(db, &verdict, err);
      if (st == NS_ESTALE) /* cancelled while it ran */
        st = NS_OK;
    }
    ns_jobs_free(&jobs);
    if (st != NS_OK || n == 0)
      return st;
  }
}

int main(int argc, char **argv) {
  ns_config cfg = NS_CONFIG_INIT;
  ns_db *db;
  ns_err err;
  int status = 0;
  if (argc != 2) {
    fputs("usage: mail URL\n", stderr);
    return 2;
  }
  cfg.url = argv[1];
  if (ns_open(&db, &cfg, &err) != NS_OK)
    return explain("open", &err);
  if (push_mails(db, &err) != NS_OK)
    status = explain("push", &err);
  else if (work_off(db, &err) != NS_OK)
    status = explain("work", &err);
  ns_close(db);
  return status;
}
