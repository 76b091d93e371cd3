// SPDX-License-Identifier: Apache-2.0
#include "lib/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/unicode.h"

// ---- Merges.

void bpe_fini(struct bpe *bpe)
{
    vocabulary_fini(&bpe->vocabulary);
    free(bpe->merge_slots);
    free(bpe->merge_table);
    free(bpe->filter.words);
    free(bpe->alone);
}

// Returns the merge of two tokens, or the empty place for it.
static struct merge *merge_find(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    uint32_t slot = (uint32_t)table_hash(&bpe->vocabulary.key, pair) & bpe->merge_mask;
    for (const struct merge *merge; (merge = &bpe->merge_table[slot])->rank != BPE_NO_MERGE;
         slot = (slot + 1) & bpe->merge_mask)
        if (merge->left == left && merge->right == right) break;
    return &bpe->merge_table[slot];
}

void bpe_merges_init(struct bpe *bpe, size_t n)
{
    bpe->merge_slots = mem_alloc_array(n, sizeof *bpe->merge_slots);
    bpe->n_merges = n;
    for (size_t i = 0; i < n; i++)
        bpe->merge_slots[i] = BPE_NO_MERGE;
    bpe->merge_mask = table_mask(n);
    bpe->merge_table = mem_alloc_array((size_t)bpe->merge_mask + 1, sizeof *bpe->merge_table);
    for (size_t i = 0; i <= bpe->merge_mask; i++)
        bpe->merge_table[i].rank = BPE_NO_MERGE;
    bpe->filter.log2_words = 1;
    while (((size_t)1 << bpe->filter.log2_words) < n / 8)
        bpe->filter.log2_words++;
    bpe->filter.words = mem_alloc_array((size_t)1 << bpe->filter.log2_words, sizeof *bpe->filter.words);
}

// A place in the filter: two bits of one word.
struct filter_place {
    size_t word;
    uint64_t bits;
};

// Returns the place for merges whose left token ends with the bytes `left`, and whose right token starts with the bytes
// `right`. Each is the token's only byte (`left_single`, `right_single`) or two bytes, the first in the higher bits.
static struct filter_place filter_place(const struct merge_filter *filter, bool left_single, unsigned left,
                                        bool right_single, unsigned right)
{
    uint64_t key = ((uint64_t)left_single << 1 | right_single) << 32 | left << 16 | right;
    uint64_t hash = key * 0x9E3779B97F4A7C15u;
    return (struct filter_place){.word = hash >> (64 - filter->log2_words),
                                 .bits = (uint64_t)1 << (hash >> 16 & 63) | (uint64_t)1 << (hash >> 22 & 63)};
}

static unsigned byte_at(const char *text)
{
    return (unsigned char)*text;
}

static unsigned two_bytes_at(const char *text)
{
    return byte_at(text) << 8 | byte_at(text + 1);
}

static void filter_add(struct bpe *bpe, const struct merge *merge)
{
    const struct vocabulary *v = &bpe->vocabulary;
    const char *end = v->token[merge->left] + v->length[merge->left], *start = v->token[merge->right];
    bool left_single = v->length[merge->left] == 1, right_single = v->length[merge->right] == 1;
    struct filter_place place =
        filter_place(&bpe->filter, left_single, left_single ? byte_at(end - 1) : two_bytes_at(end - 2), right_single,
                     right_single ? byte_at(start) : two_bytes_at(start));
    bpe->filter.words[place.word] |= place.bits;
}

const struct merge *bpe_merge_of_rank(const struct bpe *bpe, size_t rank)
{
    uint32_t slot = bpe->merge_slots[rank];
    return slot == BPE_NO_MERGE ? NULL : &bpe->merge_table[slot];
}

enum status bpe_merge_add(struct bpe *bpe, struct merge merge)
{
    struct merge *place = merge_find(bpe, merge.left, merge.right);
    if (place->rank != BPE_NO_MERGE)
        return status_fail(STATUS_DATA, "model.merges[%u] repeats model.merges[%u]", merge.rank, place->rank);
    *place = merge;
    bpe->merge_slots[merge.rank] = (uint32_t)(place - bpe->merge_table);
    filter_add(bpe, &merge);
    return STATUS_OK;
}

static bool filter_has(const struct merge_filter *filter, bool left_single, unsigned left, bool right_single,
                       unsigned right)
{
    struct filter_place place = filter_place(filter, left_single, left, right_single, right);
    return (filter->words[place.word] & place.bits) == place.bits;
}

// Returns true if a merge may join symbols at the border before byte `at` of the word. The part that ends there begins
// at byte `start`.
static bool border_can_merge(const struct bpe *bpe, const char *word, size_t n, size_t start, size_t at)
{
    const struct merge_filter *filter = &bpe->filter;
    if (filter->everything) return true;
    if (!bpe->byte_level && (word[at] & 0xC0) == 0x80) return true; // inside a character
    unsigned left = byte_at(word + at - 1), right = byte_at(word + at);
    bool left_has_two = at - start > 1, right_has_two = n - at > 1;
    if (left_has_two && right_has_two &&
        filter_has(filter, false, two_bytes_at(word + at - 2), false, two_bytes_at(word + at)))
        return true;
    if (left_has_two && filter_has(filter, false, two_bytes_at(word + at - 2), true, right)) return true;
    if (right_has_two && filter_has(filter, true, left, false, two_bytes_at(word + at))) return true;
    return filter_has(filter, true, left, true, right);
}

// ---- Merging symbols.

enum { SYMBOLS_SHORT = 24 };

void bpe_scratch_free(struct bpe_scratch *scratch)
{
    free(scratch->cells);
    free(scratch->heap);
    *scratch = (struct bpe_scratch){0};
}

// Makes room for the part's cells. Only the cells of the longest part that merges are touched.
static void cells_reserve(struct bpe_scratch *s, size_t n)
{
    if (n <= s->cells_capacity) return;
    s->cells = mem_resize(s->cells, n, sizeof *s->cells);
    s->cells_capacity = (uint32_t)n;
}

// Makes room for an entry of each symbol and for some stale entries. queue_all() removes stale entries so rarely that
// their calls take linear time together, apart from the pushes onto the heap.
static void heap_reserve(struct bpe_scratch *s)
{
    uint32_t n = s->n_symbols + s->n_symbols / 8 + 1;
    if (n <= s->heap_capacity) return;
    s->heap = mem_resize(s->heap, n, sizeof *s->heap);
    s->heap_capacity = n;
}

static void heap_push(struct bpe_scratch *s, uint64_t entry)
{
    uint32_t at = s->n_heap++;
    for (uint32_t up; at > 0 && s->heap[up = (at - 1) / 2] > entry; at = up)
        s->heap[at] = s->heap[up];
    s->heap[at] = entry;
}

static uint64_t heap_pop(struct bpe_scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    uint32_t at = 0;
    for (uint32_t down; (down = 2 * at + 1) < s->n_heap; at = down) {
        if (down + 1 < s->n_heap && s->heap[down + 1] < s->heap[down]) down++;
        if (s->heap[down] >= last) break;
        s->heap[at] = s->heap[down];
    }
    s->heap[at] = last;
    return top;
}

// Pushes the merge of the symbol at cell `i` with its successor onto the heap.
static void queue_pair(const struct bpe *bpe, struct bpe_scratch *s, uint32_t i)
{
    uint32_t next = i + s->cells[i].length;
    if (next == s->n) return;
    uint32_t rank = merge_find(bpe, s->cells[i].id, s->cells[next].id)->rank;
    if (rank != BPE_NO_MERGE) heap_push(s, (uint64_t)rank << 32 | i);
}

// Rebuilds the heap without stale entries.
static void queue_all(const struct bpe *bpe, struct bpe_scratch *s)
{
    s->n_heap = 0;
    for (uint32_t i = 0; i < s->n; i += s->cells[i].length)
        queue_pair(bpe, s, i);
}

static void merge_first(const struct bpe *bpe, struct bpe_scratch *s)
{
    uint64_t top = heap_pop(s);
    s->steps++;
    const struct merge *merge = &bpe->merge_table[bpe->merge_slots[top >> 32]];
    uint32_t i = (uint32_t)top, right = i + s->cells[i].length;
    // Skip a stale entry: the symbol or its successor has been merged since.
    if (s->cells[i].id != merge->left || right == s->n || s->cells[right].id != merge->right) return;
    uint32_t length = s->cells[i].length + s->cells[right].length;
    s->cells[right].id = -1;
    s->cells[i] = (struct bpe_cell){merge->result, length};
    s->cells[i + length - 1].length = length;
    if (i > 0) queue_pair(bpe, s, i - s->cells[i - 1].length);
    queue_pair(bpe, s, i);
}

// Completes the last symbol, which has the bytes up to byte `end` of the part.
static void symbol_close(struct bpe_scratch *s, uint32_t end)
{
    s->n = end - s->start;
    s->cells[s->last].length = s->cells[s->n - 1].length = s->n - s->last;
}

// Merges the collected symbols with a heap.
static void merge_by_heap(const struct bpe *bpe, struct bpe_scratch *s)
{
    heap_reserve(s);
    queue_all(bpe, s);
    while (s->n_heap) {
        if (s->n_heap == s->heap_capacity) queue_all(bpe, s);
        merge_first(bpe, s); // removes an entry and adds at most two
    }
}

// Result of a merge of two symbols.
struct joined {
    uint32_t rank; // BPE_NO_MERGE: nothing
    int32_t result;
};

// A symbol of a short part, in an array without gaps.
struct symbol {
    int32_t id;
    uint32_t at;        // its cell
    struct joined next; // its merge with the next symbol
};

static struct joined joined_of(const struct bpe *bpe, int32_t left, int32_t right)
{
    const struct merge *merge = merge_find(bpe, left, right);
    return (struct joined){merge->rank, merge->result};
}

// Merges the collected symbols, at most SYMBOLS_SHORT, by a search through all of them: faster than a heap for few.
static void merge_by_search(const struct bpe *bpe, struct bpe_scratch *s)
{
    struct symbol symbol[SYMBOLS_SHORT];
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i += s->cells[i].length)
        symbol[n++] = (struct symbol){.id = s->cells[i].id, .at = i, .next.rank = BPE_NO_MERGE};
    for (uint32_t i = 0; i + 1 < n; i++)
        symbol[i].next = joined_of(bpe, symbol[i].id, symbol[i + 1].id);
    for (;;) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < n; i++)
            if (symbol[i].next.rank < symbol[best].next.rank) best = i;
        if (symbol[best].next.rank == BPE_NO_MERGE) break;
        symbol[best].id = symbol[best].next.result;
        n--;
        memmove(&symbol[best + 1], &symbol[best + 2], (n - best - 1) * sizeof *symbol);
        symbol[best].next.rank = BPE_NO_MERGE;
        if (best + 1 < n) symbol[best].next = joined_of(bpe, symbol[best].id, symbol[best + 1].id);
        if (best > 0) symbol[best - 1].next = joined_of(bpe, symbol[best - 1].id, symbol[best].id);
    }
    for (uint32_t i = 0; i < n; i++)
        s->cells[symbol[i].at] = (struct bpe_cell){symbol[i].id, (i + 1 < n ? symbol[i + 1].at : s->n) - symbol[i].at};
}

// ---- Encoding one word.

struct encoding {
    const struct bpe *bpe;
    struct bpe_scratch *scratch;
    const char *word;
    size_t n;
    bool after_unknown; // the character before became the unknown token
    bpe_emit_fn *emit;
    void *user;
};

static bool has_byte_fallback(const struct bpe *bpe, const char *bytes, size_t n)
{
    if (!bpe->byte_fallback) return false;
    for (size_t i = 0; i < n; i++)
        if (bpe->byte_id[(unsigned char)bytes[i]] < 0) return false;
    return true;
}

// Adds the symbol that begins at byte `at` of the part. Bytes between two symbols belong to the first symbol.
static void symbol_push(struct bpe_scratch *s, int32_t id, size_t at)
{
    if (s->n_symbols++)
        symbol_close(s, (uint32_t)at);
    else
        s->start = (uint32_t)at;
    s->last = (uint32_t)at - s->start;
    s->cells[s->last].id = id;
}

// Adds the symbols of a character without token.
static void unknown_push(struct encoding *e, const char *bytes, size_t n, size_t at)
{
    const struct bpe *bpe = e->bpe;
    bool fallback = !bpe->byte_level && has_byte_fallback(bpe, bytes, n);
    for (size_t i = 0; fallback && i < n; i++)
        symbol_push(e->scratch, bpe->byte_id[(unsigned char)bytes[i]], at + i);
    bool fused = e->after_unknown && bpe->fuse_unknown;
    if (!fallback && bpe->unknown >= 0 && !fused) symbol_push(e->scratch, bpe->unknown, at);
    e->after_unknown = !fallback && bpe->unknown >= 0;
}

// Adds the symbols of the part: its bytes or characters.
static void symbols_collect(struct encoding *e, const char *part, size_t n)
{
    const struct bpe *bpe = e->bpe;
    e->scratch->n_symbols = 0;
    for (size_t at = 0, length = 1; at < n; at += length) {
        if (!bpe->byte_level) length = utf8_length(part[at]);
        int32_t id =
            bpe->byte_level ? bpe->byte_id[byte_at(part + at)] : vocabulary_find(&bpe->vocabulary, part + at, length);
        if (id < 0) {
            unknown_push(e, part + at, length, at);
        } else {
            symbol_push(e->scratch, id, at);
            e->after_unknown = false;
        }
    }
    if (e->scratch->n_symbols) symbol_close(e->scratch, (uint32_t)n);
}

// Encodes the bytes [start, end) of the word, which no merge joins with other bytes. Returns false if `emit` ended the
// word.
static bool part_encode(struct encoding *e, size_t start, size_t end)
{
    struct bpe_scratch *s = e->scratch;
    const char *part = e->word + start;
    size_t n = end - start;
    if (n < e->n && e->bpe->alone) { // bpe_encode() has looked for the whole word
        int32_t id = vocabulary_find(&e->bpe->vocabulary, part, n);
        if (id >= 0 && e->bpe->alone[id] & BPE_AS_PART) {
            e->after_unknown = false;
            return e->emit(e->user, id, start);
        }
    }
    cells_reserve(s, n);
    symbols_collect(e, part, n);
    if (!s->n_symbols) return true;
    if (s->n_symbols <= SYMBOLS_SHORT)
        merge_by_search(e->bpe, s);
    else
        merge_by_heap(e->bpe, s);
    for (uint32_t i = 0; i < s->n; i += s->cells[i].length)
        if (!e->emit(e->user, s->cells[i].id, start + s->start + i)) return false;
    return true;
}

bool bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, size_t n, bpe_emit_fn *emit,
                void *user)
{
    if (bpe->alone) {
        int32_t id = vocabulary_find(&bpe->vocabulary, word, n);
        if (id >= 0 && bpe->alone[id] & BPE_AS_WORD) return emit(user, id, 0);
    }
    struct encoding e = {.bpe = bpe, .scratch = scratch, .word = word, .n = n, .emit = emit, .user = user};
    size_t start = 0;
    for (size_t at = 1; at < n; at++) {
        if (border_can_merge(bpe, word, n, start, at)) continue;
        if (!part_encode(&e, start, at)) return false;
        start = at;
    }
    return n == 0 || part_encode(&e, start, n);
}

// ---- Tokens that need no merging.

struct encode_result {
    int32_t id;
    int n;
};

static bool result_emit(void *user, int32_t id, size_t start)
{
    (void)start;
    struct encode_result *result = user;
    result->id = id;
    result->n++;
    return true;
}

// Returns true if merges join symbols whose bytes differ from the text's: byte-fallback tokens such as <0x0A>, or the
// unknown token.
static bool merges_spelled_symbols(const struct bpe *bpe)
{
    bool *spelled = mem_alloc_array((size_t)bpe->vocabulary.n_ids, sizeof *spelled), found = false;
    if (bpe->unknown >= 0) spelled[bpe->unknown] = true;
    for (int byte = 0; byte < 256 && !bpe->byte_level; byte++)
        if (bpe->byte_id[byte] >= 0) spelled[bpe->byte_id[byte]] = true;
    for (size_t i = 0; i < bpe->n_merges && !found; i++) {
        const struct merge *merge = bpe_merge_of_rank(bpe, i);
        found = merge && (spelled[merge->left] || spelled[merge->right]);
    }
    free(spelled);
    return found;
}

// Returns true if a character may be dropped. Then symbols that are not adjacent in the text can merge.
static bool drops_characters(const struct bpe *bpe)
{
    bool all_bytes = bpe->byte_level || bpe->byte_fallback;
    for (int byte = 0; byte < 256; byte++)
        all_bytes &= bpe->byte_id[byte] >= 0;
    return bpe->unknown < 0 && !all_bytes;
}

void bpe_complete(struct bpe *bpe, bool ignore_merges, const bool *excluded)
{
    const struct vocabulary *v = &bpe->vocabulary;
    struct bpe_scratch scratch = {0};
    uint8_t *alone = mem_alloc_array((size_t)v->n_ids, sizeof *alone);
    bpe->filter.everything = drops_characters(bpe) || merges_spelled_symbols(bpe);
    for (int32_t id = 0; id < v->n_ids; id++) {
        if (!v->token[id] || excluded[id]) continue;
        struct encode_result result = {.id = -1};
        bpe_encode(bpe, &scratch, v->token[id], v->length[id], result_emit, &result);
        if (result.n == 1 && result.id == id) alone[id] = BPE_AS_WORD | BPE_AS_PART;
        if (ignore_merges) alone[id] |= BPE_AS_WORD;
    }
    bpe_scratch_free(&scratch);
    bpe->alone = alone;
}
