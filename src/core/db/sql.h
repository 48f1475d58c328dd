/*
** The SQL of sql/, embedded at build: statements by enumerator and by name,
** and the schema in the order in which it is applied.
*/
#ifndef NS_DB_SQL_H
#define NS_DB_SQL_H

#include "ns_sql_names.h" /* generated: enum ns_sql */

extern const char *const ns_sql_names[]; /* NS_SQL_COUNT of them, sorted */
extern const char *const ns_sql_texts[];

typedef struct ns_schema_statement {
  int version;      /* number of its file; 0 ends the list */
  const char *name;
  const char *text;
} ns_schema_statement;

extern const ns_schema_statement ns_schema_statements[];

#endif
