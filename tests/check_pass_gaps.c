// SPDX-License-Identifier: Apache-2.0
// router/core: the time that a node spends between two passes while it has work, and passes by kind and size.
#include <stdlib.h>
#include <string.h>

#include "router/core/pass_times.h"
#include "tests/core_case.h"
#include "tests/suite.h"

// Reports a pass of pass_us at after_us from now.
static void report(struct fake_node *node, int64_t after_us, int64_t pass_us)
{
    fixture_advance(&f, after_us);
    core_passed(f.c, node->node, &(struct pass_cost){10, 55, pass_us, false}, f.now_us);
}

static void gaps_are(uint64_t count, int64_t us)
{
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.nodes[0].pass_gaps, count);
    ck_assert_int_eq(status.nodes[0].pass_gap_us, us);
    core_status_fini(&status);
}

START_TEST(reports_are_further_apart_than_the_passes_take)
{
    struct fake_node *a = attach_worker("a");
    fixture_send(&f, 10, 4);
    report(a, 9700, 9700);
    gaps_are(0, 0);
    report(a, 10000, 9700);
    report(a, 9900, 9700);
    gaps_are(2, 500);
    report(a, 9650, 9700); // a gap of -50 us: its report was less delayed than the one before
    gaps_are(3, 450);
}
END_TEST

START_TEST(a_node_without_work_has_no_gap)
{
    struct fake_node *a = attach_worker("a");
    struct client *first = fixture_send(&f, 10, 4);
    report(a, 9700, 9700);
    finish(a, first);
    fixture_advance(&f, 5000000);
    struct client *second = fixture_send(&f, 10, 4);
    report(a, 9700, 9700);
    gaps_are(0, 0);
    core_cancel(f.c, second->number, f.now_us);
    fixture_advance(&f, 5000000);
    fixture_send(&f, 10, 4);
    report(a, 9700, 9700);
    gaps_are(0, 0);
    report(a, 10000, 9700);
    gaps_are(1, 300);
}
END_TEST

START_TEST(gaps_of_another_process_with_the_same_id_are_not_counted)
{
    struct fake_node *a = attach_worker("a");
    struct client *client = fixture_send(&f, 10, 4);
    report(a, 9700, 9700);
    report(a, 10000, 9700);
    fixture_detach(&f, a);
    a = attach_worker("a");
    ck_assert(fake_node_has(a, client));
    report(a, 9700, 9700);
    gaps_are(0, 0);
}
END_TEST

static void class_is(const struct pass_class *class, uint64_t passes, uint64_t rows, uint64_t pairs, uint64_t us)
{
    ck_assert_ptr_nonnull(class);
    ck_assert_uint_eq(class->passes, passes);
    ck_assert_uint_eq(class->rows, rows);
    ck_assert_uint_eq(class->pairs, pairs);
    ck_assert_uint_eq(class->us, us);
}

START_TEST(passes_are_counted_by_kind_and_size)
{
    struct fake_node *a = attach_worker("a");
    fixture_send(&f, 10, 4);
    core_passed(f.c, a->node, &(struct pass_cost){8, 36, 9000, true}, f.now_us);
    core_passed(f.c, a->node, &(struct pass_cost){15, 120, 9700, true}, f.now_us);
    core_passed(f.c, a->node, &(struct pass_cost){2, 23, 4000, false}, f.now_us);
    core_passed(f.c, a->node, &(struct pass_cost){2, 25, 4100, true}, f.now_us);
    core_passed(f.c, a->node, &(struct pass_cost){0, 0, 100, true}, f.now_us); // there is no such pass
    struct core_status status = fixture_status(&f);
    const struct pass_times *times = status.nodes[0].pass_times;
    class_is(times->classes[1][3], 2, 23, 156, 18700);
    class_is(times->classes[0][1], 1, 2, 23, 4000);
    class_is(times->classes[1][1], 1, 2, 25, 4100);
    int n = 0;
    for (int kind = 0; kind < PASS_KINDS; kind++)
        for (int size = 0; size < COST_SIZES; size++)
            n += times->classes[kind][size] != NULL;
    ck_assert_int_eq(n, 3);
    core_status_fini(&status);
}
END_TEST

// A pass that takes `times` what the earlier ones took is in the bucket of that ratio. The first ones are not
// predicted.
START_TEST(passes_are_counted_by_their_time_over_the_prediction)
{
    struct fake_node *a = attach_worker("a");
    fixture_send(&f, 10, 4);
    for (int i = 0; i < 50; i++)
        core_passed(f.c, a->node, &(struct pass_cost){10, 55, 10000, true}, f.now_us);
    core_passed(f.c, a->node, &(struct pass_cost){10, 55, 14900, true}, f.now_us);
    struct core_status status = fixture_status(&f);
    const struct histogram *h = &status.nodes[0].pass_times->classes[1][3]->deviation;
    ck_assert_uint_eq(histogram_count(h), 47);
    uint64_t near = 0, slow = 0;
    for (int i = 0; i <= h->scale->n; i++) {
        int64_t edge = i < h->scale->n ? h->scale->edges[i] : INT64_MAX;
        if (edge >= 990000 && edge <= 1020000) near += h->counts[i];
        if (edge == 1600000) slow += h->counts[i];
    }
    ck_assert_uint_eq(near, 46);
    ck_assert_uint_eq(slow, 1);
    core_status_fini(&status);
}
END_TEST

START_TEST(a_pass_that_was_predicted_to_take_almost_nothing_is_in_the_last_bucket)
{
    struct pass_times times = {0};
    pass_times_add(&times, true, 10, 55, 1000000, 1e-9);
    const struct histogram *h = &times.classes[1][3]->deviation;
    ck_assert_uint_eq(h->counts[h->scale->n], 1);
    ck_assert_int_gt(h->sum, 0);
    pass_times_fini(&times);
}
END_TEST

SUITE("pass_gaps")
{
    FIXTURE(setup, teardown);
    TEST(reports_are_further_apart_than_the_passes_take);
    TEST(passes_are_counted_by_kind_and_size);
    TEST(passes_are_counted_by_their_time_over_the_prediction);
    TEST(a_pass_that_was_predicted_to_take_almost_nothing_is_in_the_last_bucket);
    TEST(a_node_without_work_has_no_gap);
    TEST(gaps_of_another_process_with_the_same_id_are_not_counted);
}
