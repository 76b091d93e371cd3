// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/arrivals.h"
#include "bench/commands/serve.h"
#include "lib/base/mem.h"
#include "lib/base/random.h"

enum { REQUESTS_DEFAULT = 100, WARM_UP_TOKENS = 8 };

// ---- requests -------------------------------------------------------------------------------------------------------

// Cuts the output and then the prompt to the context.
static void serve_clip(struct serve *s, const struct serve_level *level, int *prompt, int *output)
{
    int before = *prompt + *output;
    if (*output >= s->context_tokens) *output = s->context_tokens - 1;
    if (*prompt + *output > s->context_tokens) *prompt = s->context_tokens - *output;
    s->clipped += level->number && *prompt + *output < before;
}

// Sets the output fields. A field that is not marked as given is not sent.
static void serve_set_output(struct request_spec *spec, int max_tokens)
{
    spec->sampling.max_tokens = max_tokens;
    spec->sampling.ignore_eos = true;
    spec->sampling_given |= generation_field_bit(sampling_fields, "max_tokens");
    spec->sampling_given |= generation_field_bit(sampling_fields, "ignore_eos");
}

// Fills in request i of a level, except its id. Its pointers are borrowed; random tokens go to `ids`.
static void serve_make_request(struct serve *s, const struct serve_level *level, int i, int32_t *ids,
                               struct request_spec *spec)
{
    *spec = s->prompts ? s->prompts[i % s->n_prompts].spec : s->defaults;
    if (s->prompts) return;
    int n;
    if (s->trace.n_rows) {
        const struct trace_row *row = &s->trace.rows[i % s->trace.n_rows];
        int output = (int)fmin(fmax(1, round(row->output_tokens * s->flags->length_scale)), s->context_tokens);
        if (s->defaults.sampling.max_tokens && output > s->defaults.sampling.max_tokens)
            output = s->defaults.sampling.max_tokens;
        n = (int)fmin(fmax(1, ceil(row->prompt_tokens * s->flags->length_scale)), 1e9);
        serve_clip(s, level, &n, &output);
        // The warm-up uses another seed, or it would fill the prefix cache for the measured requests.
        trace_prompt(&s->trace, i % s->trace.n_rows, s->flags->length_scale,
                     (uint64_t)s->flags->load_seed + !level->number, s->vocab_size, n, ids, &n);
        serve_set_output(spec, output);
    } else {
        n = s->lengths.count[i % s->lengths.n];
        int output = spec->sampling.max_tokens ? spec->sampling.max_tokens : 1;
        serve_clip(s, level, &n, &output);
        serve_set_output(spec, output);
        struct random_source random =
            random_stream((uint64_t)s->flags->load_seed, (uint64_t)level->number << 32 | (uint64_t)i);
        for (int t = 0; t < n; t++)
            ids[t] = random_below(&random, s->vocab_size);
    }
    spec->token_ids = ids;
    spec->n_token_ids = n;
}

struct rpc_bytes *serve_pack_requests(struct serve *s, const struct serve_level *level, int n, const char *run)
{
    struct rpc_bytes *messages = mem_alloc_array((size_t)n, sizeof *messages);
    int32_t *ids = mem_alloc_array((size_t)s->context_tokens, sizeof *ids);
    for (int i = 0; i < n; i++) {
        struct request_spec spec;
        serve_make_request(s, level, i, ids, &spec);
        if (!level->number && spec.sampling.max_tokens > WARM_UP_TOKENS) spec.sampling.max_tokens = WARM_UP_TOKENS;
        spec.id = load_id(run, i);
        messages[i] = request_spec_pack(&spec);
        free(spec.id);
    }
    free(ids);
    return messages;
}

// ---- arrivals -------------------------------------------------------------------------------------------------------

int serve_count_requests(const struct serve *s, const struct serve_level *level)
{
    bool lasts = s->flags->duration > 0 && level->qps > 0;
    double n = s->flags->requests ? (double)s->flags->requests
               : lasts            ? 1e7
               : s->trace.n_rows  ? s->trace.n_rows
                                  : REQUESTS_DEFAULT;
    if (level->replay) {
        n = fmin(n, s->trace.n_rows);
        for (int i = 0; s->flags->duration > 0 && i < n; i++)
            if (s->trace.rows[i].arrival_ms * s->flags->time_scale > s->flags->duration * 1000) n = i;
    } else if (lasts) {
        n = fmin(n, ceil(level->qps * s->flags->duration));
    }
    return n < 1 ? 1 : (int)n;
}

int64_t *serve_schedule(const struct serve *s, const struct serve_level *level, int n)
{
    if (level->concurrency) return NULL;
    int64_t *due_us = mem_alloc_array((size_t)n, sizeof *due_us);
    if (!level->replay) {
        bool constant = strcmp(s->flags->arrivals, "constant") == 0;
        arrivals_make(constant ? ARRIVALS_CONSTANT : ARRIVALS_POISSON, level->qps, (uint64_t)s->flags->load_seed, n,
                      due_us);
        return due_us;
    }
    for (int i = 0; i < n; i++)
        due_us[i] = llround(s->trace.rows[i].arrival_ms * s->flags->time_scale * 1000);
    return due_us;
}

char *serve_level_name(const struct serve_level *level)
{
    if (level->replay) return mem_string("trace");
    return level->concurrency ? mem_format("%d concurrent", level->concurrency) : mem_format("%.4g/s", level->qps);
}
