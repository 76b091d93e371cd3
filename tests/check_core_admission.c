// SPDX-License-Identifier: Apache-2.0
// router/core: requests that are refused at once, and the bounds of the queue. Packing is tested in check_core_bins.c.
#include <string.h>

#include "lib/base/mem.h"
#include "tests/core_case.h"
#include "tests/suite.h"

START_TEST(requests_that_cannot_be_served_are_refused_with_a_reason)
{
    struct fake_node *w = attach_worker("w");
    struct client *fits = fixture_send(&f, 4000, 96), *longer = fixture_send(&f, 4000, 97);
    ck_assert_int_eq(fits->ends, 0);
    ck_ended(longer, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(longer->message, "4000"));
    ck_assert_ptr_nonnull(strstr(longer->message, "97"));
    ck_assert_ptr_nonnull(strstr(longer->message, "4096"));
    ck_ended(fixture_send(&f, 10, 0), FINISH_REASON_ERROR, STATUS_INVALID);
    ck_ended(fixture_send(&f, 0, 1), FINISH_REASON_ERROR, STATUS_INVALID);
    struct client *twins[2];
    for (int i = 0; i < 2; i++) {
        twins[i] = fixture_request(&f, 10, 4);
        twins[i]->r->id = mem_string("twin");
        fixture_submit(&f, twins[i]);
    }
    ck_ended(twins[1], FINISH_REASON_ERROR, STATUS_EXISTS);
    ck_assert_ptr_nonnull(strstr(twins[1]->message, "twin"));
    ck_assert(!twins[0]->ends);
    ck_assert(core_abort(f.c, "twin", 0, f.now_us));
    struct client *again = fixture_request(&f, 10, 4); // free again
    again->r->id = mem_string("twin");
    fixture_submit(&f, again);
    ck_assert_int_eq(again->ends, 0);
    core_drain(f.c);
    struct client *closed = fixture_send(&f, 10, 4);
    ck_ended(closed, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    ck_assert_ptr_nonnull(strstr(closed->message, "shutting down"));
    ck_assert_ptr_nonnull(w->node);
    struct core_status status = fixture_status(&f);
    ck_assert_uint_eq(status.totals.refused, 5);
    ck_assert_uint_eq(status.totals.requests, 8);
    ck_assert(status.draining);
    ck_assert(!status.ready);
    core_status_fini(&status);
}
END_TEST

START_TEST(a_prompt_that_wants_no_token_may_fill_the_context)
{
    struct fake_node *w = attach_worker("w");
    struct client *fits = fixture_request(&f, 4096, 1), *longer = fixture_request(&f, 4097, 1);
    fits->r->spec.sampling.no_output = longer->r->spec.sampling.no_output = true;
    fixture_submit(&f, fits);
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(w, fits));
    fake_node_step(&f, w, fits, 5, 1, FINISH_REASON_STOP);
    ck_ended(fits, FINISH_REASON_LENGTH, STATUS_OK);
    ck_assert_int_eq(fits->n_tokens, 0);
    ck_assert_int_eq(fits->usage.completion_tokens, 0);
    fixture_submit(&f, longer);
    ck_ended(longer, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    ck_assert_ptr_nonnull(strstr(longer->message, "maximum context length is 4096"));
}
END_TEST

// The router's model may have a longer context than any worker group.
START_TEST(max_tokens_is_reduced_to_the_context_of_the_worker_groups)
{
    attach_worker("w");
    struct client *reduced = fixture_request(&f, 4000, 97), *full = fixture_request(&f, 4096, 1);
    reduced->r->spec.context.reduces = full->r->spec.context.reduces = true;
    fixture_submit(&f, reduced);
    ck_assert_int_eq(reduced->ends, 0);
    ck_assert_int_eq(reduced->r->spec.sampling.max_tokens, 96);
    full->r->spec.context.words = CONTEXT_WORDS_ANTHROPIC;
    fixture_submit(&f, full);
    ck_ended(full, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    ck_assert_str_eq(full->message, "prompt is too long: 4096 tokens > 4095 maximum");
}
END_TEST

START_TEST(kept_tokens_must_fit_the_kv_cache)
{
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.kv_blocks = 100; // 1600 entries, over a context of 4096
    struct fake_node *w = fixture_attach(&f, &hello), *s = attach_speculator("s");
    struct client *whole = fixture_send(&f, 1601, 1), *pruned = speculate(3000, 100), *kept = speculate(3000, 100);
    ck_ended(whole, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    fake_node_score(&f, s, pruned, 0, 1500); // the last generated token needs no entry
    ck_assert(fake_node_has(w, pruned));
    fake_node_score(&f, s, kept, 0, 1501);
    ck_ended(kept, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
}
END_TEST

START_TEST(the_queue_is_bounded)
{
    f.options.max_queue_requests = 3;
    f.options.max_queue_tokens = 2000;
    restart();
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.max_seqs = 1;
    struct fake_node *w = fixture_attach(&f, &hello);
    struct client *runs = fixture_send(&f, 1900, 4); // on a worker group: does not wait
    ck_assert(fake_node_has(w, runs));
    fixture_send(&f, 1000, 4);
    struct client *tokens = fixture_send(&f, 1001, 4), *never = fixture_send(&f, 2001, 4);
    ck_ended(tokens, FINISH_REASON_ERROR, STATUS_EXHAUSTED);
    ck_assert_ptr_nonnull(strstr(tokens->message, "2000"));
    ck_assert_ptr_nonnull(strstr(tokens->message, "1001"));
    ck_ended(never, FINISH_REASON_ERROR, STATUS_OUT_OF_RANGE);
    fixture_send(&f, 10, 4);
    fixture_send(&f, 10, 4);
    struct client *fourth = fixture_send(&f, 10, 4);
    ck_ended(fourth, FINISH_REASON_ERROR, STATUS_EXHAUSTED);
    ck_assert(strstr(fourth->message, "the limit for normal priority is 3"));
    fake_node_step(&f, w, runs, 0, 1, FINISH_REASON_STOP); // another one is dispatched
    ck_assert_int_eq(fixture_send(&f, 10, 4)->ends, 0);
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.waiting, 3);
    ck_assert_int_eq(status.running, 1);
    core_status_fini(&status);
}
END_TEST

START_TEST(each_class_leaves_room_in_the_queue_for_those_above)
{
    f.options.max_queue_requests = 10;
    f.options.max_queue_tokens = 1000;
    f.options.queue_reserve_percent = 20;
    restart();
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.max_seqs = 1;
    fixture_attach(&f, &hello);
    fixture_send(&f, 10, 4); // keeps the group busy
    int taken[3] = {0};
    for (int priority = -1; priority <= 1; priority++) {
        struct client *client;
        do {
            client = fixture_request(&f, 10, 4);
            client->r->spec.prefill.mode = PREFILL_OFF;
            client->r->spec.priority = priority * 100;
            fixture_submit(&f, client);
            taken[priority + 1] += client->ends == 0;
        } while (!client->ends);
        ck_ended(client, FINISH_REASON_ERROR, STATUS_EXHAUSTED);
        ck_assert(strstr(client->message, queue_class_name((enum queue_class)(priority + 1))));
    }
    ck_assert_int_eq(taken[0], 6);
    ck_assert_int_eq(taken[1], 2);
    ck_assert_int_eq(taken[2], 2);
    struct core_status status = fixture_status(&f);
    const struct class_status *low = &status.classes[QUEUE_LOW];
    ck_assert_int_eq(low->waiting, 6);
    ck_assert_int_eq(low->waiting_tokens, 60);
    ck_assert_int_eq(low->max_requests, 6);
    ck_assert_int_eq(low->max_tokens, 600);
    ck_assert_int_eq(status.waiting, 10);
    ck_assert_int_eq(status.classes[QUEUE_HIGH].max_requests, 10);
    core_status_fini(&status);
    f.options.queue_reserve_percent = 49; // the largest value allowed: class low has room left
    restart();
    status = fixture_status(&f);
    low = &status.classes[QUEUE_LOW];
    ck_assert_int_eq(low->max_requests, 1);
    ck_assert_int_eq(low->max_tokens, 20);
    core_status_fini(&status);
}
END_TEST

SUITE("core_admission")
{
    FIXTURE(setup, teardown);
    TEST(requests_that_cannot_be_served_are_refused_with_a_reason);
    TEST(a_prompt_that_wants_no_token_may_fill_the_context);
    TEST(max_tokens_is_reduced_to_the_context_of_the_worker_groups);
    TEST(kept_tokens_must_fit_the_kv_cache);
    TEST(the_queue_is_bounded);
    TEST(each_class_leaves_room_in_the_queue_for_those_above);
}
