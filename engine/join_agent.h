// SPDX-License-Identifier: Apache-2.0
// The launch agent (plm_rsh_agent of Open MPI): mpirun starts it with the name of a host and the command to run there.
// It passes both to the leader over a UNIX socket and waits for the answer, a sentence that is empty for success.
#pragma once

#include <stddef.h>

#include "lib/base/status.h"

enum { JOIN_AGENT_BYTES_MAX = 60 * 1024 };
extern const char join_agent_flag[]; // its first argument; the second one is the path of the socket

// Opens the leader's socket in a folder that only this user can enter.
enum status join_agent_listen(const char *path, int *fd_p);
// Accepts an agent and receives its message: the name of the host and the words of the command, each with a NUL.
// Returns INVALID if the peer is another user or sends no message.
enum status join_agent_accept(int listener, char message_p[JOIN_AGENT_BYTES_MAX], size_t *n_p, int *fd_p);
// Answers and closes. `reason` is empty for success.
void join_agent_answer(int fd, const char *reason);
