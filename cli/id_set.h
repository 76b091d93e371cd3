// SPDX-License-Identifier: Apache-2.0
// A set of ids with a mark for each. Keeps 64 bits of a hash per id, not the ids: two of a million ids seem equal with
// a probability of 1 in 10 million. Owned by its caller.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/hash.h"

struct id_set {
    struct hash_key key;
    uint64_t *slots; // [n_slots] hashes, 0: free; the lowest bit is the mark. Owned
    size_t n_slots, n;
};

void id_set_init(struct id_set *set);
void id_set_fini(struct id_set *set);
bool id_set_add(struct id_set *set, const char *id); // returns false if the set has the id
bool id_set_has(const struct id_set *set, const char *id);
// Marks an id of the set. Returns false if it was marked before.
bool id_set_mark(struct id_set *set, const char *id);
bool id_set_is_marked(const struct id_set *set, const char *id);
