// SPDX-License-Identifier: Apache-2.0
// Addresses to listen on, HOST:PORT: their syntax, sockets that listen there, and if other machines can reach them.
// HOST is a name, an IPv4 address, or an IPv6 address in brackets. An empty HOST means all addresses. Any thread.
// Failures are INVALID, or UNAVAILABLE if a later try may succeed: the name does not resolve, the port is in use, or
// the machine does not have the address yet.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"

// Opens sockets that listen on each address of the host, and returns their port. close() the sockets. 0.0.0.0 means
// IPv4 alone, [::] means IPv6 and IPv4.
enum { ADDRESS_SOCKETS_MAX = 8 };
enum status address_listen(const char *address, int sockets[ADDRESS_SOCKETS_MAX], int *n_p, int *port_p);

// Returns true if accept() failed with `error` because the socket no longer listens.
bool address_listener_is_dead(int error);

// Tries to listen, and closes the sockets again.
enum status address_check(const char *address);

// Finds out if the address is a loopback address, to which no other machine can connect.
enum status address_is_loopback(const char *address, bool *loopback_p);
