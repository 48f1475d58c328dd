/*
** The host's ear: workers' news in the loop. They are taken once per turn of
** the loop, just before it sleeps, so what gathered meanwhile is one batch.
*/
#ifndef NSH_POOL_INBOX_H
#define NSH_POOL_INBOX_H

#include <uv.h>

#include "pool/pool.h"

typedef struct nsh_inbox {
  nsh_pools *table;
  int end;             /* of the bell */
  uv_poll_t knocks;
  uv_prepare_t before; /* the loop sleeps */
  uv_check_t after;
  uv_idle_t stay;      /* active: the loop does not sleep */
} nsh_inbox;

/* Listens at 'end', which stays the caller's. The handles are closed with the
** loop. */
void nsh_inbox_open(nsh_inbox *e, uv_loop_t *loop, nsh_pools *t, int end);

#endif
