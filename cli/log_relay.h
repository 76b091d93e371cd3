// SPDX-License-Identifier: Apache-2.0
// A child process that copies a pipe to standard error, and reads on when standard error has lost its reader. It serves
// programs that do not survive failed writes to their log: mpirun of Open MPI 4.1 aborts its job or crashes.
//
// With a log file, every line goes to the file, and standard error gets only what is no log line of level info or
// debug.
#pragma once

#include <sys/types.h>

#include "lib/base/status.h"

struct log_relay {
    pid_t pid;
    int fd;        // where to write; closed on exec
    int stderr_fd; // copy of standard error while log_relay_take_stderr() has replaced it; else -1
};

// Forks, so call it before other threads start. SIGPIPE must be ignored. `file`: descriptor of the log file, -1: none.
enum status log_relay_open(struct log_relay *relay, int file);
// Makes the relay the standard error of this process and of the children that it starts.
enum status log_relay_take_stderr(struct log_relay *relay);
// Gives standard error back and waits up to a second until everything is copied: all writers must have closed their
// copies of `fd`.
void log_relay_close(struct log_relay *relay);
