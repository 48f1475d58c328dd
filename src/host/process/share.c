/*
** A small block out of a hole in the midst of shared pages costs a worker a page.
** So the holes are filled, and workers take all they need from the end of the
** heap, where it lies together.
*/
#include "process/share.h"

#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define HOLE_MAX 65536  /* bytes; larger ones are worth being used */
#define SMALL 1024      /* from here on every size a block can have */

#ifdef __GLIBC__

/* Takes blocks of 'size' until there is no hole for one; they are never freed.
** What lies at 'top' and above is no hole. Not more than 'most' bytes. */
static void fill(size_t size, uintptr_t top, size_t most) {
  for (size_t taken = 0; taken < most; taken += size) {
    void *p = malloc(size);
    if (p == NULL)
      return;
    if ((uintptr_t)p >= top) {
      free(p);
      return;
    }
  }
}

void nsh_share(void) {
  struct mallinfo2 now;
  uintptr_t top;
  malloc_trim(0);
  now = mallinfo2();
  top = (uintptr_t)sbrk(0) - now.keepcost;
  for (size_t size = HOLE_MAX; size > SMALL; size /= 2)
    fill(size, top, now.arena);
  for (size_t size = SMALL; size > 0; size -= 16)
    fill(size, top, now.arena);
}

#else
void nsh_share(void) {
}
#endif
