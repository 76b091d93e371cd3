// SPDX-License-Identifier: Apache-2.0
// Pacing on simulated machines: the decode rows and prompt rows of a pass determine its time.
#include <stdlib.h>

#include "tests/suite.h"
#include "worker/pace_budget.h"

static const struct model_config config = {.n_layers = 16,
                                           .hidden = 2048,
                                           .intermediate = 8192,
                                           .n_heads = 32,
                                           .n_kv_heads = 8,
                                           .head_size = 64,
                                           .vocab_size = 128256};

struct machine {
    double alone_us, per_decode_us; // of a pass with decode rows only
    double row_us, entry_us;        // of a prompt row, and of its attention to one entry
    double read_us;                 // to read one cached entry, once per pass
    double free_rows;               // prompt rows that cost nothing, since decoding is bound by memory
};

static double pass_us(const struct machine *m, int decodes, int entries, int rows)
{
    double paid = rows > m->free_rows ? rows - m->free_rows : 0;
    return m->alone_us + decodes * m->per_decode_us + paid * m->row_us + rows * (entries + rows / 2.0) * m->entry_us +
           (rows ? entries * m->read_us : 0);
}

static const struct machine machines[] = {
    {50000, 500, 2500, 0.2, 0.02, 0},   // bound by arithmetic
    {50000, 500, 2500, 0.2, 0.7, 16},   // bound by memory
    {4000, 100, 250, 0.02, 0.01, 8},    // a small model
    {300000, 2000, 900, 0.05, 0.02, 0}, // many decodes with long contexts
};

static struct pace_budget budget_of(struct pace *pace, int decodes)
{
    struct pace_budget budget;
    pace_budget_init(&budget, pace);
    pace_budget_set_decodes(&budget, decodes);
    return budget;
}

START_TEST(mixed_passes_take_at_most_twice_as_long)
{
    enum { PROMPT = 30000, DECODES = 4 };
    const struct machine *m = &machines[_i];
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    double alone_us = pass_us(m, DECODES, 0, 0);
    int fed = 0, passes = 0, slow = 0, without = 0;
    while (fed < PROMPT) {
        struct pace_budget budget = budget_of(&pace, DECODES);
        int rows =
            pace_budget_grant_rows(&budget, fed, PROMPT - fed < 2048 - DECODES ? PROMPT - fed : 2048 - DECODES, false);
        double us = pass_us(m, DECODES, fed, rows);
        pace_pass_end(&pace, &budget.rows, (int64_t)us);
        fed += rows;
        slow += us > 2 * alone_us;
        without += rows == 0;
        ck_assert_int_lt(++passes, 100000);
        ck_assert_double_lt(us, 4 * alone_us); // also in the first passes
    }
    ck_assert_int_le(slow * 100, passes);        // p99
    ck_assert_int_lt(without * 20, passes + 60); // few passes are left without prompt rows to measure
    // The budget is used: all passes together take no more than a few times what the prompt needs alone.
    double whole_us = passes * alone_us * 1.7, needed_us = PROMPT * m->row_us + 0.5 * PROMPT * PROMPT * m->entry_us;
    ck_assert_double_lt(whole_us, 12 * needed_us + 200 * alone_us);
}
END_TEST

// A pass with rows of such a prompt takes long. So the prompt skips most passes and adds up its budget meanwhile.
START_TEST(a_prompt_with_entries_slow_to_read_skips_passes)
{
    enum { FROM = 100000, PROMPT = 101000, DECODES = 4 };
    const struct machine m = {8000, 250, 100, 0.012, 0.2, 8}; // 20 ms to read the entries, 9 ms for the decodes
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    for (int pass = 0; pass < 3; pass++) {
        struct pace_budget budget = budget_of(&pace, 0);
        pace_pass_end(&pace, &budget.rows,
                      (int64_t)(pass_us(&m, 0, 0, pace_budget_grant_rows(&budget, 0, 128, false)) - m.alone_us));
    }
    double alone_us = pass_us(&m, DECODES, 0, 0), us = 0, longest = 0;
    int passes = 0, with = 0;
    for (int fed = FROM; fed < PROMPT; passes++) {
        struct pace_budget budget = budget_of(&pace, DECODES);
        int rows = pace_budget_grant_rows(&budget, fed, PROMPT - fed, false);
        double pass = pass_us(&m, DECODES, fed, rows);
        pace_pass_end(&pace, &budget.rows, (int64_t)pass);
        fed += rows;
        with += rows > 0;
        us += pass;
        if (pass > longest) longest = pass;
        ck_assert_int_lt(passes, 2000);
    }
    ck_assert_msg(us < 2 * passes * alone_us, "a pass took %.0f us in the mean", us / passes);
    ck_assert_msg(longest < alone_us + 3 * PROMPT * m.read_us, "the longest took %.0f us", longest);
    ck_assert_int_lt(with * 4, passes);
}
END_TEST

// Many sequences ask about one long document. Each question reads the document's entries again, which takes a small
// model longer than reading its weights. While the cost of passes with decodes and prompts is not known, the
// first-chunk limit bounds their rows, not the entries that they read.
START_TEST(prompts_after_a_long_cached_document_start_in_the_first_mixed_pass)
{
    enum { ENTRIES = 8192, QUESTION = 52, DECODES = 40, QUESTIONS = 24 };
    const struct model_config small = {.n_layers = 2,
                                       .hidden = 64,
                                       .intermediate = 96,
                                       .n_heads = 4,
                                       .n_kv_heads = 2,
                                       .head_size = 16,
                                       .vocab_size = 1536};
    const struct machine m = {1000, 100, 20, 0.002, 0.05, 0};
    struct pace pace;
    pace_init(&pace, &small, 400000);
    struct pace_budget first = budget_of(&pace, 0);
    pace_pass_end(&pace, &first.rows, (int64_t)pass_us(&m, 0, 0, pace_budget_grant_rows(&first, 0, 2048, true)));
    int passes = 0;
    for (int left = QUESTIONS * QUESTION; left > 0; passes++) {
        int decodes = DECODES + (QUESTIONS * QUESTION - left) / QUESTION, rows;
        double us = pass_us(&m, decodes, 0, 0);
        struct pace_budget budget = budget_of(&pace, decodes);
        do { // a question at a time
            int of_question = (left - 1) % QUESTION + 1;
            rows = left ? pace_budget_grant_rows(&budget, ENTRIES, of_question, of_question == QUESTION) : 0;
            left -= rows;
            us += pass_us(&m, 0, ENTRIES, rows) - m.alone_us;
        } while (rows > 0);
        pace_pass_end(&pace, &budget.rows, (int64_t)us);
        ck_assert_int_lt(passes, 12);
        ck_assert_double_lt(us, 480000);
    }
}
END_TEST

// The rows of the short prompt are cheap, the rows of the long one expensive.
START_TEST(a_short_prompt_next_to_a_long_one_has_many_rows)
{
    enum { DECODES = 4 };
    const struct machine m = {8000, 250, 100, 0.01, 0.15, 0};
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    int fed = 1000, rows = 0;
    for (int pass = 0; pass < 400; pass++) { // the long one alone
        struct pace_budget all = budget_of(&pace, DECODES);
        rows = pace_budget_grant_rows(&all, fed, 2000, false);
        pace_pass_end(&pace, &all.rows, (int64_t)pass_us(&m, DECODES, fed, rows));
        fed += rows;
    }
    ck_assert_int_gt(fed, 8000);
    double left_us = 0.5 * 0.85 * pass_us(&m, DECODES, 0, 0);
    struct pace_budget budget;
    do { // a pass that does not measure the decodes alone
        budget = budget_of(&pace, DECODES);
        if (pace_budget_has_rows(&budget, false)) break;
        pace_pass_end(&pace, &budget.rows, (int64_t)pass_us(&m, DECODES, 0, 0));
    } while (true);
    struct pace_budget half = pace_budget_half(&budget);
    rows = pace_budget_grant_rows(&half, 0, 200, false);
    ck_assert_msg(rows * m.row_us > 0.4 * left_us, "only %d rows", rows);
    pace_budget_merge(&budget, &half);
    ck_assert_int_gt(pace_budget_grant_rows(&budget, fed, 2000, false), 0);
}
END_TEST

START_TEST(without_decodes_a_whole_prompt_fills_the_pass)
{
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    struct pace_budget budget;
    for (int pass = 0; pass < 3; pass++) {
        budget = budget_of(&pace, 0);
        ck_assert(pace_budget_has_rows(&budget, true));
        ck_assert(pace_budget_grant_rows(&budget, 0, 2000, true) == 2000);
        ck_assert(pace_budget_has_rows(&budget, true));
        ck_assert(pace_budget_grant_rows(&budget, 30000, 7, true) == 7);
        pace_pass_end(&pace, &budget.rows, 5000000);
    }
    ck_assert(!pace_budget_has_rows(&budget, false));
    ck_assert(pace_budget_grant_rows(&budget, 0, 100, false) == 0);
    pace_init(&pace, &config, PACE_UNLIMITED);
    for (int pass = 0; pass < 3; pass++) {
        budget = budget_of(&pace, 9 * (pass % 2));
        ck_assert(pace_budget_has_rows(&budget, false));
        ck_assert(pace_budget_grant_rows(&budget, 0, 2048, false) == 2048);
        pace_pass_end(&pace, &budget.rows, 5000000);
    }
}
END_TEST

START_TEST(without_decodes_a_chunk_takes_little_time)
{
    const struct machine *m = &machines[_i];
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    for (int pass = 0, fed = 0, rows; fed < 60000; pass++, fed += rows) {
        struct pace_budget budget = budget_of(&pace, 0);
        rows = pace_budget_grant_rows(&budget, fed, 2048, false);
        ck_assert_int_ge(rows, 128);
        double us = pass_us(m, 0, fed, rows), least_us = pass_us(m, 0, fed, 128);
        if (pass > 3) ck_assert_double_le(us, 1.2 * (least_us > 500000 ? least_us : 500000));
        if (pass > 20 && rows < 2048) ck_assert_double_ge(us, 300000); // the budget is used
        pace_pass_end(&pace, &budget.rows, (int64_t)us);
    }
}
END_TEST

START_TEST(the_first_passes_with_decodes_measure_them)
{
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    struct pace_budget budget;
    for (int pass = 0; pass < 2; pass++) {
        budget = budget_of(&pace, 3);
        ck_assert(!pace_budget_has_rows(&budget, true));
        ck_assert(pace_budget_grant_rows(&budget, 0, 100, true) == 0);
        pace_pass_end(&pace, &budget.rows, pass ? 5000 : 50000); // the first pass after prompt rows does not count
    }
    ck_assert_double_eq(pace.decode_us, 5000);
    budget = budget_of(&pace, 3);
    ck_assert(pace_budget_has_rows(&budget, true));
    ck_assert(pace_budget_grant_rows(&budget, 0, 5, true) == 5);
    pace_pass_end(&pace, &budget.rows, 5500);
    budget = budget_of(&pace, 30); // ten times as many decodes: they are measured again
    ck_assert(!pace_budget_has_rows(&budget, true));
    ck_assert(pace_budget_grant_rows(&budget, 0, 100, true) == 0);
}
END_TEST

// The time of other numbers of decode rows follows from the measured one, since decode rows are bound by arithmetic
// here.
START_TEST(fewer_or_more_decodes_than_measured_keep_the_target)
{
    static const int then[] = {2, 4, 9};
    const struct machine m = {1000, 2000, 2000, 0.01, 0, 0};
    int measured = _i < 2 ? 8 : 5, decodes = then[_i];
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    struct pace_budget budget = budget_of(&pace, 0);
    pace_pass_end(&pace, &budget.rows, (int64_t)pass_us(&m, 0, 0, pace_budget_grant_rows(&budget, 0, 500, true)));
    for (int pass = 0; pass < 2; pass++) {
        budget = budget_of(&pace, measured);
        pace_pass_end(&pace, &budget.rows, (int64_t)pass_us(&m, measured, 0, 0));
    }
    double us = 0, alone_us = pass_us(&m, decodes, 0, 0);
    for (int pass = 0, fed = 0; pass < 60; pass++) {
        budget = budget_of(&pace, decodes);
        int rows = pace_budget_grant_rows(&budget, fed % 1000, 2000, false);
        double pass_time_us = pass_us(&m, decodes, fed % 1000, rows);
        pace_pass_end(&pace, &budget.rows, (int64_t)pass_time_us);
        us += pass_time_us / 60;
        fed += rows;
    }
    ck_assert_double_gt(us, 1.5 * alone_us); // a pass takes about twice the time of its decodes
    ck_assert_double_lt(us, 2.2 * alone_us);
}
END_TEST

// Something else delays the pass that measures five decodes.
START_TEST(one_slow_pass_does_not_set_the_pace)
{
    const struct machine *m = &machines[0];
    struct pace pace;
    int decodes = 4, slow = 0;
    pace_init(&pace, &config, PACE_TWICE);
    for (int pass = 0; pass < 400; pass++) {
        struct pace_budget budget = budget_of(&pace, decodes);
        int rows = pace_budget_grant_rows(&budget, 0, 2000, false);
        double us = pass_us(m, decodes, 0, rows);
        ck_assert_msg(us < 5 * pass_us(m, decodes, 0, 0), "pass %d of %d rows takes %.0f us", pass, rows, us);
        bool measures = pass > 100 && rows == 0 && decodes == 5 && !slow++;
        pace_pass_end(&pace, &budget.rows, measures ? 3000000 : (int64_t)us);
        if (pass > 100 && rows == 0) decodes = 5;
    }
    ck_assert_int_gt(slow, 0);
}
END_TEST

START_TEST(a_target_in_time_is_kept)
{
    const struct machine *m = &machines[0];
    struct pace pace;
    pace_init(&pace, &config, 400000);
    double longest = 0;
    for (int pass = 0, fed = 0; pass < 300; pass++) {
        struct pace_budget budget = budget_of(&pace, 2);
        int rows = pace_budget_grant_rows(&budget, fed % 8000, 4000, false);
        double us = pass_us(m, 2, fed % 8000, rows);
        if (pass > 20 && us > longest) longest = us;
        pace_pass_end(&pace, &budget.rows, (int64_t)us);
        fed += rows;
    }
    ck_assert_double_gt(longest, 300000);
    ck_assert_double_lt(longest, 440000);
}
END_TEST

SUITE("pace")
{
    EACH(mixed_passes_take_at_most_twice_as_long, machines);
    TEST(a_prompt_with_entries_slow_to_read_skips_passes);
    TEST(prompts_after_a_long_cached_document_start_in_the_first_mixed_pass);
    TEST(a_short_prompt_next_to_a_long_one_has_many_rows);
    TEST(without_decodes_a_whole_prompt_fills_the_pass);
    EACH(without_decodes_a_chunk_takes_little_time, machines);
    TEST(the_first_passes_with_decodes_measure_them);
    LOOP(fewer_or_more_decodes_than_measured_keep_the_target, 0, 3);
    TEST(one_slow_pass_does_not_set_the_pace);
    TEST(a_target_in_time_is_kept);
}
