// SPDX-License-Identifier: Apache-2.0
// forepack bench grammar: CPU time to compute the token masks of structured output, for answers drawn from the masks.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/commands/bench.h"
#include "bench/quantiles.h"
#include "cli/request.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"
#include "lib/grammar/grammar.h"

static struct {
    char *model, *library, *schema;
    int64_t answers, max_tokens;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .placeholder = "DIR", .help = "folder with the tokenizer (required)"},
    {.name = "grammar-library", .type = OPTION_STRING, .value = &o.library, .placeholder = "FILE",
     .help = GRAMMAR_LIBRARY_HELP},
    {.name = "guided-json", .type = OPTION_STRING, .value = &o.schema, .placeholder = "SCHEMA",
     .default_text = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"},"
                     "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"address\":{\"type\":\"object\","
                     "\"properties\":{\"street\":{\"type\":\"string\"},\"zip\":{\"type\":\"string\",\"pattern\":\"^[0-9]{5}$\"}},"
                     "\"required\":[\"street\",\"zip\"]}},\"required\":[\"name\",\"age\",\"address\"]}",
     .help = "JSON schema of the answers"},
    {.name = "answers", .type = OPTION_INT, .value = &o.answers, .default_text = "100", .min = 1, .max = 1000000,
     .help = "number of answers"},
    {.name = "max-tokens", .type = OPTION_INT, .value = &o.max_tokens, .default_text = "200", .min = 1, .max = 100000,
     .unit = "tokens", .help = "longest answer"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object"},
    {0},
};
// clang-format on

struct result {
    struct samples compile_us, mask_us;
    int64_t n_tokens, n_complete;
};

// Returns a pseudo-random allowed token.
static int32_t token_draw(const uint32_t *mask, int n_words, uint64_t *random)
{
    int32_t chosen = -1;
    unsigned n = 0;
    for (int w = 0; w < n_words; w++)
        for (uint32_t bits = mask[w]; bits; bits &= bits - 1) {
            *random = *random * 6364136223846793005u + 1442695040888963407u;
            if ((*random >> 33) % ++n == 0) chosen = 32 * w + __builtin_ctz(bits);
        }
    return chosen;
}

static enum status answer_draw(struct grammar_matcher *matcher, uint32_t *mask, int32_t eos, uint64_t random,
                               struct result *result)
{
    int n_words = grammar_matcher_mask_words(matcher);
    for (int64_t n = 0; n < o.max_tokens && !grammar_matcher_is_complete(matcher); n++) {
        double start = thread_cpu_us();
        TRY(grammar_matcher_mask(matcher, mask));
        samples_add(&result->mask_us, thread_cpu_us() - start);
        int32_t token = token_draw(mask, n_words, &random);
        if (token == eos) break;
        TRY(grammar_matcher_accept(matcher, &token, 1));
        result->n_tokens++;
    }
    result->n_complete += grammar_matcher_is_complete(matcher);
    return STATUS_OK;
}

static enum status measure(const struct grammar_library *library, int32_t eos, struct result *result)
{
    struct grammar_spec spec = grammar_spec_of(GRAMMAR_JSON_SCHEMA, o.schema);
    for (int64_t i = 0; i < o.answers; i++) {
        struct grammar_matcher *matcher;
        double start = thread_cpu_us();
        TRY(grammar_matcher_create(library, &spec, &matcher));
        samples_add(&result->compile_us, thread_cpu_us() - start);
        uint32_t *mask = mem_alloc_array((size_t)grammar_matcher_mask_words(matcher), sizeof *mask);
        enum status status = answer_draw(matcher, mask, eos, (uint64_t)i, result);
        free(mask);
        grammar_matcher_free(matcher);
        TRY(status);
    }
    return STATUS_OK;
}

static void print(struct result *r, int vocab_size)
{
    struct quantiles compile = samples_quantiles(&r->compile_us), mask = samples_quantiles(&r->mask_us);
    if (!o.json) {
        printf("vocabulary of %d tokens, %lld answers of %.1f tokens\ncompile  %8.1f us, slowest %.1f us\n"
               "mask     %8.1f us on average, p50 %.1f us, p99 %.1f us, slowest %.1f us\n",
               vocab_size, (long long)o.answers, (double)r->n_tokens / (double)o.answers, compile.p50, compile.max,
               mask.mean, mask.p50, mask.p99, mask.max);
        return;
    }
    json_t *row = json_pack("{s:i,s:I,s:I,s:f,s:f,s:f,s:f}", "vocab_size", vocab_size, "answers", (json_int_t)o.answers,
                            "tokens", (json_int_t)r->n_tokens, "compile_us", compile.p50, "mask_us_mean", mask.mean,
                            "mask_us_p99", mask.p99, "mask_us_max", mask.max);
    json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(row);
}

static enum status run(struct result *result)
{
    struct tokenizer *tokenizer;
    struct grammar_library *library = NULL;
    if (!o.model) return status_fail(STATUS_INVALID, "--model: a folder with a tokenizer is required");
    TRY(tokenizer_open(o.model, &tokenizer));
    int vocab_size = tokenizer_vocab_size(tokenizer);
    int32_t eos = tokenizer_eos(tokenizer);
    enum status status = grammar_library_open(o.library, tokenizer, vocab_size, &eos, 1, &library);
    if (status == STATUS_OK) status = measure(library, eos, result);
    if (status == STATUS_OK) print(result, vocab_size);
    grammar_library_free(library);
    tokenizer_free(tokenizer);
    return status;
}

int bench_grammar(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench grammar --model DIR [options]\n"
                 "CPU time to compile a JSON schema and to compute the masks of the tokens that it allows.",
                 argc, argv, NULL);
    struct result result = {0};
    enum status status = run(&result);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    samples_free(&result.compile_us);
    samples_free(&result.mask_us);
    options_free(options);
    return code;
}
