// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding (arXiv 1508.07909): a vocabulary, the merges in order of priority, and merging with a heap, in
// O(n log n) for any word of n symbols. Immutable once built; a scratch belongs to one thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

// Token strings with their ids: a hash table with open addressing.
struct vocabulary {
    const char **token; // [n_ids], NULL for an unused id; borrowed
    uint32_t *length;   // [n_ids] bytes
    int n_ids;          // largest id + 1
    int32_t *slots;     // id or -1; owned, as the arrays above
    uint32_t mask;
    struct hash_key key;
};

void vocabulary_init(struct vocabulary *vocabulary, int n_ids);
void vocabulary_fini(struct vocabulary *vocabulary);
// `token` [length] must outlive the vocabulary. At most one string per id, one id per string.
void vocabulary_add(struct vocabulary *vocabulary, int32_t id, const char *token, size_t length);
int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token, size_t length); // -1: none

struct merge {
    int32_t left, right, result;
    uint32_t rank; // position in the file: merges of lower rank go first
};

struct bpe {
    struct vocabulary vocabulary; // of the symbols
    struct merge *merges;         // owned hash table of `merge_mask` + 1 slots; left -1: empty
    uint32_t merge_mask;
    // Bit b of joinable[a]: some merge joins a token ending in byte a with one starting with byte b. Where no merge can
    // join two neighbours the word is split, which keeps the heap small for models without pre-tokenizer.
    uint64_t joinable[256][4];
    int32_t byte_id[256]; // byte-level: token of a byte; else token of the byte fallback "<0x0A>"; -1: none
    bool byte_level;      // symbols are bytes; else characters
    bool byte_fallback;
    int32_t unknown; // id for a character without token; -1: such characters are dropped
    bool fuse_unknown;
    bool *self_encoded; // [n_ids], owned: text equal to this token encodes to this token
};

void bpe_fini(struct bpe *bpe);

// Room for `n` merges.
void bpe_merges_init(struct bpe *bpe, size_t n);
// DATA: these two tokens already have a merge.
enum status bpe_merge_add(struct bpe *bpe, struct merge merge);
// After the last merge: marks the tokens to which their own text encodes (all of them if `ignore_merges`), except
// `excluded` [n_ids]: special tokens, which plain text must never become.
void bpe_find_self_encoded(struct bpe *bpe, bool ignore_merges, const bool *excluded);

struct bpe_symbol {
    int32_t id;
    uint32_t rank;          // of the merge with the next symbol; BPE_NO_MERGE: none
    int32_t result;         // of that merge
    int32_t previous, next; // neighbours, -1 at the ends
    size_t start;           // byte offset in the word
};

struct bpe_scratch {
    struct bpe_symbol *symbols; // symbols being merged
    int n, capacity;
    uint64_t *heap; // rank << 32 | symbol: lowest rank first, then leftmost
    int n_heap, heap_capacity;
    uint64_t steps; // taken from the heap so far: fewer than three per byte of text
};

void bpe_scratch_free(struct bpe_scratch *scratch);

// Receives each id with its byte offset in the word, in order. False ends the word: its other ids are not needed.
typedef bool bpe_emit_fn(void *user, int32_t id, size_t start);

// False when `emit` ended the word.
bool bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, size_t n, bpe_emit_fn *emit,
                void *user);
