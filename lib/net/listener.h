// SPDX-License-Identifier: Apache-2.0
// Accepts the connections of a gRPC server on a separate thread, has their TLS handshakes run (lib/base/handshakes.h)
// and passes the connections to C-core. Private to net/.
//
// C-core's own listener has no limit of connections and stops for ever once accept() fails. A client can make accept()
// fail by opening as many connections as the process may have descriptors. This listener limits the number of
// connections, in total and per address. With a limit per address, an address has one handshake at a time. At the total
// limit a new connection replaces the longest-waiting connection. If no connection waits, the new connection is closed.
//
// A connection costs C-core about seven times the CPU time that it costs this listener. So the listener passes a
// connection on only after its TLS handshake, its preface and SETTINGS, and never in the middle of a header block. A
// client that breaks a limit until then does not reach C-core.
#pragma once

#include <stddef.h>

#include "lib/base/status.h"

struct net_listener;
struct net_sockets;
struct tls_server;

struct net_listener_options {
    const char *address;
    int max_connections;
    int max_per_address;    // 0: no bound
    struct tls_server *tls; // borrowed; NULL: plain text
};

// Binds and listens. Returns INVALID, with the reason, if the address cannot be used.
enum status net_listener_open(const struct net_listener_options *options, struct net_listener **listener_p);
int net_listener_port(const struct net_listener *listener);
// Passes a connection on, with the bytes that were received and checked already.
typedef void net_take_fn(void *owner, int fd, const void *early, size_t early_bytes);
// Starts the listener's thread. It adds each connection to `sockets` (borrowed) and later calls `take`.
void net_listener_start(struct net_listener *listener, struct net_sockets *sockets, net_take_fn *take, void *owner);
// Stops the thread and frees the port. `take` is not called afterwards. NULL is allowed.
void net_listener_close(struct net_listener *listener);
