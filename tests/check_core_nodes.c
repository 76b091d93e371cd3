// SPDX-License-Identifier: Apache-2.0
// router/core: nodes come, drain, fall silent and leave. Their requests go on with another node.
#include <limits.h>
#include <string.h>

#include "tests/core_case.h"
#include "tests/suite.h"

static void refused(struct node_hello hello, const char *word)
{
    struct core_node *node = NULL;
    ck_assert_int_eq(core_attach(f.c, &hello, &f, f.now_us, &node), STATUS_INVALID);
    ck_assert_ptr_null(node);
    ck_assert_msg(strstr(status_message(), word), "\"%s\" does not name %s", status_message(), word);
}

START_TEST(nodes_with_another_model_or_tokenizer_are_refused)
{
    attach_worker("w");
    struct node_hello hello = fixture_hello(NODE_SPECULATOR, "new");
    hello.tokenizer_fingerprint = 78;
    refused(hello, "tokenizer");
    hello = fixture_hello(NODE_WORKER, "new");
    hello.vocab_size = 999;
    refused(hello, "vocabulary");
    hello = fixture_hello(NODE_WORKER, "new");
    hello.model_fingerprint = 6;
    refused(hello, "same model");
    int *const counts[] = {&hello.ranks,    &hello.context_tokens, &hello.token_budget,
                           &hello.max_seqs, &hello.block_tokens,   &hello.kv_blocks};
    const char *const names[] = {"ranks", "context_tokens", "token_budget", "max_seqs", "block_tokens", "kv_blocks"};
    for (int i = 0; i < 6; i++) {
        hello = fixture_hello(NODE_WORKER, "new");
        *counts[i] = i % 2 ? 0 : -5;
        refused(hello, names[i]);
    }
    refused(fixture_hello(NODE_WORKER, ""), "node_id");
    refused(fixture_hello(NODE_WORKER, "a\nb"), "node_id");
    // Another model may replace that of the only worker group, and speculators have their own model.
    hello = fixture_hello(NODE_WORKER, "w");
    hello.model_fingerprint = 6;
    fixture_attach(&f, &hello);
    hello = fixture_hello(NODE_SPECULATOR, "s");
    hello.model_fingerprint = 9;
    hello.kv_blocks = hello.block_tokens = 0;
    fixture_attach(&f, &hello);
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.n_nodes, 2);
    ck_assert_uint_eq(status.model_fingerprint, 6);
    core_status_fini(&status);
}
END_TEST

START_TEST(silent_and_replaced_nodes_are_lost)
{
    struct fake_node *w = attach_worker("w");
    struct client *a = fixture_send(&f, 10, 4);
    struct fake_node *w2 = attach_worker("w"); // the same id
    ck_assert(w->lost);
    ck_assert(fake_node_has(w2, a));
    ck_assert_int_eq(a->r->usage.replays, 1);
    ck_assert(f.ready);
    ck_assert_int_eq(f.ready_changes, 1);
    fixture_advance(&f, 2999 * (int64_t)SECOND);
    ck_assert(!w2->lost);
    ck_assert(fake_node_has(w2, a));
    core_heartbeat(f.c, w2->node, &(struct node_heartbeat){.kv_blocks_free = 7}, f.now_us);
    struct core_status status = fixture_status(&f);
    ck_assert_int_eq(status.nodes[0].kv_blocks_free, 7);
    ck_assert_int_eq(status.nodes[0].running, 1);
    core_status_fini(&status);
    fixture_advance(&f, 2999 * (int64_t)SECOND);
    ck_assert(!w2->lost);
    ck_assert_int_eq(core_next_deadline_us(f.c), f.now_us + SECOND);
    fixture_advance(&f, SECOND);
    ck_assert(w2->lost);
    ck_assert(!f.ready);
    ck_assert_int_eq(a->r->state, REQUEST_READY);
    fixture_advance(&f, 5 * SECOND);
    ck_ended(a, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
}
END_TEST

START_TEST(a_pause_of_the_router_does_not_count_as_silence_of_the_nodes)
{
    struct fake_node *w = attach_worker("w");
    struct client *a = fixture_send(&f, 10, 4);
    fixture_advance(&f, 500 * (int64_t)SECOND);
    f.now_us += 100000 * (int64_t)SECOND; // without a tick
    core_tick(f.c, f.now_us);
    ck_assert(!w->lost);
    ck_assert(fake_node_has(w, a));
    // Only half a heartbeat before the pause, and the longest time between two ticks, count as silence.
    fixture_advance(&f, 1500 * (int64_t)SECOND - 1);
    ck_assert(!w->lost);
    fixture_advance(&f, 1);
    ck_assert(w->lost);
}
END_TEST

START_TEST(readiness_follows_worker_groups_and_draining)
{
    attach_speculator("s");
    ck_assert(!f.ready);
    struct fake_node *w = attach_worker("w"), *x = attach_worker("x");
    ck_assert(f.ready);
    ck_assert_int_eq(f.ready_changes, 1);
    struct client *a = fixture_send(&f, 10, 4);
    struct fake_node *has = fake_node_has(w, a) ? w : x;
    core_draining(f.c, w->node, "", f.now_us);
    ck_assert(f.ready);
    core_draining(f.c, x->node, "", f.now_us);
    ck_assert(!f.ready);
    ck_assert_int_eq(f.ready_changes, 2);
    struct core_status status = fixture_status(&f);
    ck_assert_str_eq(status.nodes[1].state, "draining");
    core_status_fini(&status);
    fake_node_step(&f, has, a, 0, 4, FINISH_REASON_LENGTH); // running requests may end
    ck_ended(a, FINISH_REASON_LENGTH, STATUS_OK);
    attach_worker("y");
    ck_assert(f.ready);
    struct client *b = fixture_send(&f, 10, 4);
    core_drain(f.c);
    ck_assert(!f.ready);
    ck_assert(!core_idle(f.c));
    ck_assert_int_eq(b->ends, 0);
    core_cancel(f.c, b->number, f.now_us);
    ck_assert(core_idle(f.c));
}
END_TEST

START_TEST(after_a_lost_worker_group_no_token_is_missing_or_repeated)
{
    struct fake_node *w = attach_worker("w");
    struct client *decoding = fixture_send(&f, 10, 6), *last = fixture_send(&f, 10, 2),
                  *fresh = fixture_send(&f, 10, 4);
    fake_node_step(&f, w, decoding, 0, 3, -1);
    fake_node_step(&f, w, last, 0, 1, -1);
    struct fake_node *x = attach_worker("x");
    fixture_detach(&f, w);
    ck_assert(fake_node_has(x, decoding));
    ck_assert(fake_node_has(x, fresh));
    ck_assert(fake_node_has(x, last));
    ck_assert_int_eq(x->requests[0], decoding->number); // in the order in which they had been dispatched
    ck_assert_int_eq(x->last_bin_rows, 13 + 11 + 10);   // with the tokens generated so far
    ck_assert_int_eq(decoding->r->output[2], 2);
    ck_assert_int_eq(decoding->r->usage.completion_tokens, 3);
    fake_node_step(&f, x, decoding, 3, 1, -1);
    fake_node_step(&f, x, decoding, 4, 2, FINISH_REASON_LENGTH);
    ck_ended(decoding, FINISH_REASON_LENGTH, STATUS_OK);
    ck_counts_up(decoding, 6);
    ck_assert_int_eq(decoding->usage.replays, 1);
    fake_node_step(&f, x, fresh, 0, 4, FINISH_REASON_LENGTH);
    ck_counts_up(fresh, 4);
    struct core_status status = fixture_status(&f);
    ck_assert(status.totals.replays == 3);
    core_status_fini(&status);
}
END_TEST

START_TEST(a_replayed_request_goes_before_all_others_and_waits_for_a_group)
{
    struct fake_node *w = attach_worker("w");
    struct client *a = fixture_send(&f, 512, 6), *b = fixture_send(&f, 512, 6), *c = fixture_send(&f, 512, 6);
    ck_assert(fake_node_has(w, a));
    ck_assert(fake_node_has(w, b));
    ck_assert_ptr_null(c->r->account.node);
    fixture_detach(&f, w);
    fixture_advance(&f, SECOND);
    struct node_hello hello = fixture_hello(NODE_WORKER, "w");
    hello.token_budget = 512; // a bin each
    w = fixture_attach(&f, &hello);
    ck_assert_uint_eq(w->requests[0], a->number);
    ck_assert_uint_eq(w->requests[1], b->number);
    ck_assert(!fake_node_has(w, c));
    ck_assert_int_eq(a->r->timing.pack_wait_us, SECOND);
    ck_assert_int_eq(a->r->usage.replays, 1);
}
END_TEST

START_TEST(a_request_that_loses_every_group_is_given_up)
{
    struct client *a = NULL;
    for (int i = 0; i < 3; i++) {
        struct fake_node *w = attach_worker("w");
        if (!a) a = fixture_send(&f, 10, 6);
        ck_assert(fake_node_has(w, a));
        fixture_detach(&f, w);
    }
    ck_ended(a, FINISH_REASON_ERROR, STATUS_INTERNAL);
    // A request that gets tokens on each group is not ended, however many groups are lost.
    struct fake_node *w = attach_worker("w");
    struct client *b = fixture_send(&f, 10, 20);
    for (int i = 0; i < 10; i++) {
        fake_node_step(&f, w, b, i, 1, -1);
        fixture_detach(&f, w);
        w = attach_worker("w");
    }
    ck_assert(fake_node_has(w, b));
    ck_assert_int_eq(b->r->usage.replays, 10);
}
END_TEST

START_TEST(without_worker_groups_there_is_a_time_of_grace)
{
    struct client *early = fixture_send(&f, 10, 4);
    ck_ended(early, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    struct fake_node *w = attach_worker("w");
    struct client *a = fixture_send(&f, 10, 4);
    fixture_detach(&f, w);
    fixture_advance(&f, 5 * SECOND - 1);
    ck_assert_int_eq(a->ends, 0);
    fixture_advance(&f, 1);
    ck_ended(a, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    // A group that comes back within the grace period gets the request.
    w = attach_worker("w");
    struct client *b = fixture_send(&f, 10, 4);
    fixture_detach(&f, w);
    fixture_advance(&f, 4 * SECOND);
    w = attach_worker("w");
    fixture_advance(&f, 4 * SECOND);
    ck_assert(fake_node_has(w, b));
    // Overdue requests that had not been dispatched also have the grace period.
    fixture_send(&f, 512, 4);
    struct client *waiting = fixture_send(&f, 512, 4);
    fixture_advance(&f, SECOND);
    ck_assert(waiting->r->sched.overdue);
    core_draining(f.c, w->node, "", f.now_us);
    fixture_advance(&f, 5 * SECOND - 1);
    ck_assert_int_eq(waiting->ends, 0);
    fixture_advance(&f, 1);
    ck_ended(waiting, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
}
END_TEST

// The time of grace begins when the group leaves, however long it drains.
START_TEST(a_worker_group_that_drains_for_long_leaves_a_time_of_grace)
{
    struct fake_node *w = attach_worker("w");
    struct client *running = fixture_send(&f, 10, 4), *waiting = fixture_send(&f, 512, 4), *late;
    while (fake_node_has(w, waiting)) // until the bins are full
        waiting = fixture_send(&f, 512, 4);
    core_draining(f.c, w->node, "", f.now_us);
    fixture_advance(&f, 4 * SECOND);
    fixture_detach(&f, w);
    fixture_advance(&f, 4 * SECOND);
    late = fixture_send(&f, 10, 4);
    fixture_advance(&f, SECOND - 1);
    ck_assert(!running->ends);
    ck_assert(!waiting->ends);
    ck_assert(!late->ends);
    fixture_advance(&f, 1);
    ck_ended(running, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    ck_ended(waiting, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    ck_ended(late, FINISH_REASON_ERROR, STATUS_UNAVAILABLE);
    // A group drains for longer than the grace period.
    w = attach_worker("w");
    running = fixture_send(&f, 10, 4);
    core_draining(f.c, w->node, "", f.now_us);
    fixture_advance(&f, 6 * SECOND);
    fixture_detach(&f, w);
    fixture_advance(&f, SECOND);
    ck_assert_int_eq(running->ends, 0);
    w = attach_worker("w");
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(w, running));
}
END_TEST

// Results that a node sends about its own request `own` and the other node's request `other`. Each is wrong.
static void tell_lies(struct fake_node *liar, const struct client *own, const struct client *other, uint64_t old_bin)
{
    static const int32_t tokens[] = {0, 1, 2, 3};
    const uint64_t bin = own->r->account.bin_id;
    const struct sequence_result lies[] = {
        {.request = other->number, .tokens = tokens, .n_tokens = 1},
        {.request = other->number, .finished = true, .reason = FINISH_REASON_STOP},
        {.request = other->number, .finished = true, .reason = FINISH_REASON_ERROR, .error = "lost"},
        {.request = UINT64_MAX, .tokens = tokens, .n_tokens = 4},
        {.request = own->number, .bin = old_bin, .tokens = tokens, .n_tokens = 4},
        {.request = own->number, .bin = bin, .tokens = tokens, .n_tokens = 1, .cached_tokens = -5, .draft_tokens = -1},
        {.request = own->number,
         .bin = bin,
         .tokens = tokens + 1,
         .n_tokens = 1,
         .cached_tokens = INT_MAX,
         .draft_tokens = INT_MAX,
         .draft_accepted_tokens = INT_MAX},
    };
    core_step(f.c, liar->node, lies, sizeof lies / sizeof *lies, f.now_us);
    const struct score_result score = {.request = other->number, .n_kept = -1};
    core_scored(f.c, liar->node, &score, f.now_us);
    const struct node_draft draft = {.request = other->number, .from = -1, .tokens = tokens, .n = INT_MAX};
    core_drafts(f.c, liar->node, &draft, 1, f.now_us);
    core_heartbeat(f.c, liar->node, &(struct node_heartbeat){.kv_blocks_free = -1, .requests = INT64_MAX}, f.now_us);
    core_passed(f.c, liar->node, &(struct pass_cost){-1, INT64_MIN, -1, true}, f.now_us);
    fixture_advance(&f, 0);
}

// The last lie is a result of -1 tokens, or a whole answer that comes twice.
START_TEST(a_node_that_lies_loses_its_own_requests_only)
{
    struct fake_node *lost = attach_worker("lost");
    struct client *own = fixture_send(&f, 10, 4);
    uint64_t old_bin = own->r->account.bin_id;
    fixture_detach(&f, lost);
    struct fake_node *liar = attach_worker("liar"), *honest;
    fixture_advance(&f, 0);
    ck_assert(fake_node_has(liar, own));
    honest = attach_worker("honest");
    struct client *other = fixture_send(&f, 10, 4);
    ck_assert(fake_node_has(honest, other));
    tell_lies(liar, own, other, old_bin);
    ck_counts_up(own, 2);
    ck_assert_int_ge(own->r->usage.cached_tokens, 0);
    ck_assert_int_le(own->r->usage.cached_tokens, 10);
    ck_assert_int_ge(own->r->usage.draft_tokens, own->r->usage.draft_accepted_tokens);
    const int32_t tokens[] = {2, 3};
    const struct sequence_result end = {.request = own->number,
                                        .tokens = tokens,
                                        .n_tokens = _i ? 2 : -1,
                                        .finished = _i,
                                        .reason = FINISH_REASON_LENGTH};
    const struct sequence_result twice[] = {end, end};
    core_step(f.c, liar->node, twice, 2, f.now_us);
    fixture_advance(&f, 0);
    ck_ended(own, _i ? FINISH_REASON_LENGTH : FINISH_REASON_ERROR, _i ? STATUS_OK : STATUS_INTERNAL);
    ck_counts_up(own, _i ? 4 : 2);
    ck_assert_int_eq(other->ends, 0);
    fake_node_step(&f, honest, other, 0, 4, FINISH_REASON_LENGTH);
    ck_ended(other, FINISH_REASON_LENGTH, STATUS_OK);
    ck_counts_up(other, 4);
    ck_assert_int_eq(other->usage.replays, 0);
}
END_TEST

SUITE("core_nodes")
{
    FIXTURE(setup, teardown);
    TEST(nodes_with_another_model_or_tokenizer_are_refused);
    TEST(silent_and_replaced_nodes_are_lost);
    TEST(a_pause_of_the_router_does_not_count_as_silence_of_the_nodes);
    TEST(readiness_follows_worker_groups_and_draining);
    TEST(after_a_lost_worker_group_no_token_is_missing_or_repeated);
    TEST(a_replayed_request_goes_before_all_others_and_waits_for_a_group);
    TEST(a_request_that_loses_every_group_is_given_up);
    TEST(without_worker_groups_there_is_a_time_of_grace);
    TEST(a_worker_group_that_drains_for_long_leaves_a_time_of_grace);
    LOOP(a_node_that_lies_loses_its_own_requests_only, 0, 2);
}
