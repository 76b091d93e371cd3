// SPDX-License-Identifier: Apache-2.0
// Counts and bounds the connections of each client address (IPv6: of each /64). Any thread.
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

struct address_counts;

struct address_counts *address_counts_open(int max); // 0 means no bound: returns NULL, which all functions accept
void address_counts_close(struct address_counts *addresses); // NULL is allowed
// Returns false if the address has `max` connections already.
bool address_counts_add(struct address_counts *addresses, const struct in6_addr *address);
void address_counts_remove(struct address_counts *addresses, const struct in6_addr *address);

// Converts an address to IPv6. An IPv4 address becomes a mapped address.
struct sockaddr_in6 address_to_ipv6(const struct sockaddr_storage *address);
