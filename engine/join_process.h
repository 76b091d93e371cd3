// SPDX-License-Identifier: Apache-2.0
// The processes that a leader or follower starts: mpirun or orted, and their children. One thread only.
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "lib/base/status.h"

// Returns NOT_FOUND with a sentence if PATH has no such program of Open MPI.
enum status join_program_check(const char *name);

// Blocks SIGCHLD and returns a descriptor (signalfd) of SIGTERM, SIGINT, SIGUSR1, SIGHUP and SIGCHLD, which the process
// has blocked. Ignores SIGPIPE. Orphans of children become children of this process.
enum status join_signals_open(int *fd_p);

// Starts a program of PATH with default signals. It gets SIGTERM if this process ends. Returns INTERNAL or NOT_FOUND.
enum status join_process_start(const char *const *arguments, pid_t *pid_p);
// Returns true if a child has ended. *code_p is its exit code, or 128 and the number of the signal that ended it.
bool join_process_reap(pid_t *pid_p, int *code_p);
// Sends a signal to the children of a process.
void join_process_signal_children(pid_t parent, int signal);
// Ends all children and their children, and waits for them.
void join_process_end_all(void);
