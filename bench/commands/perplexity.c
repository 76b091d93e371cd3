// SPDX-License-Identifier: Apache-2.0
// forepack bench perplexity: the quality that a dtype costs, as perplexity on the user's own texts.
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands/bench.h"
#include "bench/perplexity.h"
#include "cli/progress.h"
#include "cli/request.h"
#include "engine/block_manager.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"
#include "lib/text/tokenizer.h"

static struct {
    char *model, *backend, *dtype, *kv_dtype, *prompts;
    int64_t threads, window, stride, limit, token_budget;
    bool answers, json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .help = "model directory (required)"},
    {.name = "prompts", .type = OPTION_STRING, .value = &o.prompts,
     .help = "JSON Lines with \"text\", or with \"prompt\" and optionally \"answer\" (required)"},
    {.name = "dtype", .type = OPTION_STRING, .value = &o.dtype, .default_text = "auto",
     .help = "types of the weights, comma-separated: auto, f32, bf16, bf12, int8, int8-g128, fp8, int4-g128; compared with the first type"},
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &o.kv_dtype, .default_text = "auto", .choices = MODEL_KV_DTYPES,
     .help = "type of the KV cache; auto is f32 with f32 weights, else bf16"},
    {.name = "answers", .type = OPTION_BOOL, .value = &o.answers,
     .help = "count only the tokens of the answer; the prompt is its context"},
    {.name = "limit", .type = OPTION_INT, .value = &o.limit, .default_text = "0", .max = 100000000, .unit = "texts",
     .help = "number of texts to use; 0 is all"},
    {.name = "window", .type = OPTION_INT, .value = &o.window, .default_text = "0", .max = 10000000, .unit = "tokens",
     .help = "window size for longer texts; 0 is the model's context"},
    {.name = "stride", .type = OPTION_INT, .value = &o.stride, .default_text = "0", .max = 10000000, .unit = "tokens",
     .help = "distance between the starts of two windows; 0 is half a window"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "512", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "rows of one pass, each with logits"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.backend, .default_text = "auto", .choices = MODEL_BACKENDS,
     .help = "auto is cuda if there is a GPU, else cpu"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads; 0 is every core the process may use"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

struct text {
    int32_t *ids;
    int n;     // number of tokens
    int first; // index of the first token that counts
};

struct texts {
    struct text *all;
    int n, capacity, longest;
};

static void texts_free(struct texts *t)
{
    for (int i = 0; i < t->n; i++)
        free(t->all[i].ids);
    free(t->all);
}

// ---- texts ----------------------------------------------------------------------------------------------------------

// Returns the string at `key`, borrowed, or "" if the row has no such key.
static enum status row_get_string(const json_t *row, const char *key, const char **value_p)
{
    const json_t *value = json_object_get(row, key);
    if (value && !json_is_string(value)) return status_fail(STATUS_INVALID, "%s: must be a string", key);
    *value_p = value ? json_string_value(value) : "";
    return STATUS_OK;
}

static enum status texts_add_row(struct texts *texts, const struct tokenizer *tokenizer, int vocab_size,
                                 const json_t *row)
{
    const char *whole = "", *prompt = "", *answer = "";
    enum status status = row_get_string(row, "text", &whole);
    if (status == STATUS_OK) status = row_get_string(row, "prompt", &prompt);
    if (status == STATUS_OK) status = row_get_string(row, "answer", &answer);
    if (status != STATUS_OK) return status;
    if (o.answers && (!*prompt || !*answer))
        return status_fail(STATUS_INVALID, "--answers needs \"prompt\" and \"answer\"");
    if (!*whole && !*prompt)
        return status_fail(STATUS_INVALID, "the row has no text: it must have \"text\" or \"prompt\"");
    if (o.answers) whole = "";
    size_t prompt_bytes = strlen(prompt);
    bool joined =
        *whole || !*answer || isspace((unsigned char)*answer) || isspace((unsigned char)prompt[prompt_bytes - 1]);
    char *text = *whole ? mem_string(whole) : mem_format("%s%s%s", prompt, joined ? "" : " ", answer);
    MEM_GROW(texts->all, texts->n, texts->capacity);
    struct text *t = &texts->all[texts->n];
    *t = (struct text){.first = 1};
    size_t *starts, answer_at = o.answers ? prompt_bytes : 0;
    status = tokenizer_encode_untrusted(tokenizer, text, strlen(text), TOKENIZER_ADD_SPECIAL, NULL, 0, INT_MAX, &t->ids,
                                        &starts, &t->n);
    free(text);
    if (status != STATUS_OK) return status;
    texts->n++;
    while (t->first < t->n && starts[t->first] < answer_at)
        t->first++;
    free(starts);
    if (t->n > texts->longest) texts->longest = t->n;
    for (int i = 0; i < t->n; i++)
        if (t->ids[i] >= vocab_size)
            return status_fail(STATUS_DATA, "token %d is outside the model's vocabulary of %d", t->ids[i], vocab_size);
    return STATUS_OK;
}

static enum status texts_read_lines(struct texts *texts, const struct tokenizer *tokenizer, int vocab_size, char *data)
{
    enum status status = STATUS_OK;
    int number = 0;
    for (char *line = data, *next; line && status == STATUS_OK && !(o.limit && texts->n == o.limit); line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        number++;
        if (!line[strspn(line, " \t\r")]) continue;
        json_error_t error;
        json_t *row = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        status = row ? texts_add_row(texts, tokenizer, vocab_size, row)
                     : status_fail(STATUS_INVALID, "not JSON: %s", error.text);
        json_decref(row);
        if (status != STATUS_OK) status_context(status, "%s:%d", o.prompts, number);
    }
    return status;
}

static enum status texts_read(struct texts *texts, int vocab_size)
{
    struct tokenizer *tokenizer;
    char *data;
    size_t size;
    enum status status = tokenizer_open(o.model, &tokenizer);
    if (status != STATUS_OK) return status;
    status = read_whole_file(o.prompts, &data, &size);
    if (status == STATUS_OK) {
        status = texts_read_lines(texts, tokenizer, vocab_size, data);
        free(data);
    }
    tokenizer_free(tokenizer);
    if (status == STATUS_OK && texts->longest < 2)
        status = status_fail(STATUS_INVALID, "%s: no text has two tokens or more", o.prompts);
    return status;
}

// ---- one dtype ------------------------------------------------------------------------------------------------------

static void perplexity_add_row(json_t *rows, const char *dtype, int n_texts, const struct perplexity *p, double seconds)
{
    double nats = p->nats / (double)p->tokens;
    const json_t *first = json_array_get(rows, 0);
    double base = first ? json_real_value(json_object_get(first, "perplexity")) : exp(nats);
    json_array_append_new(rows, json_pack("{s:s,s:s,s:i,s:I,s:o,s:o,s:o,s:f}", "phase", "perplexity", "dtype", dtype,
                                          "texts", n_texts, "tokens", (json_int_t)p->tokens, "nats_per_token",
                                          bench_number(nats), "perplexity", bench_number(exp(nats)), "over_first",
                                          bench_number(exp(nats) / base), "seconds", seconds));
    if (o.json) return;
    if (!first)
        printf("%-10s %7s %9s %12s %11s %9s %9s\n", "dtype", "texts", "tokens", "nats/token", "perplexity", "over 1st",
               "tokens/s");
    printf("%-10s %7d %9lld %12.5f %11.4f %+8.2f%% %9.0f\n", dtype, n_texts, (long long)p->tokens, nats, exp(nats),
           100 * (exp(nats) / base - 1), (double)p->tokens / seconds);
    fflush(stdout);
}

static enum status perplexity_add_texts(struct engine *engine, const struct perplexity_limits *limits,
                                        const struct texts *texts, struct perplexity *sum)
{
    struct progress progress = {0};
    enum status status = STATUS_OK;
    for (int i = 0; i < texts->n && status == STATUS_OK; i++) {
        status = perplexity_add(engine, limits, texts->all[i].ids, texts->all[i].n, texts->all[i].first, sum);
        progress_draw(&progress, i + 1, texts->n, i + 1 == texts->n, "texts");
    }
    return status;
}

static enum status perplexity_measure(const char *dtype, const struct perplexity_limits *limits,
                                      const struct texts *texts, struct comm *comm, json_t *rows)
{
    const struct model_options model = {.dir = o.model,
                                        .backend = o.backend,
                                        .dtype = dtype,
                                        .kv_dtype = o.kv_dtype,
                                        .threads = (int)o.threads,
                                        .max_rows = limits->rows,
                                        .max_seqs = 1,
                                        .max_logit_rows = limits->rows,
                                        .max_context = limits->window,
                                        .n_kv_blocks = kv_blocks_for(limits->window)};
    struct engine *engine;
    enum status status = engine_open(&model, comm, &engine);
    if (status != STATUS_OK) return status;
    struct perplexity sum = {0};
    int64_t from_us = clock_now_us();
    status = perplexity_add_texts(engine, limits, texts, &sum);
    if (status == STATUS_OK)
        perplexity_add_row(rows, dtype_name(model_dtype(engine_model(engine))), texts->n, &sum,
                           (double)(clock_now_us() - from_us) / 1e6);
    engine_close(engine);
    return status;
}

static enum status perplexity_measure_all(const struct perplexity_limits *limits, const struct texts *texts,
                                          json_t *rows)
{
    struct comm *comm;
    enum status status = comm_open_self(&comm);
    if (status != STATUS_OK) return status;
    char *list = mem_string(o.dtype), *saved;
    for (char *dtype = strtok_r(list, ",", &saved); dtype && status == STATUS_OK; dtype = strtok_r(NULL, ",", &saved))
        status = perplexity_measure(dtype, limits, texts, comm, rows);
    free(list);
    comm->ops->close(comm);
    return status;
}

// ---- the command ----------------------------------------------------------------------------------------------------

// Computes the window and the limits. A window is at most as long as the longest text, because it sizes the KV cache
// and the logits.
static enum status perplexity_plan(const struct model_config *config, int longest, struct perplexity_limits *limits)
{
    if (config->max_context < 2)
        return status_fail(STATUS_INVALID, "%s: the model's context is 1 token: perplexity needs 2 or more", o.model);
    if (o.window > config->max_context || o.window == 1)
        return status_fail(STATUS_INVALID, "--window %lld: must be from 2 to the model's context of %d, or 0",
                           (long long)o.window, config->max_context);
    int window = o.window ? (int)o.window : config->max_context;
    if (o.stride > window - 1)
        return status_fail(STATUS_INVALID, "--stride %lld: must be less than the window of %d tokens",
                           (long long)o.stride, window);
    limits->stride = o.stride ? (int)o.stride : window / 2;
    limits->window = longest < window ? longest : window;
    limits->rows = limits->window < o.token_budget ? limits->window : (int)o.token_budget;
    return STATUS_OK;
}

static enum status perplexity_run(struct texts *texts, json_t *rows)
{
    struct model_config config;
    struct perplexity_limits limits;
    if (!o.model || !o.prompts) return status_fail(STATUS_INVALID, "--model DIR and --prompts FILE are required");
    enum status status = model_config_read(o.model, &config);
    if (status == STATUS_OK) status = texts_read(texts, config.vocab_size);
    if (status == STATUS_OK) status = perplexity_plan(&config, texts->longest, &limits);
    return status == STATUS_OK ? perplexity_measure_all(&limits, texts, rows) : status;
}

int bench_perplexity(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench perplexity --model DIR --prompts FILE [--dtype bf16,int8,int8-g128]\n"
                 "How well the model predicts the texts with each type of weights.",
                 argc, argv, NULL);
    struct texts texts = {0};
    json_t *rows = json_array();
    enum status status = perplexity_run(&texts, rows);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    texts_free(&texts);
    json_decref(rows);
    options_free(options);
    return status == STATUS_OK ? 0 : report_failure(status);
}
