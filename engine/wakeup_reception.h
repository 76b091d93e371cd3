// SPDX-License-Identifier: Apache-2.0
// Receives the connections of a group's followers, on the leader. Any program may connect. So the leader serves all
// connections without a complete greeting (strangers) at the same time, each with its own time limit. Private to
// wakeup.c.
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/group_network.h"
#include "lib/base/status.h"

// Host and process of a rank, for messages.
struct process_name {
    char host[256];
    int32_t pid;
};

// The first message of a follower on a new connection.
struct greeting {
    uint8_t secret[8];
    int32_t rank;
    struct process_name name;
};

enum { RECEPTION_LISTENERS_MAX = GROUP_ADDRESSES_MAX + 1 };

// Accepts connections on the listening sockets until `take` has accepted `missing` followers, for at most a minute.
// Calls take(user, fd, greeting) for each complete greeting. If `take` returns true, it owns the descriptor, which is
// blocking. Closes every other connection. Returns INTERNAL or UNAVAILABLE on failure.
enum status reception_run(const int *listeners, int n_listeners, int missing,
                          bool (*take)(void *user, int fd, const struct greeting *greeting), void *user);
