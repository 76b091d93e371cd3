// SPDX-License-Identifier: Apache-2.0
// Finds the client's address of a request that came through proxies, in X-Forwarded-For or Forwarded (RFC 7239). Every
// proxy appends the address of its peer, so only the entries of trusted proxies can be believed: the last address that
// is no trusted proxy is the client. Does no input or output. Any thread may call.
#pragma once

#include <netinet/in.h>
#include <stdbool.h>

#include "lib/base/status.h"

enum { NETWORKS_MAX = 64 };

struct networks {
    int n;
    struct {
        struct in6_addr address; // IPv4 addresses are mapped
        int bits;                // length of the prefix, counted from the start of the IPv6 address
    } list[NETWORKS_MAX];
};

// Parses "10.0.0.0/8,192.0.2.7,2001:db8::/32". Returns INVALID with a sentence that names the bad entry. NULL: none.
enum status networks_parse(const char *text, struct networks *networks);
bool networks_have(const struct networks *networks, const struct in6_addr *address);

// The headers of one request so far. The members belong to forwarded.c.
struct forwarded {
    struct forwarded_hops {
        const struct networks *trusted;
        struct in6_addr client;
        bool known, present; // `client` is known; there is such a header
    } plain, pairs;          // of X-Forwarded-For and of Forwarded
};

struct forwarded forwarded_begin(const struct networks *trusted); // borrows `trusted`
// Takes a header of the request, in the order of the request. Other headers have no effect.
void forwarded_take(struct forwarded *f, const char *name, const char *value);
// Returns the client's address of a request that came from the trusted proxy `peer`. Returns `peer` if no header names
// the client, or if both headers are given and differ: a client may have sent the header that the proxy does not write.
struct in6_addr forwarded_client(const struct forwarded *f, const struct in6_addr *peer);
