// SPDX-License-Identifier: Apache-2.0
// engine/model/stages: the division of layers over stages, and the lists of --pp-layers that are refused.
#include "engine/model/stages.h"
#include "tests/shape_file.h"
#include "tests/suite.h"

#include <math.h>

// A model whose head counts as `head` layers: a layer has 100 weights of attention and 300 of the MLP.
static struct model_config model_of(int n_layers, double head)
{
    struct model_config c = {.n_layers = n_layers, .hidden = 5, .n_heads = 1, .n_kv_heads = 1, .head_size = 5};
    c.intermediate = 20;
    c.vocab_size = (int)round(head * 80);
    ck_assert_double_eq_tol(stages_head_layers(&c), head, 0.01);
    return c;
}

static const struct {
    int layers, stages;
    double head;
    const char *list;
    int expected[8];
} divisions[] = {
    {16, 1, 0.5, NULL, {16}},         {16, 2, 0, NULL, {8, 8}},           {16, 2, 4.3, NULL, {10, 6}},
    {126, 2, 1.25, NULL, {64, 62}},   {126, 2, 0.65, NULL, {63, 63}},     {10, 4, 0, NULL, {3, 3, 2, 2}},
    {10, 4, 0.9, NULL, {3, 3, 2, 2}}, {4, 4, 9, NULL, {1, 1, 1, 1}},      {4, 2, 9, NULL, {3, 1}},
    {16, 2, 0, "11,5", {11, 5}},      {4, 4, 0, "1,1,1,1", {1, 1, 1, 1}},
};

START_TEST(the_longest_stage_is_shortest)
{
    const struct model_config config = model_of(divisions[_i].layers, divisions[_i].head);
    int layers[MODEL_STAGES_MAX];
    ck_assert_int_eq(stages_divide(&config, divisions[_i].list, divisions[_i].stages, layers), STATUS_OK);
    for (int i = 0; i < divisions[_i].stages; i++)
        ck_assert_int_eq(layers[i], divisions[_i].expected[i]);
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

static void ck_best(int n_layers, int n, double head)
{
    const struct model_config config = model_of(n_layers, head);
    int layers[MODEL_STAGES_MAX], sum = 0;
    ck_assert_int_eq(stages_divide(&config, NULL, n, layers), STATUS_OK);
    double longest = head;
    for (int i = 0; i < n; sum += layers[i++])
        longest = fmax(longest, layers[i] + (i == n - 1 ? head : 0));
    ck_assert_double_eq(longest, best_longest(n_layers, n, head));
    ck_assert_int_eq(sum, n_layers);
}

START_TEST(no_division_is_better)
{
    for (int layers = 1; layers <= 14; layers++)
        for (int n = 1; n <= layers && n <= 5; n++)
            for (int eighths = 0; eighths < 48; eighths += 5)
                ck_best(layers, n, eighths / 8.0);
}
END_TEST

static const struct {
    int layers, stages;
    const char *list, *part;
} refusals[] = {
    {4, 5, NULL, "pp 5: the model has 4 layers"}, {126, 2, "64,61", "these are 125 layers, but the model has 126"},
    {126, 2, "126", "must be 2 numbers"},         {126, 2, "63,62,1", "must be 2 numbers"},
    {126, 2, "126,0", "must be 2 numbers"},       {126, 2, "64,x", "must be 2 numbers"},
    {126, 2, "-1,127", "must be 2 numbers"},      {126, 2, "", "must be 2 numbers"},
};

START_TEST(a_list_that_does_not_fit_is_refused)
{
    const struct model_config config = model_of(refusals[_i].layers, 1);
    int layers[MODEL_STAGES_MAX];
    ck_assert_int_eq(stages_divide(&config, refusals[_i].list, refusals[_i].stages, layers), STATUS_INVALID);
    ck_assert_msg(strstr(status_message(), refusals[_i].part) != NULL, "%s", status_message());
}
END_TEST

// 405B by hand, in 10^9 weights: head 2.101, layer 3.188. In FP8 attention and two MLPs stay bf16 (check_pass_cost.c),
// so 126 layers have 478.7 * 10^9 bytes.
START_TEST(the_head_counts_by_its_bytes)
{
    const struct model_config bf16 = shape_file_read("llama-3.1-405b"), fp8 = shape_file_read("llama-3.1-405b-fp8");
    int layers[2];
    ck_assert_double_eq_tol(stages_head_layers(&bf16), 2.101 / 3.188, 0.002);
    ck_assert_double_eq_tol(stages_head_layers(&fp8), 2 * 2.101 / (478.7 / 126), 0.01);
    ck_assert_int_eq(stages_divide(&fp8, NULL, 2, layers), STATUS_OK);
    ck_assert_int_eq(layers[0], 64);
}
END_TEST

static const struct {
    int rank, size, stages, index;
} ranks[] = {{0, 16, 2, 1}, {7, 16, 2, 1}, {8, 16, 2, 0}, {15, 16, 2, 0}, {0, 4, 4, 3}, {3, 4, 4, 0}, {0, 1, 1, 0}};

START_TEST(consecutive_ranks_are_a_stage_and_rank_0_is_in_the_last)
{
    int index;
    ck_assert_int_eq(stage_of_rank(ranks[_i].rank, ranks[_i].size, ranks[_i].stages, &index), STATUS_OK);
    ck_assert_int_eq(index, ranks[_i].index);
}
END_TEST

START_TEST(ranks_that_are_no_multiple_are_refused)
{
    static const int pairs[][2] = {{4, 3}, {2, 4}, {4, 0}, {1000, 500}};
    int index;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        ck_assert_int_eq(stage_of_rank(0, pairs[i][0], pairs[i][1], &index), STATUS_INVALID);
        ck_assert_msg(strstr(status_message(), "cannot be divided") != NULL, "%s", status_message());
    }
}
END_TEST

SUITE("stage_layers")
{
    EACH(the_longest_stage_is_shortest, divisions);
    TEST(no_division_is_better);
    EACH(a_list_that_does_not_fit_is_refused, refusals);
    TEST(the_head_counts_by_its_bytes);
    EACH(consecutive_ranks_are_a_stage_and_rank_0_is_in_the_last, ranks);
    TEST(ranks_that_are_no_multiple_are_refused);
}
