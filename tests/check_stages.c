// SPDX-License-Identifier: Apache-2.0
// engine/model/stages: the division of layers over stages, and the lists of --pp-layers that are refused.
#include "engine/model/stages.h"
#include "tests/suite.h"

#include <math.h>

#include "lib/base/mem.h"

static struct model_config shape_of(const char *name)
{
    const char *source = getenv("FOREPACK_SOURCE");
    char *path = mem_format("%s/bench/shapes/%s.json", source ? source : ".", name);
    struct model_config config;
    ck_assert_int_eq(model_config_read(path, &config), STATUS_OK);
    free(path);
    return config;
}

static const struct {
    int layers, stages;
    double head;
    const char *list;
    int expected[8];
} divisions[] = {
    {16, 1, 0.5, NULL, {16}},
    {16, 2, 0, NULL, {8, 8}},
    {16, 2, 4.3, NULL, {10, 6}},
    {126, 2, 1.25, NULL, {64, 62}},
    {126, 2, 0.66, NULL, {63, 63}},
    {10, 4, 0, NULL, {3, 2, 2, 3}},
    {10, 4, 0.9, NULL, {3, 3, 2, 2}},
    {5, 4, 0, NULL, {1, 1, 1, 2}},
    {4, 4, 9, NULL, {1, 1, 1, 1}},
    {4, 2, 9, NULL, {3, 1}},
    {16, 2, 0, "", {8, 8}},
    {16, 2, 0, "11,5", {11, 5}},
    {4, 4, 0, "1,1,1,1", {1, 1, 1, 1}},
};

START_TEST(the_longest_stage_is_shortest)
{
    struct stage_layers stages[STAGES_MAX];
    const int n = divisions[_i].stages;
    ck_assert_int_eq(stages_divide(divisions[_i].layers, n, divisions[_i].head, divisions[_i].list, stages), STATUS_OK);
    for (int i = 0, first = 0; i < n; first += stages[i++].n) {
        ck_assert_int_eq(stages[i].n, divisions[_i].expected[i]);
        ck_assert_int_eq(stages[i].first, first);
    }
}
END_TEST

// Returns the longest stage of the best division of `layers` layers over `n` stages of which the last one has the head.
static double best_longest(int layers, int n, double head)
{
    if (n == 1) return layers + head;
    double best = INFINITY;
    for (int first = 1; first <= layers - (n - 1); first++)
        best = fmin(best, fmax(first, best_longest(layers - first, n - 1, head)));
    return best;
}

START_TEST(no_division_is_better)
{
    for (int layers = 1; layers <= 14; layers++)
        for (int n = 1; n <= layers && n <= 5; n++)
            for (double head = 0; head < 6; head += 0.7) {
                struct stage_layers stages[STAGES_MAX];
                ck_assert_int_eq(stages_divide(layers, n, head, NULL, stages), STATUS_OK);
                double longest = stages[n - 1].n + head;
                for (int i = 0; i < n - 1; i++)
                    longest = fmax(longest, stages[i].n);
                ck_assert_double_eq(longest, best_longest(layers, n, head));
                ck_assert_int_eq(stages[n - 1].first + stages[n - 1].n, layers);
            }
}
END_TEST

static const struct {
    int layers, stages;
    const char *list, *part;
} refusals[] = {
    {4, 5, NULL, "--pp 5: each stage needs a layer, the model has 4"},
    {4, 0, NULL, "--pp 0: must be from 1 to 32"},
    {126, 33, NULL, "--pp 33: must be from 1 to 32"},
    {126, 2, "64,61", "--pp-layers 64,61: has 125 layers, the model 126"},
    {126, 2, "126", "has 1 stages, --pp 2"},
    {126, 2, "126,0", "pp-layers"},
    {126, 2, "64,x", "pp-layers"},
    {126, 2, "-1,127", "pp-layers"},
};

START_TEST(a_wrong_number_of_stages_or_list_is_refused)
{
    struct stage_layers stages[STAGES_MAX] = {{.n = 77}};
    enum status status = stages_divide(refusals[_i].layers, refusals[_i].stages, 0, refusals[_i].list, stages);
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), refusals[_i].part) != NULL, "%s", status_message());
    ck_assert_int_eq(stages[0].n, 77);
}
END_TEST

// 405B by hand, in 10^9 weights: head 2.101, layer 3.188. In FP8 attention and two MLPs stay bf16 (check_pass_cost.c),
// so 126 layers have 478.7 * 10^9 bytes.
START_TEST(the_head_counts_by_its_bytes)
{
    const struct model_config bf16 = shape_of("llama-3.1-405b"), fp8 = shape_of("llama-3.1-405b-fp8");
    ck_assert_double_eq_tol(stages_head_layers(&bf16, DTYPE_BF16, DTYPE_BF16), 2.101 / 3.188, 0.002);
    ck_assert_double_eq_tol(stages_head_layers(&bf16, DTYPE_F32, DTYPE_F32), 2.101 / 3.188, 0.002);
    ck_assert_double_eq_tol(stages_head_layers(&fp8, DTYPE_FP8, DTYPE_BF16), 2 * 2.101 / (478.7 / 126), 0.01);
    ck_assert_double_eq_tol(stages_head_layers(&bf16, DTYPE_FP8, DTYPE_BF16), 2 * 2.101 / 3.188, 0.01);
}
END_TEST

SUITE("stages")
{
    EACH(the_longest_stage_is_shortest, divisions);
    TEST(no_division_is_better);
    EACH(a_wrong_number_of_stages_or_list_is_refused, refusals);
    TEST(the_head_counts_by_its_bytes);
}
