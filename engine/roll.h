// SPDX-License-Identifier: Apache-2.0
// The roll call of a group that hangs: which ranks do not answer, or have not come to where the others wait.
//
// A rank that waits, in MPI, on the GPU or for a socket, cannot answer itself. So every rank has a thread that does
// nothing else, asleep until it is asked, and lines of its own (a second doorbell) from the leader to each follower.
// The leader's thread calls the roll, for itself or for a follower that asks. It costs the token loop two stores a
// pass.
#pragma once

#include "kernels/comm.h"

struct roll;

// A rank whose machine is short of memory may be slow to answer. Still within what separates the limits of those that
// look at the clock, see engine.c.
enum { ROLL_SENTENCE_MAX = 640, ROLL_PATIENCE_MS = 10000 };

enum roll_result {
    ROLL_COMPLETE, // all ranks answer
    ROLL_AWAITED,  // all answer, and the others wait for some
    ROLL_SILENT,   // some do not answer
};

// All ranks together. The comm, whose `waits` tells whether this rank waits for others, must outlive it.
enum status roll_open(struct comm *comm, struct roll **roll_p);
void roll_close(struct roll *roll);

// By the working thread, around what all ranks do together: opening, then every pass.
void roll_enter(struct roll *roll);
void roll_leave(struct roll *roll);

// By any thread: asks everybody, and waits for answers up to `patience_ms`. The sentence names ranks with their hosts
// and processes: "rank 3 (host gpu-2, pid 4711) does not answer".
enum roll_result roll_call(struct roll *roll, int patience_ms, char sentence[ROLL_SENTENCE_MAX]);
