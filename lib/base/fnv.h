// SPDX-License-Identifier: Apache-2.0
// FNV-1a, 64 bits, for fingerprints and checksums of our own data. The result is the same in every process. For keys
// that clients choose, see hash.h. Thread-safe.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FNV_START UINT64_C(0xcbf29ce484222325)

// Adds bytes to `state`, which starts as FNV_START. Returns the new state.
static inline uint64_t fnv1a(uint64_t state, const void *bytes, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        state = (state ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return state;
}
