// SPDX-License-Identifier: Apache-2.0
// speculator/sentences: where sentences and lines end, with the tokenizers of test models.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "speculator/sentences.h"
#include "tests/suite.h"

static struct tokenizer *tokenizer;
static struct sentence_table table;

static void open_table(void)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/speculator", source ? source : ".");
    ck_assert_int_eq(tokenizer_open(dir, &tokenizer), STATUS_OK);
    free(dir);
    table = sentence_table_create(tokenizer);
}

static void close_table(void)
{
    sentence_table_free(&table);
    tokenizer_free(tokenizer);
}

// Returns the text with a | where a sentence ends.
static const char *divided(const char *text)
{
    static char out[512];
    int32_t *ids;
    int n;
    ck_assert_int_eq(tokenizer_encode(tokenizer, text, strlen(text), TOKENIZER_PARSE_SPECIAL, &ids, &n), STATUS_OK);
    uint8_t *ends = mem_alloc((size_t)n);
    sentence_ends(&table, ids, n, ends);
    size_t at = 0;
    for (int j = 0; j < n; j++) {
        const char *bytes;
        size_t size;
        tokenizer_piece(tokenizer, ids[j], &bytes, &size);
        memcpy(out + at, bytes, size);
        at += size;
        if (ends[j]) out[at++] = '|';
    }
    out[at] = 0;
    free(ids);
    free(ends);
    return out;
}

START_TEST(sentences_and_lines_end)
{
    ck_assert_str_eq(divided("The code is 4821. The sea was calm"), "The code is 4821.| The sea was calm|");
    ck_assert_str_eq(divided("Is it 12? No! It is 13."), "Is it 12?| No!| It is 13.|");
    ck_assert_str_eq(divided("He said \"no.\" Then (at last.) he left."),
                     "He said \"no.\"| Then (at last.)| he left.|");
    ck_assert_str_eq(divided("open(41)\n    wait(5)\nend"), "open(41)\n|    wait(5)\n|end|");
    ck_assert_str_eq(divided("first\n* one\n* two"), "first\n|* one\n|* two|");
    ck_assert_str_eq(divided("One.\n\nTwo\n\n\n  Three."), "One.\n\n|Two\n\n\n|  Three.|");
    ck_assert_str_eq(divided("a<|im_end|>\n<|im_start|>user"), "a<|im_end|>\n|<|im_start|>|user|");
}
END_TEST

START_TEST(a_stop_inside_a_word_ends_nothing)
{
    ck_assert_str_eq(divided("pi is 3.14 on example.org and v1.2.3 of a.b()"),
                     "pi is 3.14 on example.org and v1.2.3 of a.b()|");
    ck_assert_str_eq(divided("f(a, b) and [1] follow"), "f(a, b) and [1] follow|");
}
END_TEST

START_TEST(unknown_tokens_end_nothing)
{
    const int32_t beyond[] = {table.n, INT32_MAX, 1440};
    uint8_t ends[3] = {9, 9, 9};
    sentence_ends(&table, beyond, 3, ends);
    ck_assert_uint_eq(ends[0], 0);
    ck_assert_uint_eq(ends[2], 1); // the prompt ends
}
END_TEST

SUITE("sentences")
{
    FIXTURE(open_table, close_table);
    TEST(sentences_and_lines_end);
    TEST(a_stop_inside_a_word_ends_nothing);
    TEST(unknown_tokens_end_nothing);
}
