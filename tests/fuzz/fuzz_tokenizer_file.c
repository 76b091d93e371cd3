// SPDX-License-Identifier: Apache-2.0
// tokenizer.json and tokenizer_config.json (NUL between them). An accepted tokenizer keeps the bounds of its header
// (ids, lengths of tokens) for a few texts.
#include "lib/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/fuzz_folder.h"

enum { IDS_MAX = 4096 };

static void check_text(const struct tokenizer *tokenizer, const char *text, unsigned flags)
{
    size_t bytes = strlen(text), *starts, before = 0, longest = tokenizer_longest_piece_bytes(tokenizer);
    int32_t *ids;
    char *back;
    int n;
    if (tokenizer_encode_untrusted(tokenizer, text, bytes, flags, NULL, 0, IDS_MAX, &ids, &starts, &n) != STATUS_OK)
        return;
    for (int i = 0; i < n; i++) {
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < tokenizer_vocab_size(tokenizer) && tokenizer_token(tokenizer, ids[i]));
        FUZZ_CHECK(starts[i] >= before && starts[i] <= bytes);
        before = starts[i];
    }
    FUZZ_CHECK((size_t)n >= tokenizer_min_tokens(tokenizer, text, bytes));
    FUZZ_CHECK(longest == SIZE_MAX || bytes <= longest * (size_t)n);
    FUZZ_CHECK(tokenizer_decode(tokenizer, ids, n, TOKENIZER_SKIP_SPECIAL, &back, NULL) == STATUS_OK);
    free(back);
    free(starts);
    free(ids);
}

static void check_tokenizer(const struct tokenizer *tokenizer)
{
    static const char *const texts[] = {"", "a", " the  cat\n\n\tsat",
                                        "\xC3\xA9\xE2\x96\x81\xF0\x9F\x98\x80 1234567890",
                                        "<s>ab</s>aaaaaaaaaaaaaaaaaaaa"};
    const char *piece;
    size_t bytes;
    int vocab_size = tokenizer_vocab_size(tokenizer);
    FUZZ_CHECK(vocab_size > 0 && tokenizer_fingerprint(tokenizer));
    FUZZ_CHECK(tokenizer_eos(tokenizer) < vocab_size);
    for (int32_t id = -1; id <= vocab_size && id < 300; id++)
        tokenizer_piece(tokenizer, id, &piece, &bytes);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_text(tokenizer, texts[i], 0);
        check_text(tokenizer, texts[i], TOKENIZER_PARSE_SPECIAL);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size}, file = fuzz_text(&script);
    struct tokenizer *tokenizer;
    fuzz_folder_put("tokenizer.json", file.at, file.left);
    if (script.left)
        fuzz_folder_put("tokenizer_config.json", script.at, script.left);
    else
        fuzz_folder_drop("tokenizer_config.json");
    if (tokenizer_open(fuzz_folder(), &tokenizer) == STATUS_OK) {
        check_tokenizer(tokenizer);
        tokenizer_free(tokenizer);
    } else {
        FUZZ_CHECK(*status_message());
    }
    return 0;
}
