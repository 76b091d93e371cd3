// SPDX-License-Identifier: Apache-2.0
// The doorbell wakes the followers of a group: one socket from the leader to each follower, a UNIX socket on the
// leader's host, TCP across hosts.
//
// Waiting inside MPI burns a core, so between two passes a follower waits on its socket instead. It polls for about a
// millisecond, in which the leader samples and schedules, and then sleeps in the kernel. The leader cannot know which
// followers sleep, so it writes to every socket ("rings") before every pass. A write costs about 2 us. The message
// states the size of the broadcast that follows. End of file means that the peer is gone.
//
// One thread per rank makes all calls: the thread that uses the comm.
#pragma once

#include <stdint.h>

#include "kernels/comm.h"

struct doorbell;

// The message of one ring.
struct ring {
    uint32_t kind;       // defined by the caller
    uint32_t size_bytes; // size of the broadcast that follows
    int32_t timeout_ms;  // limit of the pass, see engine_set_step_timeout()
};

// Called by all ranks. The leader broadcasts its address and a random secret over the comm, and closes connections that
// do not send the secret. The leader listens only while the group opens. It listens by TCP only if there are ranks on
// other hosts, and then prefers its address in a network that all hosts are connected to (group_network.h).
enum status doorbell_open(struct comm *comm, struct doorbell **bell_p);
void doorbell_close(struct doorbell *bell);

enum status doorbell_ring(struct doorbell *bell, struct ring ring);    // leader
enum status doorbell_wait(struct doorbell *bell, struct ring *ring_p); // follower; UNAVAILABLE: the leader is gone

// Return the socket to a rank, and the name of a rank for logs: "rank 3 (host gpu-2, pid 4711)". The leader may ask for
// any rank, and for its own name. A follower may ask only for rank 0.
enum { DOORBELL_NAME_MAX = 128 };
int doorbell_socket(const struct doorbell *bell, int rank);
const char *doorbell_name(const struct doorbell *bell, int rank, char name[DOORBELL_NAME_MAX]);

// Called by all ranks; returns the same status on all of them. The status is STATUS_OK if `mine` is STATUS_OK on every
// rank, else the status of the lowest rank that failed. That rank keeps its error sentence, and the other ranks get an
// empty sentence.
enum status doorbell_agree(struct doorbell *bell, enum status mine);
