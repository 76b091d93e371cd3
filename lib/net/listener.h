// SPDX-License-Identifier: Apache-2.0
// Accepts the connections of a gRPC server on a separate thread, shakes hands and hands them over to C-core. Private to
// net/.
//
// C-core's own listener has no bound on connections and stops for ever once accept() fails; a client can cause that by
// opening as many connections as the process may have descriptors. This listener bounds the number of connections, of
// all clients and of one address, and hands a connection over only after its first bytes or its TLS handshake. Where
// connections of an address are bounded, an address has one handshake at a time. At the bound a new connection
// replaces the one that has waited for longest; if no connection waits, the new one is closed.
#pragma once

#include "lib/base/status.h"

struct net_listener;
struct net_sockets;
struct net_tls;

struct net_listener_options {
    const char *address;
    int max_connections;
    int max_per_address; // 0: no bound
    struct net_tls *tls; // borrowed; NULL: plain text
};

// Binds and listens; INVALID with the reason.
enum status net_listener_open(const struct net_listener_options *options, struct net_listener **listener_p);
int net_listener_port(const struct net_listener *listener);
// From now on each connection becomes one of `sockets` (borrowed), and take(owner, fd) is called for it on the
// listener's thread.
void net_listener_start(struct net_listener *listener, struct net_sockets *sockets, void (*take)(void *owner, int fd),
                        void *owner);
// Afterwards the port is free and `take` is not called. NULL is allowed.
void net_listener_close(struct net_listener *listener);
