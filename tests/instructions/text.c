// SPDX-License-Identifier: Apache-2.0
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/random.h"
#include "lib/text/tokenizer.h"
#include "speculator/select.h"
#include "tests/instructions/rows.h"

// ---- the tokenizer: a text of the demo model's kind, 16 times

static const char paragraph[] =
    "Late in the afternoon a group of children argued quietly about the village school, and no one thought much of "
    "it.\n"
    "The permit number of Nena Morik is 4892; the cellar code of Sara Tolley was 5222, later 7399.\n\n"
    "\tif (count > 17) { return \"caf\xc3\xa9 na\xc3\xafve\"; } // don't \xe4\xb8\xad\xe6\x96\x87\n";
enum { PARAGRAPHS = 16, TEXT_BYTES = PARAGRAPHS * (sizeof paragraph - 1) };

struct text {
    struct tokenizer *tokenizer;
    char bytes[TEXT_BYTES];
    int32_t *ids;
    int n;
};

static void text_encode(struct text *text)
{
    enum status status =
        tokenizer_encode(text->tokenizer, text->bytes, TEXT_BYTES, TOKENIZER_ADD_SPECIAL, &text->ids, &text->n);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

static void text_open(struct text *text)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    ck_assert_msg(tokenizer_open(dir, &text->tokenizer) == STATUS_OK, "%s", status_message());
    free(dir);
    for (int i = 0; i < PARAGRAPHS; i++)
        memcpy(text->bytes + (size_t)i * (sizeof paragraph - 1), paragraph, sizeof paragraph - 1);
    text_encode(text);
}

static void text_close(struct text *text)
{
    free(text->ids);
    tokenizer_free(text->tokenizer);
}

enum { TEXT_RUNS = 20 };

long row_encode(void)
{
    static struct text text;
    text_open(&text);
    counting_begin();
    for (int i = 0; i < TEXT_RUNS; i++) {
        free(text.ids);
        text_encode(&text);
    }
    counting_end();
    long tokens = text.n;
    text_close(&text);
    return TEXT_RUNS * tokens;
}

long row_decode(void)
{
    static struct text text;
    text_open(&text);
    counting_begin();
    for (int i = 0; i < TEXT_RUNS; i++) {
        char *decoded;
        enum status status = tokenizer_decode(text.tokenizer, text.ids, text.n, TOKENIZER_SKIP_SPECIAL, &decoded, NULL);
        ck_assert_msg(status == STATUS_OK, "%s", status_message());
        free(decoded);
    }
    counting_end();
    long tokens = text.n;
    text_close(&text);
    return TEXT_RUNS * tokens;
}

// ---- the selection: 4,000 tokens, sentences of 20 on average

enum { PROMPT = 4000, SENTENCE = 20, SELECT_RUNS = 10 };

static long select_run(int chunk_tokens)
{
    static float importance[PROMPT];
    static uint8_t ends[PROMPT];
    struct random_source random = random_stream(1, 1);
    for (int i = 0; i < PROMPT; i++) {
        importance[i] = (float)(random_next(&random) % 4096) / 4096;
        ends[i] = random_next(&random) % SENTENCE == 0;
    }
    const struct select_policy policy = {
        .keep_rate = 0.3, .chunk_tokens = chunk_tokens, .keep_first = true, .tail_tokens = 64, .ends = ends};
    counting_begin();
    for (int i = 0; i < SELECT_RUNS; i++) {
        struct token_range *kept;
        ck_assert_int_gt(select_kept(importance, PROMPT, &policy, &kept), 1);
        free(kept);
    }
    counting_end();
    return SELECT_RUNS;
}

long row_select_spans(void)
{
    return select_run(CHUNK_TOKENS_AUTO);
}

long row_select_chunks(void)
{
    return select_run(32);
}
