// SPDX-License-Identifier: Apache-2.0
#include "cli/id_set.h"

#include <stdlib.h>

#include "lib/base/mem.h"

enum { FIRST_SLOTS = 1024 };

void id_set_init(struct id_set *set)
{
    *set = (struct id_set){.key = hash_key_random(), .n_slots = FIRST_SLOTS};
    set->slots = mem_alloc_array(set->n_slots, sizeof *set->slots);
}

void id_set_fini(struct id_set *set)
{
    free(set->slots);
    *set = (struct id_set){.n = 0};
}

// Returns the slot of the hash, whose lowest bit is 0, or the free slot for it. n_slots is a power of two.
static uint64_t *slot_of(const struct id_set *set, uint64_t hash)
{
    size_t at = hash >> 20 & (set->n_slots - 1);
    while (set->slots[at] && (set->slots[at] & ~UINT64_C(1)) != hash)
        at = (at + 1) & (set->n_slots - 1);
    return &set->slots[at];
}

static uint64_t hash_of(const struct id_set *set, const char *id)
{
    uint64_t hash = hash_text(&set->key, id) & ~UINT64_C(1);
    return hash ? hash : 2;
}

static void grow(struct id_set *set)
{
    struct id_set larger = *set;
    larger.n_slots = 2 * set->n_slots;
    larger.slots = mem_alloc_array(larger.n_slots, sizeof *larger.slots);
    for (size_t i = 0; i < set->n_slots; i++)
        if (set->slots[i]) *slot_of(&larger, set->slots[i] & ~UINT64_C(1)) = set->slots[i];
    free(set->slots);
    *set = larger;
}

bool id_set_add(struct id_set *set, const char *id)
{
    if (2 * set->n >= set->n_slots) grow(set);
    uint64_t hash = hash_of(set, id), *slot = slot_of(set, hash);
    if (*slot) return false;
    *slot = hash;
    set->n++;
    return true;
}

bool id_set_has(const struct id_set *set, const char *id)
{
    return *slot_of(set, hash_of(set, id)) != 0;
}

bool id_set_mark(struct id_set *set, const char *id)
{
    uint64_t *slot = slot_of(set, hash_of(set, id));
    bool marked = *slot & 1;
    if (*slot) *slot |= 1;
    return !marked;
}

bool id_set_is_marked(const struct id_set *set, const char *id)
{
    return *slot_of(set, hash_of(set, id)) & 1;
}
