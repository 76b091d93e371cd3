// SPDX-License-Identifier: Apache-2.0
// A request's tokens do not depend on other requests. Every request first runs alone. Then all requests run together:
// packed, in chunks, with a KV cache too small for all, replayed from any prefix, together with cancelled requests, and
// after cached prefixes. Tokens, finish reasons and log-probabilities must have the same bits, and every block must be
// released.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/forward.h"
#include "tests/scheduler_world.h"
#include "tests/suite.h"

START_TEST(a_request_alone_has_the_tokens_of_a_plain_loop)
{
    struct world *w = world_open_of(&worlds[_i]);
    world_run_alone(w);
    struct model_options options = {.dir = w->dir,
                                    .backend = "cpu",
                                    .dtype = worlds[_i].dtype,
                                    .kv_dtype = worlds[_i].kv_dtype,
                                    .threads = worlds[_i].threads,
                                    .max_rows = 256,
                                    .max_seqs = 4,
                                    .n_kv_blocks = 64};
    struct ranks ranks;
    ranks_open(&ranks, &options, 1);
    int vocab = model_get_config(ranks.model[0])->vocab_size, checked = 0;
    struct forward *f = calloc(1, sizeof *f);
    for (int i = 0; i < REQUESTS; i++) {
        const struct sequence_request *a = &w->requests[i].ask;
        const struct sampling *p = &a->sampling;
        if (p->temperature > 0 || p->repetition_penalty != 1 || p->frequency_penalty != 0 || p->presence_penalty != 0 ||
            p->n_stop_ids || p->logit_bias.n) {
            continue;
        }
        int32_t token[CONTEXT], position[CONTEXT];
        int n = 0;
        struct token_range all = {0, a->prompt_tokens - 1};
        for (int k = 0; k < (a->n_kept_ranges ? a->n_kept_ranges : 1); k++) {
            struct token_range range = a->n_kept_ranges ? a->kept[k] : all;
            for (int at = range.first; at <= range.last; at++)
                position[n++] = at;
        }
        memcpy(token, a->tokens, (size_t)n * sizeof *token);
        for (int t = 0; t < w->alone[i].n; t++) { // computes all rows again for every token
            forward_start(f, 1);
            forward_add(f, 0, 0, token, position, n, LOGITS_LAST);
            const int32_t length = a->prompt_tokens + t; // with longrope it decides the frequencies of all rows
            f->batch.rope_length = &length;
            int32_t best = forward_argmax(ranks_forward(&ranks, &f->batch).logits, vocab);
            ck_assert_int_eq(w->alone[i].tokens[t], best);
            token[n] = best;
            position[n++] = a->prompt_tokens + t;
            checked++;
        }
        if (w->alone[i].finish == SEQUENCE_LENGTH) ck_assert_int_eq(w->alone[i].n, p->max_tokens);
    }
    ck_assert_int_gt(checked, 100);
    free(f);
    ranks_close(&ranks);
    world_close(w);
}
END_TEST

START_TEST(neighbours_and_chunks_change_nothing)
{
    static const struct {
        int budget, max_seqs;
    } ways[] = {{BUDGET_MAX, REQUESTS}, {64, 16}, {17, 7}, {5, 5}, {3, 1}};
    struct world *w = world_open_of(&worlds[_i]);
    world_run_alone(w);
    int stops = 0, lengths = 0;
    for (int i = 0; i < REQUESTS; i++) {
        stops += w->alone[i].finish == SEQUENCE_STOP;
        lengths += w->alone[i].finish == SEQUENCE_LENGTH;
    }
    ck_assert_int_gt(stops, 2);
    ck_assert_int_gt(lengths, 2);
    ck_assert_int_eq(stops + lengths, REQUESTS);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        world_start(w, ways[way].budget, ways[way].max_seqs, POOL);
        for (int i = 0; i < REQUESTS; i++)
            world_add(w, &w->requests[i].ask);
        world_run(w);
        char how[32];
        snprintf(how, sizeof how, "budget %d", ways[way].budget);
        for (int i = 0; i < REQUESTS; i++)
            world_check_same(w, i, 0, how);
        scheduler_free(w->scheduler);
    }
    world_close(w);
}
END_TEST

START_TEST(preemption_changes_nothing)
{
    static const int pools[] = {10, 13, 20}; // the largest request needs 10 blocks
    struct world *w = world_open_of(&worlds[_i]);
    world_run_alone(w);
    uint64_t preemptions = 0;
    for (size_t p = 0; p < sizeof pools / sizeof *pools; p++) {
        for (int budget = 16; budget <= 64; budget += 48) {
            world_start(w, budget, 16, pools[p]);
            for (int i = 0; i < REQUESTS; i++)
                world_add(w, &w->requests[i].ask);
            world_run(w);
            for (int i = 0; i < REQUESTS; i++)
                world_check_same(w, i, 0, "small pool");
            preemptions += scheduler_get_load(w->scheduler).preemptions;
            scheduler_free(w->scheduler);
        }
    }
    ck_assert_int_gt(preemptions, 8);
    world_close(w);
}
END_TEST

START_TEST(the_victim_loses_fewest_tokens_of_its_own)
{
    static const struct {
        int lengths[3], shared, pool, victim; // shared: tokens that request 1 has in common with request 0
    } cases[] = {
        {{60, 45, 30}, 0, 12, 2}, {{60, 30, 45}, 0, 12, 1}, {{30, 45, 60}, 0, 12, 0}, {{96, 90, 40}, 80, 15, 1}};
    static int32_t tokens[3][96];
    struct world *w = world_open("llama", 5);
    w->prefix_cache = true;
    world_start(w, BUDGET_MAX, 4, cases[_i].pool);
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < 96; t++)
            tokens[i][t] = i == 1 && t < cases[_i].shared ? tokens[0][t] : world_random(60);
        struct sequence_request ask = {.id = (uint64_t)i,
                                       .tokens = tokens[i],
                                       .n_tokens = cases[_i].lengths[i],
                                       .prompt_tokens = cases[_i].lengths[i]};
        sampling_defaults(&ask.sampling);
        ask.sampling.ignore_eos = true;
        ask.sampling.max_tokens = OUTPUT_MAX;
        world_add(w, &ask);
        world_step(w);
    }
    ck_assert_int_eq(scheduler_get_load(w->scheduler).running, 3);
    int before[3];
    do {
        for (int i = 0; i < 3; i++)
            before[i] = w->now[i].n;
        world_step(w);
    } while (scheduler_get_load(w->scheduler).preemptions == 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(w->now[i].n - before[i], i != cases[_i].victim);
    world_run(w);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

START_TEST(a_replay_continues_with_the_same_tokens)
{
    struct world *w = world_open_of(&worlds[_i]);
    world_run_alone(w);
    for (int from = 1; from < OUTPUT_MAX; from += 1 + from / 2) {
        world_start(w, 48, 16, 40);
        bool in[REQUESTS] = {false};
        for (int i = 0; i < REQUESTS; i++) {
            struct request *r = &w->requests[i];
            struct sequence_request again = r->ask;
            // A request that ended by length after `from` tokens has nothing left to generate. A request that ended by
            // a stop token must still sample that token.
            in[i] = from < again.sampling.max_tokens && from <= w->alone[i].n;
            if (!in[i]) continue;
            memcpy(r->tokens + again.n_tokens, w->alone[i].tokens, (size_t)from * sizeof *r->tokens);
            again.n_tokens += from;
            again.n_generated = from;
            world_add(w, &again);
        }
        world_run(w);
        for (int i = 0; i < REQUESTS; i++)
            if (in[i]) world_check_same(w, i, from, "replay");
        scheduler_free(w->scheduler);
    }
    world_close(w);
}
END_TEST

START_TEST(cancel_in_every_state_affects_no_other_request)
{
    struct world *w = world_open_of(&worlds[_i]);
    world_run_alone(w);
    int waiting = 0, prefilling = 0, decoding = 0;
    for (int round = 0; round < 10; round++) {
        world_start(w, 24, 8, round % 2 ? 14 : 60);
        int next = 0, cancelled = 0;
        while (next < REQUESTS || scheduler_busy(w->scheduler)) {
            if (next < REQUESTS && world_random(3) == 0) world_add(w, &w->requests[next++].ask);
            if (next && world_random(6) == 0) {
                int i = world_random(next);
                bool here = w->now[i].finish == SEQUENCE_GOES_ON && !w->cancelled[i];
                struct scheduler_load before = scheduler_get_load(w->scheduler);
                ck_assert_int_eq(scheduler_cancel(w->scheduler, (uint64_t)i), here);
                struct scheduler_load after = scheduler_get_load(w->scheduler);
                ck_assert_int_eq(before.running + before.waiting - here, after.running + after.waiting);
                if (here) {
                    w->cancelled[i] = true;
                    cancelled++;
                    waiting += after.waiting < before.waiting;
                    prefilling += after.running < before.running && w->now[i].n == 0;
                    decoding += after.running < before.running && w->now[i].n > 0;
                    ck_assert(after.running == before.running || after.kv_blocks_free > before.kv_blocks_free);
                }
            }
            world_step(w);
        }
        world_run(w);
        ck_assert_int_lt(cancelled, REQUESTS);
        for (int i = 0; i < REQUESTS; i++)
            if (!w->cancelled[i]) world_check_same(w, i, 0, "cancelled neighbours");
        scheduler_free(w->scheduler);
    }
    ck_assert_int_gt(waiting, 0);
    ck_assert_int_gt(prefilling, 0);
    ck_assert_int_gt(decoding, 0);

    world_start(w, 24, 8, 60); // clears, then frees a scheduler with work left
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < REQUESTS; i++)
            world_add(w, &w->requests[i].ask);
        for (int i = 0; i < 5; i++)
            world_step(w);
        if (round == 0) scheduler_drop_link(w->scheduler, 0);
        if (round == 0) ck_assert_int_eq(scheduler_get_load(w->scheduler).kv_blocks_free, 60);
        memset(w->now, 0, sizeof w->now);
    }
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

// Gives many requests common prefixes: some at the same positions, some with the same gaps, some with different gaps.
static void share_prefixes(struct world *w)
{
    static int32_t heads[2][PROMPT_MAX];
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < PROMPT_MAX; i++)
            heads[h][i] = world_random(200);
    for (int i = 0; i < REQUESTS; i++) {
        struct request *r = &w->requests[i];
        if (i % 3 == 1) { // has the prompt and kept ranges of the previous request
            struct sequence_request own = r->ask;
            const struct request *before = r - 1;
            memcpy(r->tokens, before->tokens, sizeof r->tokens);
            memcpy(r->kept, before->kept, sizeof r->kept);
            memcpy(r->whole, before->whole, sizeof r->whole);
            r->ask = before->ask;
            r->ask.id = own.id;
            r->ask.tokens = r->tokens;
            r->ask.kept = r->kept;
            r->ask.sampling = own.sampling;
            r->ask.penalty_ids = own.n_penalty_ids ? r->whole : NULL;
            r->ask.n_penalty_ids = own.n_penalty_ids ? r->ask.prompt_tokens : 0;
        }
        int n = r->ask.n_tokens - world_random(20);
        if (n > 0) memcpy(r->tokens, heads[i % 2], (size_t)n * sizeof *r->tokens);
    }
}

START_TEST(reused_prefixes_change_nothing)
{
    struct world *w = world_open_of(&worlds[_i]);
    share_prefixes(w);
    world_run_alone(w);
    w->prefix_cache = true;
    static const int pools[] = {POOL, 24, 13};
    uint64_t reused = 0, preemptions = 0;
    for (int round = 0; round < 12; round++) {
        w->pace_us = round % 2 ? PACE_TWICE : PACE_UNLIMITED;
        world_start(w, round % 4 < 2 ? 24 : 100, 12, pools[round % 3]);
        for (int again = 0; again < 3; again++) { // later rounds reuse blocks of earlier ones
            memset(w->now, 0, sizeof w->now);
            memset(w->cancelled, 0, sizeof w->cancelled);
            int next = 0, reported[REQUESTS] = {0};
            while (next < REQUESTS || scheduler_busy(w->scheduler)) {
                while (next < REQUESTS && world_random(2)) {
                    struct request *r = &w->requests[next];
                    struct sequence_request ask = r->ask;
                    if (again == 2 && w->alone[next].n > 3) { // a replay
                        memcpy(r->tokens + ask.n_tokens, w->alone[next].tokens, 3 * sizeof *r->tokens);
                        ask.n_tokens += 3;
                        ask.n_generated = 3;
                        reported[next] = 3;
                    }
                    world_add(w, &ask);
                    next++;
                }
                if (next && world_random(20) == 0) {
                    int i = world_random(next);
                    if (scheduler_cancel(w->scheduler, (uint64_t)i)) w->cancelled[i] = true;
                }
                world_step(w);
            }
            world_run(w);
            for (int i = 0; i < REQUESTS; i++)
                if (!w->cancelled[i]) world_check_same(w, i, reported[i], "reused prefixes");
            if (world_random(2)) scheduler_drop_link(w->scheduler, 0); // keeps cached blocks
        }
        reused += scheduler_get_load(w->scheduler).reused_rows;
        preemptions += scheduler_get_load(w->scheduler).preemptions;
        scheduler_free(w->scheduler);
    }
    ck_assert_int_gt(reused, 5000);
    ck_assert_int_gt(preemptions, 0);
    world_close(w);
}
END_TEST

SUITE("scheduler")
{
    TIMEOUT(60);
    LOOP(a_request_alone_has_the_tokens_of_a_plain_loop, 0, WORLDS);
    LOOP(neighbours_and_chunks_change_nothing, 0, WORLDS);
    LOOP(preemption_changes_nothing, 0, WORLDS);
    LOOP(the_victim_loses_fewest_tokens_of_its_own, 0, 4);
    LOOP(a_replay_continues_with_the_same_tokens, 0, WORLDS);
    LOOP(cancel_in_every_state_affects_no_other_request, 0, WORLDS);
    LOOP(reused_prefixes_change_nothing, 0, WORLDS);
}
