/*
** Numbers with fractions as text: the one writer of them for JSON, SQL and
** messages.
**
** Invariant: the text has a point, whatever decimal sign the program's locale
** has, and is a number of JSON that reads back as the same double.
*/
#ifndef NS_NUMBER_H
#define NS_NUMBER_H

#include <stdint.h>

#include "ns_buf.h"

enum { NS_NUMBER_SIZE = 32 }; /* bytes that the longest text takes, with its NUL */

/* Writes 'd' with the fewest digits, 15 to 17, that read back as 'd', and returns 'text'.
** Infinities and NaN, which JSON does not have, become "inf", "-inf" and "nan"; whoever
** writes JSON asks before. */
char *ns_number(double d, char text[NS_NUMBER_SIZE]);

/* The same, but an integral value shows that it is no integer: "1.0", "1e300". */
char *ns_number_real(double d, char text[NS_NUMBER_SIZE]);

/* Adds the text of ns_number_real. */
void ns_buf_add_number(ns_buf *b, double d);

/* Writes a span of microseconds in seconds, as messages and SQL have it: "2", "0.25".
** Returns 'text'. */
char *ns_number_seconds(int64_t us, char text[NS_NUMBER_SIZE]);

#endif
