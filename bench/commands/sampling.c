// SPDX-License-Identifier: Apache-2.0
// forepack bench sampling: measures the CPU time to sample one token on the host, by the parameters that need it. The
// limits of API keys and the order of tenants count such a token as 1 + vocabulary / 32,768 tokens. --row-us compares
// this count with the CPU time.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/commands/bench.h"
#include "bench/quantiles.h"
#include "cli/request.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"
#include "worker/sampler.h"

static struct {
    int64_t vocab, history, rounds;
    double row_us;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "vocab", .type = OPTION_INT, .value = &o.vocab, .default_text = "131072", .min = 2, .max = 1000000,
     .unit = "tokens", .help = "size of the vocabulary"},
    {.name = "history", .type = OPTION_INT, .value = &o.history, .default_text = "2048", .max = 1000000,
     .unit = "tokens", .help = "number of prompt tokens, and of generated tokens, that penalties read"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "200", .min = 1, .max = 100000,
     .help = "tokens sampled with each kind of parameters; the median time is reported"},
    {.name = "row-us", .type = OPTION_REAL, .value = &o.row_us, .default_text = "40", .min = 1e-3, .max = 1e6,
     .unit = "us", .help = "time in which a worker group computes one prompt row; a token counts as two rows"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print one JSON object for each kind"},
    {0},
};
// clang-format on

static const struct {
    const char *name;
    struct sampling sampling; // members other than 0 replace the defaults
    bool biased;
} kinds[] = {
    {"temperature", {.temperature = 1}, false},
    {"top_k_top_p", {.temperature = 1, .top_k = 50, .top_p = 0.9}, false},
    {"top_p", {.temperature = 1, .top_p = 0.9}, false},
    {"penalties", {.temperature = 1, .repetition_penalty = 1.1, .presence_penalty = 0.5}, false},
    {"logprobs", {.temperature = 1, .logprobs = 20}, false},
    {"logit_bias", {.temperature = 1}, true},
    {"all", {.temperature = 1, .top_p = 0.9, .repetition_penalty = 1.1, .presence_penalty = 0.5, .logprobs = 20}, true},
};
enum { KINDS = sizeof kinds / sizeof *kinds, BIASES = 1000 };

static struct sampling sampling_of(int kind)
{
    const struct sampling *wanted = &kinds[kind].sampling;
    struct sampling s;
    sampling_defaults(&s);
    s.max_tokens = 1;
    s.temperature = wanted->temperature;
    if (wanted->top_k) s.top_k = wanted->top_k;
    if (wanted->top_p > 0) s.top_p = wanted->top_p;
    if (wanted->repetition_penalty > 0) s.repetition_penalty = wanted->repetition_penalty;
    s.presence_penalty = wanted->presence_penalty;
    if (wanted->logprobs) s.logprobs = wanted->logprobs;
    for (int id = 0; kinds[kind].biased && id < BIASES && id < o.vocab; id++)
        logit_bias_add(&s.logit_bias, id, 1);
    return s;
}

// Makes logits like a model's: about normal, with a few far above the rest.
static float *logits_create(void)
{
    float *logits = mem_alloc_array((size_t)o.vocab, sizeof *logits);
    for (int64_t i = 0; i < o.vocab; i++) {
        double sum = 0;
        for (uint64_t k = 0; k < 4; k++)
            sum += sampler_uniform(7, 4 * (uint64_t)i + k) - 0.5;
        logits[i] = (float)(3 * sum + (i % 9973 == 0 ? 8 : 0));
    }
    return logits;
}

static enum status measure(struct sampler *sampler, int kind, const float *logits, const int32_t *history,
                           struct samples *us)
{
    struct sampling sampling = sampling_of(kind);
    enum status status = STATUS_OK;
    for (int64_t i = 0; i < o.rounds && status == STATUS_OK; i++) {
        struct sampled_token token;
        sampling.seed = (uint64_t)i;
        const struct sampler_context context = {.sampling = &sampling,
                                                .prompt = history,
                                                .n_prompt = (int)o.history,
                                                .output = history,
                                                .n_output = (int)o.history};
        double start = thread_cpu_us();
        status = sampler_sample_token(sampler, logits, &context, &token);
        samples_add(us, thread_cpu_us() - start);
    }
    logit_bias_free(&sampling.logit_bias);
    return status;
}

static void print(const char *name, double us)
{
    double taken = us / o.row_us, charged = (double)o.vocab / 16384; // rows in addition to the two rows of any token
    if (!o.json) {
        printf("%-12s %9.1f us  %6.3f ns per entry  %6.2f rows of %.0f us, charged as %.2f\n", name, us,
               1e3 * us / (double)o.vocab, taken, o.row_us, charged);
        return;
    }
    json_t *row = json_pack("{s:s,s:I,s:f,s:f,s:f}", "kind", name, "vocab", (json_int_t)o.vocab, "us", us, "rows",
                            taken, "charged_rows", charged);
    json_dumpf(row, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(row);
}

int bench_sampling(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench sampling [options]\n"
                 "CPU time to sample one token on the host, and its charge in tokens.",
                 argc, argv, NULL);
    float *logits = logits_create();
    int32_t *history = mem_alloc_array((size_t)o.history + 1, sizeof *history);
    for (int64_t i = 0; i < o.history; i++)
        history[i] = (int32_t)(i * 7919 % o.vocab);
    struct sampler *sampler = sampler_create((int)o.vocab);
    enum status status = STATUS_OK;
    for (int kind = 0; kind < KINDS && status == STATUS_OK; kind++) {
        struct samples us = {0};
        status = measure(sampler, kind, logits, history, &us);
        if (status == STATUS_OK) print(kinds[kind].name, samples_quantiles(&us).p50);
        samples_free(&us);
    }
    sampler_free(sampler);
    free(history);
    free(logits);
    options_free(options);
    return status == STATUS_OK ? 0 : report_failure(status);
}
