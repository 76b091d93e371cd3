// SPDX-License-Identifier: Apache-2.0
// The pace of prompts, on machines of arithmetic: a pass takes what its decodes and the rows of its prompt cost there.
#include <check.h>
#include <stdlib.h>

#include "worker/pace.h"

static const struct model_config config = {.n_layers = 16,
                                           .hidden = 2048,
                                           .intermediate = 8192,
                                           .n_heads = 32,
                                           .n_kv_heads = 8,
                                           .head_size = 64,
                                           .vocab_size = 128256};

struct machine {
    double alone_us, per_decode_us; // a pass of decodes
    double row_us, entry_us;        // of the prompt: a row, and its attention to an entry
    double read_us;                 // to read an entry once a pass
    double free_rows;               // that cost nothing: decoding waits for memory
};

static double pass_us(const struct machine *m, int decodes, int entries, int rows)
{
    double paid = rows > m->free_rows ? rows - m->free_rows : 0;
    return m->alone_us + decodes * m->per_decode_us + paid * m->row_us + rows * (entries + rows / 2.0) * m->entry_us +
           (rows ? entries * m->read_us : 0);
}

static const struct machine machines[] = {
    {50000, 500, 2500, 0.2, 0.02, 0},   // computes
    {50000, 500, 2500, 0.2, 0.7, 16},   // waits for memory
    {4000, 100, 250, 0.02, 0.01, 8},    // a small model
    {300000, 2000, 900, 0.05, 0.02, 0}, // long contexts in many decodes
};

START_TEST(decodes_take_at_most_twice_as_long)
{
    enum { PROMPT = 30000, DECODES = 4 };
    const struct machine *m = &machines[_i];
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    double alone_us = pass_us(m, DECODES, 0, 0);
    int fed = 0, passes = 0, slow = 0, halved = 0;
    while (fed < PROMPT) {
        pace_begin(&pace, DECODES);
        int rows = pace_take(&pace, fed, PROMPT - fed < 2048 - DECODES ? PROMPT - fed : 2048 - DECODES, false);
        double us = pass_us(m, DECODES, fed, rows);
        pace_end(&pace, (int64_t)us);
        fed += rows;
        slow += us > 2 * alone_us;
        halved += rows == 0;
        ck_assert_int_lt(++passes, 100000);
        ck_assert_double_lt(us, 4 * alone_us); // while it learns
    }
    ck_assert_int_le(slow * 100, passes);       // p99
    ck_assert_int_lt(halved * 20, passes + 60); // and few passes stand back to measure
    // What may be added is used: the whole took no more than a few times what the prompt needs by itself.
    double whole_us = passes * alone_us * 1.7, needed_us = PROMPT * m->row_us + 0.5 * PROMPT * PROMPT * m->entry_us;
    ck_assert_double_lt(whole_us, 12 * needed_us + 200 * alone_us);
}
END_TEST

// A pass with any of it is long then: few are, and between them the prompt saves up.
START_TEST(a_prompt_whose_entries_take_too_long_to_read_stands_back)
{
    enum { FROM = 100000, PROMPT = 101000, DECODES = 4 };
    const struct machine m = {8000, 250, 100, 0.012, 0.2, 8}; // 20 ms, beside 9
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    for (int pass = 0; pass < 3; pass++) {
        pace_begin(&pace, 0);
        pace_end(&pace, (int64_t)pass_us(&m, 0, 0, pace_take(&pace, 0, 128, false)) - (int64_t)m.alone_us);
    }
    double alone_us = pass_us(&m, DECODES, 0, 0), us = 0, longest = 0;
    int passes = 0, with = 0;
    for (int fed = FROM; fed < PROMPT; passes++) {
        pace_begin(&pace, DECODES);
        int rows = pace_take(&pace, fed, PROMPT - fed, false);
        double pass = pass_us(&m, DECODES, fed, rows);
        pace_end(&pace, (int64_t)pass);
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

// Its rows are cheap, however dear those of the other are.
START_TEST(a_short_prompt_beside_a_long_one_has_many_rows)
{
    enum { DECODES = 4 };
    const struct machine m = {8000, 250, 100, 0.01, 0.15, 0};
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    int fed = 1000, rows = 0;
    for (int pass = 0; pass < 400; pass++) { // the long one alone
        pace_begin(&pace, DECODES);
        rows = pace_take(&pace, fed, 2000, false);
        pace_end(&pace, (int64_t)pass_us(&m, DECODES, fed, rows));
        fed += rows;
    }
    ck_assert_int_gt(fed, 8000);
    double left_us = 0.5 * 0.85 * pass_us(&m, DECODES, 0, 0);
    do { // not the one in which they are measured alone
        pace_begin(&pace, DECODES);
        if (pace_open(&pace, false)) break;
        pace_end(&pace, (int64_t)pass_us(&m, DECODES, 0, 0));
    } while (true);
    double withheld = pace_withhold_half(&pace);
    rows = pace_take(&pace, 0, 200, false);
    ck_assert_msg(rows * m.row_us > 0.4 * left_us, "only %d rows", rows);
    pace_give_back(&pace, withheld);
    ck_assert_int_gt(pace_take(&pace, fed, 2000, false), 0);
}
END_TEST

START_TEST(without_decodes_a_whole_prompt_takes_all)
{
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    for (int pass = 0; pass < 3; pass++) {
        pace_begin(&pace, 0);
        ck_assert(pace_open(&pace, true) && pace_take(&pace, 0, 2000, true) == 2000);
        ck_assert(pace_open(&pace, true) && pace_take(&pace, 30000, 7, true) == 7);
        pace_end(&pace, 5000000);
    }
    ck_assert(!pace_open(&pace, false) && pace_take(&pace, 0, 100, false) == 0);
    pace_init(&pace, &config, PACE_FREELY);
    for (int pass = 0; pass < 3; pass++) {
        pace_begin(&pace, 9 * (pass % 2));
        ck_assert(pace_open(&pace, false) && pace_take(&pace, 0, 2048, false) == 2048);
        pace_end(&pace, 5000000);
    }
}
END_TEST

START_TEST(without_decodes_a_chunk_takes_little_time)
{
    const struct machine *m = &machines[_i];
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    for (int pass = 0, fed = 0, rows; fed < 60000; pass++, fed += rows) {
        pace_begin(&pace, 0);
        rows = pace_take(&pace, fed, 2048, false);
        ck_assert_int_ge(rows, 128);
        double us = pass_us(m, 0, fed, rows), least_us = pass_us(m, 0, fed, 128);
        if (pass > 3) ck_assert_double_le(us, 1.2 * (least_us > 500000 ? least_us : 500000));
        if (pass > 20 && rows < 2048) ck_assert_double_ge(us, 300000); // and not less than it may
        pace_end(&pace, (int64_t)us);
    }
}
END_TEST

START_TEST(the_first_passes_with_decodes_measure_them)
{
    struct pace pace;
    pace_init(&pace, &config, PACE_TWICE);
    for (int pass = 0; pass < 2; pass++) {
        pace_begin(&pace, 3);
        ck_assert(!pace_open(&pace, true) && pace_take(&pace, 0, 100, true) == 0);
        pace_end(&pace, pass ? 5000 : 50000); // the first after others tells little
    }
    ck_assert_double_eq(pace.alone_us, 5000);
    pace_begin(&pace, 3);
    ck_assert(pace_open(&pace, true) && pace_take(&pace, 0, 5, true) == 5);
    pace_end(&pace, 5500);
    pace_begin(&pace, 30); // ten times as many: what was known says nothing of these
    ck_assert(!pace_open(&pace, true) && pace_take(&pace, 0, 100, true) == 0);
}
END_TEST

START_TEST(a_target_in_time_is_kept)
{
    const struct machine *m = &machines[0];
    struct pace pace;
    pace_init(&pace, &config, 400000);
    double longest = 0;
    for (int pass = 0, fed = 0; pass < 300; pass++) {
        pace_begin(&pace, 2);
        int rows = pace_take(&pace, fed % 8000, 4000, false);
        double us = pass_us(m, 2, fed % 8000, rows);
        if (pass > 20 && us > longest) longest = us;
        pace_end(&pace, (int64_t)us);
        fed += rows;
    }
    ck_assert_msg(longest > 300000 && longest < 440000, "the longest pass took %.0f us", longest);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pace");
    TCase *tcase = tcase_create("pace");
    tcase_add_loop_test(tcase, decodes_take_at_most_twice_as_long, 0, sizeof machines / sizeof *machines);
    tcase_add_test(tcase, a_prompt_whose_entries_take_too_long_to_read_stands_back);
    tcase_add_test(tcase, a_short_prompt_beside_a_long_one_has_many_rows);
    tcase_add_test(tcase, without_decodes_a_whole_prompt_takes_all);
    tcase_add_loop_test(tcase, without_decodes_a_chunk_takes_little_time, 0, sizeof machines / sizeof *machines);
    tcase_add_test(tcase, the_first_passes_with_decodes_measure_them);
    tcase_add_test(tcase, a_target_in_time_is_kept);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
