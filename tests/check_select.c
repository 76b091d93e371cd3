// SPDX-License-Identifier: Apache-2.0
// speculator/select: kept ranges against the slow implementation in slow_select.h, and hand-worked cases.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/slow_spans.h"
#include "speculator/select.h"
#include "tests/slow_select.h"
#include "tests/suite.h"

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

static void check_against_slow(const double *exact, const float *importance, int n, const struct select_policy *policy,
                               int rate)
{
    bool *expected = calloc((size_t)n, sizeof *expected), *kept = calloc((size_t)n, sizeof *kept);
    if (policy->chunk_tokens == CHUNK_TOKENS_AUTO)
        slow_select_spans(importance, n, policy, expected);
    else
        slow_select(exact, n, policy, rate, expected);
    struct token_range *ranges;
    int n_ranges = select_kept(importance, n, policy, &ranges);
    ck_assert_int_ge(n_ranges, 1);
    for (int i = 0; i < n_ranges; i++) {
        ck_assert_int_le(ranges[i].first, ranges[i].last);
        ck_assert_int_ge(ranges[i].first, i ? ranges[i - 1].last + 2 : 0); // ascending and apart
        ck_assert_int_lt(ranges[i].last, n);
        for (int j = ranges[i].first; j <= ranges[i].last; j++)
            kept[j] = true;
    }
    for (int j = 0; j < n; j++)
        ck_assert_msg(kept[j] == expected[j], "token %d of %d, chunk %d, rate %d/1000: kept %d, expected %d", j, n,
                      policy->chunk_tokens, rate, kept[j], expected[j]);
    free(ranges);
    free(kept);
    free(expected);
}

START_TEST(selection_equals_the_slow_implementation)
{
    random_state = 17;
    static float importance[400];
    static double exact[400];
    for (int round = 0; round < 6000; round++) {
        int n = 1 + (int)random_below(round % 10 ? 120 : 400);
        bool spans = random_below(3) == 0;
        uint8_t ends[400];
        int sentence = 1 + (int)random_below(60); // mean length
        for (int j = 0; j < n; j++)
            ends[j] = random_below((uint32_t)sentence) == 0;
        int levels = random_below(2) ? 4 : 1 << 20; // few levels give many ties
        for (int j = 0; j < n; j++)
            exact[j] = importance[j] = (float)random_below((uint32_t)levels) / 4096;
        int rate = 1 + (int)random_below(1000);
        if (random_below(8) == 0) rate = 1000;
        if (random_below(3) == 0) rate = 100 * (1 + (int)random_below(10)); // round rates give whole numbers of chunks
        static const int sizes[] = {0, 1, 2, 7, 32, 1000};
        struct token_range pinned[3];
        struct select_policy policy = {.keep_rate = rate / 1000.0,
                                       .chunk_tokens = spans ? CHUNK_TOKENS_AUTO : sizes[random_below(6)],
                                       .paper_exact = !spans && random_below(3) == 0,
                                       .keep_first = random_below(2),
                                       .tail_tokens = random_below(2) ? (int)random_below((uint32_t)n + 1) : 0,
                                       .pinned = pinned,
                                       .n_pinned = (int)random_below(4),
                                       .budget_tokens =
                                           spans && random_below(3) == 0 ? 1 + (int)random_below((uint32_t)n) : 0,
                                       .ends = random_below(4) ? ends : NULL};
        for (int i = 0; i < policy.n_pinned; i++) {
            pinned[i].first = (int32_t)random_below((uint32_t)n);
            pinned[i].last = pinned[i].first + (int32_t)random_below((uint32_t)(n - pinned[i].first));
        }
        check_against_slow(exact, importance, n, &policy, rate);
    }
}
END_TEST

START_TEST(budget_rounds_up_but_not_for_a_rounding_error)
{
    for (int n = 1; n <= 3000; n++) {
        for (int rate = 10; rate <= 1000; rate += 10)
            ck_assert_int_eq(prefill_keep_budget(n, rate / 1000.0), slow_budget(n, rate));
    }
    ck_assert_int_eq(prefill_keep_budget(100, 0.07), 7); // 7.000000000000001 in doubles
    ck_assert_int_eq(prefill_keep_budget(3, 0.1), 1);
    ck_assert_int_eq(prefill_keep_budget(5, 1e-12), 1);
    ck_assert_int_eq(prefill_keep_budget(1 << 20, 1), 1 << 20);
}
END_TEST

static const char *ranges_text(const float *importance, int n, const struct select_policy *policy)
{
    static char text[256];
    struct token_range *ranges;
    int n_ranges = select_kept(importance, n, policy, &ranges), at = 0;
    text[0] = 0;
    for (int i = 0; i < n_ranges; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%d-%d", i ? " " : "", ranges[i].first, ranges[i].last);
    free(ranges);
    return text;
}

START_TEST(hand_worked_cases)
{
    // Chunks of 2: means 1, 5, 1, 9, 2 (the last has one token).
    static const float importance[] = {1, 1, 9, 1, 2, 0, 9, 9, 2};
    struct select_policy policy = {.keep_rate = 0.4, .chunk_tokens = 2, .paper_exact = true};
    ck_assert_str_eq(ranges_text(importance, 9, &policy), "2-3 6-7");
    policy.paper_exact = false; // the last chunk takes one of the two places
    ck_assert_str_eq(ranges_text(importance, 9, &policy), "6-8");
    policy.keep_first = true; // BOS takes the other place
    ck_assert_str_eq(ranges_text(importance, 9, &policy), "0-1 8-8");
    policy.keep_rate = 0.2; // forced chunks are kept even beyond the budget
    ck_assert_str_eq(ranges_text(importance, 9, &policy), "0-1 8-8");
    policy.tail_tokens = 4; // beyond the budget
    ck_assert_str_eq(ranges_text(importance, 9, &policy), "0-1 5-8");
    struct token_range pinned[] = {{4, 4}, {2, 2}}; // pinned ranges are joined to adjacent ranges
    policy.pinned = pinned;
    policy.n_pinned = 2;
    ck_assert_str_eq(ranges_text(importance, 9, &policy), "0-2 4-8");
    policy.paper_exact = true; // switches off all these options
    ck_assert_str_eq(ranges_text(importance, 9, &policy), "6-7");
    policy.keep_rate = 1;
    ck_assert_str_eq(ranges_text(importance, 9, &policy), "0-8");
    struct select_policy tokens = {.keep_rate = 0.3, .paper_exact = true}; // 3 of 9; the earliest of equals
    ck_assert_str_eq(ranges_text(importance, 9, &tokens), "2-2 6-7");
    static const float equal[6] = {0};
    ck_assert_str_eq(ranges_text(equal, 6, &tokens), "0-1");
    ck_assert_str_eq(ranges_text(equal, 1, &policy), "0-0");
}
END_TEST

// Returns the ranges that a budget of tokens keeps of a text. Its sentences end with a full stop.
static const char *spans_text(const float *importance, int budget, const char *text)
{
    uint8_t ends[128] = {0};
    int n = (int)strlen(text);
    for (int j = 0; j < n; j++)
        ends[j] = text[j] == '.';
    const struct select_policy policy = {
        .keep_rate = budget / (double)n, .chunk_tokens = CHUNK_TOKENS_AUTO, .ends = ends};
    return ranges_text(importance, n, &policy);
}

START_TEST(a_peak_keeps_its_sentence)
{
    // Sentences 0-9, 10-24, 25-34, three short ones in 35-43, 44-48, 49-98.
    static const char text[] = "aaaaaaaaa.bbbbbbbbbbbbbb.ccccccccc.dd.ee.ff.gggg.hhhhhhhhhhhhhhhhhhhhhhhhhhhhhh"
                               "hhhhhhhhhhhhhhhhhhh.";
    static float importance[128];
    importance[17] = 1; // the last token is always kept, which costs one token
    ck_assert_str_eq(spans_text(importance, 16, text), "10-24 98-98");
    ck_assert_str_eq(spans_text(importance, 8, text), "14-20 98-98"); // cut around the peak
    ck_assert_str_eq(spans_text(importance, 2, text), "17-17 98-98");
    ck_assert_str_eq(spans_text(importance, 18, text), "0-1 10-24 98-98"); // the rest: the earliest span
    importance[17] = 0;
    importance[36] = 1; // sentences of three tokens are kept together
    ck_assert_str_eq(spans_text(importance, 10, text), "35-43 98-98");
    importance[36] = 0;
    importance[70] = 1; // a long sentence is divided where importance is lowest, here at the first possible place
    ck_assert_str_eq(spans_text(importance, 17, text), "60-75 98-98");
    ck_assert_str_eq(spans_text(importance, 99, text), "0-98");
}
END_TEST

static int kept_tokens(const float *importance, int n, const struct select_policy *policy, int *n_ranges_p)
{
    struct token_range *ranges;
    int kept = 0;
    *n_ranges_p = select_kept(importance, n, policy, &ranges);
    for (int i = 0; i < *n_ranges_p; i++)
        kept += ranges[i].last - ranges[i].first + 1;
    free(ranges);
    return kept;
}

START_TEST(spans_use_the_whole_budget_in_few_ranges)
{
    random_state = 5;
    static float importance[1000];
    static uint8_t ends[1000];
    for (int round = 0; round < 200; round++) {
        for (int j = 0; j < 1000; j++) {
            importance[j] = (float)random_below(1 << 20);
            ends[j] = random_below(3) == 0; // lines of a few tokens
        }
        int rate = 1 + round * 5, n_ranges;
        const struct select_policy policy = {
            .keep_rate = rate / 1000.0, .chunk_tokens = CHUNK_TOKENS_AUTO, .keep_first = true, .ends = ends};
        ck_assert_int_eq(kept_tokens(importance, 1000, &policy, &n_ranges), rate < 2 ? 2 : rate);
        ck_assert_int_le(n_ranges, rate / SPAN_TOKENS_MIN + 3); // plus BOS, the span that is cut, and the last token
    }
}
END_TEST

START_TEST(auto_with_the_paper_alone_is_chunks_of_32)
{
    struct prefill prefill;
    prefill_defaults(&prefill);
    ck_assert_int_eq(select_policy_of(&prefill).chunk_tokens, CHUNK_TOKENS_AUTO);
    prefill.paper_exact = true;
    ck_assert_int_eq(select_policy_of(&prefill).chunk_tokens, 32);
    ck_assert(select_policy_of(&prefill).paper_exact);
    prefill.chunk_tokens = 0;
    ck_assert_int_eq(select_policy_of(&prefill).chunk_tokens, 0);
}
END_TEST

SUITE("select")
{
    TIMEOUT(60);
    TEST(selection_equals_the_slow_implementation);
    TEST(budget_rounds_up_but_not_for_a_rounding_error);
    TEST(hand_worked_cases);
    TEST(a_peak_keeps_its_sentence);
    TEST(spans_use_the_whole_budget_in_few_ranges);
    TEST(auto_with_the_paper_alone_is_chunks_of_32);
}
