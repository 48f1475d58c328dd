/*
** Before the loop sleeps: takes the news, says that the host sleeps, and stays
** awake if more came meanwhile. Other events get their turn in between.
*/
#include "pool/inbox.h"

#include "ipc/alloc.h"

static void on_knock(uv_poll_t *poll, int status, int events) {
  nsh_inbox *e = poll->data;
  (void)status;
  (void)events;
  nsh_wakeup_hear(e->end);
}

static void on_stay(uv_idle_t *idle) {
  (void)idle;
}

static void on_sleep(uv_prepare_t *prepare) {
  nsh_inbox *e = prepare->data;
  nsh_pool_hear(e->table);
  if (nsh_news_sleep(&e->table->slots->news, e->table->nseats))
    uv_idle_start(&e->stay, on_stay);
  else
    uv_idle_stop(&e->stay);
}

static void on_wake(uv_check_t *check) {
  nsh_inbox *e = check->data;
  nsh_news_wake(&e->table->slots->news);
}

void nsh_inbox_open(nsh_inbox *e, uv_loop_t *loop, nsh_pools *t, int end) {
  e->table = t;
  e->end = end;
  nsh_must(uv_poll_init(loop, &e->knocks, end) == 0);
  uv_prepare_init(loop, &e->before);
  uv_check_init(loop, &e->after);
  uv_idle_init(loop, &e->stay);
  e->knocks.data = e->before.data = e->after.data = e;
  uv_poll_start(&e->knocks, UV_READABLE, on_knock);
  uv_prepare_start(&e->before, on_sleep);
  uv_check_start(&e->after, on_wake);
}
