/*
** A ring of bytes in shared memory: one process writes, another one reads.
**
** Invariants: the bytes from tail to head are the reader's, all others the
** writer's, and each side moves its own count only when it is done with the
** bytes. So whoever is killed, at whatever instant, leaves behind exactly what
** it had published. Nothing the other side wrote is believed: counts are
** checked and offsets cannot leave the ring.
*/
#ifndef NSH_IPC_RING_BUFFER_H
#define NSH_IPC_RING_BUFFER_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes; a power of two. Few in a debug build, so that most frames go round. */
#ifdef NS_DEBUG
#define NSH_RING 512u
#else
#define NSH_RING 16384u
#endif

typedef struct nsh_ring {
  alignas(64) _Atomic uint32_t head; /* bytes ever written, mod 2^32 */
  _Atomic uint32_t crowded;          /* the writer waits for room */
  alignas(64) _Atomic uint32_t tail; /* bytes ever read */
  _Atomic uint32_t starved;          /* the reader sleeps until there is more */
  alignas(64) char bytes[NSH_RING];
} nsh_ring;

/* Nobody uses the ring: makes it empty. */
void nsh_ring_reset(nsh_ring *r);

/* ----------------------------------------------------------------- writer */

/* Publishes as many of the 'n' bytes as there is room for, at once; how many.
** With less than 'n' the reader will find the ring crowded: see below. */
size_t nsh_ring_put(nsh_ring *r, const char *p, size_t n);

/* Wakes a reader that sleeps. */
void nsh_ring_wake(nsh_ring *r);

/* Sleeps until there may be room, or a signal comes. */
void nsh_ring_await_room(nsh_ring *r);

/* ----------------------------------------------------------------- reader */

/* Takes up to 'room' bytes; how many. -1: the counts make no sense. */
int64_t nsh_ring_take(nsh_ring *r, char *out, size_t room);

/* After a take: true, once, when the writer waits for the room it made. */
bool nsh_ring_relieved(nsh_ring *r);

/* Wakes a writer that sleeps. */
void nsh_ring_wake_writer(nsh_ring *r);

/* Sleeps until there may be bytes, or 'us' have passed. True: there are some. */
#define NSH_RING_EVER (-1)
bool nsh_ring_await(nsh_ring *r, int64_t us);

#endif
