// SPDX-License-Identifier: Apache-2.0
// Any text through a real tokenizer: the first byte chooses byte-level BPE, BPE of pieces with byte fallback, or the
// demo model's. Tokens decode to the text they came from, and merging takes a bounded number of steps and of bytes of
// memory for each byte.
#include "lib/base/utf8.h"
#include "lib/text/tokenizer_parts.h"
#include "tests/fuzz/fuzz.h"

enum { BYTES, PIECES, DEMO, TOKENIZERS };
enum { MERGE_STEPS_PER_BYTE = 3 };

static const struct tokenizer *tokenizer_of(int which)
{
    static const char *const dirs[] = {FUZZ_SOURCE "/tests/data/tokenizers/bytes",
                                       FUZZ_SOURCE "/tests/data/tokenizers/pieces",
                                       FUZZ_SOURCE "/deploy/demo-model/main"};
    static struct tokenizer *tokenizers[TOKENIZERS];
    if (!tokenizers[which]) FUZZ_CHECK(tokenizer_open(dirs[which], &tokenizers[which]) == STATUS_OK);
    return tokenizers[which];
}

static bool count_id(void *user, int32_t id, size_t start)
{
    (*(int *)user)++;
    return true;
}

// Checks the whole text as one word that no pre-tokenizer has cut.
static void check_merges(const struct tokenizer *tokenizer, const char *text, size_t n)
{
    struct bpe_scratch scratch = {0};
    int ids = 0;
    FUZZ_CHECK(bpe_encode(&tokenizer->bpe, &scratch, text, n, count_id, &ids));
    FUZZ_CHECK(scratch.steps <= MERGE_STEPS_PER_BYTE * n && (size_t)ids <= n);
    size_t memory = scratch.cells_capacity * sizeof *scratch.cells + scratch.heap_capacity * sizeof *scratch.heap;
    FUZZ_CHECK(memory <= BPE_BYTES_PER_BYTE * n + sizeof *scratch.heap);
    bpe_scratch_free(&scratch);
}

// Returns true if decoding gives the text itself. The first tokenizer normalizes characters other than ASCII, and the
// second one spells a blank like the character U+2581.
static bool comes_back(int which, const char *text, size_t n)
{
    bool ascii = true;
    for (size_t i = 0; i < n; i++)
        ascii &= (unsigned char)text[i] < 0x80;
    return ascii || which == DEMO || (which == PIECES && !memmem(text, n, TOKENIZER_METASPACE, 3));
}

static void check_decoded(int which, const int32_t *ids, int n_ids, const char *text, size_t n)
{
    char *back;
    size_t n_back;
    FUZZ_CHECK(tokenizer_decode(tokenizer_of(which), ids, n_ids, 0, &back, &n_back) == STATUS_OK);
    if (comes_back(which, text, n)) FUZZ_CHECK(n_back == n && memcmp(back, text, n) == 0);
    free(back);
}

// Checks that a wholly untrusted text gives the same tokens as one with no special tokens. A lower limit refuses it.
static void check_untrusted(const struct tokenizer *tokenizer, const int32_t *ids, int n_ids, const char *text,
                            size_t n)
{
    const struct text_range all = {0, n};
    int32_t *same;
    size_t *starts;
    int n_same;
    enum status status = tokenizer_encode_untrusted(tokenizer, text, n, TOKENIZER_PARSE_SPECIAL, &all, 1, n_ids, &same,
                                                    &starts, &n_same);
    FUZZ_CHECK(status == STATUS_OK && n_same == n_ids && memcmp(same, ids, (size_t)n_ids * sizeof *ids) == 0);
    for (int i = 0; i < n_ids; i++)
        FUZZ_CHECK(starts[i] < n && (!i || starts[i] >= starts[i - 1]));
    free(same);
    free(starts);
    if (!n_ids) return;
    status = tokenizer_encode_untrusted(tokenizer, text, n, 0, NULL, 0, n_ids - 1, &same, NULL, &n_same);
    FUZZ_CHECK(status == STATUS_OUT_OF_RANGE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size};
    int which = fuzz_below(&script, TOKENIZERS);
    const struct tokenizer *tokenizer = tokenizer_of(which);
    const char *text = script.left ? (const char *)script.at : "";
    size_t n = script.left;
    int32_t *ids;
    int n_ids;
    enum status status = tokenizer_encode(tokenizer, text, n, 0, &ids, &n_ids);
    FUZZ_CHECK((status == STATUS_OK) == utf8_valid(text, n, NULL));
    if (status != STATUS_OK) return 0;
    for (int i = 0; i < n_ids; i++)
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < tokenizer_vocab_size(tokenizer));
    FUZZ_CHECK((size_t)n_ids >= tokenizer_min_tokens(tokenizer, text, n));
    check_merges(tokenizer, text, n);
    check_decoded(which, ids, n_ids, text, n);
    check_untrusted(tokenizer, ids, n_ids, text, n);
    free(ids);
    return 0;
}
