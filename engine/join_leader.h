// SPDX-License-Identifier: Apache-2.0
// The leader of a group over one or several hosts (join.h): waits for followers, checks their proofs, starts mpirun,
// and ends the group when a follower is lost. The main thread calls it.
#pragma once

#include "engine/join.h"

// `argv`: the arguments of this program, which the ranks get. *code_p is the exit code of mpirun, or 1 if a follower
// was lost or did not appear in time. Failures are those before mpirun starts.
enum status join_lead(const struct join_options *options, char **argv, int *code_p);
