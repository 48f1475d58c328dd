/*
** The Lua module nightshift.host.screen: the terminal of `nightshift top`, by ncurses. It is a
** library of its own beside the program, so that nothing but `top` loads ncurses. It calls nothing
** of the host.
**
** Texts are drawn into a number of columns: they are cut there, or blanks follow. Characters that a
** terminal would obey, that have no width, or that are no UTF-8 never reach it.
**
** HUP, INT, QUIT and TERM raise an error in Lua, as Ctrl-C does in the stand-alone interpreter: so
** waits for the server end, too. The caller closes the screen and ends by `die`. ncurses gives the
** terminal back at Ctrl-Z, and draws all again once the process goes on. Only while a key is waited
** for does it come to that: never in the middle of a drawing.
**
** Invariant: one screen at a time. While it is open `state` knows how all was before; `close`
** brings that back, and so does the end of the Lua state.
*/
#include <errno.h>
#include <langinfo.h>
#include <lauxlib.h>
#include <locale.h>
#include <lua.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include <curses.h>
#include <term.h>

/* term.h has short names for all that a terminal can do. */
#undef lines
#undef columns

#define WIDEST 1024 /* columns of a text; a wider terminal shows no more of it */
#define ESCAPE 50   /* ms in which the rest of a key follows its ESC */
#define REPLACEMENT 0xFFFD

static const int deadly[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
#define DEADLY ((int)(sizeof deadly / sizeof deadly[0]))

static struct {
  SCREEN *screen; /* NULL: closed */
  lua_State *L;   /* the state that a signal is to stop */
  bool utf8;      /* else the terminal is sent ASCII alone */
  bool coloured;
  struct sigaction before[DEADLY];
} state;

static volatile sig_atomic_t caught; /* the last deadly signal; 0: none */

/* -------------------------------------------------------------------- signals */

static void stop(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_sethook(L, NULL, 0, 0);
  luaL_error(L, "interrupted!");
}

static void on_signal(int signal) {
  caught = signal;
  lua_sethook(state.L, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

/* Holds Ctrl-Z up, or lets it come. */
static void hold_stop(int how) {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  sigprocmask(how, &stop, NULL);
}

static void catch_signals(void) {
  struct sigaction a;
  memset(&a, 0, sizeof a);
  a.sa_handler = on_signal;
  sigemptyset(&a.sa_mask);
  for (int i = 0; i < DEADLY; i++) {
    sigaction(deadly[i], NULL, &state.before[i]);
    if (state.before[i].sa_handler != SIG_IGN) /* nohup ignores HUP */
      sigaction(deadly[i], &a, NULL);
  }
  hold_stop(SIG_BLOCK);
}

static void release_signals(void) {
  for (int i = 0; i < DEADLY; i++)
    sigaction(deadly[i], &state.before[i], NULL);
  hold_stop(SIG_UNBLOCK);
}

/***
Ends the process by the signal that has stopped it, if one has. The screen is closed.
@function die
*/
static int screen_die(lua_State *L) {
  (void)L;
  if (caught != 0) {
    signal(caught, SIG_DFL);
    raise(caught);
  }
  return 0;
}

/* ------------------------------------------------------------- opening, closing */

/* Are texts UTF-8 in the user's locale? Any other than that is not used. */
static bool choose_locale(void) {
  if (setlocale(LC_CTYPE, "") != NULL && strcmp(nl_langinfo(CODESET), "UTF-8") == 0)
    return true;
  setlocale(LC_CTYPE, "C");
  return false;
}

/* What hinders a screen on the terminal of stdout; NULL: nothing. */
static const char *hindrance(void) {
  int found;
  const char *place;
  if (setupterm(NULL, STDOUT_FILENO, &found) != OK)
    return found < 0 ? "there is no database of terminals (Debian: ncurses-base)"
                     : "the database of terminals has none of that name (Debian: ncurses-term)";
  place = tigetstr("cup");
  del_curterm(cur_term);
  return place == NULL || place == (char *)-1 ? "its cursor cannot be placed" : NULL;
}

static void prepare(bool colours) {
  cbreak();
  noecho();
  nonl();
  keypad(stdscr, TRUE);
  nodelay(stdscr, TRUE);
  set_escdelay(ESCAPE);
  curs_set(0);
  if (!colours || !has_colors() || start_color() != OK)
    return;
  state.coloured = true;
  use_default_colors();
  for (short i = 1; i < 8; i++)
    init_pair(i, i, -1);
}

static void close_screen(void) {
  if (state.screen == NULL)
    return;
  endwin();
  delscreen(state.screen);
  release_signals();
  setlocale(LC_CTYPE, "C");
  memset(&state, 0, sizeof state);
}

/***
Takes the terminal of stdin and stdout.
@function open
@tparam boolean colours may there be some?
@treturn[1] boolean true
@treturn[2] nil
@treturn[2] string message
*/
static int screen_open(lua_State *L) {
  bool colours = lua_toboolean(L, 1);
  const char *why;
  if (state.screen != NULL)
    return luaL_error(L, "the screen is open");
  why = hindrance();
  if (why == NULL) {
    state.utf8 = choose_locale();
    state.L = L;
    catch_signals();
    fflush(stdout);
    use_tioctl(TRUE); /* $LINES and $COLUMNS do not change with the terminal */
    state.screen = newterm(NULL, stdout, stdin);
    if (state.screen == NULL) {
      release_signals();
      why = "ncurses does not open it";
    }
  }
  if (why != NULL) {
    lua_pushnil(L);
    lua_pushstring(L, why);
    return 2;
  }
  prepare(colours);
  lua_pushboolean(L, 1);
  return 1;
}

/***
Gives the terminal back as it was; harmless when the screen is closed.
@function close
*/
static int screen_close(lua_State *L) {
  (void)L;
  close_screen();
  return 0;
}

static void check_open(lua_State *L) {
  if (state.screen == NULL)
    luaL_error(L, "the screen is closed");
}

/***
What the terminal is like.
@function size
@treturn integer rows
@treturn integer columns
@treturn boolean whether it shows characters beside ASCII
*/
static int screen_size(lua_State *L) {
  check_open(L);
  lua_pushinteger(L, getmaxy(stdscr));
  lua_pushinteger(L, getmaxx(stdscr));
  lua_pushboolean(L, state.utf8);
  return 3;
}

/* ----------------------------------------------------------------------- texts */

typedef struct text {
  const unsigned char *at, *end;
} text;

static text text_arg(lua_State *L, int idx) {
  size_t n;
  text t;
  t.at = (const unsigned char *)luaL_checklstring(L, idx, &n);
  t.end = t.at + n;
  return t;
}

/* Takes the next character; bytes that are none, one by one, are REPLACEMENT. */
static wchar_t next_rune(text *t) {
  static const wchar_t least[] = {0, 0x80, 0x800, 0x10000};
  unsigned char first = *t->at++;
  int more = first < 0x80   ? 0
             : first < 0xC2 ? -1
             : first < 0xE0 ? 1
             : first < 0xF0 ? 2
             : first < 0xF5 ? 3
                            : -1;
  wchar_t rune;
  if (more == 0)
    return first;
  if (more < 0 || t->end - t->at < more)
    return REPLACEMENT;
  rune = first & (0x3F >> more);
  for (int i = 0; i < more; i++) {
    if ((t->at[i] & 0xC0) != 0x80)
      return REPLACEMENT;
    rune = rune << 6 | (t->at[i] & 0x3F);
  }
  if (rune < least[more] || (rune >= 0xD800 && rune < 0xE000) || rune > 0x10FFFF)
    return REPLACEMENT;
  t->at += more;
  return rune;
}

/* The columns of a character, and the one that is drawn for it; 0: it is left out. */
static int columns_of(wchar_t *rune) {
  int n;
  if (*rune >= 0x80 && !state.utf8) {
    *rune = '?';
    return 1;
  }
  n = wcwidth(*rune);
  if (n >= 0 && *rune != 0)
    return n;
  *rune = state.utf8 ? REPLACEMENT : '?';
  return 1;
}

/* Fills 'out' with the characters of the text's begin that take at most so many columns; their
** number. '*used': their columns. 't' stands behind them. */
static int fill(text *t, int width, wchar_t *out, int *used) {
  int n = 0;
  *used = 0;
  while (t->at < t->end) {
    const unsigned char *at = t->at;
    wchar_t rune = next_rune(t);
    int columns = columns_of(&rune);
    if (*used + columns > width) {
      t->at = at;
      break;
    }
    *used += columns;
    if (columns > 0)
      out[n++] = rune;
  }
  return n;
}

/* Replaces the end of a text that was cut by an ellipsis. */
static int shorten(wchar_t *out, int n, int width, int *used) {
  wchar_t mark = state.utf8 ? 0x2026 : '~';
  while (n > 0 && *used >= width)
    *used -= state.utf8 ? wcwidth(out[--n]) : (n--, 1);
  out[n++] = mark;
  (*used)++;
  return n;
}

static int width_arg(lua_State *L, int idx) {
  lua_Integer n = luaL_checkinteger(L, idx);
  return n < 0 ? 0 : n > WIDEST ? WIDEST : (int)n;
}

/***
Draws a text in so many columns: cut there, with an ellipsis, or followed by blanks.
@function put
@tparam integer row from 0 on
@tparam integer column from 0 on
@tparam integer width
@tparam string text UTF-8
@tparam[opt] integer style see `styles`
*/
static int screen_put(lua_State *L) {
  lua_Integer y = luaL_checkinteger(L, 1);
  lua_Integer x = luaL_checkinteger(L, 2);
  int width = width_arg(L, 3);
  text t = text_arg(L, 4);
  attr_t style = (attr_t)luaL_optinteger(L, 5, 0);
  wchar_t out[WIDEST + 1];
  int n, used;
  check_open(L);
  if (y < 0 || x < 0 || y >= getmaxy(stdscr) || x >= getmaxx(stdscr))
    return 0;
  if (width > getmaxx(stdscr) - (int)x)
    width = getmaxx(stdscr) - (int)x;
  n = fill(&t, width, out, &used);
  if (t.at < t.end && width > 0)
    n = shorten(out, n, width, &used);
  for (; used < width; used++)
    out[n++] = ' ';
  attrset((int)style);
  mvaddnwstr((int)y, (int)x, out, n);
  attrset(0);
  return 0;
}

/***
How much of a text fits into so many columns.
@function fit
@tparam string text
@tparam integer width
@tparam[opt=1] integer from the first byte
@treturn integer bytes
*/
static int screen_fit(lua_State *L) {
  text t = text_arg(L, 1);
  int width = width_arg(L, 2);
  lua_Integer from = luaL_optinteger(L, 3, 1);
  const unsigned char *begin;
  wchar_t out[WIDEST + 1];
  int used;
  check_open(L);
  luaL_argcheck(L, from >= 1 && from - 1 <= t.end - t.at, 3, "not in the text");
  begin = t.at += from - 1;
  fill(&t, width, out, &used);
  lua_pushinteger(L, t.at - begin);
  return 1;
}

/***
Forgets what was drawn.
@function clear
@tparam boolean whole the terminal may show something else: all is sent again
*/
static int screen_clear(lua_State *L) {
  check_open(L);
  erase();
  if (lua_toboolean(L, 1))
    clearok(stdscr, TRUE);
  return 0;
}

/***
Shows what was drawn.
@function show
*/
static int screen_show(lua_State *L) {
  check_open(L);
  refresh();
  return 0;
}

/* ------------------------------------------------------------------------ keys */

typedef struct named_key {
  wint_t code;
  const char *name;
} named_key;

static const named_key keys[] = {
    {KEY_UP, "up"},        {KEY_DOWN, "down"},   {KEY_LEFT, "left"}, {KEY_RIGHT, "right"},
    {KEY_PPAGE, "pgup"},   {KEY_NPAGE, "pgdn"},  {KEY_HOME, "home"}, {KEY_END, "end"},
    {KEY_BTAB, "backtab"}, {KEY_ENTER, "enter"}, {KEY_RESIZE, "resize"},
    {KEY_BACKSPACE, "backspace"}};

static const named_key controls[] = {
    {'\r', "enter"},     {'\n', "enter"},     {'\t', "tab"},     {0x1B, "escape"},
    {'\b', "backspace"}, {0x7F, "backspace"}, {0x0C, "redraw"}, {0x15, "erase"}};

/* Pushes the name of a special key, or the text of a character; "other" for the rest. */
static void push_key(lua_State *L, int kind, wint_t code) {
  bool special = kind == KEY_CODE_YES;
  const named_key *list = special ? keys : controls;
  size_t n = special ? sizeof keys / sizeof keys[0] : sizeof controls / sizeof controls[0];
  for (size_t i = 0; i < n; i++) {
    if (code == list[i].code) {
      lua_pushstring(L, list[i].name);
      return;
    }
  }
  if (special || code < 0x20 || code > 0x10FFFF)
    lua_pushliteral(L, "other");
  else
    lua_pushfstring(L, "%U", (unsigned long)code);
}

/* Waits until there is something to read, or a signal came, or the time is over. */
static int wait_input(const sigset_t *mask, double seconds, short *events) {
  struct pollfd p = {STDIN_FILENO, POLLIN, 0};
  struct timespec t;
  int n;
  t.tv_sec = (time_t)seconds;
  t.tv_nsec = (long)((seconds - floor(seconds)) * 1e9);
  n = ppoll(&p, 1, &t, mask);
  *events = p.revents;
  return n;
}

/* The next key, in so many seconds; ERR: there is none. '*gone': nor will there be. */
static int read_key(double seconds, wint_t *code, bool *gone) {
  sigset_t block, before, waiting;
  short events = 0;
  int kind;
  sigemptyset(&block);
  sigaddset(&block, SIGWINCH);
  for (int i = 0; i < DEADLY; i++)
    sigaddset(&block, deadly[i]);
  sigprocmask(SIG_BLOCK, &block, &before);
  waiting = before;
  sigdelset(&waiting, SIGTSTP);
  kind = get_wch(code);
  if (kind == ERR && caught == 0) {
    wait_input(&waiting, seconds, &events);
    kind = get_wch(code);
  }
  *gone = kind == ERR && (events & (POLLHUP | POLLERR | POLLNVAL)) != 0;
  sigprocmask(SIG_SETMASK, &before, NULL);
  return kind;
}

/***
Waits for a key.
@function key
@tparam number seconds
@treturn string|nil a character; or up, down, left, right, pgup, pgdn, home, end, tab, backtab,
enter, escape, backspace, erase (Ctrl-U), redraw (Ctrl-L), other; "resize": the terminal has another
size; "gone": it is closed. nil: none in time
*/
static int screen_key(lua_State *L) {
  double seconds = luaL_checknumber(L, 1);
  bool gone;
  wint_t code;
  int kind;
  check_open(L);
  kind = read_key(seconds > 0 ? fmin(seconds, 3600) : 0, &code, &gone);
  if (caught != 0)
    return luaL_error(L, "interrupted!"); /* the hook's error was lost, if it had run before */
  if (kind != ERR)
    push_key(L, kind, code);
  else if (gone)
    lua_pushliteral(L, "gone");
  else
    lua_pushnil(L);
  return 1;
}

/* ---------------------------------------------------------------------- module */

/***
The numbers of styles, which `|` joins; colours are 0 where there are none.
@function styles
@treturn table bold, reverse, red, green, yellow, cyan
*/
static int screen_styles(lua_State *L) {
  const struct {
    const char *name;
    lua_Integer bits;
    bool colour;
  } styles[] = {{"bold", A_BOLD, false},
                {"reverse", A_REVERSE, false},
                {"red", COLOR_PAIR(COLOR_RED), true},
                {"green", COLOR_PAIR(COLOR_GREEN), true},
                {"yellow", COLOR_PAIR(COLOR_YELLOW), true},
                {"cyan", COLOR_PAIR(COLOR_CYAN), true}};
  check_open(L);
  lua_newtable(L);
  for (size_t i = 0; i < sizeof styles / sizeof styles[0]; i++) {
    lua_pushinteger(L, styles[i].colour && !state.coloured ? 0 : styles[i].bits);
    lua_setfield(L, -2, styles[i].name);
  }
  return 1;
}

__attribute__((visibility("default"))) int luaopen_nightshift_host_screen(lua_State *L);

int luaopen_nightshift_host_screen(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"open", screen_open},     {"close", screen_close}, {"size", screen_size},
      {"put", screen_put},       {"fit", screen_fit},     {"clear", screen_clear},
      {"show", screen_show},     {"key", screen_key},     {"die", screen_die},
      {"styles", screen_styles}, {NULL, NULL}};
  luaL_newlib(L, functions);
  lua_newtable(L);
  lua_pushcfunction(L, screen_close);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  return 1;
}
