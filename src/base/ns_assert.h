/*
** Assertions: stated invariants, checked in debug builds (NS_DEBUG: `make DEBUG=1`, and all
** builds with sanitizers). In other builds nothing of them is evaluated.
*/
#ifndef NS_ASSERT_H
#define NS_ASSERT_H

#ifdef NS_DEBUG

#include <stdio.h>
#include <stdlib.h>

#define ns_assert(x)                                                                               \
  ((x) ? (void)0                                                                                   \
       : (fprintf(stderr, "%s:%d: %s: invariant broken: %s\n", __FILE__, __LINE__, __func__, #x),  \
          abort()))

#else

#define ns_assert(x) ((void)(0 && (x))) /* compiled, so that it stays true to the code */

#endif

#endif
