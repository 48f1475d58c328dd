/*
** Hiding secrets: see process/secrets.h. A URL is blanked up to its last @, so that
** `ps` still tells which server is meant; one without an @ is blanked whole,
** because a slip in it may have put the password anywhere.
*/
#include "process/secrets.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"NIGHTSHIFT_URL", "MYSQL_PWD"};
#define NNAMES (sizeof names / sizeof names[0])

static void blank_url(char *url) {
  char *at = strrchr(url, '@');
  char *start = strstr(url, "://");
  size_t n = at != NULL ? (size_t)(at - url) : strlen(url);
  size_t kept = start != NULL && start + 3 <= url + n ? (size_t)(start + 3 - url) : 0;
  memset(url + kept, '*', n - kept);
}

/* Where the value of --url begins in argument 'i'; NULL: it is not there. */
static char *url_in(int i, char **argv) {
  static const char option[] = "--url";
  size_t n = sizeof option - 1;
  if (strncmp(argv[i], option, n) == 0 && argv[i][n] == '=')
    return argv[i] + n + 1;
  return i > 1 && strcmp(argv[i - 1], option) == 0 ? argv[i] : NULL;
}

static bool hide_arguments(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    char *url = url_in(i, argv);
    char *copy;
    if (url == NULL)
      continue;
    if ((copy = strdup(argv[i])) == NULL)
      return false;
    blank_url(url);
    argv[i] = copy;
  }
  return true;
}

static bool hide_variable(const char *name) {
  char *shown = getenv(name);
  char *copy = shown != NULL ? strdup(shown) : NULL;
  bool good;
  if (shown == NULL || copy == NULL)
    return shown == NULL;
  memset(shown, '*', strlen(shown));
  good = setenv(name, copy, 1) == 0; /* on the heap: the kernel shows the old block */
  free(copy);
  return good;
}

bool nsh_secrets_hide(int argc, char **argv) {
  for (size_t i = 0; i < NNAMES; i++)
    if (!hide_variable(names[i]))
      return false;
  return hide_arguments(argc, argv);
}

void nsh_secrets_drop(void) {
  for (size_t i = 0; i < NNAMES; i++)
    unsetenv(names[i]);
}
