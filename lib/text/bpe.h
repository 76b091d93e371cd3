// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding (arXiv 1508.07909). Holds the vocabulary and the merges in order of priority. Merges with a heap,
// in O(n log n) time for a word of n symbols. Immutable once built; a scratch belongs to one thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/hash.h"
#include "lib/base/status.h"

// Token strings with their ids: a hash table with open addressing.
struct vocabulary {
    const char **token; // [n_ids], NULL for an unused id; borrowed
    uint32_t *length;   // [n_ids] bytes
    int n_ids;          // largest id + 1
    int32_t *slots;     // [mask + 1] ids, or -1; owned, like the arrays above
    uint32_t mask;
    struct hash_key key;
};

void vocabulary_init(struct vocabulary *vocabulary, int n_ids);
void vocabulary_fini(struct vocabulary *vocabulary);
// Adds a token. `token` [length] must outlive the vocabulary. Each id has at most one string, and each string one id.
void vocabulary_add(struct vocabulary *vocabulary, int32_t id, const char *token, size_t length);
int32_t vocabulary_find(const struct vocabulary *vocabulary, const char *token, size_t length); // -1 if there is none

struct merge {
    int32_t left, right, result;
};

struct bpe {
    struct vocabulary vocabulary; // vocabulary of the symbols
    struct merge *merges; // [n_merges] by rank, owned. A lower rank goes first; left is -1 for a rank without a merge
    size_t n_merges;
    uint32_t *merge_slots; // owned hash table of `merge_mask` + 1 ranks; BPE_NO_MERGE: empty
    uint32_t merge_mask;
    // Bit b of joinable[a]: some merge joins a token that ends in byte a with a token that starts with byte b. The word
    // is split between neighbours that no merge can join, which keeps the heap small for models without pre-tokenizer.
    uint64_t joinable[256][4];
    int32_t byte_id[256]; // byte-level: token of a byte; else token of the byte fallback "<0x0A>"; -1 if there is none
    bool byte_level;      // symbols are bytes; else characters
    bool byte_fallback;
    int32_t unknown; // id for a character without token; -1: such characters are dropped
    bool fuse_unknown;
    bool *self_encoded; // [n_ids], owned: true if a text equal to this token encodes to this token
};

void bpe_fini(struct bpe *bpe);

#define BPE_NO_MERGE UINT32_MAX

// Makes room for the merges of ranks 0 to `n` - 1.
void bpe_merges_init(struct bpe *bpe, size_t n);
// Adds a merge. Returns DATA if these two tokens already have a merge.
enum status bpe_merge_add(struct bpe *bpe, uint32_t rank, struct merge merge);
// Call it once, after the last bpe_merge_add(). Marks each token whose text encodes to this one token, or all tokens if
// `ignore_merges`. Excludes `excluded` [n_ids]: special tokens, which plain text must never become.
void bpe_find_self_encoded(struct bpe *bpe, bool ignore_merges, const bool *excluded);

// One cell for each byte of the word. A symbol has one or more cells. Its first and its last cell have its length, so
// both neighbours are found without links (boundary tags, Knuth, The Art of Computer Programming 1, 2.5).
struct bpe_cell {
    int32_t id;      // id of the symbol that begins here; -1: that symbol was merged with the symbol before it
    uint32_t length; // bytes of the symbol that begins or ends here
};

// Limit of memory: a word of n bytes takes at most BPE_BYTES_PER_BYTE * n bytes.
enum { BPE_BYTES_PER_BYTE = 17, BPE_WORD_LIMIT_BYTES = 1 << 30 };

struct bpe_scratch {
    struct bpe_cell *cells; // [n] cells of the part of the word that is being merged
    uint32_t n, cells_capacity;
    size_t start;                   // offset in the word of cells[0]
    uint32_t n_symbols, last;       // number of symbols collected; first cell of the last symbol
    uint64_t *heap;                 // rank << 32 | cell: the lowest rank first, then the leftmost symbol
    uint32_t n_heap, heap_capacity; // entries
    uint64_t steps;                 // entries taken from the heap so far: fewer than three per byte of text
};

void bpe_scratch_free(struct bpe_scratch *scratch);

// Receives each id with its byte offset in the word, in order. Returns false to end the word, if its remaining ids are
// not needed.
typedef bool bpe_emit_fn(void *user, int32_t id, size_t start);

// Encodes a word of `n` bytes, at most BPE_WORD_LIMIT_BYTES. Returns false if `emit` ended the word.
bool bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *word, size_t n, bpe_emit_fn *emit,
                void *user);
