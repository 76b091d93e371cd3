// SPDX-License-Identifier: Apache-2.0
// forepack bench tokenizer: measures the CPU time to convert a text to tokens.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/commands/bench.h"
#include "bench/quantiles.h"
#include "cli/request.h"
#include "lib/base/file_text.h"
#include "lib/base/options.h"
#include "lib/text/tokenizer.h"

#define TEXT_LIMIT_BYTES ((size_t)1 << 30)

static struct {
    char *model, *text;
    int64_t prompt_bytes, rounds;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .placeholder = "DIR",
     .help = "checkpoint whose tokenizer is measured (required)"},
    {.name = "text", .type = OPTION_STRING, .value = &o.text, .placeholder = "FILE",
     .help = "text to convert, in UTF-8 (required)"},
    {.name = "prompt-bytes", .type = OPTION_INT, .value = &o.prompt_bytes, .default_text = "32768", .min = 1,
     .max = 1 << 26, .unit = "bytes", .help = "length of the prompts into which the text is divided"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "5", .min = 1, .max = 10000,
     .help = "passes over the whole text; the median and the slowest are reported"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object"},
    {0},
};
// clang-format on

// Returns the end of the prompt that starts at `start`: a prompt does not end inside a character.
static size_t prompt_end(const char *text, size_t n_bytes, size_t start)
{
    size_t end = start + (size_t)o.prompt_bytes;
    if (end >= n_bytes) return n_bytes;
    while (end < n_bytes && ((unsigned char)text[end] & 0xC0) == 0x80)
        end++;
    return end;
}

static enum status convert(const struct tokenizer *tokenizer, const char *text, size_t n_bytes, int64_t *n_tokens_p)
{
    *n_tokens_p = 0;
    for (size_t start = 0, end; start < n_bytes; start = end) {
        int32_t *ids;
        int n;
        end = prompt_end(text, n_bytes, start);
        TRY(tokenizer_encode(tokenizer, text + start, end - start, 0, &ids, &n));
        free(ids);
        *n_tokens_p += n;
    }
    return STATUS_OK;
}

static void print(struct samples *seconds, size_t n_bytes, int64_t n_tokens)
{
    struct quantiles q = samples_quantiles(seconds);
    double rate = (double)n_tokens / q.p50, slowest = (double)n_tokens / q.max;
    if (!o.json) {
        printf("%zu bytes, %lld tokens\n%.2f million tokens/s, slowest round %.2f, %.1f MB/s\n", n_bytes,
               (long long)n_tokens, rate / 1e6, slowest / 1e6, (double)n_bytes / q.p50 / 1e6);
        return;
    }
    json_t *row = json_pack("{s:I,s:I,s:f,s:f}", "text_bytes", (json_int_t)n_bytes, "tokens", (json_int_t)n_tokens,
                            "tokens_per_s", rate, "tokens_per_s_min", slowest);
    json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(row);
}

static enum status measure(const struct tokenizer *tokenizer, const char *text, size_t n_bytes)
{
    struct samples seconds = {0};
    int64_t n_tokens = 0;
    enum status status = convert(tokenizer, text, n_bytes, &n_tokens); // the first pass warms the caches
    for (int64_t i = 0; i < o.rounds && status == STATUS_OK; i++) {
        double start = thread_cpu_us();
        status = convert(tokenizer, text, n_bytes, &n_tokens);
        samples_add(&seconds, (thread_cpu_us() - start) / 1e6);
    }
    if (status == STATUS_OK) print(&seconds, n_bytes, n_tokens);
    samples_free(&seconds);
    return status;
}

int bench_tokenizer(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench tokenizer --model DIR --text FILE [options]\n"
                 "Tokens per second of CPU time, by one thread.",
                 argc, argv, NULL);
    struct tokenizer *tokenizer = NULL;
    char *text = NULL;
    size_t n_bytes;
    enum status status = o.model && o.text ? tokenizer_open(o.model, &tokenizer)
                                           : status_fail(STATUS_INVALID, "--model and --text are required");
    if (status == STATUS_OK) status = file_text_read(o.text, TEXT_LIMIT_BYTES, &text, &n_bytes);
    if (status == STATUS_OK) status = measure(tokenizer, text, n_bytes);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    free(text);
    tokenizer_free(tokenizer);
    options_free(options);
    return code;
}
