// SPDX-License-Identifier: Apache-2.0
// Finds the client's address of a request that came through proxies, in X-Forwarded-For or Forwarded (RFC 7239). Every
// proxy appends the address of its peer, so only the entries of trusted proxies can be believed: the last address that
// is no trusted proxy is the client. Does no input or output. Any thread.
#pragma once

#include <netinet/in.h>
#include <stdbool.h>

#include "lib/base/status.h"

enum { HTTP_NETWORKS_MAX = 64 };

struct http_networks {
    int n;
    struct {
        struct in6_addr address; // IPv4 addresses are mapped
        int bits;                // length of the prefix, counted from the start of the IPv6 address
    } list[HTTP_NETWORKS_MAX];
};

// Parses "10.0.0.0/8,192.0.2.7,2001:db8::/32". Returns INVALID with a sentence that names the bad entry. NULL: none.
enum status http_networks_parse(const char *text, struct http_networks *networks);
bool http_networks_have(const struct http_networks *networks, const struct in6_addr *address);

// Returns the client's address of a request that came from the trusted proxy `peer`. `fields` are pairs as in
// http_pair(). Returns `peer` if no header names the client, or if both headers are given and differ: a client may have
// sent the header that the proxy does not write.
struct in6_addr http_forwarded_client(const struct http_networks *trusted, const struct in6_addr *peer,
                                      const char *fields);
