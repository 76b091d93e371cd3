// SPDX-License-Identifier: Apache-2.0
// A child process that copies a pipe to standard error, and continues to read the pipe when standard error has lost its
// reader. It is needed because some programs do not survive failed writes to their log: mpirun of Open MPI 4.1 aborts
// its job or crashes.
//
// If there is a log file, every line goes to the file. Standard error then gets all lines except log lines of level
// info and debug.
#pragma once

#include <sys/types.h>

#include "lib/base/status.h"

struct log_relay {
    pid_t pid;
    int fd;        // programs write to this descriptor; closed on exec
    int stderr_fd; // copy of standard error while log_relay_take_stderr() has replaced it; else -1
};

// Starts the relay by a fork, so call it before other threads start. SIGPIPE must be ignored. `file` is the descriptor
// of the log file, or -1 if there is none.
enum status log_relay_open(struct log_relay *relay, int file);
// Makes the relay the standard error of this process and of the children that it starts.
enum status log_relay_take_stderr(struct log_relay *relay);
// Restores standard error and waits up to a second until everything is copied. Every writer must have closed its
// copy of `fd`.
void log_relay_close(struct log_relay *relay);
