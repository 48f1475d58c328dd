/*
** One host of a kind on this machine: whoever binds a name has it.
*/
#ifndef NSH_PROCESS_SINGLE_H
#define NSH_PROCESS_SINGLE_H

#include "ns_buf.h"

/*
** Takes a name for this process, until it ends, however it ends; the processes that a
** host forks do not keep it. 1: it is ours; 0: another process has it; -1: errno says
** why nobody knows.
*/
int nsh_single_take(ns_bytes name);

#endif
