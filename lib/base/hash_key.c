// SPDX-License-Identifier: Apache-2.0
// Separate from hash.c, so that a simulation can replace it at link time.
#include <sys/random.h>

#include "lib/base/hash.h"
#include "lib/base/invariant.h"

struct hash_key hash_key_random(void)
{
    struct hash_key key;
    do {
        ssize_t n = getrandom(&key, sizeof key, 0);
        INVARIANT(n == (ssize_t)sizeof key, "getrandom() returned %zd of %zu bytes", n, sizeof key);
    } while (!key.k0 && !key.k1);
    return key;
}
