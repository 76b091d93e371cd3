// SPDX-License-Identifier: Apache-2.0
// Connections of each client address (IPv6: of each /64), with a bound on them. Any thread.
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

struct address_counts;

struct address_counts *address_counts_open(int max);         // 0: no bound, and NULL, which all functions take
void address_counts_close(struct address_counts *addresses); // NULL is allowed
// False: the address has `max` connections.
bool address_counts_add(struct address_counts *addresses, const struct in6_addr *address);
void address_counts_remove(struct address_counts *addresses, const struct in6_addr *address);
// The counts do not tell them apart.
bool address_counts_are_same(const struct in6_addr *a, const struct in6_addr *b);

// An IPv4 address becomes a mapped one.
struct sockaddr_in6 address_to_ipv6(const struct sockaddr_storage *address);
