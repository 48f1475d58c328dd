/*
** The guardian. It is forked from a program that may have threads. So all of this file below
** ns_guard_start makes only async-signal-safe calls, and it ends by _exit. Its working
** directory is the home, and every name is relative. When the home is removed and another
** server is made under the same path, nothing here touches that one.
**
** One race needs care: "the server died" must not be missed while flock() blocks. SIGCHLD is
** blocked except around flock(), and its handler jumps out of it. So the signal is either
** pending when it is unblocked or arrives inside. A lock got just before the jump is simply got
** again.
**
** mariadbd 10.11 may hang for good when SIGTERM comes while it starts, so
** only a server that answers gets one. SIGKILL loses nothing: the next start
** recovers, as after a power cut.
*/
#include "private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base.h"

#define STATUS_FD 3
#define STOP_WAIT (15 * NS_SECOND)    /* SIGTERM, then SIGKILL */
#define STEADY (60 * NS_SECOND)       /* a life that forgives old deaths */
#define MAX_DEATHS 8                  /* quick deaths in a row: give up */
#define FIRST_PAUSE (NS_SECOND / 10)  /* doubles with each */
#define LONGEST_PAUSE (5 * NS_SECOND)

static sigjmp_buf child_died;

static void say(const char *text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0)
    return; /* it has no reader: nothing to do */
}

/* True when a starter was still listening. */
static bool report(ns_guard_stage stage, int status) {
  ns_guard_report r = {stage, status};
  return write(STATUS_FD, &r, sizeof r) == (ssize_t)sizeof r;
}

/* Field 'n' (from 3) of /proc/self/stat, where field 2 may contain spaces. */
static uintptr_t stat_field(const char *text, int n) {
  const char *p = strrchr(text, ')');
  uintptr_t value = 0;
  for (; p != NULL && n > 2; n--)
    p = strchr(p + 1, ' ');
  for (p = p != NULL ? p + 1 : ""; *p >= '0' && *p <= '9'; p++)
    value = value * 10 + (uintptr_t)(*p - '0');
  return value;
}

/* Writes 'title' over the command line that ps shows. So a pkill for the program that forked us
** does not hit the server of all other programs. */
static void set_title(const char *title) {
  char text[2048];
  char *args = program_invocation_name;
  size_t len = strlen(title);
  size_t room;
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  prctl(PR_SET_NAME, "nightshift-db");
  text[n > 0 ? n : 0] = '\0';
  if (args == NULL || (uintptr_t)args != stat_field(text, 48))
    return; /* it was moved; 48 and 49 are its start and end */
  room = stat_field(text, 49) - (uintptr_t)args;
  memset(args, 0, room);
  if (room > 0)
    memcpy(args, title, len < room ? len : room - 1);
}

static void close_from(int first) {
  struct rlimit limit;
  int last = 65536;
#ifdef SYS_close_range
  if (syscall(SYS_close_range, (unsigned)first, ~0u, 0u) == 0)
    return;
#endif
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 65536)
    last = (int)limit.rlim_cur;
  for (int fd = first; fd < last; fd++)
    close(fd);
}

/* stdio to the log, the pipe to STATUS_FD, everything else closed: the
** program's pipes must see their end of file when the program ends. */
static bool arrange_files(int home, int status) {
  int null;
  int log;
  if (fchdir(home) != 0)
    return false;
  status = fcntl(status, F_DUPFD, 10); /* out of the way of dup2 */
  null = open("/dev/null", O_RDWR);
  log = open("server.log", O_WRONLY | O_CREAT | O_APPEND, 0600);
  null = fcntl(null, F_DUPFD, 10);
  log = fcntl(log, F_DUPFD, 10);
  if (status < 0 || null < 0 || log < 0)
    return false;
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  dup2(status, STATUS_FD);
  close_from(STATUS_FD + 1);
  return fcntl(STATUS_FD, F_SETFD, FD_CLOEXEC) == 0;
}

static void jump(int sig) {
  (void)sig;
  siglongjmp(child_died, 1);
}

/* Default dispositions but for these; SIGCHLD blocked, nothing else. */
static void arrange_signals(void) {
  struct sigaction act;
  sigset_t set;
  memset(&act, 0, sizeof act);
  sigemptyset(&act.sa_mask);
  act.sa_handler = SIG_DFL;
  for (int sig = 1; sig < NSIG; sig++)
    sigaction(sig, &act, NULL);
  act.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &act, NULL);
  sigaction(SIGINT, &act, NULL);
  sigaction(SIGPIPE, &act, NULL);
  act.sa_handler = jump;
  sigaction(SIGCHLD, &act, NULL);
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_SETMASK, &set, NULL);
}

static void exec_child(char *const *args, char *const *env) {
  struct sigaction act;
  sigset_t none;
  memset(&act, 0, sizeof act);
  act.sa_handler = SIG_DFL; /* an ignored signal would stay ignored over exec */
  sigaction(SIGHUP, &act, NULL);
  sigaction(SIGINT, &act, NULL);
  sigaction(SIGPIPE, &act, NULL);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  execve(args[0], args, env);
  say("cannot execute ");
  say(args[0]);
  say("\n");
}

/* A child that does not outlive the guardian; -1: none. */
static pid_t spawn(char *const *args, char *const *env) {
  pid_t self = getpid();
  pid_t pid = fork();
  if (pid != 0)
    return pid;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == self)
    exec_child(args, env);
  _exit(127);
}

static int run(char *const *args, char *const *env) {
  int status = -1;
  pid_t pid = spawn(args, env);
  while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
    ;
  return status;
}

/* An empty database is a folder with its character set. It is made here, so that no log-in is
** needed before the first user's. */
static bool make_database(void) {
  static const char opt[] = "default-character-set=utf8mb4\n"
                            "default-collation=utf8mb4_bin\n";
  bool good;
  int fd;
  if (mkdir("data/nightshift", 0700) != 0)
    return errno == EEXIST;
  fd = open("data/nightshift/db.opt", O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0)
    return false;
  good = write(fd, opt, sizeof opt - 1) == (ssize_t)(sizeof opt - 1);
  return close(fd) == 0 && good;
}

static bool fail(ns_guard_stage stage, int status) {
  report(stage, status);
  return false;
}

/* data appears by a rename, so it is complete or not there. */
static bool install(const ns_guard *plan) {
  char *const wipe[] = {"/bin/rm", "-rf", "data.new", NULL};
  int status;
  if (access("data", F_OK) == 0)
    return true;
  run(wipe, plan->env);
  status = run(plan->install, plan->env);
  if (status != 0)
    return fail(NS_GUARD_INSTALL, status);
  return rename("data.new", "data") == 0 || fail(NS_GUARD_SETUP, errno);
}

/* Opens and locks; -1 when another process has the lock. */
static int take_lock(const char *name, int flags) {
  int fd = open(name, O_RDWR | O_CREAT | flags, 0600);
  if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
    return fd;
  return -1;
}

static void set_sigchld(int how) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigprocmask(how, &set, NULL);
}

/* Returns when the last user is gone: true; or the server: false. */
static bool wait_for_end(int users, pid_t server, int *status) {
  while (waitpid(server, status, WNOHANG) == 0)
    if (sigsetjmp(child_died, 1) == 0) {
      int got;
      set_sigchld(SIG_UNBLOCK);
      got = flock(users, LOCK_EX);
      set_sigchld(SIG_BLOCK);
      if (got == 0)
        return true;
      ns_sleep_us(NS_SECOND / 100); /* a full lock table, say */
    }
  return false;
}

/* Whether the home was removed while the server ran. */
static bool is_removed(int users) {
  struct stat st;
  return fstat(users, &st) == 0 && st.st_nlink == 0;
}

bool ns_guard_answers(const char *path) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  struct pollfd wait = {.events = POLLIN};
  char greeting[5]; /* length, number, first byte of the packet */
  size_t len = strlen(path);
  bool good;
  if (len >= sizeof to.sun_path)
    return false;
  memcpy(to.sun_path, path, len);
  wait.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (wait.fd < 0)
    return false;
  good = connect(wait.fd, (const struct sockaddr *)&to, sizeof to) == 0 &&
         poll(&wait, 1, 1000) == 1 &&
         recv(wait.fd, greeting, sizeof greeting, 0) == sizeof greeting;
  close(wait.fd);
  return good;
}

/* A removed home leaves nothing worth a clean shutdown, which would also
** unlink the socket of the server that may have taken its place. */
static void stop(pid_t server, bool removed) {
  int64_t end = ns_mono_us() + STOP_WAIT;
  kill(server, !removed && ns_guard_answers("s.sock") ? SIGTERM : SIGKILL);
  while (waitpid(server, NULL, WNOHANG) == 0) {
    if (ns_mono_us() > end)
      kill(server, SIGKILL);
    ns_sleep_us(NS_SECOND / 200);
  }
}

/* Pauses after a death; false: no users any more, or it dies too often. */
static bool may_restart(int users, int64_t lived, int *deaths) {
  int64_t pause;
  *deaths = lived > STEADY ? 1 : *deaths + 1;
  pause = FIRST_PAUSE << *deaths;
  ns_sleep_us(pause < LONGEST_PAUSE ? pause : LONGEST_PAUSE);
  if (flock(users, LOCK_EX | LOCK_NB) == 0)
    return false;
  if (*deaths >= MAX_DEATHS) {
    say("nightshift: mariadbd died too often, giving up\n");
    return false;
  }
  say("nightshift: mariadbd died, starting it again\n");
  return true;
}

static void serve(const ns_guard *plan, int users) {
  int deaths = 0;
  for (;;) {
    int status = 0;
    int64_t began = ns_mono_us();
    pid_t server = make_database() ? spawn(plan->serve, plan->env) : -1;
    if (server < 0) {
      report(NS_GUARD_SETUP, errno);
      return;
    }
    if (wait_for_end(users, server, &status)) {
      stop(server, is_removed(users));
      return;
    }
    if (report(NS_GUARD_SERVE, status) ||
        !may_restart(users, ns_mono_us() - began, &deaths))
      return;
  }
}

/* After kill -9 the server leaves these; a clean stop removed them. */
static void tidy(const ns_guard *plan) {
  unlink("s.sock");
  unlink("server.pid");
  if (plan->link != NULL) {
    unlink(plan->link);
    rmdir(plan->folder);
  }
}

static void guardian(const ns_guard *plan, int status) {
  int users;
  setsid();
  umask(077);
  arrange_signals();
  if (!arrange_files(plan->home, status))
    return;
  set_title(plan->title);
  users = open("users.lock", O_RDWR | O_CLOEXEC);
  if (users < 0 || take_lock("guard.lock", O_CLOEXEC) < 0 ||
      take_lock("server.lock", 0) < 0) {
    report(NS_GUARD_SETUP, errno);
    return;
  }
  if (install(plan))
    serve(plan, users);
  tidy(plan);
}

static void run_middle(const ns_guard *plan, int status) {
  if (fork() == 0)
    guardian(plan, status);
  _exit(0);
}

/* Forks twice: the guardian has no parent, so no process gets its zombie.
** Signals are blocked so that no handler of the program runs in it. */
int ns_guard_start(const ns_guard *plan) {
  sigset_t all;
  sigset_t before;
  int ends[2];
  pid_t middle;
  if (pipe2(ends, O_CLOEXEC) != 0)
    return -1;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  middle = fork();
  if (middle == 0)
    run_middle(plan, ends[1]);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  close(ends[1]);
  if (middle > 0) {
    while (waitpid(middle, NULL, 0) < 0 && errno == EINTR)
      ;
    return ends[0];
  }
  close(ends[0]);
  return -1;
}
