// SPDX-License-Identifier: Apache-2.0
// cli/engine/capacity: the highest load of a group agrees with loads computed by hand, and with the throughput that
// NVIDIA published for TensorRT-LLM 1.0 on H100 and H200 (docs/sizing.md cites the source).
#include "cli/engine/capacity.h"
#include "tests/shape_file.h"
#include "tests/suite.h"

#include <math.h>
#include <stdio.h>

static struct pass_shape shape_of(const char *name, const char *gpu, int ranks, const struct pass_options *options)
{
    struct model_config config = shape_file_read(name);
    config.stored = STORED_PLAIN; // quantised whole, by `options`
    struct pass_options all = *options;
    all.ranks = ranks;
    return pass_shape_of(&config, device_rates_find(gpu), &all);
}

static struct capacity_node node_of(const char *name, const char *gpu, int ranks)
{
    const struct pass_options options = {.kv_bytes = 2};
    return (struct capacity_node){.shape = shape_of(name, gpu, ranks, &options),
                                  .max_seqs = 256,
                                  .kv_tokens = 1e6,
                                  .token_budget = 8192,
                                  .pass_us = 1e9};
}

static double pass_us(const struct capacity_node *node, double n, double rows, double cached)
{
    struct pass_work work = {0};
    pass_work_add(&work, &node->shape, n, rows, cached, true);
    return pass_cost_of(&node->shape, &work).total_us + node->shape.device.host_us;
}

static void ck_near(double value, double expected, double share)
{
    ck_assert_msg(fabs(value - expected) <= share * expected, "%g is not within %g %% of %g", value, 100 * share,
                  expected);
}

// Four prompts of 2,048 tokens fill a pass.
START_TEST(prompts_alone_fill_passes)
{
    struct capacity_node node = node_of("llama-3.1-8b", "h100", 1);
    struct capacity capacity = capacity_of(&node, &(struct capacity_load){.prompt_tokens = 2048, .output_tokens = 1});
    ck_near(capacity.rate, 4 / (pass_us(&node, 4, 2048, 0) / 1e6), 0.03);
    ck_assert_int_eq(capacity.limit, CAPACITY_BUDGET);
}
END_TEST

START_TEST(the_kv_cache_limits_sequences)
{
    struct capacity_node node = node_of("llama-3.1-8b", "h100", 1);
    node.kv_tokens = 32 * (1000 + 500);
    struct capacity capacity =
        capacity_of(&node, &(struct capacity_load){.prompt_tokens = 1000, .output_tokens = 1000});
    ck_near(capacity.sequences, 32, 0.01);
    ck_assert_int_eq(capacity.limit, CAPACITY_KV);
    node.kv_tokens = 1e6;
    node.max_seqs = 16;
    capacity = capacity_of(&node, &(struct capacity_load){.prompt_tokens = 1000, .output_tokens = 1000});
    ck_near(capacity.sequences, 16, 0.01);
    ck_assert_int_eq(capacity.limit, CAPACITY_SEQUENCES);
}
END_TEST

START_TEST(a_longer_pass_holds_more)
{
    struct capacity_node node = node_of("llama-3.1-70b", "h200", 8);
    const struct capacity_load load = {.prompt_tokens = 4000, .output_tokens = 200};
    node.pass_us = 0;
    const double paced = capacity_of(&node, &load).rate;
    node.pass_us = 100000;
    const double unpaced = capacity_of(&node, &load).rate;
    ck_assert_double_gt(unpaced, 1.2 * paced);
    ck_assert_double_gt(capacity_of(&node, &(struct capacity_load){4000, 2000, 200}).rate, 1.3 * unpaced);
}
END_TEST

START_TEST(one_request_alone)
{
    struct capacity_node node = node_of("llama-3.1-8b", "h100", 1);
    ck_assert_double_eq_tol(capacity_prefill_us(&node, 10000, 0),
                            pass_us(&node, 1, 8192, 0) + pass_us(&node, 1, 1808, 8192), 1e-6);
    ck_assert_double_eq_tol(capacity_decode_us(&node, 1000), pass_us(&node, 1, 1, 1000), 1e-6);
    ck_assert_double_eq_tol(capacity_score_us(&node, 10000),
                            capacity_prefill_us(&node, 10000, 0) + 7 * pass_us(&node, 1, 1, 10000), 1e-6);
}
END_TEST

// Output tokens/s of TensorRT-LLM 1.0 (FP8 weights and KV cache) under a queue that never ends:
// github.com/NVIDIA/TensorRT-LLM, docs/source/performance/perf-overview.md at commit 00f37686.
static const struct {
    const char *shape, *gpu;
    int ranks;
    double prompt, output, published, least, most; // bounds of computed / published
} published[] = {
    {"llama-3.1-8b", "h100", 1, 128, 128, 28312, 0.75, 1.25},
    {"llama-3.1-8b", "h100", 1, 1000, 1000, 15220, 0.75, 1.25},
    {"llama-3.1-8b", "h100", 1, 2048, 128, 3450, 0.75, 1.25},
    {"llama-3.1-8b", "h200", 1, 1000, 1000, 17744, 0.75, 1.25},
    {"llama-3.1-8b", "h200", 1, 5000, 500, 3902, 0.75, 1.25},
    {"llama-3.1-70b", "h100", 2, 1000, 1000, 4205, 0.75, 1.25},
    {"llama-3.1-70b", "h100", 2, 2048, 128, 762, 0.75, 1.25},
    {"llama-3.1-70b", "h200", 1, 1000, 1000, 2909, 0.75, 1.25},
    {"llama-3.1-70b", "h200", 1, 2048, 128, 442, 0.75, 1.25},
    {"llama-3.1-405b", "h100", 8, 1000, 1000, 2919, 0.75, 1.25},
    {"llama-3.1-405b", "h100", 8, 2048, 128, 453, 0.75, 1.25},
    {"llama-3.1-405b", "h200", 8, 1000, 1000, 3330, 0.75, 1.25},
    {"llama-3.1-405b", "h200", 8, 2048, 128, 456, 0.75, 1.25},
    {"llama-3.1-405b", "h200", 8, 5000, 500, 650, 0.75, 1.25},
};

START_TEST(published_throughputs_are_near)
{
    const struct pass_options options = {.type = RATE_FP8, .kv_bytes = 1, .fp8_fast_accum = true};
    struct capacity_node node = {
        .shape = shape_of(published[_i].shape, published[_i].gpu, published[_i].ranks, &options),
        .max_seqs = 2048,
        .token_budget = 8192,
        .pass_us = 1e9,
    };
    // 95 % of the memory that weights, an embedding table in bf16 and 4 GiB of activations leave.
    const double free_bytes = (node.shape.device.memory_mib - 4096) * (1 << 20) - pass_shape_weight_bytes(&node.shape) -
                              node.shape.head_bytes;
    node.kv_tokens = 0.95 * free_bytes / node.shape.entry_bytes;
    const struct capacity_load load = {.prompt_tokens = published[_i].prompt, .output_tokens = published[_i].output};
    const struct capacity capacity = capacity_of(&node, &load);
    const double ratio = capacity.rate * published[_i].output / published[_i].published;
    printf("%s %s x %d, %.0f/%.0f: %.0f computed, %.0f published, ratio %.2f, %.0f sequences, limit %s, %s\n",
           published[_i].shape, published[_i].gpu, published[_i].ranks, published[_i].prompt, published[_i].output,
           capacity.rate * published[_i].output, published[_i].published, ratio, capacity.sequences,
           capacity_limit_text(capacity.limit), capacity_part_text(&capacity.parts));
    fflush(stdout);
    ck_assert_double_ge(ratio, published[_i].least);
    ck_assert_double_le(ratio, published[_i].most);
}
END_TEST

SUITE("capacity")
{
    TEST(prompts_alone_fill_passes);
    TEST(the_kv_cache_limits_sequences);
    TEST(a_longer_pass_holds_more);
    TEST(one_request_alone);
    EACH(published_throughputs_are_near, published);
}
