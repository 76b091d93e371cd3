// SPDX-License-Identifier: Apache-2.0
// The leader's mpirun: its folder for the launch agent, its arguments and environment. One thread only.
#pragma once

#include <sys/types.h>

#include "engine/join.h"

struct join_mpirun {
    char *folder, *socket,
        *agent;    // a folder that only this user can enter; the launch agent's socket and program in it
    char *program; // path of this program
    pid_t pid;     // 0: not running
};

enum { JOIN_HOST_NAME_BYTES = 48 };
// Writes the name by which mpirun knows a follower. It is no host name, so mpirun finds no address for it.
void join_host_name(int number, char name[JOIN_HOST_NAME_BYTES]);

// Makes the folder. Returns INTERNAL if TMPDIR and /tmp cannot be used.
enum status join_mpirun_prepare(struct join_mpirun *mpirun);
// Starts mpirun, whose ranks get the arguments of this program, `argv`.
enum status join_mpirun_start(struct join_mpirun *mpirun, const struct join_options *options, char **argv);
// Removes the folder.
void join_mpirun_finish(struct join_mpirun *mpirun);
