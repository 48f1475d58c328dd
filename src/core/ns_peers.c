/*
** The ring of holders. Ids order it; whoever comes behind the last is the first.
*/
#include "ns_peers.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WATCHED_MIN 16 /* a death must not hide behind holders that sleep */

enum { P_ID, P_HOST, P_PID, P_PLACE, P_DEAD, P_BEAT, P_SILENT, P_FREE };

void ns_place(char out[NS_PLACE]) {
  char boot[40] = "";
  char space[24] = "";
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot - 1) : 0;
  if (fd >= 0)
    close(fd);
  boot[n > 0 ? strcspn(boot, "\n") : 0] = '\0';
  n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  space[n > 0 ? n : 0] = '\0';
  snprintf(out, NS_PLACE, "%.36s %.23s", boot, space);
}

/* Dead, and not waited for yet by its parent. */
static bool is_zombie(pid_t pid) {
  char path[40];
  char text[256];
  const char *state;
  ssize_t n;
  int fd;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
    return false;
  n = read(fd, text, sizeof text - 1);
  close(fd);
  text[n > 0 ? n : 0] = '\0';
  state = strrchr(text, ')'); /* "pid (name) S …" */
  return state != NULL && (strncmp(state, ") Z", 3) == 0 ||
                           strncmp(state, ") X", 3) == 0);
}

/* Where we cannot know, it counts as there. */
static bool process_gone(const ns_value *row) {
  char here[NS_PLACE];
  ns_bytes place = row[P_PLACE].s;
  pid_t pid = (pid_t)row[P_PID].i;
  ns_place(here);
  if (place.n != strlen(here) || memcmp(place.p, here, place.n) != 0)
    return false;
  return kill(pid, 0) != 0 ? errno == ESRCH : is_zombie(pid);
}

bool ns_peers_add(ns_peers *p, const ns_value *row) {
  if (!ns_grow(&p->items, &p->cap, p->n + 1, sizeof *p->items))
    return false;
  p->items[p->n++] = (ns_peer){
      .id = row[P_ID].i, .beat = row[P_BEAT].i, .silent = row[P_SILENT].i,
      .is_host = row[P_HOST].i != 0, .dead = row[P_DEAD].i != 0,
      .free = row[P_FREE].i != 0, .gone = process_gone(row)};
  return true;
}

void ns_peers_free(ns_peers *p) {
  free(p->items);
  *p = (ns_peers){0};
}

int64_t ns_peers_watched(const ns_peers *p, int64_t me, bool is_host,
                         ns_buf *others) {
  int64_t neighbour = 0;
  size_t first = 0;
  size_t watched = 0;
  ns_buf_reset(others);
  while (first < p->n && p->items[first].id <= me)
    first++;
  for (size_t i = 0; i < p->n; i++) {
    const ns_peer *x = &p->items[(first + i) % p->n];
    if (x->id == me || x->dead || x->free)
      continue;
    if (neighbour == 0)
      neighbour = x->id;
    else
      ns_buf_addf(others, "%c%lld", others->n > 0 ? ',' : '[', (long long)x->id);
    if (++watched >= WATCHED_MIN && (!is_host || x->is_host))
      break;
  }
  ns_buf_adds(others, others->n > 0 ? "]" : "[]");
  return neighbour;
}
