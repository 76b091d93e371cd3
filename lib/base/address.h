// SPDX-License-Identifier: Apache-2.0
// Addresses to listen on, HOST:PORT. HOST is a name, an IPv4 address, or an IPv6 address in brackets; empty: all
// addresses. Any thread. Failures are INVALID, or UNAVAILABLE where a later try may succeed: the name does not resolve,
// the port is in use, or the machine does not have the address yet.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"

// Sockets that listen on each address of the host, and their port; close() them. 0.0.0.0 stands for IPv4 alone, [::]
// for IPv6 and IPv4.
enum { ADDRESS_SOCKETS_MAX = 8 };
enum status address_listen(const char *address, int sockets[ADDRESS_SOCKETS_MAX], int *n_p, int *port_p);

// Whether accept() failed with `error` because the socket no longer listens.
bool address_listener_is_dead(int error);

// Tries to listen.
enum status address_check(const char *address);

// Whether no other machine can connect to the address.
enum status address_is_loopback(const char *address, bool *loopback_p);
