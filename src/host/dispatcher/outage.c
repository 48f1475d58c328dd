/*
** A server that is away, or that refuses: what the dispatcher does then, and says.
**
** Invariant: an outage is told of once, with its end.
*/
#include "dispatcher/turn.h"
#include "ns_log.h"
#include "ns_time.h"

#define ERROR_FIRST 50000 /* after a failed cycle, doubling */
#define ERROR_LAST (5 * NS_SECOND)

void nsh_back_off(nsh_dispatch *d, const ns_err *err) {
  ns_log(NS_LOG_ERROR, "db.error",
         NS_FIELDS(ns_fs("code", ns_code(err->status)),
                   ns_fi("number", err->sqlerr),
                   ns_fs("message", err->message)));
  d->error_wait = d->error_wait == 0 ? ERROR_FIRST : d->error_wait * 2;
  d->error_wait = nsh_sooner(d->error_wait, ERROR_LAST);
  d->error_at = ns_mono_us() + d->error_wait;
  if (err->status == NS_EDENIED) /* so that a right granted since counts */
    ns_renew(d->db);
  nsh_exchange_lock(d->mail);
  d->mail->cycling = false;
  nsh_exchange_unlock(d->mail);
}

void nsh_recovered(nsh_dispatch *d) {
  d->error_wait = d->error_at = 0;
  if (atomic_exchange(&d->mail->away, false))
    ns_log(NS_LOG_INFO, "db.back", NULL, 0);
}

bool nsh_keep_trying(void *arg, const ns_err *why) {
  nsh_dispatch *d = arg;
  if (!atomic_load(&d->opened) || atomic_load(&d->mail->give_up))
    return false;
  if (atomic_exchange(&d->mail->away, true))
    return true;
  ns_log(NS_LOG_WARN, "db.lost", NS_FIELDS(ns_fs("why", why->message)));
  d->mail->notify(d->mail->notify_arg); /* one that ends need not wait for it */
  return true;
}
