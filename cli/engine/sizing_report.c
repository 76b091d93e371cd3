// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "cli/engine/sizing.h"

static const char *const way_texts[SIZING_WAYS] = {"all tokens", "with speculators"};

// Returns GPU hours per million tokens of prompts and output, or of output alone.
static double gpu_hours(const struct sizing *s, const struct sizing_cluster *c, bool of_output)
{
    const double tokens = s->load.output_tokens + (of_output ? 0 : s->load.prompt_tokens);
    return sizing_gpus(c) / (s->load.rate * tokens * 3600) * 1e6;
}

// Returns the load as a share of what the groups can hold at most.
static double load_share(const struct sizing *s, const struct sizing_cluster *c)
{
    return s->load.rate / (c->groups * c->capacity.rate);
}

// Returns the text of what limits a group first.
static const char *limit_text(const struct sizing_cluster *c)
{
    return c->capacity.limit == CAPACITY_PASS ? capacity_part_text(&c->capacity.parts)
                                              : capacity_limit_text(c->capacity.limit);
}

// ---- text -----------------------------------------------------------------------------------------------------------

static void print_cluster(const struct sizing *s, const struct sizing_cluster *c)
{
    printf("%-17s", way_texts[c->way]);
    if (!c->groups) {
        printf("   no cluster keeps the limits\n");
        return;
    }
    printf(" %4d %10d %6d %9d %10.3g %10.1f %11.0f%% %12.3g\n", sizing_gpus(c), c->groups, c->tp, c->speculators,
           c->ttft_p95_s, c->itl_p95_s * 1e3, 100 * load_share(s, c), gpu_hours(s, c, false));
}

static void print_choice(const struct sizing *s)
{
    const struct sizing_cluster *c = &s->best[s->chosen];
    printf("\n%d worker group%s of %d GPU%s", c->groups, c->groups > 1 ? "s" : "", c->tp, c->tp > 1 ? "s" : "");
    if (c->speculators)
        printf(" and %d speculator%s of %d GPU%s", c->speculators, c->speculators > 1 ? "s" : "", c->spec_tp,
               c->spec_tp > 1 ? "s" : "");
    printf(": %.3g GPU hours per million output tokens\n", gpu_hours(s, c, true));
    printf("options of a worker: --max-num-seqs %lld --max-num-batched-tokens %lld --itl-target-ms %lld\n",
           (long long)c->max_seqs, (long long)c->token_budget, (long long)c->itl_target_ms);
    if (c->failure[0]) printf("with %d group%s: %s\n", c->groups - 1, c->groups == 2 ? "" : "s", c->failure);
    printf("a group holds at most %.3g requests/s (%.0f running); first limit: %s\n", c->capacity.rate,
           c->capacity.sequences, limit_text(c));
    printf("\nrequests/s that a group can hold at most\n");
    for (int i = 0; i < s->n_effects; i++)
        printf("  %-28s %8.3g\n", s->effects[i].text, s->effects[i].rate);
}

void sizing_print(const struct sizing *s)
{
    const struct sizing_load *load = &s->load;
    printf("%g requests/s of %.0f + %.0f tokens on %s GPUs", load->rate, load->prompt_tokens, load->output_tokens,
           s->flags->gpu);
    if (s->limits.ttft_p95_s > 0) printf(", TTFT p95 at most %.3g s", s->limits.ttft_p95_s);
    if (s->limits.itl_p95_s > 0) printf(", ITL p95 at most %.3g s", s->limits.itl_p95_s);
    printf("\n");
    if (s->is_relaxed) printf("%s. This is the nearest that is possible:\n", s->reason);
    printf("\n%-17s %4s %10s %6s %9s %10s %10s %12s %12s\n", "", "GPUs", "groups", "of", "specula-", "TTFT p95 s",
           "ITL p95 ms", "load, share", "GPU hours");
    printf("%-17s %4s %10s %6s %9s %10s %10s %12s %12s\n", "", "", "", "GPUs", "tors", "", "", "of the most",
           "/ 1M tokens");
    for (int way = 0; way < SIZING_WAYS; way++)
        if (way == SIZING_ALL_KEPT || s->flags->spec_shape) print_cluster(s, &s->best[way]);
    print_choice(s);
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

static json_t *cluster_json(const struct sizing *s, const struct sizing_cluster *c)
{
    json_t *object = json_pack("{s:s,s:b}", "way", way_texts[c->way], "possible", c->groups > 0);
    if (!c->groups) return object;
    json_t *numbers = json_pack(
        "{s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:f,s:f,s:s,s:s}", "gpus", sizing_gpus(c),
        "groups", c->groups, "tp", c->tp, "speculators", c->speculators, "spec_tp", c->spec_tp, "ttft_s_p50",
        c->ttft_p50_s, "ttft_s_p95", c->ttft_p95_s, "itl_s_p50", c->itl_p50_s, "itl_s_p95", c->itl_p95_s, "utilisation",
        c->utilisation, "spec_utilisation", c->spec_utilisation, "gpu_hours_per_million_tokens", gpu_hours(s, c, false),
        "gpu_hours_per_million_output_tokens", gpu_hours(s, c, true), "kv_blocks", (json_int_t)c->kv_blocks,
        "max_num_seqs", (json_int_t)c->max_seqs, "max_num_batched_tokens", (json_int_t)c->token_budget, "itl_target_ms",
        (json_int_t)c->itl_target_ms, "group_requests_per_s_max", c->capacity.rate, "group_sequences",
        c->capacity.sequences, "first_limit", limit_text(c), "with_fewer_groups", c->failure);
    json_object_update(object, numbers);
    json_decref(numbers);
    return object;
}

json_t *sizing_json(const struct sizing *s)
{
    json_t *clusters = json_array(), *effects = json_array();
    for (int way = 0; way < SIZING_WAYS; way++)
        if (way == SIZING_ALL_KEPT || s->flags->spec_shape)
            json_array_append_new(clusters, cluster_json(s, &s->best[way]));
    for (int i = 0; i < s->n_effects; i++)
        json_array_append_new(effects, json_pack("{s:s,s:f}", "change", s->effects[i].text, "group_requests_per_s_max",
                                                 s->effects[i].rate));
    return json_pack("{s:s,s:f,s:f,s:f,s:f,s:f,s:b,s:s,s:s,s:o,s:o}", "gpu", s->flags->gpu, "qps", s->load.rate,
                     "prompt_tokens", s->load.prompt_tokens, "output_tokens", s->load.output_tokens, "ttft_s_p95_limit",
                     s->limits.ttft_p95_s, "itl_s_p95_limit", s->limits.itl_p95_s, "limits_kept", !s->is_relaxed,
                     "reason", s->reason, "chosen", way_texts[s->chosen], "clusters", clusters, "effects", effects);
}
