/*
** What the fuzz targets share: a check that stops the run, so that libFuzzer
** keeps the input that broke it.
*/
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define FUZZ_CHECK(x)                                                         \
  do                                                                          \
    if (!(x)) {                                                               \
      fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #x);         \
      abort();                                                                \
    }                                                                         \
  while (0)

/* One input; what libFuzzer calls. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
