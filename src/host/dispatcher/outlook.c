/*
** Looking ahead, for a host that drains. The server is asked only while the host has
** nothing else to do and something, of whomever, is due soon; what it has said is good
** until then.
**
** Invariant: where nothing is 'known' the host does not end.
*/
#include "dispatcher/turn.h"

#include "ns_log.h"
#include "ns_time.h"

#define TELL_GAP (10 * NS_SECOND) /* between two lines on what is waited for */

static bool is_soon(const nsh_dispatch *d, int64_t in) {
  return in >= 0 && in <= d->cfg->drain_within;
}

static bool is_busy(const nsh_dispatch *d) {
  bool busy;
  nsh_exchange_lock(d->mail);
  busy = d->mail->outstanding > 0;
  nsh_exchange_unlock(d->mail);
  return busy;
}

/* Was the last answer of what comes next, and is that still to come? */
static bool stands(const nsh_outlook *o, int64_t first, int64_t now) {
  return o->due_at != NSH_NEVER && now < o->due_at && first <= o->due_at;
}

static void ask(nsh_dispatch *d) {
  nsh_outlook *o = &d->outlook;
  ns_err err;
  ns_status st = ns_look_ahead(d->db, d->feeds.items, d->feeds.n, d->cfg->drain_within,
                               &o->upcoming, &err);
  o->known = st == NS_OK;
  o->failed = st != NS_OK;
  o->due_at = o->known && o->upcoming.n > 0 ? ns_mono_us() + o->upcoming.in : NSH_NEVER;
  if (st == NS_OK)
    return;
  nsh_back_off(d, &err);
  d->recheck_at = ns_mono_us();
}

void nsh_outlook_look(nsh_dispatch *d) {
  nsh_outlook *o = &d->outlook;
  int64_t in = ns_first_due(d->db);
  int64_t now = ns_mono_us();
  o->known = o->failed = false;
  if (!d->cfg->drain || is_busy(d))
    return;
  o->known = true;
  if (!is_soon(d, in))
    o->due_at = NSH_NEVER;
  else if (!stands(o, now + in, now))
    ask(d);
}

int64_t nsh_outlook_due(const nsh_dispatch *d) {
  int64_t due_at = d->outlook.due_at;
  int64_t now = ns_mono_us();
  return due_at == NSH_NEVER ? -1 : due_at > now ? due_at - now : 0;
}

/* -------------------------------------------------------------- for people */

static void tell_jobs(const ns_upcoming *u) {
  char next[NS_LOG_TIME];
  char until[NS_LOG_TIME];
  ns_log_time(next, u->first);
  ns_log_time(until, u->last);
  ns_log(NS_LOG_INFO, "drain.waits",
         NS_FIELDS(ns_fi("jobs", (int64_t)u->n), ns_fs("name", u->name),
                   ns_fs("queue", u->queue), ns_fs("next", next), ns_fs("until", until)));
}

static void tell_table(const nsh_dispatch *d, const nsh_adopted *a) {
  char next[NS_LOG_TIME];
  ns_log_time(next, ns_now(d->db) + a->due);
  ns_log(NS_LOG_INFO, "drain.waits",
         NS_FIELDS(ns_fb("table", a->map->table), ns_fs("next", next)));
}

void nsh_outlook_tell(nsh_dispatch *d) {
  nsh_outlook *o = &d->outlook;
  int64_t now = ns_mono_us();
  bool any = false;
  if (now < o->tell_at)
    return;
  if (o->due_at != NSH_NEVER) {
    tell_jobs(&o->upcoming);
    any = true;
  }
  for (size_t i = 0; i < d->nadopted; i++)
    if (d->adopted[i].handled && is_soon(d, d->adopted[i].due)) {
      tell_table(d, &d->adopted[i]);
      any = true;
    }
  if (any)
    o->tell_at = now + TELL_GAP;
}
