// SPDX-License-Identifier: Apache-2.0
// Compares the ways to divide the GPUs of one group into pipeline stages and tensor-parallel ranks: memory for the KV
// cache, times of one request alone, and the most that the group can hold.
#include <math.h>
#include <stdio.h>

#include "cli/engine/capacity.h"
#include "cli/engine/plan.h"
#include "kernels/ragged.h"

enum { WAYS_MAX = 32, OUTPUT_DEFAULT = 256 };

// A division of the GPUs.
struct way {
    int tp, pp;
    struct plan_memory memory;
    double kv_tokens, ttft_s, itl_ms; // TTFT and ITL of one request alone
    struct capacity capacity;
};

struct comparison {
    const struct plan_flags *flags;
    struct model_config config;
    double prompt_tokens, output_tokens, max_seqs, token_budget;
    struct way ways[WAYS_MAX];
    int n_ways;
    int best, soonest; // indices of the ways that serve most requests, and that compute a prompt alone soonest
};

// Fills in a way. Returns false if the model cannot be divided so, or has no room for one request.
static bool way_fill(const struct comparison *c, struct way *way)
{
    const struct plan_flags *f = c->flags;
    const struct plan_node node = {f->model ? f->model : f->shape, !f->model, f->dtype, (int64_t)c->max_seqs,
                                   (int64_t)c->token_budget};
    if (plan_memory_of(f, &node, way->tp, way->pp, &way->memory) != STATUS_OK) return false;
    way->kv_tokens = (double)way->memory.kv_blocks * KV_BLOCK_TOKENS;
    if (way->kv_tokens < c->prompt_tokens + c->output_tokens) return false;
    const struct capacity_node group = {.shape = plan_pass_shape(f, &c->config, f->dtype, way->tp, &way->memory, NULL),
                                        .max_seqs = c->max_seqs,
                                        .kv_tokens = way->kv_tokens,
                                        .token_budget = c->token_budget};
    const struct capacity_load load = {.prompt_tokens = c->prompt_tokens, .output_tokens = c->output_tokens};
    way->ttft_s = capacity_prefill_us(&group, c->prompt_tokens, 0) / 1e6;
    way->itl_ms = capacity_decode_us(&group, c->prompt_tokens + c->output_tokens) / 1e3;
    way->capacity = capacity_of(&group, &load);
    return true;
}

static void ways_find(struct comparison *c)
{
    const struct plan_flags *f = c->flags;
    for (int pp = 1; pp <= f->gpus && pp <= MODEL_STAGES_MAX && c->n_ways < WAYS_MAX; pp++) {
        struct way *way = &c->ways[c->n_ways];
        *way = (struct way){.tp = (int)f->gpus / pp, .pp = pp};
        if (f->gpus % pp || (f->pp_given && pp != f->pp) || (f->tp_given && way->tp != f->tp)) continue;
        if (!way_fill(c, way)) continue;
        if (way->capacity.rate > c->ways[c->best].capacity.rate) c->best = c->n_ways;
        if (way->ttft_s < c->ways[c->soonest].ttft_s) c->soonest = c->n_ways;
        c->n_ways++;
    }
}

static void advice_print(const struct comparison *c)
{
    const struct way *best = &c->ways[c->best], *soonest = &c->ways[c->soonest];
    const struct device_rates *rates = device_rates_find(c->flags->gpu);
    printf("\nmost output: --tp %d --pp %d; first token of one request soonest: --tp %d --pp %d\n", best->tp, best->pp,
           soonest->tp, soonest->pp);
    printf(
        "These times are computed, not measured (docs/sizing.md). They assume hosts of %d GPUs with %g GB/s between\n"
        "the GPUs of a host, and %g GB/s for each GPU between hosts. Queues, limits on TTFT and ITL, prefix caches\n"
        "and speculative prefill are not counted.\n",
        rates->link_ranks, rates->link_gbytes_per_s, rates->network_gbytes_per_s);
    if (best->pp > 1) printf("The CUDA backend refuses --pp over 1 so far, so this division cannot be started yet.\n");
}

static void text_print(const struct comparison *c)
{
    const struct plan_flags *f = c->flags;
    printf("%s on %lld %s GPUs, prompts of %.0f tokens, answers of %.0f, up to %.0f sequences\n\n",
           f->model ? f->model : f->shape, (long long)f->gpus, f->gpu, c->prompt_tokens, c->output_tokens, c->max_seqs);
    printf("             one request alone             at the highest load\n");
    printf("  tp   pp    TTFT s   ITL ms    KV tokens   output tokens/s   sequences   ITL ms   bubble   first limit\n");
    for (int i = 0; i < c->n_ways; i++) {
        const struct way *w = &c->ways[i];
        printf("%4d %4d %9.3g %8.3g %12.0f %17.4g %11.0f %8.3g %7.1f%%   %s\n", w->tp, w->pp, w->ttft_s, w->itl_ms,
               w->kv_tokens, w->capacity.rate * c->output_tokens, w->capacity.sequences, w->capacity.itl_us / 1e3,
               100 * w->capacity.bubble,
               w->capacity.limit == CAPACITY_PASS ? capacity_part_text(&w->capacity.parts)
                                                  : capacity_limit_text(w->capacity.limit));
    }
    if (c->n_ways)
        advice_print(c);
    else
        printf("no division of these GPUs holds the model and one request\n");
}

static void json_print(const struct comparison *c)
{
    json_t *ways = json_array();
    for (int i = 0; i < c->n_ways; i++) {
        const struct way *w = &c->ways[i];
        json_t *layers = json_array();
        for (int k = 0; k < w->pp; k++)
            json_array_append_new(layers, json_integer(w->memory.stages[k].layers));
        json_array_append_new(ways, json_pack("{s:i,s:i,s:o,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:b}", "tp", w->tp, "pp", w->pp,
                                              "layers", layers, "kv_tokens", w->kv_tokens, "ttft_s_alone", w->ttft_s,
                                              "itl_ms_alone", w->itl_ms, "output_tokens_per_s",
                                              w->capacity.rate * c->output_tokens, "sequences", w->capacity.sequences,
                                              "itl_ms", w->capacity.itl_us / 1e3, "bubble", w->capacity.bubble, "best",
                                              i == c->best));
    }
    json_t *object = json_pack("{s:s,s:I,s:f,s:f,s:o}", "gpu", c->flags->gpu, "gpus", (json_int_t)c->flags->gpus,
                               "prompt_tokens", c->prompt_tokens, "output_tokens", c->output_tokens, "divisions", ways);
    json_dumpf(object, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(object);
}

// Checks that the GPUs can be divided by --tp and --pp, as far as they are given.
static enum status division_check(const struct plan_flags *f, const struct model_config *config)
{
    const int64_t tp = f->tp_given ? f->tp : 1, pp = f->pp_given ? f->pp : 1;
    int layers[MODEL_STAGES_MAX];
    if (f->gpus % (tp * pp) || (f->tp_given && f->pp_given && tp * pp != f->gpus))
        return status_fail(STATUS_INVALID, "--gpus %lld: --tp and --pp must divide them, and give all of them together",
                           (long long)f->gpus);
    return stages_divide(config, f->pp_layers, (int)pp, layers);
}

enum status plan_group_print(const struct plan_flags *f, double prompt_tokens, int *code_p)
{
    struct comparison c = {.flags = f,
                           .prompt_tokens = prompt_tokens,
                           .output_tokens = f->output_tokens ? (double)f->output_tokens : OUTPUT_DEFAULT,
                           .max_seqs = f->seqs_given ? (double)f->max_seqs : PLAN_SEQS_DEFAULT,
                           .token_budget = f->budget_given ? (double)f->token_budget : PLAN_BUDGET_DEFAULT};
    TRY(model_config_read(f->model ? f->model : f->shape, &c.config));
    if (prompt_tokens + c.output_tokens > c.config.max_context)
        return status_fail(STATUS_INVALID, "a request of %.0f tokens exceeds the model's context of %d%s",
                           prompt_tokens + c.output_tokens, c.config.max_context, model_config_context_note(&c.config));
    TRY(division_check(f, &c.config));
    ways_find(&c);
    (f->json ? json_print : text_print)(&c);
    *code_p = c.n_ways > 0 ? 0 : 1;
    return STATUS_OK;
}
