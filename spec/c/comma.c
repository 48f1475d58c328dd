/*
** Loaded into every process of a test run: each begins with the locale of its environment, as
** programs with a graphical toolkit or curses do.
*/
#include <locale.h>

__attribute__((constructor)) static void begin(void) {
  setlocale(LC_ALL, "");
}
