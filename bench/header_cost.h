// SPDX-License-Identifier: Apache-2.0
// CPU time of the router's own parsers for each byte of headers: the sizes of HTTP/2 header blocks, and HTTP/1.1 heads.
#pragma once

enum { HEADER_COSTS = 6 };

struct header_cost {
    const char *protocol, *form;
    double ns_per_byte; // of the encoded bytes; the least of several runs
};

void header_costs_measure(struct header_cost costs[HEADER_COSTS]);
