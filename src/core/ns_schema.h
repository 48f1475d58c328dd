/*
** The schema's version: checked at connect, raised by migrations.
*/
#ifndef NS_SCHEMA_H
#define NS_SCHEMA_H

#include "nightshift.h"

/* NS_OK when the tables are exactly of NS_SCHEMA_VERSION; else NS_ESCHEMA
** with what to do. Errors: SCHEMA, GONE, DENIED. */
ns_status ns_schema_check(ns_db *db, ns_err *err);

/* ns_migrate; with 'anew' it makes procedures and views anew, too, when there
** were tables before. Errors: as ns_migrate. */
ns_status ns_schema_raise(ns_db *db, bool anew, int *from, ns_err *err);

#endif
