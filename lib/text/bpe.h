// SPDX-License-Identifier: Apache-2.0
// Byte pair encoding (arXiv 1508.07909). Holds the vocabulary and the merges in order of priority. Merges with a heap,
// in O(n log n) time for a word of n symbols. Immutable once built; a scratch belongs to one thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "lib/text/vocabulary.h"

#define BPE_NO_MERGE UINT32_MAX

struct merge {
    int32_t left, right, result;
    uint32_t rank; // a lower rank goes first
};

// A Bloom filter of the places where merges can happen. bpe_encode() splits a word wherever no merge can join the bytes
// before and after. Most parts are then a token, or merge quickly, even in models without pre-tokenizer and in scripts
// without blanks. The filter holds a pair for each merge: the last two bytes of its left token and the first two bytes
// of its right token, or the only byte of a token that has one.
struct merge_filter {
    uint64_t *words; // owned; 1 << `log2_words`
    int log2_words;
    bool everything; // merges join spelled bytes ("<0x0A>"), which the bytes of a text do not show: no word is divided
};

// How a text that equals a token becomes this one token.
enum bpe_alone {
    BPE_AS_WORD = 1, // if it is a whole word
    BPE_AS_PART = 2, // if it is a part of a word
};

struct bpe {
    struct vocabulary vocabulary; // vocabulary of the symbols
    struct merge *merge_table;    // owned hash table of `merge_mask` + 1 merges; rank BPE_NO_MERGE: empty
    uint32_t *merge_slots;        // [n_merges] places in the table by rank, owned; BPE_NO_MERGE: no merge of this rank
    size_t n_merges;
    uint32_t merge_mask;
    struct merge_filter filter;
    int32_t byte_id[256]; // byte-level: token of a byte; else token of the byte fallback "<0x0A>"; -1 if there is none
    bool byte_level;      // symbols are bytes; else characters
    bool byte_fallback;
    int32_t unknown; // id for a character without token; -1: such characters are dropped
    bool fuse_unknown;
    uint8_t *alone; // [n_ids] enum bpe_alone, owned
};

void bpe_fini(struct bpe *bpe);

// Makes room for the merges of ranks 0 to `n` - 1.
void bpe_merges_init(struct bpe *bpe, size_t n);
// Adds a merge. Returns DATA if these two tokens already have a merge.
enum status bpe_merge_add(struct bpe *bpe, struct merge merge);
// Returns NULL if no merge has this rank.
const struct merge *bpe_merge_of_rank(const struct bpe *bpe, size_t rank);
// Call it once, after the last bpe_merge_add(). Fills `alone`: a token is a part if its text encodes
// to this one token, and also a word if so or if `ignore_merges`. Excludes `excluded` [n_ids]: special tokens, which
// plain text must never become.
void bpe_complete(struct bpe *bpe, bool ignore_merges, const bool *excluded);

// One cell for each byte of the word. A symbol has one or more cells. Its first and its last cell have its length, so
// both neighbours are found without links (boundary tags, Knuth, The Art of Computer Programming 1, 2.5).
struct bpe_cell {
    int32_t id;      // id of the symbol that begins here; -1: that symbol was merged with the symbol before it
    uint32_t length; // bytes of the symbol that begins or ends here
};

// Limit of memory: a word of n bytes takes at most BPE_BYTES_PER_BYTE * n bytes.
enum { BPE_BYTES_PER_BYTE = 17, BPE_WORD_LIMIT_BYTES = 1 << 30 };

struct bpe_scratch {
    struct bpe_cell *cells; // [n] cells of the part that is being merged
    uint32_t n, cells_capacity;
    uint32_t start;                 // offset in the part of cells[0]: fused unknown characters may come before
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
