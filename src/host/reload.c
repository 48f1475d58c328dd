/*
** One look a second tells how a load gets on, and is where one that is out of
** date is killed.
*/
#include "reload.h"

#include <signal.h>
#include <stdio.h>

#include "clock.h"
#include "err.h"
#include "log.h"
#include "pool/pool.h"

#define LOAD_FIRST 100000         /* after a zygote's death, doubling */
#define LOAD_LAST (10 * NS_SECOND)
#define LOOK_MS 1000              /* at what is being read */
#define SLOW_S 5                  /* it takes long */
#define SLOW_AGAIN_S 60

void nsh_scripts_open(nsh_scripts *s, uv_loop_t *loop, nsh_family *family) {
  s->family = family;
  uv_timer_init(loop, &s->look);
  s->look.data = s;
}

/* What is being read when HUP comes may be old, and may never end. It has a
** second, so that many HUPs in a row do not keep each other from being obeyed. */
static void on_look(uv_timer_t *timer) {
  nsh_scripts *s = timer->data;
  int64_t seconds = (ns_mono_us() - s->since) / NS_SECOND;
  if (s->again) {
    ns_log(NS_LOG_WARN, "load.restart", NS_FIELDS(ns_fi("seconds", seconds)));
    s->dropped = true;
    nsh_zygote_signal(s->loading, SIGKILL);
  } else if (seconds == SLOW_S || (seconds > 0 && seconds % SLOW_AGAIN_S == 0))
    ns_log(NS_LOG_WARN, "load.slow", NS_FIELDS(ns_fi("seconds", seconds)));
}

void nsh_scripts_load(nsh_scripts *s) {
  if (s->loading != NULL) {
    s->again = true;
    return;
  }
  ns_assert(!uv_is_active((uv_handle_t *)&s->look)); /* one generation is read at a time */
  s->again = s->dropped = false;
  s->due = 0;
  s->loading = nsh_family_load(s->family);
  s->since = ns_mono_us();
  if (s->loading != NULL) {
    s->refused = false;
    uv_timer_start(&s->look, on_look, LOOK_MS, LOOK_MS);
    return;
  }
  if (!s->refused)
    ns_log(NS_LOG_ERROR, "reload.refused",
           NS_FIELDS(ns_fs("why", "too many generations are still alive; it is tried "
                                  "again when one has ended")));
  s->refused = true;
  nsh_scripts_load_later(s);
}

void nsh_scripts_over(nsh_scripts *s) {
  s->loading = NULL;
  uv_timer_stop(&s->look);
}

void nsh_scripts_load_later(nsh_scripts *s) {
  s->wait = s->wait == 0 ? LOAD_FIRST : s->wait * 2;
  if (s->wait > LOAD_LAST)
    s->wait = LOAD_LAST;
  s->due = ns_mono_us() + s->wait;
}

ns_bytes nsh_scripts_why(char text[160], ns_bytes message, int status) {
  char how[96];
  if (message.p != NULL)
    return message;
  nsh_lifecycle_describe(how, status);
  snprintf(text, 160, "the process that loads the handlers died: %s", how);
  return ns_str(text);
}
