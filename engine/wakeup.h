// SPDX-License-Identifier: Apache-2.0
// Manages the wake-up sockets of a group. The leader has a socket to each follower: a UNIX socket if both are on one
// host, else TCP.
//
// Waiting inside MPI keeps a core busy, so between two passes a follower waits on its socket instead. It polls for
// about a millisecond, the usual time in which the leader samples and schedules, and then sleeps in the kernel. The
// leader cannot know which followers sleep, so it writes a message to every socket before every pass; a write costs
// about 2 us. The message states the size of the broadcast that follows. End of file means that the peer is gone.
//
// Each rank calls these functions from one thread, the thread that uses the comm.
#pragma once

#include <stdint.h>

#include "kernels/comm.h"

struct wakeup;

// The message that the leader sends to every follower.
struct wakeup_message {
    uint32_t kind;       // defined by the caller
    uint32_t size_bytes; // size of the broadcast that follows
    int32_t timeout_ms;  // time limit of the pass, see engine_set_step_timeout()
};

// Opens the sockets. Called by all ranks. The comm carries the leader's address and a random secret. The leader closes
// connections that do not send the secret. It listens only while the group opens. It uses TCP only if there are ranks
// on other hosts, and prefers an address in a network that connects all hosts (group_network.h).
enum status wakeup_open(struct comm *comm, struct wakeup **wakeup_p);
void wakeup_close(struct wakeup *wakeup);

enum status wakeup_send(struct wakeup *wakeup, struct wakeup_message message); // leader
enum status wakeup_wait(struct wakeup *wakeup,
                        struct wakeup_message *message_p); // follower; UNAVAILABLE if the leader is gone

// Return the socket to a rank, and a rank's name for logs: "rank 3 (host gpu-2, pid 4711)". The leader may ask for any
// rank, and for its own name. A follower may ask for rank 0 only.
enum { WAKEUP_NAME_MAX = 128 };
int wakeup_socket(const struct wakeup *wakeup, int rank);
const char *wakeup_name(const struct wakeup *wakeup, int rank, char name[WAKEUP_NAME_MAX]);

// Agrees on a status. Called by all ranks. Returns the same status on all ranks: STATUS_OK if `mine` is STATUS_OK on
// every rank, otherwise the status of the lowest failed rank. Only that rank keeps its status_message(); the message of
// the other ranks is empty. Exception: if a follower is gone and the leader has not failed, the leader returns
// UNAVAILABLE with a message that names the follower.
enum status wakeup_agree(struct wakeup *wakeup, enum status mine);
