// SPDX-License-Identifier: Apache-2.0
// Which sequences start and which prompts advance in a pass of the scheduler, and which KV blocks it shares and
// reserves.
#include <stdlib.h>
#include <string.h>

#include "tests/scheduler_world.h"
#include "tests/suite.h"

START_TEST(a_shared_prefix_is_computed_once)
{
    enum { HEAD = 64, N = 12 };
    static int32_t tokens[N + 1][80];
    struct world *w = world_open("llama", 5);
    int tails = 0;
    for (int on = 0; on < 2; on++) {
        w->prefix_cache = on;
        world_start(w, BUDGET_MAX, 20, POOL);
        tails = 0;
        for (int i = 0; i < N; i++) { // together: the first computes the prefix, the others wait for it
            for (int t = 0; t < 80; t++)
                tokens[i][t] = t < HEAD ? t : 100 + i;
            struct sequence_request ask = plain_request((uint64_t)i, tokens[i], HEAD + 1 + i);
            tails += 1 + i;
            world_add(w, &ask);
        }
        struct sequence_request other = plain_request(N, tokens[N], 80);
        world_add(w, &other);
        world_step(w);
        // A request with another prefix does not wait for them.
        ck_assert_int_eq(w->now[0].n, 1);
        ck_assert_int_eq(w->now[1].n, !on);
        ck_assert_int_eq(w->now[N].n, on);
        world_run(w);
        struct scheduler_load load = scheduler_get_load(w->scheduler);
        ck_assert_int_eq(load.prompt_rows, 80 + tails + (on ? HEAD : N * HEAD));
        ck_assert_int_eq(load.reused_rows, on ? (N - 1) * HEAD : 0);
        for (int i = 0; i < N; i++)
            ck_assert_int_eq(w->cached[i], on && i ? HEAD : 0);
        ck_assert_int_eq(w->cached[N], 0);
        // The same prompt again: all blocks but the last token's are cached.
        world_add(w, &other);
        memset(w->now, 0, sizeof w->now);
        world_run(w);
        ck_assert_int_eq(w->cached[N], on ? 64 : 0);
        // The same tokens at other positions share nothing.
        struct sequence_request moved = other;
        struct token_range kept[2] = {{0, 0}, {2, 80}};
        moved.kept = kept;
        moved.n_kept_ranges = 2;
        moved.prompt_tokens = 90;
        world_add(w, &moved);
        memset(w->now, 0, sizeof w->now);
        world_run(w);
        ck_assert_int_eq(w->cached[N], 0);
        scheduler_free(w->scheduler);
        memset(w->cached, 0, sizeof w->cached);
    }
    world_close(w);
}
END_TEST

START_TEST(an_answer_is_a_prefix_of_the_next_turn)
{
    struct world *w = world_open("llama", 5);
    w->prefix_cache = true;
    world_start(w, BUDGET_MAX, 4, POOL);
    int32_t turn[75];
    for (int t = 0; t < 75; t++)
        turn[t] = t;
    struct sequence_request ask = plain_request(0, turn, 30);
    ask.sampling.max_tokens = 40;
    world_add(w, &ask);
    world_run(w);
    memcpy(turn + 30, w->now[0].tokens, 40 * sizeof *turn); // 69 of these 70 were computed: four full blocks
    ask = plain_request(1, turn, 75);
    world_add(w, &ask);
    world_run(w);
    ck_assert_int_eq(w->cached[1], 64);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

// Sequences share a head of ten blocks and need little more. The memory holds two that do not share. With short outputs
// all twelve run together. With outputs of more than a block fewer start, and blocks needed beyond the reserve preempt
// few of them.
START_TEST(sequences_that_share_their_head_run_in_the_memory_of_two)
{
    enum { HEAD = 160, TAIL = 4, N = 12 };
    static int32_t tokens[N][HEAD + TAIL];
    struct world *w = world_open("llama", 5);
    w->prefix_cache = true;
    for (int long_outputs = 0; long_outputs < 2; long_outputs++) {
        world_start(w, BUDGET_MAX, N, 2 * kv_blocks_for(HEAD + TAIL + 8));
        for (int i = 0; i < N; i++) {
            for (int t = 0; t < HEAD + TAIL; t++)
                tokens[i][t] = t < HEAD ? t : 100 + i;
            struct sequence_request ask = plain_request((uint64_t)i, tokens[i], HEAD + TAIL);
            ask.sampling.max_tokens = long_outputs ? CONTEXT - HEAD - TAIL : 8;
            world_add(w, &ask);
        }
        world_run(w);
        struct scheduler_load load = scheduler_get_load(w->scheduler);
        ck_assert_int_ge(load.most_running, long_outputs ? N / 2 : N);
        ck_assert_int_le(load.preemptions, long_outputs ? N : 0);
        memset(w->now, 0, sizeof w->now);
        scheduler_free(w->scheduler);
    }
    world_close(w);
}
END_TEST

// A prompt that fits starts only if a quarter of its output also fits, in addition to the blocks reserved for others.
START_TEST(a_quarter_of_the_output_is_reserved)
{
    static int32_t tokens[2][64];
    struct world *w = world_open("llama", 5);
    world_start(w, BUDGET_MAX, 4, 10);
    for (int i = 0; i < 2; i++) {
        struct sequence_request ask = plain_request((uint64_t)i, tokens[i], 48);
        ask.sampling.max_tokens = 64; // 3 blocks now, 4 more at most, 1 of them reserved
        world_add(w, &ask);
    }
    world_step(w);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).running, 2); // 4 + 4 of 10
    struct sequence_request ask = plain_request(2, tokens[0], 32);
    ask.sampling.max_tokens = 17;
    world_add(w, &ask);
    world_step(w);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).running, 2); // 3 of 2
    scheduler_cancel(w->scheduler, 1);
    world_step(w);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).running, 2);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).waiting, 0);
    world_run(w);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

START_TEST(decodes_go_first_and_prompts_in_order)
{
    struct world *w = world_open("llama", 5);
    world_start(w, 20, 4, POOL);
    struct sequence_request ask[3];
    for (int i = 0; i < 3; i++) {
        static int32_t tokens[60];
        ask[i] = (struct sequence_request){.id = (uint64_t)i, .tokens = tokens, .n_tokens = 60, .prompt_tokens = 60};
        sampling_defaults(&ask[i].sampling);
        ask[i].sampling.ignore_eos = true;
        ask[i].sampling.max_tokens = 20;
    }
    ask[0].n_tokens = ask[0].prompt_tokens = 10;
    for (int i = 0; i < 3; i++)
        world_add(w, &ask[i]);
    world_step(w); // 10 rows of 0 and 10 of 1
    ck_assert_int_eq(w->rows, 20);
    ck_assert_int_eq(w->now[0].n, 1);
    ck_assert_int_eq(w->now[1].n, 0);
    world_step(w); // 1 + 19
    world_step(w); // 1 + 19
    ck_assert_int_eq(w->rows, 60);
    ck_assert_int_eq(w->now[0].n, 3);
    ck_assert_int_eq(w->now[1].n, 0);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).waiting, 1); // no prompt is started without room
    world_step(w);                                                 // 1 + the last 12 of 1 + 7 of 2
    ck_assert_int_eq(w->rows, 80);
    ck_assert_int_eq(w->now[0].n, 4);
    ck_assert_int_eq(w->now[1].n, 1);
    ck_assert_int_eq(w->now[2].n, 0);
    world_run(w);
    ck_assert_int_eq(w->now[0].n, 20);
    ck_assert_int_eq(w->now[1].n, 20);
    ck_assert_int_eq(w->now[2].n, 20);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

START_TEST(a_short_prompt_does_not_wait_for_all_of_a_long_one)
{
    static int32_t tokens[3][160];
    struct world *w = world_open("llama", 5);
    world_start(w, 20, 4, POOL);
    struct sequence_request ask[3];
    const int lengths[] = {110, 150, 8};
    for (int i = 0; i < 3; i++)
        ask[i] = plain_request((uint64_t)i, tokens[i], lengths[i]);
    world_add(w, &ask[0]);
    world_step(w);
    world_add(w, &ask[1]);
    world_add(w, &ask[2]);
    world_step(w); // 8 rows of the short prompt, 12 of the first; the second long prompt waits
    ck_assert_int_eq(w->rows, 40);
    ck_assert_int_eq(w->now[2].n, 1);
    ck_assert_int_eq(w->now[1].n, 0);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).waiting, 1);
    world_step(w);
    ck_assert_int_eq(w->now[2].n, 2);
    ck_assert_int_eq(w->rows, 60);
    world_run(w);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(w->now[i].n, 4);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

START_TEST(half_of_a_pass_goes_to_the_shortest_prompt)
{
    static int32_t tokens[3][160];
    struct world *w = world_open("llama", 5);
    world_start(w, 20, 4, POOL);
    struct sequence_request ask[3];
    const int lengths[] = {160, 110, 50};
    for (int i = 0; i < 3; i++)
        ask[i] = plain_request((uint64_t)i, tokens[i], lengths[i]);
    world_add(w, &ask[0]);
    world_step(w);
    world_add(w, &ask[1]);
    world_step(w); // 10 of 1, 10 of 0
    world_add(w, &ask[2]);
    for (int i = 0; i < 5; i++)
        world_step(w); // 10 of 2, 10 of 0
    ck_assert_int_eq(w->rows, 140);
    ck_assert_int_eq(w->now[2].n, 1);
    ck_assert_int_eq(w->now[1].n, 0);
    ck_assert_int_eq(w->now[0].n, 0);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).prompt_rows, 140);
    world_run(w);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(w->now[i].n, 4);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).prompt_rows, 320);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

// However long passes take on this machine, the decodes are measured first, then the prompt gets a few rows.
START_TEST(prompts_with_decodes_are_paced)
{
    static int32_t tokens[2][150];
    struct world *w = world_open("llama", 5);
    w->pace_us = PACE_TWICE;
    world_start(w, BUDGET_MAX, 4, POOL);
    struct sequence_request ask[2] = {plain_request(0, tokens[0], 10), plain_request(1, tokens[1], 150)};
    ask[0].sampling.max_tokens = OUTPUT_MAX;
    world_add(w, &ask[0]);
    world_step(w);
    world_add(w, &ask[1]);
    world_step(w);
    world_step(w);
    ck_assert_int_eq(w->rows, 10 + 2);
    world_step(w);
    ck_assert_int_ge(w->rows, 10 + 3);
    ck_assert_int_le(w->rows, 10 + 3 + 16);
    ck_assert_int_eq(w->now[0].n, 4);
    ck_assert_int_eq(w->now[1].n, 0);
    world_run(w);
    ck_assert_int_eq(w->now[0].n, OUTPUT_MAX);
    ck_assert_int_eq(w->now[1].n, 4);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

// The last chunk of a prompt may be a single row.
START_TEST(prompt_rows_are_counted_in_all_chunks)
{
    static int32_t tokens[61];
    struct world *w = world_open("llama", 5);
    world_start(w, 20, 4, POOL);
    struct sequence_request ask = plain_request(0, tokens, 61);
    world_add(w, &ask);
    world_run(w);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).prompt_rows, 61);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

SUITE("scheduler")
{
    TIMEOUT(60);
    TEST(a_shared_prefix_is_computed_once);
    TEST(an_answer_is_a_prefix_of_the_next_turn);
    TEST(sequences_that_share_their_head_run_in_the_memory_of_two);
    TEST(a_quarter_of_the_output_is_reserved);
    TEST(decodes_go_first_and_prompts_in_order);
    TEST(a_short_prompt_does_not_wait_for_all_of_a_long_one);
    TEST(half_of_a_pass_goes_to_the_shortest_prompt);
    TEST(prompts_with_decodes_are_paced);
    TEST(prompt_rows_are_counted_in_all_chunks);
}
