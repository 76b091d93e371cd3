// SPDX-License-Identifier: Apache-2.0
// Counts the connections of each client address and limits their number. Bars an address for a while if its connections
// break limits too often. All addresses of an IPv6 network (/64) count as one address. Any thread may call.
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct address_counts;

// Opens counts with a limit of `max` connections per address. If `max` is 0 there is no limit: the result is NULL,
// which all functions accept.
struct address_counts *address_counts_open(int max);
void address_counts_close(struct address_counts *addresses); // NULL is allowed
// Counts one more connection of the address. Returns false if the address has `max` connections already.
bool address_counts_add(struct address_counts *addresses, const struct in6_addr *address);
void address_counts_remove(struct address_counts *addresses, const struct in6_addr *address);

// An address may offend OFFENCES_MAX times in a burst, and once more each second. One more offence bars it for
// BARRED_US. At most OFFENDERS_MAX addresses without a connection are remembered; one more forgets the oldest.
enum { OFFENCES_MAX = 10, BARRED_US = 10000000, OFFENDERS_MAX = 4096 };
// Records an offence of a connection that is counted at present.
void address_counts_offend(struct address_counts *addresses, const struct in6_addr *address, int64_t now_us);
bool address_counts_is_barred(struct address_counts *addresses, const struct in6_addr *address, int64_t now_us);

// Returns true if both addresses share one count.
bool address_counts_are_same(const struct in6_addr *a, const struct in6_addr *b);

// Converts an address to IPv6. An IPv4 address becomes a mapped address.
struct sockaddr_in6 address_to_ipv6(const struct sockaddr_storage *address);
