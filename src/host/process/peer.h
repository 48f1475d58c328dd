/*
** The loop's end of a control socket: commands to a keeper or zygote, reports
** from it. Nothing here blocks; commands wait in a queue while the peer is
** behind.
*/
#ifndef NSH_PROCESS_PEER_H
#define NSH_PROCESS_PEER_H

#include <uv.h>

#include "process/control.h"

/* A command that waits. */
typedef struct nsh_command {
  nsh_type type;
  uint32_t index;
  int64_t arg;
  int fd; /* owned; -1: none */
} nsh_command;

typedef struct nsh_peer {
  int ctl;         /* -1: closed */
  uv_poll_t *poll; /* freed by its close callback */
  nsh_command *queue;
  size_t n, cap;
  bool gone;       /* the end was seen */
  size_t asked;    /* commands that were not answered yet */
  int64_t silence; /* µs of waiting since the last frame; its owner counts */
  void (*frame)(void *arg, nsh_frame *f);
  void (*end)(void *arg); /* once, when the peer is gone; may be NULL */
  void *arg;
} nsh_peer;

/* 'ctl' changes hands. The callbacks and 'arg' are set already. */
void nsh_peer_open(nsh_peer *p, uv_loop_t *loop, int ctl);

/* Sends now or later; 'fd' changes hands, -1: none. */
void nsh_peer_send(nsh_peer *p, nsh_type type, uint32_t index, int64_t arg,
                   int fd);

/* Reads what there is, now; the callbacks run. */
void nsh_peer_read(nsh_peer *p);

/* Does the peer owe an answer? */
bool nsh_peer_owes(const nsh_peer *p);

/* Closes; safe to repeat, and inside a callback. */
void nsh_peer_close(nsh_peer *p);

/* uv_close callback that frees the handle. */
void nsh_uv_free(uv_handle_t *h);

#endif
