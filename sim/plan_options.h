// SPDX-License-Identifier: Apache-2.0
// The options of the capacity planner. Options of the cluster have the names and defaults of `forepack up` and the
// router, options of the load have the names of `forepack bench serve`.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/device_rates.h"
#include "engine/model/model.h"
#include "lib/base/options.h"
#include "lib/text/limits.h"

// Costs of a pass; zeros: not given.
struct plan_costs {
    double fixed_us, row_us, pair_us;
};

struct plan_options {
    // The load.
    char *trace, *arrivals, *prompt_tokens, *qps;
    int64_t shared_tokens, max_tokens, requests, warm_up, load_seed;
    double duration, time_scale, length_scale;
    // The cluster.
    char *shape, *spec_shape, *policy, *prefill;
    int64_t workers, speculators, tp, spec_tp;
    int64_t token_budget, max_seqs, kv_blocks, spec_kv_blocks, itl_target_ms, network_us;
    int64_t max_queue_requests, max_queue_tokens, max_wait_ms, bins_ahead, batch_requests;
    int64_t speculate_min_tokens, tail_tokens, score_timeout_ms;
    double keep_rate, draft_acceptance;
    bool prefix_cache;
    // The costs of passes.
    char *status;
    struct plan_costs costs[2]; // by role, see enum node_role
    char *gpu, *dtype, *spec_dtype, *kv_dtype;
    double tflops, gbytes_per_s;
    int64_t noise_percent;
};

// `p` is a static struct plan_options.
// clang-format off
#define PLAN_OPTION_ROWS(p)                                                                                            \
    {.name = "-Planning: the load"},                                                                                   \
    {.name = "trace", .type = OPTION_STRING, .value = &(p).trace, .placeholder = "FILE",                               \
     .help = "plan for this trace: a CSV as for forepack bench serve, with arrival_ms, prompt_tokens, output_tokens "  \
             "and optionally prefix_blocks"},                                                                          \
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &(p).prompt_tokens, .unit = "tokens",                    \
     .help = "plan for prompts of these lengths, comma-separated, cycled, at the rate --qps"},                         \
    {.name = "shared-prefix-tokens", .type = OPTION_INT, .value = &(p).shared_tokens, .default_text = "0", .max = 1e7, \
     .unit = "tokens", .help = "with --prompt-tokens: first tokens that all prompts share, in multiples of 512"},      \
    {.name = "max-tokens", .type = OPTION_INT, .value = &(p).max_tokens, .default_text = "0", .max = 1e7,              \
     .unit = "tokens", .help = "longest output; 0: as in the trace, 1 with --prompt-tokens"},                        \
    {.name = "qps", .type = OPTION_STRING, .value = &(p).qps, .unit = "requests/s",                                    \
     .help = "arrival rates, comma-separated, one plan each; without it the arrival times of the trace"},              \
    {.name = "arrivals", .type = OPTION_CHOICE, .value = &(p).arrivals, .default_text = "poisson",                     \
     .choices = "poisson|constant", .help = "distribution of the gaps between requests with --qps"},                   \
    {.name = "time-scale", .type = OPTION_REAL, .value = &(p).time_scale, .default_text = "1", .min = 1e-6,            \
     .max = 1e6, .help = "factor on the gaps between the arrivals of the trace; 0.5 doubles the rate"},                \
    {.name = "length-scale", .type = OPTION_REAL, .value = &(p).length_scale, .default_text = "1", .min = 1e-6,        \
     .max = 1000, .help = "factor on the prompt and output lengths of the trace"},                                     \
    {.name = "requests", .type = OPTION_INT, .value = &(p).requests, .default_text = "0", .max = 10000000,             \
     .help = "most requests; 0: the whole trace, or 100"},                                                             \
    {.name = "duration", .type = OPTION_REAL, .value = &(p).duration, .default_text = "0", .max = 1e6, .unit = "s",    \
     .help = "time over which requests arrive; 0: no limit"},                                                          \
    {.name = "warm-up", .type = OPTION_INT, .value = &(p).warm_up, .default_text = "4", .max = 100000,                 \
     .unit = "requests", .help = "uncounted requests before the load, one at a time"},                                 \
    {.name = "load-seed", .type = OPTION_INT, .value = &(p).load_seed, .default_text = "1", .max = 1e18,               \
     .help = "seed of arrivals and prompts"},                                                                          \
    {.name = "-Planning: the cluster"},                                                                                \
    {.name = "workers", .type = OPTION_INT, .value = &(p).workers, .default_text = "1", .min = 1, .max = 10000,        \
     .unit = "groups", .help = "number of worker groups"},                                                             \
    {.name = "tp", .type = OPTION_INT, .value = &(p).tp, .default_text = "1", .min = 1, .max = 1024, .unit = "ranks",  \
     .help = "tensor-parallel ranks of a worker group, if costs are computed from the shape"},                   \
    {.name = "shape", .type = OPTION_STRING, .value = &(p).shape, .placeholder = "FILE",                               \
     .help = "config.json of the model of the workers"},                                                               \
    {.name = "speculators", .type = OPTION_INT, .value = &(p).speculators, .default_text = "0", .max = 10000,          \
     .help = "number of speculators"},                                                                                 \
    {.name = "spec-tp", .type = OPTION_INT, .value = &(p).spec_tp, .default_text = "1", .min = 1, .max = 1024,         \
     .unit = "ranks", .help = "tensor-parallel ranks of a speculator"},                                                \
    {.name = "spec-shape", .type = OPTION_STRING, .value = &(p).spec_shape, .placeholder = "FILE",                     \
     .help = "config.json of the model of the speculators"},                                                           \
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &(p).token_budget, .default_text = "0",            \
     .max = MODEL_ROWS_MAX, .unit = "tokens",                                                                          \
     .help = "maximum number of tokens of a forward pass, and of a bin; 0: as in --status, else 2048"},              \
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &(p).max_seqs, .default_text = "64", .min = 1,               \
     .max = MODEL_SEQS_MAX, .unit = "sequences", .help = "maximum number of sequences of a node"},                     \
    {.name = "kv-blocks", .type = OPTION_INT, .value = &(p).kv_blocks, .default_text = "0", .max = MODEL_KV_BLOCKS_MAX,\
     .unit = "blocks", .help = "KV cache of a worker group, as forepack plan says; 0: as in --status, else a full "  \
                               "context per sequence"},                                                                \
    {.name = "spec-kv-blocks", .type = OPTION_INT, .value = &(p).spec_kv_blocks, .default_text = "0",                  \
     .max = MODEL_KV_BLOCKS_MAX, .unit = "blocks", \
     .help = "KV cache of a speculator; 0: as in --status, else a full context per sequence"},                        \
    {.name = "enable-prefix-caching", .type = OPTION_BOOL, .value = &(p).prefix_cache, .default_text = "true",         \
     .help = "reuse the KV blocks of prompts that start with the same tokens"},                                        \
    {.name = "itl-target-ms", .type = OPTION_INT, .value = &(p).itl_target_ms, .default_text = "0", .max = 3600000,    \
     .unit = "ms", .help = "target duration of a mixed pass; 0: twice the duration of its decodes"},                   \
    {.name = "network-us", .type = OPTION_INT, .value = &(p).network_us, .default_text = "200", .max = 1e7,            \
     .unit = "us", .help = "time of a message between a client, the router and a node"},                               \
    {.name = "max-queue-requests", .type = OPTION_INT, .value = &(p).max_queue_requests, .default_text = "10000",      \
     .min = 1, .max = 10000000, .unit = "requests", .help = "requests that may wait; further requests are refused"},   \
    {.name = "max-queue-tokens", .type = OPTION_INT, .value = &(p).max_queue_tokens, .default_text = "100000000",      \
     .min = 1, .max = 1e15, .unit = "tokens", .help = "prompt tokens of all waiting requests"},                        \
    {.name = "max-wait-ms", .type = OPTION_INT, .value = &(p).max_wait_ms, .default_text = "500", .max = 3600000,      \
     .unit = "ms", .help = "waiting time after which a request is overdue"},                                           \
    {.name = "bins-ahead", .type = OPTION_INT, .value = &(p).bins_ahead, .default_text = "2", .min = 1, .max = 64,     \
     .unit = "bins", .help = "most outstanding bins of a node"},                                                    \
    {.name = "bin-policy", .type = OPTION_CHOICE, .value = &(p).policy, .default_text = "dataset",                     \
     .choices = "none|batch|dataset", .help = "requests that may share a bin, as for the router"},                     \
    {.name = "batch-requests", .type = OPTION_INT, .value = &(p).batch_requests, .default_text = "16", .min = 1,       \
     .max = 1000000, .unit = "requests", .help = "size of an arrival batch with --bin-policy batch"},                  \
    {.name = "prefill", .type = OPTION_CHOICE, .value = &(p).prefill, .choices = PREFILL_MODES,                        \
     .help = "prefill mode of the requests; default auto with speculators, else off"},                                 \
    {.name = "keep-rate", .type = OPTION_REAL, .value = &(p).keep_rate, .default_text = "0.3", .min = 0.001, .max = 1, \
     .help = "share of the prompt's tokens to keep"},                                                                  \
    {.name = "draft-acceptance", .type = OPTION_REAL, .value = &(p).draft_acceptance, .default_text = "0", .max = 1,     \
     .help = "chance that a draft token is right if the tokens before it are; 0: no drafts"},  \
    {.name = "speculate-min-tokens", .type = OPTION_INT, .value = &(p).speculate_min_tokens, .default_text = "512",    \
     .max = 1e9, .unit = "tokens", .help = "minimum prompt length for speculation with --prefill auto"},               \
    {.name = "tail-tokens", .type = OPTION_INT, .value = &(p).tail_tokens, .default_text = "128", .max = 1e9,          \
     .unit = "tokens", .help = "last tokens of a prompt that are always kept, at most a quarter of the prompt"},       \
    {.name = "score-timeout-ms", .type = OPTION_INT, .value = &(p).score_timeout_ms, .default_text = "10000",          \
     .min = 1, .max = 3600000, .unit = "ms", .help = "maximum time for a prompt to wait for a speculator"},            \
    {.name = "-Planning: the cost of a pass, fixed + rows * row + attention pairs * pair"},                            \
    {.name = "status", .type = OPTION_STRING, .value = &(p).status, .placeholder = "FILE",                             \
     .help = "output of forepack status --json of a running cluster: costs, token budget and KV blocks of each role"},\
    {.name = "pass-fixed-us", .type = OPTION_REAL, .value = &(p).costs[1].fixed_us, .default_text = "0", .max = 1e9,   \
     .unit = "us", .help = "fixed time of a worker group's pass; any of its three costs replaces --status, --gpu and --tflops"},\
    {.name = "pass-row-us", .type = OPTION_REAL, .value = &(p).costs[1].row_us, .default_text = "0", .max = 1e6,       \
     .unit = "us", .help = "time per row of a worker group"},                                                                                \
    {.name = "pass-pair-us", .type = OPTION_REAL, .value = &(p).costs[1].pair_us, .default_text = "0", .max = 1e3,     \
     .unit = "us", .help = "time per attention pair (a row and a KV entry that it attends to)"},                                              \
    {.name = "spec-pass-fixed-us", .type = OPTION_REAL, .value = &(p).costs[0].fixed_us, .default_text = "0",          \
     .max = 1e9, .unit = "us", .help = "fixed time of a speculator's pass"},                                                             \
    {.name = "spec-pass-row-us", .type = OPTION_REAL, .value = &(p).costs[0].row_us, .default_text = "0", .max = 1e6,  \
     .unit = "us", .help = "time per row of a speculator"},                                                                         \
    {.name = "spec-pass-pair-us", .type = OPTION_REAL, .value = &(p).costs[0].pair_us, .default_text = "0",            \
     .max = 1e3, .unit = "us", .help = "time per attention pair of a speculator"},                                                             \
    {.name = "pass-noise-percent", .type = OPTION_INT, .value = &(p).noise_percent, .default_text = "-1", .min = -1,  \
     .max = 99, .unit = "%",                                                                                           \
     .help = "largest deviation of the time of a pass from its costs, up or down; -1: as measured by --status"},       \
    {.name = "gpu", .type = OPTION_CHOICE, .value = &(p).gpu, .choices = DEVICE_RATES_CHOICES,                         \
     .help = "compute the time of passes from the shape and the figures of this GPU"},                                 \
    {.name = "tflops", .type = OPTION_REAL, .value = &(p).tflops, .default_text = "0", .max = 1e6, .unit = "TFLOP/s",  \
     .help = "instead of --gpu: rate that a rank achieves"},                                                           \
    {.name = "gbytes-per-s", .type = OPTION_REAL, .value = &(p).gbytes_per_s, .default_text = "0", .max = 1e6,         \
     .unit = "GB/s", .help = "rate at which a rank reads memory, with --tflops"},                                      \
    {.name = "dtype", .type = OPTION_CHOICE, .value = &(p).dtype, .default_text = "auto", .choices = MODEL_DTYPES,     \
     .help = "type of weights and arithmetic, with --gpu or --tflops; auto: as in the shape, or bf16"},                \
    {.name = "spec-dtype", .type = OPTION_CHOICE, .value = &(p).spec_dtype, .default_text = "auto",                    \
     .choices = MODEL_DTYPES, .help = "the same for the speculators"},                                                 \
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &(p).kv_dtype, .default_text = "auto",                  \
     .choices = MODEL_KV_DTYPES, .help = "type of the KV cache, with --gpu or --tflops; auto is bf16"}
// clang-format on
