/*
** Which of a batch's jobs nobody is claiming (tree/unclaimed.c).
*/
#ifndef NS_TREE_UNCLAIMED_H
#define NS_TREE_UNCLAIMED_H

#include "tree/tree.h"

/* Of the batch's nodes with 'asks': locks their rows in scheduled and ready until the end
** of the transaction, waiting for who has one. A node that has none is being claimed, and
** its 'holder' becomes NS_SOMEBODY. Errors: BUSY, GONE, NOMEM. */
ns_status ns_unclaimed(ns_db *db, ns_tree *t, ns_err *err);

#endif
