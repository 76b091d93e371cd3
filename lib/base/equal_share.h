// SPDX-License-Identifier: Apache-2.0
// A bound on the bytes that many holders have together, such as answers that clients have not read. A few large holders
// must not keep out the rest, and many small holders must not add up. So once the total exceeds the bound, each holder
// may have at most an equal share of the bound. The share shrinks to nothing as the total nears twice the bound. Small
// holders are always allowed, so only they can make the total exceed twice the bound.
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { EQUAL_SHARE_SMALL_BYTES = 16 << 10 };

static inline bool equal_share_is_small(size_t bytes)
{
    return bytes <= EQUAL_SHARE_SMALL_BYTES;
}

// Returns how many bytes each of `n` holders may have in total once all holders exceed the bound of `max` bytes. `held`
// counts the bytes of the other holders. Several threads update the counts, so `n` may be wrong for a moment: a value
// under 1 counts as 1.
static inline size_t equal_share_bytes(size_t max, size_t held, int n)
{
    size_t rest = max;
    if (held > max) rest = held - max < max ? 2 * max - held : 0;
    return n > 1 ? rest / (size_t)n : rest;
}

// Returns true if a holder with `own` of the `all` bytes may have `more` bytes in addition. `others` is the number of
// other holders that are not small.
static inline bool equal_share_allows(size_t max, size_t all, size_t own, size_t more, int others)
{
    size_t held = all > own ? all - own : 0; // the counts may disagree for a moment
    if (equal_share_is_small(own + more) || all + more <= max) return true;
    return own + more <= equal_share_bytes(max, held, others + 1);
}
