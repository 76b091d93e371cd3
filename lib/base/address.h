// SPDX-License-Identifier: Apache-2.0
// Addresses to listen on, in the form HOST:PORT. Checks their syntax, opens listening sockets, and finds out if other
// machines can reach an address. HOST is a name, an IPv4 address, or an IPv6 address in brackets. An empty HOST means
// all addresses. Any thread may call. Failures return INVALID, or UNAVAILABLE if a later try may succeed: the name does
// not resolve, the port is in use, or the machine does not have the address yet.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"

// Opens one listening socket for each address of the host. The caller close()s the *n_p sockets. *port_p is their port.
// 0.0.0.0 means only IPv4, [::] means IPv6 and IPv4.
enum { ADDRESS_SOCKETS_MAX = 8 };
enum status address_listen(const char *address, int sockets[ADDRESS_SOCKETS_MAX], int *n_p, int *port_p);

// Returns true if accept() failed with `error` because the socket no longer listens.
bool address_listener_is_dead(int error);

// Checks that a process can listen on the address: opens the sockets and closes them again.
enum status address_check(const char *address);

// Finds out if the address is a loopback address, to which no other machine can connect.
enum status address_is_loopback(const char *address, bool *loopback_p);
