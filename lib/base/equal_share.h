// SPDX-License-Identifier: Apache-2.0
// A bound on the bytes that many hold together, such as answers that clients have not read. A few that hold much must
// not keep out the others, and many that hold little must not add up. So beyond the bound each may have an equal share
// of it, and that share shrinks to nothing as the total nears twice the bound, which it never exceeds but for small
// ones: these are let through whatever the others hold.
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { EQUAL_SHARE_SMALL_BYTES = 16 << 10 };

static inline bool equal_share_is_small(size_t bytes)
{
    return bytes <= EQUAL_SHARE_SMALL_BYTES;
}

// Bytes that each of `n` may have beyond the bound of `max` bytes, while the others hold `held`. The counts of several
// threads may be apart for a moment: `n` under 1 is 1.
static inline size_t equal_share_bytes(size_t max, size_t held, int n)
{
    size_t rest = max;
    if (held > max) rest = held - max < max ? 2 * max - held : 0;
    return n > 1 ? rest / (size_t)n : rest;
}

// Whether one that holds `own` of `all` bytes may have `more`. `others`: how many of the others are not small.
static inline bool equal_share_allows(size_t max, size_t all, size_t own, size_t more, int others)
{
    size_t held = all > own ? all - own : 0; // as above
    if (equal_share_is_small(own + more) || all + more <= max) return true;
    return own + more <= equal_share_bytes(max, held, others + 1);
}
