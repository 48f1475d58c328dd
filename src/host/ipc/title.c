/*
** The title of a process: the text that ps shows of it in place of its arguments.
**
** The kernel reads the arguments of a process from the memory that it put them into. A title is
** written over them, and over the environment behind them when it is longer. Variables that a
** title may lie on are copied first, so getenv knows them as before.
**
** A forked process has the title of its parent until it writes its own, into memory of its own.
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/ipc.h"

#define TITLE_MAX 512     /* bytes, with the zero at the end */
#define ARGUMENTS_MAX 384 /* the same, of the arguments in a host's title */

static struct {
  char *room;
  size_t n;      /* bytes of it; 0: there is none */
  size_t at;     /* bytes of the title so far */
  size_t shown;  /* from here on all bytes are zero, or another's */
  size_t prefix; /* bytes of a worker's title before its job; 0: it is no worker's */
  bool idle;     /* a worker's title says so */
  char arguments[ARGUMENTS_MAX];
} title;

/* ---------------------------------------------------------------- the room */

/* The end of the strings of a list that lie one behind the other from 'p' on. */
static char *end_of(char **list, char *p) {
  for (; *list != NULL && *list == p; list++)
    p += strlen(p) + 1;
  return p;
}

void nsh_title_find(char **argv) {
  size_t all;
  if (argv[0] == NULL)
    return;
  title.room = argv[0];
  title.shown = (size_t)(end_of(argv, argv[0]) - argv[0]);
  all = (size_t)(end_of(environ, argv[0] + title.shown) - argv[0]);
  title.n = all < TITLE_MAX ? all : TITLE_MAX;
}

/* The arguments behind the name of the program, with blanks between them. */
static void keep_arguments(void) {
  size_t first = strnlen(title.room, title.shown) + 1;
  size_t n = title.shown > first ? title.shown - first - 1 : 0;
  if (n > ARGUMENTS_MAX - 1)
    n = ARGUMENTS_MAX - 1;
  for (size_t i = 0; i < n; i++)
    title.arguments[i] = title.room[first + i] != '\0' ? title.room[first + i] : ' ';
}

/* False: no memory. */
static bool copy_variables(const char *from, const char *end) {
  for (char **v = environ; v != NULL && *v != NULL; v++) {
    char *copy;
    if (*v < from || *v >= end)
      continue;
    if ((copy = strdup(*v)) == NULL)
      return false;
    *v = copy;
  }
  return true;
}

void nsh_title_begin(void) {
  const char *end = title.room + title.shown;
  if (title.n == 0)
    return;
  keep_arguments();
  if (title.shown < title.n && !copy_variables(end, title.room + title.n))
    title.n = title.shown;
}

/* ------------------------------------------------------------------ writing */

static void put(const char *p, size_t n) {
  size_t left = title.n - 1 - title.at;
  n = n < left ? n : left;
  memcpy(title.room + title.at, p, n);
  title.at += n;
}

static void put_text(const char *text) {
  put(text, strlen(text));
}

static void put_number(int64_t i) {
  char digits[NS_NUMBER_SIZE];
  size_t n = sizeof digits;
  uint64_t rest = i < 0 ? 0 : (uint64_t)i;
  do
    digits[--n] = (char)('0' + rest % 10);
  while ((rest /= 10) > 0);
  put(digits + n, sizeof digits - n);
}

/* The title is complete: the rest of a longer one goes. */
static void end_title(void) {
  if (title.shown > title.at)
    memset(title.room + title.at, 0, title.shown - title.at);
  title.room[title.at] = '\0';
  title.shown = title.at;
}

static void begin_title(const char *text) {
  title.at = 0;
  title.prefix = 0;
  put_text("nightshift: ");
  put_text(text);
}

void nsh_title_set(const char *text) {
  if (title.n == 0)
    return;
  begin_title(text);
  end_title();
}

void nsh_title_host(const char *machine, int64_t holder) {
  if (title.n == 0)
    return;
  begin_title("host ");
  put_text(machine);
  put_text(" ");
  put_number(holder);
  put_text(" ");
  put_text(title.arguments);
  end_title();
}

void nsh_title_worker(int64_t number) {
  if (title.n == 0)
    return;
  begin_title("worker ");
  put_number(number);
  put_text(" ");
  title.prefix = title.at;
  title.idle = false;
  nsh_title_idle();
}

void nsh_title_idle(void) {
  if (title.prefix == 0 || title.idle)
    return;
  title.at = title.prefix;
  put("idle", 4);
  end_title();
  title.idle = true;
}

void nsh_title_job(ns_bytes name, int64_t id) {
  if (title.prefix == 0)
    return;
  title.at = title.prefix;
  put(name.p, name.n);
  put(" ", 1);
  put_number(id);
  end_title();
  title.idle = false;
}
