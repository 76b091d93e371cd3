// SPDX-License-Identifier: Apache-2.0
// A compression: the first bytes are options and the seed of the importance of tokens, and the rest is the JSON of
// messages, or else the text of a prompt. Messages keep all members but their texts, a text is its kept ranges, JSON
// stays JSON, and no budget is exceeded by more than what is always kept.
#include <jansson.h>

#include "lib/base/random.h"
#include "lib/base/utf8.h"
#include "router/front/request/compression.h"
#include "tests/fuzz/fuzz.h"

enum { CONTEXT = 2048 };

static const struct front *front_get(void)
{
    static char *names[] = {"demo"};
    static struct front front = {.model_names = names, .n_model_names = 1, .config = {.max_context = CONTEXT}};
    if (!front.tokenizer)
        FUZZ_CHECK(tokenizer_open(FUZZ_SOURCE "/deploy/demo-model/main", &front.tokenizer) == STATUS_OK);
    return &front;
}

static bool is_json(const char *text, size_t n)
{
    json_t *value = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    bool valid = value != NULL;
    json_decref(value);
    return valid;
}

// Checks text i, which was `before` [n].
static void check_text(const struct compression *c, int i, const char *before, size_t n)
{
    const struct compress_text *text = &c->texts[i];
    const char *after = json_string_value(text->value);
    size_t left = json_string_length(text->value), at = 0, end = 0;
    for (int k = 0; k < text->n_kept; k++) {
        size_t size = text->kept[k].end - text->kept[k].start;
        FUZZ_CHECK(text->kept[k].start >= end && text->kept[k].start < text->kept[k].end && text->kept[k].end <= n);
        FUZZ_CHECK(size <= left - at && memcmp(after + at, before + text->kept[k].start, size) == 0);
        end = text->kept[k].end;
        at += size;
    }
    FUZZ_CHECK(at == left && utf8_valid(after, left, NULL));
    FUZZ_CHECK(left > 0 || n == 0);
    if (text->rule == COMPRESS_JSON) FUZZ_CHECK(is_json(after, left));
    if (text->rule > COMPRESS_JSON) FUZZ_CHECK(left == n);
}

static void apply(struct compression *c, struct fuzz_script *options)
{
    struct random_source random = random_stream(fuzz_byte(options), 1);
    float *importance = malloc((size_t)(c->tokens_before + 1) * sizeof *importance);
    char **before = malloc((size_t)(c->n_texts + 1) * sizeof *before);
    size_t *sizes = malloc((size_t)(c->n_texts + 1) * sizeof *sizes);
    FUZZ_CHECK(importance && before && sizes);
    for (int t = 0; t < c->tokens_before; t++)
        importance[t] = (float)random_unit(&random);
    for (int i = 0; i < c->n_texts; i++) {
        sizes[i] = json_string_length(c->texts[i].value);
        before[i] = malloc(sizes[i] + 1);
        memcpy(before[i], json_string_value(c->texts[i].value), sizes[i] + 1);
    }
    const struct compress_goal goal = {(1 + fuzz_byte(options)) / 256.0, fuzz_byte(options) % 4 == 0};
    compression_apply(front_get(), c, importance, &goal);
    for (int i = 0; i < c->n_texts; i++) {
        check_text(c, i, before[i], sizes[i]);
        free(before[i]);
    }
    free(before);
    free(sizes);
    free(importance);
}

static void compress(json_t *input, bool cut_system, struct fuzz_script *options)
{
    struct compression *c = NULL;
    int32_t *tokens = NULL;
    if (compression_create(input, cut_system, &c) == STATUS_OK &&
        compression_tokenise(front_get(), c, &tokens) == STATUS_OK)
        apply(c, options);
    free(tokens);
    compression_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_script script = {data, size}, options = fuzz_part(&script, 4);
    bool cut_system = fuzz_byte(&options) % 2;
    const char *text = script.left ? (const char *)script.at : "";
    json_t *messages = json_loadb(text, script.left, JSON_ALLOW_NUL, NULL);
    if (!json_is_array(messages)) {
        json_decref(messages);
        messages = json_stringn(text, script.left); // NULL: not UTF-8
    }
    if (messages) compress(messages, cut_system, &options);
    return 0;
}
