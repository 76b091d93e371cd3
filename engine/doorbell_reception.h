// SPDX-License-Identifier: Apache-2.0
// How the leader of a group receives its followers: any program may connect, so each stranger has a time limit of its
// own for its greeting, and the leader serves all of them at once. Private to the doorbell.
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/group_network.h"

// Host and process of a rank, for messages.
struct process_name {
    char host[256];
    int32_t pid;
};

struct greeting {
    uint8_t secret[8];
    int32_t rank;
    struct process_name name;
};

enum { RECEPTION_LISTENERS_MAX = GROUP_ADDRESSES_MAX + 1 };

// Accepts connections on the listening sockets until `take` has taken `missing` followers, for at most a minute; every
// other connection is closed. take(user, fd, greeting) decides about a whole greeting, and owns the descriptor, which
// blocks, if it returns true. INTERNAL, UNAVAILABLE.
enum status reception_run(const int *listeners, int n_listeners, int missing,
                          bool (*take)(void *user, int fd, const struct greeting *greeting), void *user);
