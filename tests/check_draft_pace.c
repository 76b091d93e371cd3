// SPDX-License-Identifier: Apache-2.0
// The number of draft rows follows goodput. It is large if draft rows cost little and are accepted, and 0 if they cost
// as much as they gain. It does not follow noise or stay with an old batch size. The machine is a pair of costs.
#include <math.h>

#include "lib/base/random.h"
#include "tests/suite.h"
#include "worker/draft_pace.h"

enum { MOST = 8 };

struct machine {
    double pass_us, row_us, chance, noise;
    struct random_source random;
    double slowness; // of passes while speculators draft
    double lookup;   // share of drafts that come from prompt lookup: no others exist while speculators do not draft
};

struct result {
    double tokens_per_us;
    int changes, last, draft_rows;
};

// In the present phase.
static int length_in(const struct draft_pace *pace, int batch)
{
    return pace->costs[batch].times[pace->costs[batch].phase.is_off].length;
}

// Runs passes of `sequences` sequences, each with drafts that are accepted with the machine's chance.
static struct result run(struct draft_pace *pace, struct machine *m, int sequences, int passes)
{
    struct result result = {.last = -1};
    double tokens = 0, us = 0;
    for (int i = 0; i < passes; i++) {
        bool from_lookup = random_unit(&m->random) < m->lookup;
        int rows = draft_pace_rows(pace, sequences, from_lookup || draft_pace_length(pace, sequences) ? MOST : 0);
        double pass_us = m->pass_us + m->row_us * rows * sequences;
        pass_us *= 1 + m->noise * (2 * random_unit(&m->random) - 1);
        int before = (int)tokens;
        for (int s = 0; s < sequences; s++) {
            int accepted = 0;
            while (accepted < rows && random_unit(&m->random) < m->chance)
                accepted++;
            draft_pace_verified(pace, from_lookup, rows, accepted);
            tokens += 1 + accepted;
        }
        if (draft_pace_length(pace, sequences)) pass_us *= m->slowness;
        draft_pace_pass_end(pace, sequences, rows * sequences, (int)tokens - before, (int64_t)pass_us);
        us += pass_us;
        int length = length_in(pace, (int)log2(sequences));
        result.changes += result.last >= 0 && length != result.last;
        result.last = length;
        result.draft_rows += rows;
    }
    result.tokens_per_us = tokens / us;
    return result;
}

static struct machine machine(double pass_us, double row_us, double chance)
{
    return (struct machine){pass_us, row_us, chance, 0.03, {1}, 1, 0};
}

START_TEST(cheap_rows_that_are_accepted_get_a_long_draft)
{
    struct draft_pace pace;
    struct machine m = machine(20000, 500, 0.7);
    draft_pace_init(&pace);
    run(&pace, &m, 1, 300);
    struct result result = run(&pace, &m, 1, 2000);
    ck_assert_int_ge(result.last, 4);
    ck_assert(result.tokens_per_us > 2 / m.pass_us);
}
END_TEST

START_TEST(rows_that_cost_what_a_pass_costs_get_none)
{
    static const double chances[] = {0, 0.3, 0.7};
    for (size_t i = 0; i < sizeof chances / sizeof *chances; i++) {
        struct draft_pace pace;
        struct machine m = machine(64000, 1000, chances[i]);
        draft_pace_init(&pace);
        run(&pace, &m, 64, 300);
        struct result result = run(&pace, &m, 64, 5000);
        ck_assert_int_eq(result.last, 0);
        ck_assert_int_le(result.draft_rows, 160); // 5 phases of 32 passes
        ck_assert(result.tokens_per_us > 0.98 * 64 / m.pass_us);
    }
}
END_TEST

START_TEST(wrong_drafts_end_and_right_ones_come_back)
{
    struct draft_pace pace;
    struct machine m = machine(20000, 2000, 0.8);
    draft_pace_init(&pace);
    run(&pace, &m, 1, 300);
    m.chance = 0;
    run(&pace, &m, 1, 300);
    struct result wrong = run(&pace, &m, 1, 5000);
    ck_assert_int_eq(wrong.last, 0);
    ck_assert(wrong.tokens_per_us > 0.98 / m.pass_us);
    m.chance = 0.95;
    run(&pace, &m, 1, 20000); // probes are rare by now
    ck_assert_int_ge(run(&pace, &m, 1, 300).last, 3);
}
END_TEST

START_TEST(noise_does_not_change_the_length)
{
    struct draft_pace pace;
    struct machine m = machine(20000, 1500, 0.6);
    m.noise = 0.1;
    draft_pace_init(&pace);
    run(&pace, &m, 2, 500);
    struct result result = run(&pace, &m, 2, 5000);
    ck_assert_int_gt(result.last, 0);
    ck_assert_int_le(result.changes, 60);
}
END_TEST

START_TEST(each_batch_size_has_its_length)
{
    struct draft_pace pace;
    struct machine few = machine(20000, 500, 0.7), many = machine(64000, 1000, 0.7);
    draft_pace_init(&pace);
    for (int round = 0; round < 3; round++) {
        run(&pace, &few, 1, 300);
        run(&pace, &many, 64, 300);
        ck_assert_int_ge(length_in(&pace, 0), 4);
        ck_assert_int_eq(length_in(&pace, 6), 0);
    }
    ck_assert_int_eq(draft_pace_rows(&pace, 0, MOST), 0);
    ck_assert_int_eq(draft_pace_rows(&pace, 1, 0), 0);
    ck_assert_int_le(draft_pace_rows(&pace, 1, 2), 2);
}
END_TEST

START_TEST(drafts_that_are_always_accepted_teach_other_batch_sizes)
{
    struct draft_pace pace;
    struct machine few = machine(20000, 500, 1), more = machine(30000, 500, 1);
    draft_pace_init(&pace);
    run(&pace, &few, 1, 5000);
    run(&pace, &more, 8, 100);
    ck_assert_int_eq(length_in(&pace, 3), MOST);
}
END_TEST

// A drafter runs on the same cores. While it works, passes take twice as long, with and without draft rows.
START_TEST(drafts_that_slow_down_the_group_end)
{
    struct draft_pace pace;
    struct machine m = machine(20000, 500, 0.5);
    m.slowness = 2.5;
    draft_pace_init(&pace);
    run(&pace, &m, 1, 300);
    struct result result = run(&pace, &m, 1, 20000);
    ck_assert(result.tokens_per_us > 0.98 / m.pass_us);
    m.slowness = 1;
    run(&pace, &m, 1, 20000);
    ck_assert(run(&pace, &m, 1, 2000).tokens_per_us > 1.4 / m.pass_us);
}
END_TEST

// Speculators that slow down the group are not asked, but drafts from prompt lookup are still verified. A prompt is
// computed with decodes. A draft row that takes as long as a decode row gains nothing unless it is always accepted.
START_TEST(first_drafts_are_as_long_as_they_save_time)
{
    struct draft_pace p;
    draft_pace_init(&p);
    ck_assert_int_eq(draft_pace_first_rows(&p, 0, 8), 8);
    ck_assert_int_eq(draft_pace_first_rows(&p, 32, 8), 8); // times are not known
    p.speculated = (struct draft_record){.accepted = 60, .refused = 40};
    struct draft_times *times = p.costs[5].times; // of 32 to 63
    times[0] = times[1] = (struct draft_times){.pass_us = 3200, .row_us = 100};
    ck_assert_int_eq(draft_pace_first_rows(&p, 32, 8), 0);
    times[0].row_us = 50; // 0.6 and 0.36 of 100
    ck_assert_int_eq(draft_pace_first_rows(&p, 32, 8), 1);
    times[0].row_us = 20;
    ck_assert_int_eq(draft_pace_first_rows(&p, 32, 8), 3);
    ck_assert_int_eq(draft_pace_first_rows(&p, 32, 2), 2);
    ck_assert_int_eq(draft_pace_first_rows(&p, 31, 8), 8); // another batch size
    ck_assert_int_eq(draft_pace_first_rows(&p, 0, 8), 8);
    times[0].row_us = 0; // the times of the other phase are used
    ck_assert_int_eq(draft_pace_first_rows(&p, 32, 8), 0);
}
END_TEST

START_TEST(copies_need_no_speculator)
{
    struct draft_pace pace;
    struct machine m = machine(20000, 500, 0.8);
    m.slowness = 6;
    m.lookup = 0.5;
    draft_pace_init(&pace);
    run(&pace, &m, 1, 300);
    struct result result = run(&pace, &m, 1, 5000);
    ck_assert_int_eq(draft_pace_length(&pace, 1), 0);
    ck_assert_int_ge(result.last, 3);
    ck_assert(result.tokens_per_us > 1.6 / m.pass_us);
}
END_TEST

START_TEST(the_kind_that_is_accepted_is_preferred)
{
    struct draft_pace pace;
    draft_pace_init(&pace);
    for (int i = 0; i < 200; i++) {
        draft_pace_verified(&pace, true, 3, 3);
        draft_pace_verified(&pace, false, 3, 1);
    }
    ck_assert(draft_pace_prefers_lookup(&pace));
    for (int i = 0; i < 200; i++)
        draft_pace_verified(&pace, true, 3, 0);
    ck_assert(!draft_pace_prefers_lookup(&pace));
}
END_TEST

SUITE("draft pace")
{
    TEST(cheap_rows_that_are_accepted_get_a_long_draft);
    TEST(rows_that_cost_what_a_pass_costs_get_none);
    TEST(wrong_drafts_end_and_right_ones_come_back);
    TEST(noise_does_not_change_the_length);
    TEST(each_batch_size_has_its_length);
    TEST(drafts_that_are_always_accepted_teach_other_batch_sizes);
    TEST(drafts_that_slow_down_the_group_end);
    TEST(first_drafts_are_as_long_as_they_save_time);
    TEST(copies_need_no_speculator);
    TEST(the_kind_that_is_accepted_is_preferred);
}
