// SPDX-License-Identifier: Apache-2.0
// router/core: the time that a node spends between two passes while it has work.
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/core_case.h"

static struct fake_node *attach(void)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "a");
    return fixture_attach(&f, &hello);
}

// A pass of pass_us is reported after_us from now.
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
    struct fake_node *a = attach();
    fixture_send(&f, 10, 4);
    report(a, 9700, 9700);
    gaps_are(0, 0);
    report(a, 10000, 9700);
    report(a, 9900, 9700);
    gaps_are(2, 500);
    report(a, 9650, 9700); // it came sooner than the one before it
    gaps_are(3, 450);
}
END_TEST

START_TEST(a_node_without_work_has_no_gap)
{
    struct fake_node *a = attach();
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
    struct fake_node *a = attach();
    struct client *client = fixture_send(&f, 10, 4);
    report(a, 9700, 9700);
    report(a, 10000, 9700);
    fixture_detach(&f, a);
    a = attach();
    ck_assert(fake_node_has(a, client));
    report(a, 9700, 9700);
    gaps_are(0, 0);
}
END_TEST

START_TEST(passes_with_prompt_rows_are_counted_apart)
{
    struct fake_node *a = attach();
    fixture_send(&f, 10, 4);
    core_passed(f.c, a->node, &(struct pass_cost){10, 55, 9700, true}, f.now_us);
    core_passed(f.c, a->node, &(struct pass_cost){2, 23, 4000, false}, f.now_us);
    struct core_status status = fixture_status(&f);
    ck_assert(status.nodes[0].passes == 2 && status.nodes[0].prompt_passes == 1);
    ck_assert(status.nodes[0].prompt_pass_rows == 10 && status.nodes[0].prompt_pass_pairs == 55);
    ck_assert(status.nodes[0].prompt_pass_us == 9700);
    core_status_fini(&status);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pass_gaps");
    TCase *tcase = tcase_create("pass_gaps");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, reports_are_further_apart_than_the_passes_take);
    tcase_add_test(tcase, passes_with_prompt_rows_are_counted_apart);
    tcase_add_test(tcase, a_node_without_work_has_no_gap);
    tcase_add_test(tcase, gaps_of_another_process_with_the_same_id_are_not_counted);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
