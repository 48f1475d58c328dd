/*
** Control sockets: one frame per message, with or without a file descriptor.
** They join the host to the processes that fork for it.
**
** Invariant: a descriptor that travels belongs to the receiver from then on;
** all descriptors are close-on-exec.
*/
#ifndef NSH_PROCESS_CONTROL_H
#define NSH_PROCESS_CONTROL_H

#include "ipc/frame.h"

#define NSH_CONTROL_MAX 65536 /* bytes of one message */

/* A pair of control sockets; ours in [0]. False: errno says why. */
bool nsh_control_pair(int fds[2]);

/* Sends one frame; 'fd' -1: none, otherwise it is sent along and stays open
** here. 'wait' false: false with errno EAGAIN when the peer is behind. */
bool nsh_control_send(int ctl, const ns_buf *frame, int fd, bool wait);

/*
** Receives one frame into 'bytes' (NSH_CONTROL_MAX of them), which '*f' reads.
** '*fd' gets a descriptor or -1. 1: a frame; 0: the peer is gone (or talks
** nonsense, which is the same); -1: nothing yet (when not 'wait').
*/
int nsh_control_receive(int ctl, char *bytes, nsh_frame *f, int *fd, bool wait);

#endif
