// SPDX-License-Identifier: Apache-2.0
// Hostile clients of one port, on a thread of their own with the lowest priority and from 127.0.0.2. A client sends the
// bytes of its kind (hostile_kinds.h) and reads nothing. Some time after the server has closed its connection, it
// connects again.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/status.h"

struct hostile_peers;

struct hostile_options {
    int port, connections, reconnect_ms;
    bool grpc, tls;
    const char *kind; // NULL: every kind, in turn
};

struct hostile_counts {
    int64_t opened, closed; // connections opened in all; connections that the server closed
    int open;
};

// STATUS_INVALID: there is no such kind.
enum status hostile_peers_start(const struct hostile_options *options, struct hostile_peers **peers_p);
struct hostile_counts hostile_peers_count(const struct hostile_peers *peers);
// Closes the connections. Returns the CPU time of the thread in seconds.
double hostile_peers_stop(struct hostile_peers *peers);
