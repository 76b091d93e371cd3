// SPDX-License-Identifier: Apache-2.0
// The search asks for a packing with one bin fewer than the best so far. It places the longest item first, like the
// heuristics, but tries every bin that can make a difference.
#include "bench/pack_exact.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bench/pack_offline.h"
#include "lib/base/mem.h"

// ---- the lower bound ------------------------------------------------------------------------------------------------

static int size_compare_descending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x < y) - (x > y);
}

// Returns the number of sizes above `limit`. Sizes are in descending order.
static int sizes_above(const int32_t *size, int n, int32_t limit)
{
    int from = 0, to = n;
    while (from < to) {
        int middle = (from + to) / 2;
        if (size[middle] > limit)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

// Returns a lower bound of the number of bins. sum[i] is the sum of size[0 .. i). Each prompt longer than half a bin
// needs its own bin. Take a threshold of at most half a bin. Small prompts are between the threshold and half a bin. A
// large prompt that leaves less room than the threshold shares its bin with no small prompt. The small prompts that
// exceed the room next to the other large prompts need further bins.
static int sizes_lower_bound(const int32_t *size, const int64_t *sum, int n, int32_t capacity)
{
    int large = sizes_above(size, n, capacity / 2), best = (int)((sum[n] + capacity - 1) / capacity);
    if (large > best) best = large;
    for (int end = n; end > large; end--) {
        int32_t threshold = size[end - 1];
        if (end < n && threshold == size[end]) continue; // equal sizes count together
        int alone = sizes_above(size, n, capacity - threshold);
        int64_t room = (int64_t)(large - alone) * capacity - (sum[large] - sum[alone]), left = sum[end] - sum[large];
        int bins = large + (left > room ? (int)((left - room + capacity - 1) / capacity) : 0);
        if (bins > best) best = bins;
    }
    return best;
}

int pack_lower_bound(const int32_t *length, int n, int32_t capacity)
{
    if (n <= 0) return 0;
    int32_t *size = mem_copy(length, (size_t)n * sizeof *size);
    int64_t *sum = mem_alloc_array((size_t)n + 1, sizeof *sum);
    qsort(size, (size_t)n, sizeof *size, size_compare_descending);
    for (int i = 0; i < n; i++)
        sum[i + 1] = sum[i] + size[i];
    int bound = sizes_lower_bound(size, sum, n, capacity);
    free(sum);
    free(size);
    return bound;
}

// ---- the search -----------------------------------------------------------------------------------------------------

struct search {
    const int32_t *size; // [n] descending
    const int64_t *left; // [n + 1] sum of size[i .. n)
    int n, bins;         // items; bins allowed
    int32_t *room;       // [bins]
    int32_t *bin_of;     // [n]
    int64_t nodes;       // steps left
};

// Returns true if the remaining items exceed the usable room. Bins too full for the shortest item have no usable room.
static bool search_is_hopeless(const struct search *s, int item)
{
    int64_t usable = 0;
    for (int b = 0; b < s->bins; b++)
        if (s->room[b] >= s->size[s->n - 1]) usable += s->room[b];
    return s->left[item] > usable;
}

// Returns the next bin to try, or -1 if there is none: the item fits, and the room is the smallest above `room`.
// One bin stands for all bins of equal room. Bins before `from` are skipped: equal items go into bins in ascending
// order, or the search would visit permutations of one packing.
static int search_next_bin(const struct search *s, int32_t size, int32_t room, int from)
{
    int best = -1;
    for (int b = from; b < s->bins; b++)
        if (s->room[b] >= size && s->room[b] > room && (best < 0 || s->room[b] < s->room[best])) best = b;
    return best;
}

// Places the items from `item` on. Returns false if they do not fit or no steps are left.
static bool search_place(struct search *s, int item)
{
    if (item == s->n) return true;
    if (s->nodes-- <= 0 || search_is_hopeless(s, item)) return false;
    int32_t size = s->size[item], room = -1;
    int from = item && s->size[item - 1] == size ? s->bin_of[item - 1] : 0;
    if (!s->room[from]) from = 0; // the equal item filled that bin exactly, so it does not restrict this item
    for (int b; (b = search_next_bin(s, size, room, from)) >= 0;) {
        room = s->room[b];
        s->bin_of[item] = b;
        s->room[b] -= size;
        if (search_place(s, item + 1)) return true;
        s->room[b] += size;
        if (room == size || s->nodes <= 0) return false; // filling a bin exactly is never worse than another bin
    }
    return false;
}

struct item {
    int32_t size, index;
};

static int item_compare_descending(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? 1 : -1;
    return x->index - y->index;
}

static int pack_heuristic(const int32_t *length, int n, int32_t capacity, int32_t *bin_of)
{
    int32_t *other = mem_alloc_array((size_t)n, sizeof *other);
    int best = pack_items(length, n, capacity, PACK_BEST_FIT, bin_of);
    int first = pack_items(length, n, capacity, PACK_FIRST_FIT, other);
    if (first < best) memcpy(bin_of, other, (size_t)n * sizeof *other);
    free(other);
    return first < best ? first : best;
}

int pack_exact(const int32_t *length, int n, int32_t capacity, int64_t max_nodes, int32_t *bin_of, int *lower_p)
{
    *lower_p = pack_lower_bound(length, n, capacity);
    if (n <= 0) return 0;
    int best = pack_heuristic(length, n, capacity, bin_of);
    struct item *items = mem_alloc_array((size_t)n, sizeof *items);
    int32_t *memory = mem_alloc_array((size_t)n * 2 + (size_t)best, sizeof *memory);
    int64_t *left = mem_alloc_array((size_t)n + 1, sizeof *left);
    for (int i = 0; i < n; i++)
        items[i] = (struct item){length[i], i};
    qsort(items, (size_t)n, sizeof *items, item_compare_descending);
    for (int i = n - 1; i >= 0; i--)
        left[i] = left[i + 1] + (memory[i] = items[i].size);
    struct search s = {memory, left, n, 0, memory + 2 * n, memory + n, max_nodes};
    while (best > *lower_p) {
        s.bins = best - 1;
        for (int b = 0; b < s.bins; b++)
            s.room[b] = capacity;
        if (search_place(&s, 0)) {
            for (int i = 0; i < n; i++)
                bin_of[items[i].index] = s.bin_of[i];
            best = s.bins;
        } else {
            if (s.nodes > 0) *lower_p = best; // the search was complete
            break;
        }
    }
    free(left);
    free(memory);
    free(items);
    return best;
}
