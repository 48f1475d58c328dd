/*
** Existing tables as queues: what an adopted table is inside. The verbs are in
** nightshift.h.
**
** A mapping says which columns of an application's table are used for what. It is checked
** once against the live schema (adopt/mapping.c); from then on the statements of
** sql/query/adopt.sql are templates into which its names, quoted, and its
** conditions are put (adopt/put.h). Values are always bound.
**
** Invariant: a row is settled by its claimant, or not at all. With three of
** the strategies the claim is what the row says in claimed_by: "ns:HOLDER:TOKEN",
** where the token, a random number, is the job's run. Every change of a claimed row
** asks for exactly that text, so a late verdict changes nothing. The rows of a
** holder that is none any more are given back by the next handle that looks (adopt/free.c).
** With NS_TRANSACTION the claim is the lock of the row, on a connection that the
** job has for itself (a seat): it ends with the connection, whatever ends that.
*/
#ifndef NS_ADOPT_TABLE_H
#define NS_ADOPT_TABLE_H

#include "handle.h"

/* ----------------------------------------------------------- the live table */

typedef enum ns_field_kind {
  NS_FIELD_WHOLE, /* integers */
  NS_FIELD_TEXT,
  NS_FIELD_WORDS, /* ENUM: one of some */
  NS_FIELD_TIME,  /* DATETIME, TIMESTAMP, DATE */
  NS_FIELD_OTHER
} ns_field_kind;

/* A live column. */
typedef struct ns_field {
  char name[65 * 4];
  char *type;      /* owned: as the server writes it, "enum('a','b')" */
  char charset[65], collation[65]; /* of text; "": none */
  ns_field_kind kind;
  bool nullable, primary;
  bool generated;  /* the server makes its value, and it is never written */
  bool json;       /* the server sees to it that it holds JSON */
  bool moved;      /* the target of a move is given its value */
  int64_t least, most; /* of whole numbers; of text 'most' is its characters */
} ns_field;

typedef struct ns_fields {
  ns_field *items;
  size_t n, cap;
} ns_fields;

/* The kind of a row to a drain; the numbers are those of {fate}. */
typedef enum ns_row_kind {
  NS_MOVE_JOB,
  NS_MOVE_DONE,
  NS_MOVE_DEAD,
  NS_STAY_TAKEN,
  NS_STAY_UNKNOWN /* in no state of the mapping */
} ns_row_kind;

/* ------------------------------------------------------------- statements */

/* The kind of a parameter of a call; NS_SLOT_VALUE: it was there from the start. */
typedef enum ns_slot_of {
  NS_SLOT_VALUE,
  NS_SLOT_ROW,
  NS_SLOT_ROWS,
  NS_SLOT_TOKEN, /* what claimed_by has to say */
  NS_SLOT_LIMIT,
  NS_SLOT_PAGE,
  NS_SLOT_SHUNNED,
  NS_SLOT_DELAY,
  NS_SLOT_ERROR /* of rows, or of a kind of them; NULL: any */
} ns_slot_of;

typedef struct ns_param {
  ns_slot_of slot;
  ns_value value; /* of NS_SLOT_VALUE; borrowed from the mapping */
} ns_param;

/* A template with its marks filled in. */
typedef struct ns_filled {
  ns_buf text;
  ns_param *params;
  size_t n, cap;
  const char *alias; /* what the row is called; NULL: t */
  bool literal;      /* values are in the text; nothing else may be a parameter */
} ns_filled;

/* Parameters of one execution. */
typedef struct ns_call {
  int64_t row, limit;
  int64_t page;   /* rows to look at for that many */
  ns_value delay; /* µs, or NULL */
  ns_bytes rows;  /* "[id,…]" */
  ns_bytes shunned; /* the same: rows that are not claimed */
  ns_bytes token;
  ns_bytes error;
} ns_call;

/* A connection that one job has for itself. */
typedef struct ns_seat {
  ns_link *link;
  ns_stmt *stmts[NS_SQL_COUNT]; /* prepared on it */
  int64_t id, run; /* its claimant; id 0: unclaimed */
} ns_seat;

/* The decisions of people: see nightshift_adopted. Instants by the server's clock. */
typedef struct ns_control {
  bool known;      /* it has been read */
  bool paused;
  int64_t held_until;
  int64_t gap, next_at;
  int64_t block, workers;
  bool failures;   /* there are errors of its rows */
} ns_control;

/* A claim that is not settled yet. */
typedef struct ns_grip {
  int64_t id, run;
  int64_t holder;   /* who we were */
  bool last;        /* after another failure it is given up */
  bool shown;       /* it has its row for people, which goes with it */
  int64_t attempts; /* before this run */
  int64_t since;    /* µs, by the server's clock */
} ns_grip;

/* Rows that came back without a verdict; 'told': reported. */
typedef struct ns_resets {
  ns_reset *items;
  size_t n, cap;
  bool told;
} ns_resets;

/* Rows that the server refuses; those up to 'told' were reported. */
typedef struct ns_refusals {
  ns_refusal *items;
  size_t n, cap;
  size_t told;
  ns_buf ids;
} ns_refusals;

struct ns_adopted {
  ns_db *db;
  int64_t number;      /* of the handle's tables, from 1 */
  ns_mapping map;      /* its bytes are owned, see adopt/mapping.c */
  ns_buf host;         /* this machine */
  ns_fields fields;
  const ns_field *parts[NS_PARTS]; /* NULL: not used */
  ns_filled stmts[NS_SQL_COUNT];   /* filled when first used */
  ns_grip *grips;
  size_t n, cap;
  ns_seat *seats;
  size_t nseats, capseats;
  bool lockable;       /* its engine is known to lock rows */
  int64_t in_doubt;    /* the token of a claim that may have happened; 0: none */
  int64_t doubter;     /* … and who we were */
  ns_control control;
  int64_t control_at;  /* monotonic: when to read it again */
  int64_t claim_at;    /* monotonic: no claim is worth while before */
  bool looked;         /* the last claim has looked for rows */
  int64_t most_locked; /* rows at a time, with NS_TRANSACTION; 0: not known */
  bool capped;         /* the last one had less because of rows in hand */
  int64_t turn;        /* the last in which we looked for all handles */
  int64_t suspects;    /* holders that may be dead, at the last look */
  int64_t deaths;      /* when the last holder that we know of died */
  int calm;            /* claims since one in a crowd, up to what is calm */
  int64_t gate;        /* that we have gone in by; 0: none */
  int64_t entered_at;  /* monotonic: … and when */
  int64_t page;        /* rows that other sessions may have locked in front of free ones */
  int64_t look_at, sweep_at, overdue_at; /* monotonic: next look at holders, at all
                                         ** rows, at those that are overdue */
  ns_resets resets;    /* rows that looks of a host have given back */
  ns_refusals refusals;
  int64_t error_to;    /* the row up to which errors have been looked through */
  bool prunes_dead;    /* the pruning under way is of dead rows, not of done ones */
  ns_buf into;         /* the target of the move under way, NUL-terminated */
  int64_t cleaned;     /* rows that the last look has moved on: ns_adopt_clean */
  bool rung;           /* its triggers ring all sleepers, us among them */
  int64_t idle_for;    /* µs for which it need not be looked at then */
  bool heard;          /* a listener sleeps for it */
  int64_t rings_at;    /* monotonic: when to see whether they still do */
  char ear_name[96];   /* of the named locks of who is to be rung; "": not asked yet */
  char mark[32];       /* in a trigger's text: which it is, and the listeners that it reaches */
  ns_ear *ear;         /* of a claim that waits; NULL: none yet */
  int64_t ear_pause;   /* µs before its next wait, after wakes that found nothing */
  pid_t process;       /* of the seats and grips; a forked child has none */
};

/* adopt/mapping.c: reads the live columns and checks the mapping against them. */
ns_status ns_adopt_check(ns_adopted *a, const ns_mapping *map, ns_err *err);
void ns_adopt_forget_map(ns_adopted *a);

/* Does the mapping use this part, or have this state? */
static inline bool ns_adopt_has(const ns_adopted *a, ns_part p) {
  return a->parts[p] != NULL;
}

/* Is a claim a row of nightshift_grip, because the table has no column for it? */
static inline bool ns_adopt_by_grip(const ns_adopted *a) {
  return a->map.strategy != NS_TRANSACTION && !ns_adopt_has(a, NS_PART_CLAIMED_BY);
}

/* Does a row that is claimed say so? With NS_TRANSACTION it may only be locked. */
static inline bool ns_adopt_tells_taken(const ns_adopted *a) {
  return a->map.strategy != NS_TRANSACTION || a->map.has_state[NS_ROW_PROCESSING];
}

/* adopt/put.c: a name in backticks; one in it is doubled. */
void ns_adopt_add_name(ns_buf *out, const char *name);

/* adopt/text.c: the statement of a template, filled in. Errors: NOMEM. */
ns_status ns_adopt_fill(ns_adopted *a, ns_sql sql, const ns_filled **out,
                        ns_err *err);

/* The same with the values in the text, appended to '*out': for what takes no
** parameters. Errors: NOMEM. */
ns_status ns_adopt_spell(ns_adopted *a, ns_sql sql, ns_buf *out, ns_err *err);

/* adopt/set.c: µs of the least that a column of time can say. */
int64_t ns_adopt_unit(const ns_field *f);

/* adopt/ends.c: is there a column that says when a row has ended? */
bool ns_adopt_tells_end(const ns_adopted *a);

/*
** adopt/run.c: runs it, on a seat or, NULL, on the handle's connection, where it neither
** reconnects nor repeats; '*s' has its rows.
*/
ns_status ns_adopt_run(ns_adopted *a, ns_seat *seat, ns_sql sql,
                       const ns_call *call, ns_stmt **s, ns_err *err);

/* Sends it on the handle's connection, and does not wait: ns_stmt_told has the rest. */
ns_status ns_adopt_ask(ns_adopted *a, ns_sql sql, const ns_call *call, ns_stmt **s,
                       ns_err *err);

/*
** ns_adopt_run for a change by key. A row that another session has locked is tried again
** for 'patience' µs, then BUSY: mostly it is a look's, for a moment.
*/
ns_status ns_adopt_change(ns_adopted *a, ns_seat *seat, ns_sql sql,
                          const ns_call *call, int64_t patience, ns_stmt **s,
                          ns_err *err);

/* Was it BUSY for a lock, and is the transaction as it was before the statement? */
bool ns_adopt_is_locked(const ns_adopted *a, ns_status st, const ns_err *err);

static inline ns_link *ns_adopt_link(ns_adopted *a, ns_seat *seat) {
  return seat != NULL ? seat->link : a->db->link;
}

/* adopt/settle.c: runs a verdict's statement for a row that is, or was, 'token''s
** (absent: a program's not ours). '*changed': it still was. BUSY (see
** ns_adopt_is_locked): nothing has changed. */
ns_status ns_adopt_end(ns_adopted *a, ns_seat *seat, ns_sql sql, ns_call *call,
                       int64_t patience, bool *changed, ns_err *err);

/* adopt/claim.c: claims that are not settled; the run of a new one; the rows of a
** statement as jobs, each with its grip; and a row, all its columns, as an object: what
** is NULL is left out. */
void ns_adopt_row_json(const ns_adopted *a, const ns_value *row, ns_buf *out);
ns_grip *ns_adopt_grip(ns_adopted *a, int64_t id, int64_t run);
void ns_adopt_let_go(ns_adopted *a, ns_grip *grip);
int64_t ns_adopt_token(void);
ns_status ns_adopt_collect(ns_adopted *a, ns_seat *seat, ns_stmt *s, int64_t token,
                           ns_jobs *out, ns_err *err);

/* adopt/pick.c: locks up to 'call->limit' open rows, past those of other sessions. '*ids',
** and 'call->rows', name them as "[id,…]"; empty: there are none. */
ns_status ns_adopt_pick(ns_adopted *a, ns_seat *seat, ns_call *call, ns_buf *ids,
                        ns_err *err);

/* adopt/claim.c: can its rows be claimed? INVALID: its engine locks no rows. */
ns_status ns_adopt_lockable(ns_adopted *a, ns_err *err);

/* adopt/refuse.c: is it the server's error on a row, because of what is in it? Then it
** is left alone for a while, and the claim goes on: OK; else 'st', or NOMEM. */
bool ns_adopt_is_refused(ns_status st, const ns_err *err);
ns_status ns_adopt_refuse(ns_adopted *a, int64_t id, ns_status st, ns_err *err);

/* The refused rows, as "[id,…]"; good until the next is refused. Errors: NOMEM. */
ns_status ns_adopt_shunned(ns_adopted *a, ns_bytes *ids, ns_err *err);

/* SQL, with the last of them that is not reported. */
ns_status ns_adopt_tell_refused(ns_adopted *a, ns_err *err);

#define NS_TAKE_FOR 20000 /* µs: picked rows of which a session reads an index entry */

/* Around a pick and the marks, before the commit: one by one in a crowd. */
ns_status ns_adopt_enter(ns_adopted *a, ns_seat *seat, ns_err *err);
void ns_adopt_leave(ns_adopted *a, ns_seat *seat);

/* Seconds that one statement may wait in a queue of claimers, which loses its place when
** it comes again. The server notices within one when we die there. */
int64_t ns_adopt_stand(const ns_adopted *a);

/* adopt/seat.c: claims that are a lock. */
ns_status ns_adopt_claim_locks(ns_adopted *a, size_t limit, ns_jobs *out,
                               ns_err *err);

/* A free seat, connected if need be; and the seat of a job, NULL: it has none. */
ns_status ns_adopt_seat(ns_adopted *a, ns_seat **out, ns_err *err);
ns_seat *ns_adopt_seat_of(ns_adopted *a, int64_t id, int64_t run);
/* Ends what is open on it; one that is lost is closed. */
void ns_adopt_leave_seat(ns_seat *seat);

/* adopt/control.c: reads what people have decided, now and then; how many of
** 'limit' rows may be claimed now, and when to come again. */
ns_status ns_adopt_control(ns_adopted *a, ns_err *err);
ns_status ns_adopt_allow(ns_adopted *a, size_t *limit, ns_err *err);
void ns_adopt_claimed(ns_adopted *a, size_t asked, size_t got);

/* It was another handle's turn. */
void ns_adopt_passed(ns_adopted *a);

/* A row may be claimable: of ours that have come back. */
void ns_adopt_stir(ns_adopted *a);

/* Nothing is claimed for so long, by any handle. */
ns_status ns_adopt_hold(ns_adopted *a, int64_t us, ns_err *err);

/* adopt/note.c: the rows that people see of a running job go with its claim, and
** with its holder. */
ns_status ns_adopt_unshow(ns_adopted *a, int64_t id, ns_bytes claimant, ns_err *err);
ns_status ns_adopt_tidy(ns_adopted *a, ns_err *err);

/* adopt/error.c: what a row has failed with, and the holder that had it (0: not known); attempt
** 0: one more than the last. */
typedef struct ns_blame {
  int64_t id, holder, attempt;
  ns_bytes error;
} ns_blame;

/* With the verdict, where that is: 'seat' as in ns_adopt_run. 'absolve': it has not failed;
** 'list': "[id,…]", of the handle. */
ns_status ns_adopt_blame(ns_adopted *a, ns_seat *seat, const ns_blame *b, ns_err *err);
ns_status ns_adopt_absolve(ns_adopted *a, ns_seat *seat, int64_t id, ns_err *err);
ns_status ns_adopt_absolve_list(ns_adopted *a, ns_bytes rows, ns_err *err);

/* Deletes some of the errors that other programs have left behind. */
ns_status ns_adopt_tidy_errors(ns_adopted *a, ns_err *err);

/* adopt/ring.c: adds the triggers that ring, where the mapping allows it; and sees,
** now and then, whether they are there. Errors: DENIED, BUSY (the table is in use),
** STATE (a transaction is open). */
#define NS_TRIGGER_PREFIX "nightshift_ring_"
ns_status ns_adopt_rings(ns_adopted *a, ns_err *err);
ns_status ns_adopt_hear(ns_adopted *a, ns_err *err);

/* A number that tells texts apart. */
uint64_t ns_adopt_digest(ns_bytes text);

/* adopt/control.c: after a claim that found nothing in a table that is rung: for how
** long it need not be looked at. Errors: GONE, BUSY. */
ns_status ns_adopt_idle(ns_adopted *a, ns_err *err);

/* adopt/move.c: finishes what drains that are over have left half way; '*moved'
** rows. */
ns_status ns_adopt_clean(ns_adopted *a, int64_t *moved, ns_err *err);

/* A forked child leaves alone all that it has inherited. */
void ns_adopt_own(ns_adopted *a);

#endif
