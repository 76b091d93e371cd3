// SPDX-License-Identifier: Apache-2.0
// engine/model/pass_cost: the time of a pass agrees with times computed by hand from the data sheets, and with the
// measurements of one H100 in docs/gpus.md.
#include "engine/model/pass_cost.h"
#include "tests/shape_file.h"
#include "tests/suite.h"

#include <math.h>

#include "lib/base/mem.h"
#include "lib/text/limits.h"

static struct pass_shape model_of(const char *shape, const char *dtype, const struct device_rates *device, int ranks)
{
    struct model_config config = shape_file_read(shape);
    struct pass_options options = {.ranks = ranks, .kv_bytes = 2};
    ck_assert(pass_type_parse(dtype, &config, &options.type));
    return pass_shape_of(&config, device, &options);
}

static struct pass_shape bound_of(const char *shape, const char *gpu, int ranks)
{
    struct device_rates device = device_rates_bound(device_rates_find(gpu));
    return model_of(shape, "auto", &device, ranks);
}

// A pass of `n` sequences with `rows` rows after `cached` entries each.
static struct pass_parts cost_of(const struct pass_shape *m, double n, double rows, double cached)
{
    struct pass_work work = {0};
    pass_work_add(&work, m, n, rows, cached, true);
    return pass_cost_of(m, &work);
}

static double ms_of(const struct pass_shape *m, double n, double rows, double cached)
{
    return cost_of(m, n, rows, cached).total_us / 1e3;
}

static void ck_near(double value, double expected, double share)
{
    ck_assert_msg(fabs(value - expected) <= share * expected, "%g is not within %g %% of %g", value, 100 * share,
                  expected);
}

// 405B in FP8: attention and the MLP of the first and last layer are bf16. By hand, in 10^9 weights: attention
// 126 * (2 * 16384 * 16384 + 2 * 16384 * 1024) = 71.87, MLP 126 * 3 * 16384 * 53248 = 329.76, of which 5.23 in bf16,
// head 2.10. Bytes: 2 * (71.87 + 5.23 + 2.10) + 324.53 = 482.9, of a rank 60.37. With the embedding table of 0.53 per
// rank these are 56.7 GiB.
START_TEST(weights_count_by_their_type)
{
    struct pass_shape m = bound_of("llama-3.1-405b-fp8", "h200", 8);
    ck_near(pass_shape_weight_bytes(&m), 60.37e9, 0.001);
    ck_near((pass_shape_weight_bytes(&m) + 2.10e9 * 2 / 8) / (1 << 30), 56.7, 0.001);
}
END_TEST

// 60.37e9 / 4.8e12 = 12.58 ms: in bf16 it would be 21.1.
START_TEST(decode_reads_weights_in_fp8)
{
    struct pass_shape m = bound_of("llama-3.1-405b-fp8", "h200", 8);
    struct pass_parts cost = cost_of(&m, 1, 1, 0);
    ck_near(cost.weights_us, 12580, 0.005);
    ck_assert_double_eq(cost.arithmetic_us, 0);
}
END_TEST

// A rank has one KV head: 126 * 2 * 128 * 2 = 64,512 bytes an entry. 256 sequences of 3,138 entries are 51.8e9 bytes,
// read in 10.8 ms.
START_TEST(decode_reads_keys_and_values)
{
    struct pass_shape m = bound_of("llama-3.1-405b-fp8", "h200", 8);
    ck_assert_double_eq(m.entry_bytes, 64512);
    ck_near(cost_of(&m, 256, 1, 3137).attention_us, 10800, 0.005);
}
END_TEST

START_TEST(ranks_beyond_the_heads_repeat_a_head)
{
    struct pass_shape m = bound_of("llama-3.1-405b-fp8", "h200", 16);
    ck_assert_double_eq(m.entry_bytes, 64512);
    ck_near(m.pair_flop, 4.0 * 126 * 128 * 128 / 16, 1e-9);
}
END_TEST

// 8B: 2 * 6.979e9 weights * 16,384 rows = 228.7 TFLOP, attention of 16 * 1,024 * 1,025 / 2 pairs * 524,288 = 4.4.
START_TEST(prompts_take_arithmetic)
{
    struct pass_shape m = bound_of("llama-3.1-8b", "h100", 1);
    struct pass_parts cost = cost_of(&m, 16, 1024, 0);
    ck_near(cost.arithmetic_us, 228.7e6 / 989, 0.002);
    ck_near(cost.attention_us, 4.4e6 / 989, 0.01);
}
END_TEST

// 80 layers have 160 sums. A row of 8,192 values is 16,384 bytes, and 2 * 7 / 8 of them cross a link: 0.08 us at 82 %
// of 450 GB/s. Over two hosts half of the bytes of a link's rank cross the network in addition.
START_TEST(ranks_sum_twice_in_each_layer)
{
    struct pass_shape m = model_of("llama-3.1-70b", "bf16", device_rates_find("h100"), 8);
    ck_near(cost_of(&m, 1, 1, 0).sums_us, 160 * (12 + 28672 / (450e3 * 0.82)), 1e-6);
    ck_near(cost_of(&m, 1, 8192, 0).sums_us, 160 * (12 + 28672 * 8192 / (450e3 * 0.82)), 1e-6);
    struct pass_shape wide = model_of("llama-3.1-70b", "bf16", device_rates_find("h100"), 16);
    ck_near(cost_of(&wide, 1, 1, 0).sums_us, 160 * (47 + 28672 / (450e3 * 0.82) + 2048 / (50e3 * 0.82)), 1e-6);
    struct pass_shape alone = model_of("llama-3.1-70b", "fp8", device_rates_find("h200"), 1);
    ck_assert_double_eq(cost_of(&alone, 1, 1, 0).sums_us, 0);
}
END_TEST

START_TEST(long_passes_sum_while_they_compute)
{
    struct pass_shape m = model_of("llama-3.1-70b", "bf16", device_rates_find("h100"), 8);
    double sums_us = cost_of(&m, 1, 8192, 0).sums_us;
    m.overlap_rows = 1024;
    ck_near(cost_of(&m, 1, 8192, 0).sums_us, sums_us / 8, 1e-9);
    ck_near(cost_of(&m, 1, 2047, 0).sums_us, 160 * (12 + 28672 * 2047 / (450e3 * 0.82)), 1e-6);
}
END_TEST

// 405B in two stages of 8 ranks: 64 and 62 layers, the head in the second. A stage reads its weights only, and sums
// stay inside a host. 64 rows of 16,384 f32 values cross the network: 4.19e6 bytes at 82 % of 50 GB/s after 47 us.
START_TEST(a_pass_occupies_one_stage_after_another)
{
    const int layers[] = {64, 62};
    const struct model_config config = shape_file_read("llama-3.1-405b");
    const struct device_rates *h200 = device_rates_find("h200");
    const struct pass_options options = {.ranks = 8, .stages = 2, .stage_layers = layers, .kv_bytes = 2};
    const struct pass_shape one = model_of("llama-3.1-405b", "bf16", h200, 8),
                            m = pass_shape_of(&config, h200, &options);
    const struct pass_parts whole = cost_of(&one, 64, 1, 1000), staged = cost_of(&m, 64, 1, 1000);
    const double head_us = whole.total_us - 126.0 / 64 * staged.total_us; // the first stage is the longest
    ck_near(staged.sums_us, whole.sums_us * 64 / 126, 1e-9);
    ck_near(head_us, m.head_bytes / (h200->read_gbytes_per_s * 1e3 * 0.83), 1e-6);
    ck_near(staged.transfer_us, 47 + 64 * 16384 * 4 / (50e3 * 0.82), 1e-6);
    ck_near(staged.latency_us, whole.total_us + staged.transfer_us, 1e-9);
    ck_near(pass_shape_weight_bytes(&m), (pass_shape_weight_bytes(&one) - m.head_bytes) * 64 / 126, 1e-9);
    ck_near(pass_decode_bubble(&m, &staged),
            (staged.transfer_us + 40) / (2 * staged.total_us + staged.transfer_us + 40), 1e-9);
}
END_TEST

// Transfers inside a host take its links.
START_TEST(stages_of_one_host_need_no_network)
{
    const int layers[] = {41, 39};
    const struct model_config config = shape_file_read("llama-3.1-70b");
    const struct pass_options options = {.ranks = 4, .stages = 2, .stage_layers = layers, .kv_bytes = 2};
    const struct pass_shape m = pass_shape_of(&config, device_rates_find("h100"), &options);
    ck_near(cost_of(&m, 1, 1000, 0).transfer_us, 12 + 1000 * 8192 * 4 / (450e3 * 0.82), 1e-6);
}
END_TEST

START_TEST(a_gpu_without_fp8_computes_in_bf16)
{
    struct pass_shape a100 = bound_of("llama-3.1-405b-fp8", "a100", 16), h100 = bound_of("llama-3.1-405b", "h100", 16);
    ck_assert_double_eq(pass_shape_weight_bytes(&a100), pass_shape_weight_bytes(&h100));
}
END_TEST

START_TEST(a_batch_costs_what_its_sequences_cost)
{
    struct pass_shape m = model_of("llama-3.1-8b", "bf16", device_rates_find("h100"), 1);
    const int32_t row_start[] = {0, 1, 2, 514}, kv_len[] = {1000, 1000, 64};
    const struct ragged_batch batch = {
        .n_rows = 514, .n_seqs = 3, .row_start = row_start, .kv_len = kv_len, .n_logit_rows = 3};
    struct pass_work work = {0};
    pass_work_add(&work, &m, 2, 1, 1000, true);
    pass_work_add(&work, &m, 1, 512, 64, true);
    ck_assert_double_eq_tol(pass_cost_batch_us(&m, &batch), pass_cost_of(&m, &work).total_us, 1e-6);
}
END_TEST

START_TEST(only_gpus_of_the_table_are_found)
{
    ck_assert_ptr_null(device_rates_find("h1000"));
    ck_assert_double_eq(device_rates_find("h200")->memory_mib, 143771);
}
END_TEST

START_TEST(a_device_of_given_rates_loses_nothing)
{
    struct device_rates device = device_rates_of(0.5, 40);
    struct pass_shape m = model_of("llama-3.2-1b", "bf16", &device, 1);
    // 1.236e9 weights of 2 bytes, with the head, which is the embedding.
    ck_near(cost_of(&m, 1, 1, 0).total_us, 2.47e9 / 40e3, 0.01);
    struct pass_shape in_int8 = model_of("llama-3.2-1b", "int8", &device, 1);
    ck_near(pass_shape_weight_bytes(&in_int8), 0.973e9 + 2 * 0.263e9, 0.01);
}
END_TEST

static const struct {
    const char *dtype;
    enum rate_type type;
    double bits;
} types[] = {{"auto", RATE_BF16, 16}, {"bf16", RATE_BF16, 16},    {"bf12", RATE_BF12, 12},
             {"f32", RATE_F32, 32},   {"fp8", RATE_FP8, 8},       {"int4-g128", RATE_INT4, 4.3125},
             {"int8", RATE_INT8, 8},  {"int8-g128", RATE_INT8, 8}};

START_TEST(weights_take_the_bits_of_their_type)
{
    struct device_rates device = device_rates_of(0.5, 40);
    struct pass_shape m = model_of("llama-3.2-1b", types[_i].dtype, &device, 1);
    const double weights = m.layer_weights[types[_i].type];
    ck_near(weights, 0.973e9, 0.001);
    ck_near(m.layer_bytes[types[_i].type] * 8 / weights, types[_i].bits, 1e-9);
    ck_near(cost_of(&m, 1, 1, 0).weights_us, pass_shape_weight_bytes(&m) / 40e3, 1e-9);
}
END_TEST

START_TEST(every_dtype_has_a_type)
{
    const struct model_config config = shape_file_read("llama-3.2-1b");
    char *list = mem_string(MODEL_DTYPES), *at;
    enum rate_type type;
    int n = 0;
    for (char *name = strtok_r(list, "|", &at); name; name = strtok_r(NULL, "|", &at), n++)
        ck_assert_msg(pass_type_parse(name, &config, &type), "%s", name);
    ck_assert_int_eq(n, sizeof types / sizeof *types);
    ck_assert(!pass_type_parse("bf13", &config, &type));
    free(list);
}
END_TEST

// The measurements of docs/gpus.md on one H100.
static const struct {
    const char *shape, *dtype;
    double n, rows, cached, ms, share;
} measured[] = {
    {"llama-3.1-8b", "bf16", 16, 1024, 0, 16384 / 41.138, 0.05},
    {"llama-3.1-8b", "bf16", 1, 16384, 0, 16384 / 32.084, 0.05},
    {"llama-3.1-8b", "bf16", 1, 1, 1024, 6.29, 0.05},
    {"llama-3.1-8b", "bf16", 32, 1, 1024, 8.46, 0.05},
    {"llama-3.1-8b", "bf16", 64, 1, 1024, 10.3, 0.05},
    {"llama-3.1-8b", "bf16", 256, 1, 1024, 23.2, 0.05},
    {"llama-3.1-8b", "fp8", 1, 1, 1024, 4.29, 0.10},
    {"llama-3.1-8b", "fp8", 16, 1, 1024, 6.35, 0.10},
    {"llama-3.1-8b", "fp8", 64, 1, 1024, 9.00, 0.10},
    {"llama-3.1-8b", "fp8", 16, 1024, 0, 16384 / 41.138 / 1.38, 0.05},
    {"llama-3.1-8b", "fp8", 1, 16384, 0, 16384 / 32.084 / 1.27, 0.05},
};

START_TEST(costs_agree_with_measurements_of_an_h100)
{
    struct pass_shape m = model_of(measured[_i].shape, measured[_i].dtype, device_rates_find("h100"), 1);
    ck_near(ms_of(&m, measured[_i].n, measured[_i].rows, measured[_i].cached), measured[_i].ms, measured[_i].share);
}
END_TEST

SUITE("pass_cost")
{
    TEST(weights_count_by_their_type);
    TEST(decode_reads_weights_in_fp8);
    TEST(decode_reads_keys_and_values);
    TEST(ranks_beyond_the_heads_repeat_a_head);
    TEST(prompts_take_arithmetic);
    TEST(ranks_sum_twice_in_each_layer);
    TEST(long_passes_sum_while_they_compute);
    TEST(a_pass_occupies_one_stage_after_another);
    TEST(stages_of_one_host_need_no_network);
    TEST(a_gpu_without_fp8_computes_in_bf16);
    TEST(a_batch_costs_what_its_sequences_cost);
    TEST(only_gpus_of_the_table_are_found);
    TEST(a_device_of_given_rates_loses_nothing);
    EACH(weights_take_the_bits_of_their_type, types);
    TEST(every_dtype_has_a_type);
    EACH(costs_agree_with_measurements_of_an_h100, measured);
}
