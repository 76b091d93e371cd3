// SPDX-License-Identifier: Apache-2.0
// A child process that copies a pipe to standard error. It continues to read when standard error has lost its reader.
// Some programs do not survive failed writes to their log: mpirun of Open MPI 4.1 aborts its job or crashes.
#pragma once

#include <sys/types.h>

#include "lib/base/status.h"

struct log_relay {
    pid_t pid;
    int fd; // programs write to this descriptor; closed on exec
};

// Starts the relay. It forks, so call it before other threads start. SIGPIPE must be ignored.
enum status log_relay_open(struct log_relay *relay);
// Waits up to a second until everything is copied. Every writer must have closed their copies of `fd`.
void log_relay_close(struct log_relay *relay);
