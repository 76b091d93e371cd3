// SPDX-License-Identifier: Apache-2.0
// Lengths are small integers, so the sort is a radix sort, and best fit finds the smallest sufficient room in a bitmap
// over rooms instead of a balanced tree: three or four words are read per item.
#include "bench/pack_offline.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

// Sets order[] to the items from the longest to the shortest, equal ones in their given order (like the reference's
// sort). A radix sort on capacity - length, least significant digit first.
static void sort_decreasing(const int32_t *length, int n, int32_t capacity, int32_t *order)
{
    int32_t *spare = mem_alloc_array((size_t)n, sizeof *spare);
    int32_t *from = spare, *to = order;
    int passes = 0;
    for (uint32_t rest = (uint32_t)capacity; rest; rest >>= 8)
        passes++;
    if (passes % 2 == 0) from = order, to = spare; // the last pass writes to `order`
    for (int i = 0; i < n; i++)
        from[i] = i;
    for (int pass = 0; pass < passes; pass++) {
        int start[257] = {0};
        for (int i = 0; i < n; i++)
            start[(((uint32_t)(capacity - length[i]) >> (8 * pass)) & 255) + 1]++;
        for (int digit = 0; digit < 256; digit++)
            start[digit + 1] += start[digit];
        for (int i = 0; i < n; i++)
            to[start[((uint32_t)(capacity - length[from[i]]) >> (8 * pass)) & 255]++] = from[i];
        int32_t *swap = from;
        from = to;
        to = swap;
    }
    assert(from == order);
    free(spare);
}

// --- the set of rooms: a bitmap with a bit per room, and above it a bit per non-empty word, up to one word

enum { LEVELS_MAX = 6 }; // 64^6 > 2^31

struct room_set {
    int levels;
    int64_t words[LEVELS_MAX];
    uint64_t *word[LEVELS_MAX]; // in one block of memory
};

static void room_set_init(struct room_set *set, int64_t n)
{
    int64_t sum = 0;
    set->levels = 0;
    do {
        n = (n + 63) / 64;
        set->words[set->levels++] = n;
        sum += n;
    } while (n > 1);
    set->word[0] = mem_alloc_array((size_t)sum, sizeof(uint64_t));
    for (int l = 1; l < set->levels; l++)
        set->word[l] = set->word[l - 1] + set->words[l - 1];
}

static void room_set_fini(struct room_set *set)
{
    free(set->word[0]);
}

static void room_set_add(struct room_set *set, int64_t room)
{
    for (int l = 0; l < set->levels; l++, room >>= 6)
        set->word[l][room >> 6] |= UINT64_C(1) << (room & 63);
}

static void room_set_remove(struct room_set *set, int64_t room)
{
    for (int l = 0; l < set->levels; l++, room >>= 6) {
        set->word[l][room >> 6] &= ~(UINT64_C(1) << (room & 63));
        if (set->word[l][room >> 6]) return;
    }
}

// Returns the smallest room of the set that is at least `room`, or -1.
static int64_t room_set_at_least(const struct room_set *set, int64_t room)
{
    for (int l = 0; l < set->levels; l++, room = (room >> 6) + 1) {
        if (room >> 6 >= set->words[l]) return -1;
        uint64_t bits = set->word[l][room >> 6] & (~UINT64_C(0) << (room & 63));
        if (!bits) continue;
        room = (room & ~INT64_C(63)) + __builtin_ctzll(bits);
        while (l-- > 0)
            room = room * 64 + __builtin_ctzll(set->word[l][room]);
        return room;
    }
    return -1;
}

// --- the earliest bin of equal room: a pairing heap per room, with links indexed by bin, since a bin has one room
// only. Bins count from 1 here and 0 is none, so that zeroed memory is an empty heap.

struct bin_heap {
    int32_t *child, *sibling;
};

static int32_t heap_meld(struct bin_heap *heap, int32_t a, int32_t b)
{
    if (!a || !b) return a ? a : b;
    if (b < a) {
        int32_t swap = a;
        a = b;
        b = swap;
    }
    heap->sibling[b] = heap->child[a];
    heap->child[a] = b;
    return a;
}

// Returns the heap without its first bin: melds its children in pairs, then the pairs from the last to the first.
static int32_t heap_without_first(struct bin_heap *heap, int32_t first)
{
    int32_t pairs = 0, merged = 0;
    for (int32_t bin = heap->child[first]; bin;) {
        int32_t other = heap->sibling[bin], next = other ? heap->sibling[other] : 0;
        heap->sibling[bin] = 0;
        if (other) heap->sibling[other] = 0;
        bin = heap_meld(heap, bin, other);
        heap->sibling[bin] = pairs;
        pairs = bin;
        bin = next;
    }
    while (pairs) {
        int32_t next = heap->sibling[pairs];
        heap->sibling[pairs] = 0;
        merged = heap_meld(heap, merged, pairs);
        pairs = next;
    }
    heap->child[first] = 0;
    return merged;
}

static int best_fit(const int32_t *length, const int32_t *order, int n, int32_t capacity, int32_t *bin_of)
{
    struct room_set rooms;
    room_set_init(&rooms, (int64_t)capacity + 1);
    size_t n_rooms = (size_t)capacity + 1, n_links = (size_t)n + 1;
    int32_t *first =
        mem_alloc_array(n_rooms + 2 * n_links, sizeof *first); // by room; followed by the heaps' links, by bin
    struct bin_heap heap = {first + n_rooms, first + n_rooms + n_links};
    int32_t shortest = length[order[n - 1]];
    int n_bins = 0;
    for (int i = 0; i < n; i++) {
        int32_t size = length[order[i]], bin;
        int64_t room = room_set_at_least(&rooms, size);
        if (room < 0) {
            room = capacity;
            bin = ++n_bins;
        } else {
            bin = first[room];
            first[room] = heap_without_first(&heap, bin);
            if (!first[room]) room_set_remove(&rooms, room);
        }
        room -= size;
        if (room >= shortest) { // otherwise no further item fits
            if (!first[room]) room_set_add(&rooms, room);
            first[room] = heap_meld(&heap, first[room], bin);
        }
        bin_of[order[i]] = bin - 1;
    }
    free(first);
    room_set_fini(&rooms);
    return n_bins;
}

// Uses a tournament tree over the bins: room_max[node] is the largest room below the node. Unopened bins have all their
// room.
static int first_fit(const int32_t *length, const int32_t *order, int n, int32_t capacity, int32_t *bin_of)
{
    int leaves = 1, n_bins = 0;
    while (leaves < n)
        leaves *= 2;
    int32_t *room_max = mem_alloc_array((size_t)leaves * 2, sizeof *room_max);
    for (int node = 1; node < 2 * leaves; node++)
        room_max[node] = capacity;
    for (int i = 0; i < n; i++) {
        int32_t size = length[order[i]];
        int node = 1;
        while (node < leaves)
            node = room_max[2 * node] >= size ? 2 * node : 2 * node + 1;
        bin_of[order[i]] = node - leaves;
        if (node - leaves >= n_bins) n_bins = node - leaves + 1;
        room_max[node] -= size;
        while ((node /= 2) >= 1)
            room_max[node] = room_max[2 * node] > room_max[2 * node + 1] ? room_max[2 * node] : room_max[2 * node + 1];
    }
    free(room_max);
    return n_bins;
}

int pack_items(const int32_t *length, int n, int32_t capacity, enum pack_rule rule, int32_t *bin_of)
{
    if (n <= 0) return 0;
    for (int i = 0; i < n; i++)
        assert(length[i] >= 1 && length[i] <= capacity);
    int32_t *order = mem_alloc_array((size_t)n, sizeof *order);
    sort_decreasing(length, n, capacity, order);
    int n_bins = rule == PACK_BEST_FIT ? best_fit(length, order, n, capacity, bin_of)
                                       : first_fit(length, order, n, capacity, bin_of);
    free(order);
    return n_bins;
}
