// SPDX-License-Identifier: Apache-2.0
// Keeps child processes running. A child that ends with a failure is started again after a pause that doubles each
// time. No child outlives this process. One thread; the caller handles SIGCHLD.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/gpus.h"

enum { CHILD_WRONG_USAGE = 2, CHILD_NOT_FOUND = 127 }; // exit codes of a child that is not started again

struct child {
    const char *role;
    int index;
    int ranks;           // number of ranks; if over 1, the child is mpirun
    struct gpu_set gpus; // nodes only, if there are GPUs
    pid_t pid;           // 0: not running
    int64_t started_us;
    int64_t restart_us; // time at which to start the child again; INT64_MAX: never
    int64_t pause_ms;   // pause before the next restart
};

// Returns the command line of the child, terminated by NULL. Called in the forked child.
typedef char **child_arguments_fn(const struct child *c);

// Starts the children whose restart_us has passed. Returns the time of the next restart, or INT64_MAX if there is none.
int64_t children_start_due(struct child *children, int n, child_arguments_fn *arguments);

// Handles the children that have ended. Returns an exit code if the cluster cannot continue, else -1. If `draining` is
// true, the children are expected to end, and no child is started again.
int children_reap(struct child *children, int n, bool draining);

int children_running(const struct child *children, int n);

// Tells a child to end after its work.
void child_drain(const struct child *c);
void children_kill(const struct child *children, int n);
