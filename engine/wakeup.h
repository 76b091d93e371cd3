// SPDX-License-Identifier: Apache-2.0
// The wake-up sockets of a group: one from the leader to each follower, a UNIX socket on the leader's host, TCP across
// hosts.
//
// Waiting inside MPI burns a core, so between two passes a follower waits on its socket instead. It polls for about a
// millisecond, in which the leader samples and schedules, and then sleeps in the kernel. The leader cannot know which
// followers sleep, so it writes a message to every socket before every pass; a write costs about 2 us. The message
// states the size of the broadcast that follows. End of file means that the peer is gone.
//
// All calls come from one thread per rank, the thread that uses the comm.
#pragma once

#include <stdint.h>

#include "kernels/comm.h"

struct wakeup;

// The message that the leader sends to every follower.
struct wakeup_message {
    uint32_t kind;       // defined by the caller
    uint32_t size_bytes; // of the broadcast that follows
    int32_t timeout_ms;  // of the pass, see engine_set_step_timeout()
};

// Called by all ranks. The comm carries the leader's address and a random secret; the leader closes connections that
// do not send the secret. The leader listens while the group opens: by TCP only if there are ranks on other hosts, and
// then on its address in a network that all hosts are connected to, if there is one (group_network.h).
enum status wakeup_open(struct comm *comm, struct wakeup **wakeup_p);
void wakeup_close(struct wakeup *wakeup);

enum status wakeup_send(struct wakeup *wakeup, struct wakeup_message message); // leader
enum status wakeup_wait(struct wakeup *wakeup,
                        struct wakeup_message *message_p); // follower; UNAVAILABLE: the leader is gone

// The socket to a rank, and the name of a rank for logs: "rank 3 (host gpu-2, pid 4711)". The leader may ask for any
// rank, also for its own name; a follower for rank 0 only.
enum { WAKEUP_NAME_MAX = 128 };
int wakeup_socket(const struct wakeup *wakeup, int rank);
const char *wakeup_name(const struct wakeup *wakeup, int rank, char name[WAKEUP_NAME_MAX]);

// Called by all ranks; returns the same status on all of them: STATUS_OK when `mine` was that on every rank, else the
// status of the lowest rank that failed. That rank keeps its sentence, the others get an empty one.
enum status wakeup_agree(struct wakeup *wakeup, enum status mine);
