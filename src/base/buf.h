/*
** Bytes and text: a borrowed view of bytes (ns_bytes), a growable owner (ns_buf), UTF-8,
** numbers with fractions as text, and a hash.
**
** Invariants: lengths are explicit everywhere, so bytes may contain NUL. A buffer that failed
** to grow is 'oom' from then on and ignores additions, so that a caller checks once, at the
** end. The text of a number has a point, whatever decimal sign the program's locale has. It is
** a number of JSON and reads back as the same double.
*/
#ifndef NS_BUF_H
#define NS_BUF_H

#include <stdint.h>

#include "nightshift_types.h"

#define NS_NONE ((ns_bytes){NULL, 0})

#define NS_BUF_INIT ((ns_buf){NULL, 0, 0, false})

void ns_buf_add(ns_buf *b, const void *p, size_t n);
void ns_buf_addc(ns_buf *b, char c);
void ns_buf_adds(ns_buf *b, const char *s);
void ns_buf_addf(ns_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Adds 'text' with every 'mark' in it replaced by 'by'. */
void ns_buf_fill(ns_buf *b, const char *text, const char *mark, ns_bytes by);

/* Adds 'text' as a JSON string in quotes. Bytes that are not UTF-8 become
** U+FFFD each, so the result is always valid. */
void ns_buf_add_json(ns_buf *b, ns_bytes text);

/* Adds 'text' with bytes that are not UTF-8 replaced by U+FFFD. */
void ns_buf_add_utf8(ns_buf *b, ns_bytes text);

/* Whether all of it is UTF-8. */
bool ns_utf8_valid(ns_bytes text);

/* Characters of a text in UTF-8, as the server counts them for a column. */
size_t ns_utf8_count(ns_bytes text);

/* Length of the valid UTF-8 sequence that starts at 'p', 0 when there is
** none; 'n' > 0 bytes are there. */
size_t ns_utf8(const char *p, size_t n);

/* Makes room for 'n' more bytes and returns where they go; NULL: oom. */
char *ns_buf_room(ns_buf *b, size_t n);

/* Keeps the memory, forgets the bytes and the oom flag. */
void ns_buf_reset(ns_buf *b);

/* Frees; the buffer is empty and usable again. Twice is harmless. */
void ns_buf_free(ns_buf *b);

/* The bytes as a view that is never NULL. Borrowed until the next change. */
ns_bytes ns_buf_bytes(const ns_buf *b);

/*
** Growth of a plain C array: makes '*items' hold 'want' elements of 'size' bytes. When memory
** is short it returns false and changes nothing.
*/
bool ns_grow(void *items, size_t *cap, size_t want, size_t size);

/* ------------------------------------------------------------------- numbers */

enum { NS_NUMBER_SIZE = 32 }; /* bytes that the longest text takes, with its NUL */

/* Writes 'd' with the fewest digits, 15 to 17, that read back as 'd', and returns 'text'.
** Infinities and NaN, which JSON does not have, become "inf", "-inf" and "nan"; a writer of
** JSON asks before. */
char *ns_number(double d, char text[NS_NUMBER_SIZE]);

/* The text of a double as above; an integral value gets a mark of a fraction: "1.0", "1e300". */
char *ns_number_real(double d, char text[NS_NUMBER_SIZE]);

/* Adds the text of ns_number_real. */
void ns_buf_add_number(ns_buf *b, double d);

/* Writes a span of microseconds in seconds, as messages and SQL have it: "2", "0.25".
** Returns 'text'. */
char *ns_number_seconds(int64_t us, char text[NS_NUMBER_SIZE]);

/* -------------------------------------------------------------------- hashes */

/* A hash of bytes, the same in every process and on every machine: FNV-1a, 64 bits. Texts that
** differ by chance get different hashes; texts made to collide do not. */
uint64_t ns_hash(ns_bytes s);

/* The two halves of ns_hash, combined. */
uint32_t ns_hash_short(ns_bytes s);

#endif
