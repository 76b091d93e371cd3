// SPDX-License-Identifier: Apache-2.0
// How the leader wakes its followers: one socket to each, a UNIX socket on the leader's host, TCP across hosts.
//
// Waiting inside MPI burns a core, so between two steps a follower waits here: it looks at the socket for about a
// millisecond (the leader samples and schedules in that time) and then sleeps in the kernel. Every step is rung, even
// in a row: the leader cannot know whether a follower sleeps yet, and a send costs some 2 us. So no wake-up is lost,
// and the ring carries the size of the broadcast that follows. End of file means that the other side is gone.
//
// One thread per rank makes all calls, the one that uses the comm.
#pragma once

#include <stdint.h>

#include "kernels/comm.h"

struct doorbell;

struct ring {
    uint32_t kind;       // the caller's
    uint32_t size_bytes; // of the broadcast that follows
    int32_t limit_ms;    // how long a step may take, see engine_set_step_timeout
};

// All ranks together; the comm carries the leader's addresses. Strangers that connect meanwhile are turned away by a
// random number.
enum status doorbell_open(struct comm *comm, struct doorbell **bell_p);
void doorbell_close(struct doorbell *bell);

enum status doorbell_ring(struct doorbell *bell, struct ring ring);    // leader
enum status doorbell_wait(struct doorbell *bell, struct ring *ring_p); // follower; UNAVAILABLE: the leader is gone

// The socket to a rank, and its name for people: "rank 3 (host gpu-2, pid 4711)". The leader may ask for every rank,
// the name of its own included; a follower for rank 0 alone.
enum { DOORBELL_NAME_MAX = 128 };
int doorbell_line(const struct doorbell *bell, int rank);
const char *doorbell_name(const struct doorbell *bell, int rank, char name[DOORBELL_NAME_MAX]);

// All ranks together: whether all did well. STATUS_OK on every rank when `mine` was that on every rank; else the
// status of the lowest rank that failed, on every rank. There the sentence stays; elsewhere it becomes empty.
enum status doorbell_agree(struct doorbell *bell, enum status mine);
