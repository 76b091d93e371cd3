// SPDX-License-Identifier: Apache-2.0
// Background sequences of a worker group: they change no token, get no rows while there are other sequences, and give
// up memory and places for these.
#include "tests/scheduler_world.h"
#include "tests/suite.h"

enum { BACKGROUND = 4, PROMPT = 20 };

static int32_t tokens[BACKGROUND + 1][PROMPT];

static struct sequence_request request_of(int id, bool background, int max_tokens)
{
    for (int t = 0; t < PROMPT; t++)
        tokens[id][t] = world_random(60);
    struct sequence_request ask = plain_request((uint64_t)id, tokens[id], PROMPT);
    ask.background = background;
    ask.sampling.max_tokens = max_tokens;
    return ask;
}

static void add(struct world *w, int id, bool background, int max_tokens)
{
    const struct sequence_request ask = request_of(id, background, max_tokens);
    world_add(w, &ask);
}

static int background_tokens(const struct world *w)
{
    int n = 0;
    for (int i = 0; i < BACKGROUND; i++)
        n += w->now[i].n;
    return n;
}

START_TEST(background_sequences_change_no_token)
{
    static const int pools[] = {10, 20, POOL};
    struct world *w = world_open_of(&worlds[_i]);
    w->prefix_cache = true;
    world_run_alone(w);
    for (size_t p = 0; p < sizeof pools / sizeof *pools; p++) {
        world_start(w, 64, 6, pools[p]);
        for (int i = 0; i < REQUESTS; i++) {
            struct sequence_request ask = w->requests[i].ask;
            ask.background = i % 3 != 0;
            world_add(w, &ask);
            if (i % 4 == 0) world_step(w);
        }
        world_run(w);
        for (int i = 0; i < REQUESTS; i++)
            world_check_same(w, i, 0, "in the background");
        scheduler_free(w->scheduler);
    }
    world_close(w);
}
END_TEST

START_TEST(background_sequences_wait_while_there_are_others)
{
    struct world *w = world_open("llama", 5);
    world_start(w, BUDGET_MAX, 8, POOL);
    for (int i = 0; i < BACKGROUND; i++)
        add(w, i, true, OUTPUT_MAX);
    for (int i = 0; i < 3; i++)
        world_step(w);
    int before = background_tokens(w);
    ck_assert_int_gt(before, 0);
    add(w, BACKGROUND, false, 6);
    for (int i = 1; i <= 6; i++) {
        world_step(w);
        ck_assert_int_eq(w->now[BACKGROUND].n, i); // its prompt and each token in the next pass, as if it were alone
        ck_assert_int_eq(background_tokens(w), before);
    }
    world_step(w);
    ck_assert_int_eq(background_tokens(w), before + BACKGROUND);
    ck_assert_uint_eq(scheduler_get_load(w->scheduler).preemptions, 0);
    world_run(w);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

// Background sequences take all sequence slots (_i is 0) or all KV blocks (1).
START_TEST(background_sequences_give_way)
{
    struct world *w = world_open("llama", 5);
    world_start(w, BUDGET_MAX, _i ? 8 : BACKGROUND, _i ? 4 * BACKGROUND : POOL);
    for (int i = 0; i < BACKGROUND; i++)
        add(w, i, true, OUTPUT_MAX);
    for (int i = 0; i < 40; i++)
        world_step(w);
    add(w, BACKGROUND, false, 1);
    world_step(w);
    ck_assert_int_eq(w->now[BACKGROUND].n, 1);
    world_run(w);
    for (int i = 0; i < BACKGROUND; i++)
        ck_assert_int_eq(w->now[i].n, OUTPUT_MAX);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

START_TEST(a_prompt_does_not_wait_for_the_prefix_of_a_background_sequence)
{
    struct world *w = world_open("llama", 5);
    w->prefix_cache = true;
    world_start(w, 80, 8, POOL);
    static int32_t shared[PROMPT_MAX];
    for (int t = 0; t < PROMPT_MAX; t++)
        shared[t] = world_random(60);
    struct sequence_request first = plain_request(0, shared, PROMPT_MAX), second = plain_request(1, shared, PROMPT_MAX);
    first.background = true;
    world_add(w, &first);
    world_step(w); // a part of the prompt
    world_add(w, &second);
    for (int i = 0; i < 6 && w->now[1].n < 4; i++)
        world_step(w);
    ck_assert_int_eq(w->now[1].n, 4);
    ck_assert_int_eq(w->now[0].n, 0);
    world_run(w);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

SUITE("background")
{
    LOOP(background_sequences_change_no_token, 0, WORLDS);
    TEST(background_sequences_wait_while_there_are_others);
    LOOP(background_sequences_give_way, 0, 2);
    TEST(a_prompt_does_not_wait_for_the_prefix_of_a_background_sequence);
}
