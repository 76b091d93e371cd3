// SPDX-License-Identifier: Apache-2.0
// Accepts the connections of a gRPC server, on a thread of its own, and hands them over to C-core. Private to net/.
//
// C-core's own listener has no bound on connections and stops for ever once accept() fails, for which a client needs
// only as many connections as the process may have descriptors. Here a connection waits until it has sent its first
// bytes, and the number of connections has a bound. At the bound the connection that has been silent for longest is
// closed in favour of a new one; if none is silent, the new one is closed.
#pragma once

#include "base/status.h"

struct net_listener;

// Binds and listens; INVALID with the reason.
enum status net_listener_open(const char *address, int max_connections, struct net_listener **listener_p);
int net_listener_port(const struct net_listener *listener);
// Calls take(owner, fd) for each connection from now on, on the listener's thread; `take` owns the descriptor.
void net_listener_start(struct net_listener *listener, void (*take)(void *owner, int fd), void *owner);
// Afterwards the port is free and `take` is not called. NULL is allowed.
void net_listener_close(struct net_listener *listener);
