// SPDX-License-Identifier: Apache-2.0
// The simulator itself: events in order, scenarios as text, equal runs for equal seeds, and shrinking a failing
// scenario to the cause of its failure.
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/log.h"
#include "sim/generate.h"
#include "sim/isolated.h"
#include "sim/shrink.h"
#include "tests/suite.h"

START_TEST(events_come_by_time_and_equal_times_in_the_order_added)
{
    struct event_queue queue = {0};
    for (uint64_t i = 0; i < 1000; i++)
        event_queue_add(&queue, (struct event){.at_us = (int64_t)(i * 7919 % 50), .tag = i});
    struct event last = event_queue_take(&queue);
    while (queue.n) {
        struct event next = event_queue_take(&queue);
        ck_assert_int_le(last.at_us, next.at_us);
        if (last.at_us == next.at_us) ck_assert_uint_lt(last.tag, next.tag);
        last = next;
    }
    event_queue_fini(&queue);
}
END_TEST

START_TEST(a_scenario_read_from_its_text_is_the_same)
{
    char path[] = "/tmp/check_sim_XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    struct scenario s, again;
    scenario_generate(7, 3000, &s);
    FILE *file = fdopen(fd, "w");
    scenario_write(&s, file);
    fclose(file);
    ck_assert_int_eq(scenario_read(path, &again), STATUS_OK);
    remove(path);
    struct run_result first, second;
    isolated_run(&s, false, &first);
    isolated_run(&again, false, &second);
    ck_assert_uint_eq(first.digest, second.digest);
    ck_assert_uint_gt(first.events, 100);
    scenario_fini(&s);
    scenario_fini(&again);
}
END_TEST

START_TEST(a_malformed_scenario_is_refused_with_its_line)
{
    static const char *const lines[] = {"at soon request id=1",
                                        "at 5 dance",
                                        "node role=worker",
                                        "option speed=3",
                                        "at 1 crash node=3",
                                        "hello",
                                        "option heartbeat_ms=0",
                                        "option policy=3",
                                        "node role=2",
                                        "at -1 crash",
                                        "at 1 request id=1",
                                        "at 1 lie value=99",
                                        "at 1 request id=1 tokens=3 max_tokens=1 mode=9",
                                        "at 1 request id=1 tokens=3 max_tokens=1 pin_last=3"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char path[] = "/tmp/check_sim_XXXXXX";
        FILE *file = fdopen(mkstemp(path), "w");
        fprintf(file, "node role=1 up=1 context=9 budget=9 kv_blocks=9 max_seqs=1\n%s\n", lines[i]);
        fclose(file);
        struct scenario s;
        ck_assert_int_eq(scenario_read(path, &s), STATUS_INVALID);
        remove(path);
    }
}
END_TEST

// A node with more sequences than rows never starts. Only the action that starts it matters.
START_TEST(a_failing_scenario_is_shrunk_to_its_cause)
{
    struct scenario s;
    scenario_generate(3, 2000, &s);
    ck_assert_int_gt(s.n_actions, 10);
    scenario_add_node(
        &s, (struct scenario_node){.role = 1, .id = 99, .context = 100, .budget = 4, .kv_blocks = 10, .max_seqs = 8});
    scenario_add_action(&s, (struct action){.at_us = 2000, .kind = ACTION_START, .node = s.n_nodes - 1});
    scenario_sort(&s);
    struct run_result result;
    isolated_run(&s, true, &result);
    ck_assert(result.failed);
    scenario_shrink(&s, &result, 1000);
    ck_assert(result.failed);
    ck_assert_int_eq(s.n_actions, 1);
    ck_assert_int_eq(s.actions[0].kind, ACTION_START);
    scenario_fini(&s);
}
END_TEST

SUITE("sim")
{
    log_setup("check_sim", LOG_ERROR);
    TIMEOUT(60);
    TEST(events_come_by_time_and_equal_times_in_the_order_added);
    TEST(a_scenario_read_from_its_text_is_the_same);
    TEST(a_malformed_scenario_is_refused_with_its_line);
    TEST(a_failing_scenario_is_shrunk_to_its_cause);
}
