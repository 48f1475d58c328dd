/*
** Bytes: a borrowed view (ns_bytes) and a growable owner (ns_buf).
**
** Invariant: lengths are explicit everywhere, so bytes may contain NUL. A
** buffer whose growth failed is 'oom' from then on and ignores additions, so
** that a caller checks once, at the end.
*/
#ifndef NS_BUF_H
#define NS_BUF_H

#include "nightshift_types.h"

#define NS_NONE ((ns_bytes){NULL, 0})

#define NS_BUF_INIT ((ns_buf){NULL, 0, 0, false})

void ns_buf_add(ns_buf *b, const void *p, size_t n);
void ns_buf_addc(ns_buf *b, char c);
void ns_buf_adds(ns_buf *b, const char *s);
void ns_buf_addf(ns_buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Adds 'text' with every 'mark' in it replaced by 'by'. */
void ns_buf_fill(ns_buf *b, const char *text, const char *mark, ns_bytes by);

/* Adds 'text' as a JSON string in quotes. Bytes that are not UTF-8 become
** U+FFFD each, so the result is always valid. */
void ns_buf_add_json(ns_buf *b, ns_bytes text);

/* Adds 'text' with bytes that are not UTF-8 replaced by U+FFFD. */
void ns_buf_add_utf8(ns_buf *b, ns_bytes text);

/* Whether all of it is UTF-8. */
bool ns_utf8_valid(ns_bytes text);

/* Makes room for 'n' more bytes and returns where they go; NULL: oom. */
char *ns_buf_room(ns_buf *b, size_t n);

/* Keeps the memory, forgets the bytes and the oom flag. */
void ns_buf_reset(ns_buf *b);

/* Frees; the buffer is empty and usable again. Twice is harmless. */
void ns_buf_free(ns_buf *b);

/* The bytes as a view that is never NULL. Borrowed until the next change. */
ns_bytes ns_buf_bytes(const ns_buf *b);

/*
** Growth of a plain C array: makes '*items' hold 'want' elements of 'size'
** bytes; returns false and leaves all as it was when memory is short.
*/
bool ns_grow(void *items, size_t *cap, size_t want, size_t size);

#endif
