// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt_lookup.h"

#include <stdlib.h>

#include "lib/base/mem.h"

enum { BITS_MIN = 6, BITS_MAX = 20, PLACES_MAX = 32 }; // PLACES_MAX: limit of places that one search compares

void prompt_lookup_init(struct prompt_lookup *x, int capacity)
{
    *x = (struct prompt_lookup){.bits = BITS_MIN, .n = LOOKUP_MATCH_MIN};
    while (x->bits < BITS_MAX && 1 << x->bits < capacity)
        x->bits++;
    x->latest = mem_alloc_array((size_t)1 << x->bits, sizeof *x->latest);
    x->older = mem_alloc_array((size_t)capacity, sizeof *x->older);
}

void prompt_lookup_fini(struct prompt_lookup *x)
{
    free(x->latest);
    free(x->older);
    *x = (struct prompt_lookup){0};
}

// Returns the slot of the three tokens before the place.
static uint32_t slot_of(const struct prompt_lookup *x, const int32_t *tokens, int place)
{
    const int32_t *t = tokens + place - LOOKUP_MATCH_MIN;
    uint32_t hash = (uint32_t)t[0];
    hash = hash * UINT32_C(0x9e3779b1) + (uint32_t)t[1];
    hash = hash * UINT32_C(0x9e3779b1) + (uint32_t)t[2];
    return hash * UINT32_C(0x9e3779b1) >> (32 - x->bits);
}

static void extend(struct prompt_lookup *x, const int32_t *tokens, int n)
{
    for (; x->n < n; x->n++) {
        uint32_t slot = slot_of(x, tokens, x->n);
        x->older[x->n] = x->latest[slot];
        x->latest[slot] = x->n;
    }
}

// Counts equal tokens before the places a and b, where a < b.
static int common_tokens(const int32_t *tokens, int a, int b)
{
    int n = 0;
    while (n < LOOKUP_MATCH_MAX && n < a && tokens[a - 1 - n] == tokens[b - 1 - n])
        n++;
    return n;
}

int prompt_lookup_find(struct prompt_lookup *x, const int32_t *tokens, int n, int *match_p)
{
    int best = 0, longest = LOOKUP_MATCH_MIN - 1;
    extend(x, tokens, n);
    if (n < LOOKUP_MATCH_MIN) return 0;
    int place = x->latest[slot_of(x, tokens, n)];
    for (int i = 0; place && i < PLACES_MAX && longest < LOOKUP_MATCH_MAX; i++, place = x->older[place]) {
        int match = common_tokens(tokens, place, n);
        if (match <= longest) continue;
        longest = match;
        best = place;
    }
    *match_p = best ? longest : 0;
    return best;
}
