/*
** The thread of table_listener.h. It starts when it is armed first; its mutex is the
** exchange's.
*/
#include "dispatcher/table_listener.h"

#include <stdlib.h>

#include "dispatcher/listener.h"
#include "ipc/alloc.h"
#include "ns_time.h"

#define PAUSE_FIRST 1000      /* after a wake that found nothing; then four times that, */
#define PAUSE_LAST NS_SECOND  /* and so on */
#define STOP_STEP 20000
#define STOP_MAX NS_SECOND

struct nsh_table_listener {
  nsh_exchange *mail;
  ns_ear *ear;
  pthread_t thread;
  pthread_cond_t cond;
  bool running;
  bool armed, woken;
  bool stop, ended;
  bool found;      /* claims have, since the last wake */
  int64_t holder;
  int64_t pause;   /* µs before the next sleep */
};

ns_status nsh_table_listener_open(nsh_table_listener **out, ns_adopted *a, nsh_exchange *mail,
                                  ns_err *err) {
  nsh_table_listener *h = nsh_alloc(sizeof *h);
  ns_status st = ns_ear_open(&h->ear, a, false, err);
  *out = NULL;
  if (st != NS_OK) {
    free(h);
    return st;
  }
  h->mail = mail;
  nsh_exchange_cond(&h->cond);
  *out = h;
  return NS_OK;
}

static void wait_until(nsh_table_listener *h, int64_t when) {
  struct timespec t = {(time_t)(when / NS_SECOND), (long)(when % NS_SECOND) * 1000};
  while (!h->stop && !h->found && ns_mono_us() < when)
    pthread_cond_timedwait(&h->cond, &h->mail->lock, &t);
}

/* Waits until it is time to sleep; false: stop. '*holder': for whom. */
static bool ready(nsh_table_listener *h, int64_t *holder) {
  bool go;
  nsh_exchange_lock(h->mail);
  while (!h->armed && !h->stop)
    pthread_cond_wait(&h->cond, &h->mail->lock);
  wait_until(h, ns_mono_us() + h->pause);
  if (h->found)
    h->pause = 0;
  h->found = false;
  *holder = h->holder;
  go = !h->stop;
  nsh_exchange_unlock(h->mail);
  return go;
}

static void *thread(void *arg) {
  nsh_table_listener *h = arg;
  ns_err err;
  int64_t holder;
  bool woke;
  while (ready(h, &holder)) {
    bool failed = ns_ear_wait(h->ear, holder, NS_EAR_LONGEST, &woke, &err) != NS_OK;
    nsh_exchange_lock(h->mail);
    if (woke || failed) { /* then the dispatcher looks as if nobody rang */
      h->armed = false;
      h->woken = true;
      pthread_cond_signal(&h->mail->work);
    }
    h->pause = failed ? ns_jitter(PAUSE_LAST, 0.5)
               : !woke ? 0
               : h->pause == 0 ? PAUSE_FIRST
                               : h->pause * 4;
    if (h->pause > PAUSE_LAST && !failed)
      h->pause = PAUSE_LAST;
    nsh_exchange_unlock(h->mail);
  }
  nsh_exchange_lock(h->mail);
  h->ended = true;
  nsh_exchange_unlock(h->mail);
  return NULL;
}

void nsh_table_listener_arm(nsh_table_listener *h, int64_t holder, bool found) {
  h->found = h->found || found;
  h->holder = holder;
  h->armed = true;
  if (!h->running)
    h->running = pthread_create(&h->thread, NULL, thread, h) == 0;
  pthread_cond_signal(&h->cond);
}

bool nsh_table_listener_woken(const nsh_table_listener *h) {
  return h->woken;
}

bool nsh_table_listener_take(nsh_table_listener *h) {
  bool yes = h->woken;
  h->woken = false;
  return yes;
}

static bool has_ended(nsh_table_listener *h) {
  bool yes;
  nsh_exchange_lock(h->mail);
  yes = h->ended || !h->running;
  nsh_exchange_unlock(h->mail);
  return yes;
}

void nsh_table_listener_close(nsh_table_listener *h, ns_db *db) {
  int64_t until = ns_mono_us() + STOP_MAX;
  if (h == NULL)
    return;
  nsh_exchange_lock(h->mail);
  h->stop = true;
  pthread_cond_signal(&h->cond);
  nsh_exchange_unlock(h->mail);
  for (; !has_ended(h) && ns_mono_us() < until; ns_sleep_us(STOP_STEP))
    nsh_listen_interrupt(db, ns_ear_thread(h->ear));
  ns_ear_stop(h->ear);
  if (h->running)
    pthread_join(h->thread, NULL);
  ns_ear_close(h->ear);
  pthread_cond_destroy(&h->cond);
  free(h);
}
