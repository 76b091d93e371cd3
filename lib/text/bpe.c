// SPDX-License-Identifier: Apache-2.0
#include "lib/text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/text/unicode.h"

// ---- Vocabulary.

static uint32_t table_mask(size_t n)
{
    uint32_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size - 1;
}

// Multiplies by a random key, so that nobody can write a file whose tokens or merges share a slot. The hash of
// lib/base/hash.h is too slow here: each word and each symbol needs a lookup.
static uint64_t hash_mix(const struct hash_key *key, uint64_t x)
{
    __extension__ unsigned __int128 product = (unsigned __int128)(x ^ key->k0) * (key->k1 | 1);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint32_t vocabulary_slot(const struct vocabulary *vocabulary, const char *text, size_t n)
{
    uint64_t hash = n;
    for (; n >= 8; text += 8, n -= 8) {
        uint64_t word;
        memcpy(&word, text, 8);
        hash = hash_mix(&vocabulary->key, hash ^ word);
    }
    uint64_t rest = 0;
    memcpy(&rest, text, n);
    return (uint32_t)hash_mix(&vocabulary->key, hash * 31 ^ rest) & vocabulary->mask;
}

void vocabulary_init(struct vocabulary *vocabulary, int n_ids)
{
    uint32_t mask = table_mask((size_t)n_ids);
    *vocabulary = (struct vocabulary){.token = mem_alloc_array((size_t)n_ids, sizeof(char *)),
                                      .length = mem_alloc_array((size_t)n_ids, sizeof(uint32_t)),
                                      .n_ids = n_ids,
                                      .slots = mem_alloc_array((size_t)mask + 1, sizeof(int32_t)),
                                      .mask = mask,
                                      .key = hash_key_random()};
    memset(vocabulary->slots, -1, ((size_t)mask + 1) * sizeof(int32_t));
}

void vocabulary_fini(struct vocabulary *vocabulary)
{
    free(vocabulary->token);
    free(vocabulary->length);
    free(vocabulary->slots);
    *vocabulary = (struct vocabulary){0};
}

void vocabulary_add(struct vocabulary *vocabulary, int32_t id, const char *token, size_t length)
{
    uint32_t slot = vocabulary_slot(vocabulary, token, length);
    while (vocabulary->slots[slot] >= 0)
        slot = (slot + 1) & vocabulary->mask;
    vocabulary->slots[slot] = id;
    vocabulary->token[id] = token;
    vocabulary->length[id] = (uint32_t)length;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token, size_t length)
{
    uint32_t slot = vocabulary_slot(vocabulary, token, length);
    for (int32_t id; (id = vocabulary->slots[slot]) >= 0; slot = (slot + 1) & vocabulary->mask)
        if (vocabulary->length[id] == length && !memcmp(vocabulary->token[id], token, length)) return id;
    return -1;
}

// ---- Merges.

void bpe_fini(struct bpe *bpe)
{
    vocabulary_fini(&bpe->vocabulary);
    free(bpe->merges);
    free(bpe->merge_slots);
    free(bpe->self_encoded);
}

static uint32_t *merge_slot(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    uint32_t slot = (uint32_t)hash_mix(&bpe->vocabulary.key, pair) & bpe->merge_mask;
    for (uint32_t rank; (rank = bpe->merge_slots[slot]) != BPE_NO_MERGE; slot = (slot + 1) & bpe->merge_mask)
        if (bpe->merges[rank].left == left && bpe->merges[rank].right == right) break;
    return &bpe->merge_slots[slot];
}

void bpe_merges_init(struct bpe *bpe, size_t n)
{
    bpe->merges = mem_alloc_array(n, sizeof *bpe->merges);
    bpe->n_merges = n;
    for (size_t i = 0; i < n; i++)
        bpe->merges[i].left = -1;
    bpe->merge_mask = table_mask(n);
    bpe->merge_slots = mem_alloc_array((size_t)bpe->merge_mask + 1, sizeof *bpe->merge_slots);
    memset(bpe->merge_slots, -1, ((size_t)bpe->merge_mask + 1) * sizeof *bpe->merge_slots);
}

enum status bpe_merge_add(struct bpe *bpe, uint32_t rank, struct merge merge)
{
    const struct vocabulary *v = &bpe->vocabulary;
    uint32_t *slot = merge_slot(bpe, merge.left, merge.right);
    if (*slot != BPE_NO_MERGE)
        return status_fail(STATUS_DATA, "model.merges[%u] repeats model.merges[%u]", rank, *slot);
    *slot = rank;
    bpe->merges[rank] = merge;
    unsigned char tail = (unsigned char)v->token[merge.left][v->length[merge.left] - 1];
    unsigned char head = (unsigned char)v->token[merge.right][0];
    bpe->joinable[tail][head / 64] |= (uint64_t)1 << head % 64;
    return STATUS_OK;
}

static bool symbols_can_merge(const struct bpe *bpe, int32_t left, int32_t right)
{
    const struct vocabulary *v = &bpe->vocabulary;
    if (!v->length[left] || !v->length[right]) return false; // empty, or an unknown token that no text encodes to
    unsigned char tail = (unsigned char)v->token[left][v->length[left] - 1];
    unsigned char head = (unsigned char)v->token[right][0];
    return bpe->joinable[tail][head / 64] >> head % 64 & 1;
}

// ---- Encoding one word.

void bpe_scratch_free(struct bpe_scratch *scratch)
{
    free(scratch->cells);
    free(scratch->heap);
    *scratch = (struct bpe_scratch){0};
}

// Makes room for the word's cells. Only the cells of the longest part that merges are touched.
static void cells_reserve(struct bpe_scratch *s, size_t n)
{
    if (n <= s->cells_capacity) return;
    s->cells = mem_resize(s->cells, n, sizeof *s->cells);
    s->cells_capacity = (uint32_t)n;
}

// Makes room for an entry of each symbol and for some stale entries. queue_all() removes stale entries so rarely that
// all calls together take linear time.
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
    uint32_t rank = *merge_slot(bpe, s->cells[i].id, s->cells[next].id);
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
    const struct merge *merge = &bpe->merges[top >> 32];
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

// Completes the last symbol, which has the bytes up to byte `end` of the word.
static void symbol_close(struct bpe_scratch *s, size_t end)
{
    s->n = (uint32_t)(end - s->start);
    s->cells[s->last].length = s->cells[s->n - 1].length = s->n - s->last;
}

// Merges the collected symbols, which end at byte `end` of the word, emits their tokens and clears them. Returns false
// if `emit` ended the word.
static bool symbols_merge(const struct bpe *bpe, struct bpe_scratch *s, bpe_emit_fn *emit, void *user)
{
    heap_reserve(s);
    queue_all(bpe, s);
    while (s->n_heap) {
        if (s->n_heap == s->heap_capacity) queue_all(bpe, s);
        merge_first(bpe, s); // removes an entry and adds at most two
    }
    s->n_symbols = 0;
    for (uint32_t i = 0; i < s->n; i += s->cells[i].length)
        if (!emit(user, s->cells[i].id, s->start + i)) return false;
    return true;
}

// Collects the symbol that begins at byte `at` of the word. Bytes between two symbols belong to the first symbol.
static bool symbol_push(const struct bpe *bpe, struct bpe_scratch *s, int32_t id, size_t at, bpe_emit_fn *emit,
                        void *user)
{
    if (s->n_symbols) {
        symbol_close(s, at);
        if (!symbols_can_merge(bpe, s->cells[s->last].id, id) && !symbols_merge(bpe, s, emit, user)) return false;
    }
    if (!s->n_symbols) s->start = at;
    s->last = (uint32_t)(at - s->start);
    s->cells[s->last].id = id;
    s->n_symbols++;
    return true;
}

static bool has_byte_fallback(const struct bpe *bpe, const char *bytes, size_t n)
{
    if (!bpe->byte_fallback) return false;
    for (size_t i = 0; i < n; i++)
        if (bpe->byte_id[(unsigned char)bytes[i]] < 0) return false;
    return true;
}

bool bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, size_t n, bpe_emit_fn *emit,
                void *user)
{
    if (bpe->self_encoded) {
        int32_t id = vocabulary_find(&bpe->vocabulary, word, n);
        if (id >= 0 && bpe->self_encoded[id]) return emit(user, id, 0);
    }
    cells_reserve(scratch, n);
    bool after_unknown = false, going = true;
    for (size_t at = 0, length = 1; at < n && going; at += length) {
        int32_t id;
        if (bpe->byte_level) {
            id = bpe->byte_id[(unsigned char)word[at]];
        } else {
            length = utf8_length(word[at]);
            id = vocabulary_find(&bpe->vocabulary, word + at, length);
        }
        if (id >= 0) {
            going = symbol_push(bpe, scratch, id, at, emit, user);
            after_unknown = false;
        } else if (!bpe->byte_level && has_byte_fallback(bpe, word + at, length)) {
            for (size_t i = 0; i < length && going; i++)
                going = symbol_push(bpe, scratch, bpe->byte_id[(unsigned char)word[at + i]], at + i, emit, user);
            after_unknown = false;
        } else if (bpe->unknown >= 0) {
            if (!after_unknown || !bpe->fuse_unknown) going = symbol_push(bpe, scratch, bpe->unknown, at, emit, user);
            after_unknown = true;
        }
    }
    if (!going || !scratch->n_symbols) return going;
    symbol_close(scratch, n);
    return symbols_merge(bpe, scratch, emit, user);
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

void bpe_find_self_encoded(struct bpe *bpe, bool ignore_merges, const bool *excluded)
{
    const struct vocabulary *v = &bpe->vocabulary;
    struct bpe_scratch scratch = {0};
    bool *self_encoded = mem_alloc_array((size_t)v->n_ids, sizeof *self_encoded);
    for (int32_t id = 0; id < v->n_ids; id++) {
        if (!v->token[id] || excluded[id]) continue;
        struct encode_result result = {.id = -1};
        if (!ignore_merges) bpe_encode(bpe, &scratch, v->token[id], v->length[id], result_emit, &result);
        self_encoded[id] = ignore_merges || (result.n == 1 && result.id == id);
    }
    bpe_scratch_free(&scratch);
    bpe->self_encoded = self_encoded;
}
