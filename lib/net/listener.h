// SPDX-License-Identifier: Apache-2.0
// Accepts the connections of a gRPC server on a separate thread and hands them over to C-core. Private to net/.
//
// C-core's own listener has no bound on connections and stops for ever once accept() fails; a client can cause that by
// opening as many connections as the process may have descriptors. This listener bounds the number of connections, of
// all clients and of one address, and hands a connection over only after its first bytes. At the bound a new connection
// replaces the one that has been silent for longest; if no connection is silent, the new one is closed.
#pragma once

#include "lib/base/status.h"

struct net_listener;

// Binds and listens; INVALID with the reason. max_per_address 0: no bound.
enum status net_listener_open(const char *address, int max_connections, int max_per_address,
                              struct net_listener **listener_p);
int net_listener_port(const struct net_listener *listener);
// Calls take(owner, fd) for each connection from now on, on the listener's thread; `take` owns the descriptor.
void net_listener_start(struct net_listener *listener, void (*take)(void *owner, int fd), void *owner);
// Afterwards the port is free and `take` is not called. NULL is allowed.
void net_listener_close(struct net_listener *listener);
