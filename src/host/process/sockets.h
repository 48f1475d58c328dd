/*
** Sockets that scripts have opened while they were loaded. All workers would inherit
** them, and read and write on one connection.
*/
#ifndef NSH_PROCESS_SOCKETS_H
#define NSH_PROCESS_SOCKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "ns_buf.h"

#define NSH_SOCKETS_MAX 256

/* The sockets of this process by their inodes. */
typedef struct nsh_sockets {
  ino_t items[NSH_SOCKETS_MAX];
  size_t n;
} nsh_sockets;

void nsh_sockets_note(nsh_sockets *s);

/* Those that are open now, were not then, and are not 'ours':
** "descriptor 7 (127.0.0.1:3306), …". Empty: there are none. */
void nsh_sockets_since(const nsh_sockets *then, bool (*ours)(int fd), ns_buf *text);

#endif
