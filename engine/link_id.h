// SPDX-License-Identifier: Apache-2.0
// Numbers of requests within a node. Every router numbers its requests by itself, so a node that is attached to several
// routers adds the index of the link to the router's number. Numbers of link 0 are those of its router.
#pragma once

#include <stdint.h>

enum { NODE_LINKS_MAX = 32 }; // limit of routers of a node

enum { LINK_ID_SHIFT = 56 };

static inline int link_id_link(uint64_t request)
{
    return (int)(request >> LINK_ID_SHIFT);
}

static inline uint64_t link_id_number(uint64_t request)
{
    return request & (((uint64_t)1 << LINK_ID_SHIFT) - 1);
}

static inline uint64_t link_id_make(int link, uint64_t number)
{
    return (uint64_t)link << LINK_ID_SHIFT | number;
}

// Numbers of the requests of one link.
struct link_load {
    uint32_t running, waiting;
};
