/*
** Batches of verdicts. A chunk is CHUNK bytes, or as large as the one thing
** that did not fit into a fresh one; a spilled thing is a chunk of its own.
*/
#include "dispatcher/batch.h"

#include <fcntl.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/alloc.h"

#define CHUNK ((size_t)64 << 10)

struct nsh_chunk {
  nsh_chunk *next;
  size_t n, cap;
  bool mapped; /* a file */
  alignas(max_align_t) char bytes[];
};

static void drop_chunk(nsh_chunk *c) {
  if (c->mapped)
    munmap(c, sizeof *c + c->cap);
  else
    free(c);
}

static void *room(nsh_batch *b, size_t n) {
  size_t size = (n + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
  nsh_chunk *c = b->chunks;
  void *p;
  if (c == NULL || c->cap - c->n < size) {
    size_t cap = size > CHUNK ? size : CHUNK;
    c = malloc(sizeof *c + cap);
    nsh_must(c != NULL);
    *c = (nsh_chunk){.next = b->chunks, .cap = cap};
    b->chunks = c;
  }
  p = c->bytes + c->n;
  c->n += size;
  return p;
}

void nsh_batch_add(nsh_batch *b, const ns_verdict *v) {
  nsh_must(ns_grow(&b->items, &b->cap, b->n + 1, sizeof *b->items));
  b->items[b->n++] = *v;
}

ns_bytes nsh_batch_keep(nsh_batch *b, ns_bytes s) {
  char *p;
  if (s.p == NULL)
    return NS_NONE;
  p = room(b, s.n + 1);
  memcpy(p, s.p, s.n);
  p[s.n] = '\0';
  return (ns_bytes){p, s.n};
}

/* A file of 'size' bytes that nobody can open, with its space set aside, so
** that a full disk is met here and not at some later write; -1: none. */
static int nameless_file(size_t size) {
  const char *folder = getenv("TMPDIR");
  char path[4096];
  int fd;
  if (folder == NULL || *folder == '\0')
    folder = "/tmp";
  fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && snprintf(path, sizeof path, "%s/nightshift-XXXXXX", folder) <
                    (int)sizeof path) {
    if ((fd = mkostemp(path, O_CLOEXEC)) >= 0)
      unlink(path);
  }
  if (fd >= 0 && posix_fallocate(fd, 0, (off_t)size) != 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

/* The pages are let go after the copy: they come back when they are read. The
** chunk goes behind the first, which may have room for more. */
ns_bytes nsh_batch_spill(nsh_batch *b, ns_bytes s) {
  size_t size = sizeof(nsh_chunk) + s.n + 1;
  nsh_chunk **at = b->chunks != NULL ? &b->chunks->next : &b->chunks;
  nsh_chunk *c = MAP_FAILED;
  int fd = s.p != NULL && s.n > CHUNK ? nameless_file(size) : -1;
  if (fd >= 0) {
    c = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
  }
  if (c == MAP_FAILED)
    return nsh_batch_keep(b, s);
  *c = (nsh_chunk){.next = *at, .n = s.n + 1, .cap = s.n + 1, .mapped = true};
  *at = c;
  memcpy(c->bytes, s.p, s.n);
  madvise(c, size, MADV_DONTNEED);
  return (ns_bytes){c->bytes, s.n};
}

ns_push *nsh_batch_children(nsh_batch *b, size_t n) {
  return n > 0 ? memset(room(b, n * sizeof(ns_push)), 0, n * sizeof(ns_push))
               : NULL;
}

void nsh_batch_keep_child(nsh_batch *b, ns_push *child) {
  child->name = nsh_batch_keep(b, child->name);
  child->payload = nsh_batch_keep(b, child->payload);
  child->queue = nsh_batch_keep(b, child->queue);
  child->unique = nsh_batch_keep(b, child->unique);
  child->after = nsh_batch_keep(b, child->after);
}

void nsh_batch_copy(nsh_batch *b, const ns_verdict *from) {
  ns_verdict to = *from;
  to.result = nsh_batch_keep(b, from->result);
  to.error = nsh_batch_keep(b, from->error);
  to.state = nsh_batch_keep(b, from->state);
  to.signal = nsh_batch_keep(b, from->signal);
  to.log = nsh_batch_keep(b, from->log);
  to.children = nsh_batch_children(b, from->nchildren);
  for (size_t i = 0; i < from->nchildren; i++) {
    to.children[i] = from->children[i];
    nsh_batch_keep_child(b, &to.children[i]);
  }
  nsh_batch_add(b, &to);
}

/* The last chunk stays when it is an ordinary one. */
void nsh_batch_clear(nsh_batch *b) {
  nsh_chunk *next;
  while (b->chunks != NULL &&
         (b->chunks->next != NULL || b->chunks->cap > CHUNK)) {
    next = b->chunks->next;
    drop_chunk(b->chunks);
    b->chunks = next;
  }
  if (b->chunks != NULL)
    b->chunks->n = 0;
  b->n = 0;
}

void nsh_batch_free(nsh_batch *b) {
  nsh_batch_clear(b);
  free(b->chunks);
  free(b->items);
  *b = NSH_BATCH_INIT;
}
