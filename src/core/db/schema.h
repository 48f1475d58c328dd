/*
** The schema's version: checked at connect, raised by migrations.
*/
#ifndef NS_DB_SCHEMA_H
#define NS_DB_SCHEMA_H

#include "nightshift.h"

/* ns_migrate; with 'anew' it makes procedures and views anew, too, when there
** were tables before. Errors: as ns_migrate. */
ns_status ns_schema_raise(ns_db *db, bool anew, int *from, ns_err *err);

#endif
