// SPDX-License-Identifier: Apache-2.0
// A request's tokens do not depend on other requests. Every request is run alone first. Then all requests run together:
// packed, in chunks, with a KV cache too small for all, replayed from any prefix, beside cancelled requests and behind
// cached prefixes. Tokens, finish reasons and log-probabilities must be the same bits, and every block must be
// released.
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/random.h"
#include "tests/forward.h"
#include "tests/tiny_model.h"
#include "worker/pace.h"
#include "worker/scheduler.h"

enum { REQUESTS = 36, PROMPT_MAX = 90, OUTPUT_MAX = 64, CONTEXT = 192, POOL = 256, BUDGET_MAX = 256 };

static struct random_source source;

static uint64_t random_bits(void)
{
    return random_next(&source);
}

static int below(int n)
{
    return (int)(random_bits() % (uint64_t)n);
}

// ---- requests and outcomes ----

struct request {
    struct sequence_request ask; // its arrays are the ones below
    int32_t tokens[PROMPT_MAX + OUTPUT_MAX];
    int32_t whole[CONTEXT];
    struct token_range kept[PROMPT_MAX];
    struct logit_bias bias;
};

struct outcome {
    int32_t tokens[OUTPUT_MAX];
    float logprobs[OUTPUT_MAX];
    int n;
    enum sequence_finish finish;
};

struct world {
    char *dir;
    struct comm *comm;
    struct engine *engine;
    struct scheduler *scheduler;
    int pool;
    bool prefix_cache;
    int64_t pace_us;
    struct request requests[REQUESTS];
    struct outcome alone[REQUESTS];
    struct outcome now[REQUESTS];
    int cached[REQUESTS];
    bool cancelled[REQUESTS];
    long steps, rows;
};

static void take_report(void *arg, const struct step_report *report)
{
    struct world *w = arg;
    w->steps++;
    w->rows += report->rows;
    for (int i = 0; i < report->n_outputs; i++) {
        const struct sequence_output *out = &report->outputs[i];
        ck_assert(out->id < REQUESTS && !w->cancelled[out->id]);
        struct outcome *o = &w->now[out->id];
        ck_assert_int_eq(o->finish, SEQUENCE_GOES_ON);
        if (o->n == 0)
            w->cached[out->id] = out->cached_tokens;
        else
            ck_assert_int_eq(out->cached_tokens, 0);
        ck_assert_int_le(out->n_tokens, 1);
        if (out->n_tokens) {
            ck_assert_int_lt(o->n, OUTPUT_MAX);
            o->tokens[o->n] = out->tokens[0].token;
            o->logprobs[o->n++] = out->tokens[0].logprob;
        }
        o->finish = out->finish;
    }
}

// Random tokens in kept ranges with gaps, or a whole prompt, in one of its two representations.
static void random_request(struct request *r, int index, int vocab)
{
    struct sequence_request *a = &r->ask;
    *a = (struct sequence_request){.id = (uint64_t)index, .tokens = r->tokens, .kept = r->kept};
    int last = -1;
    bool all = below(3) == 0;
    a->n_kept_ranges = all ? below(2) : 1 + below(5);
    a->n_tokens = all ? 1 + below(PROMPT_MAX) : 0;
    if (all) r->kept[0] = (struct token_range){0, last = a->n_tokens - 1};
    for (int i = 0; !all && i < a->n_kept_ranges; i++) {
        r->kept[i].first = last + 1 + below(6);
        r->kept[i].last = last = r->kept[i].first + below(17);
        a->n_tokens += r->kept[i].last - r->kept[i].first + 1;
    }
    for (int i = 0; i < a->n_kept_ranges / 2 && index % 3 == 0; i++) { // spans that are recalled behind later ones
        struct token_range range = r->kept[i];
        r->kept[i] = r->kept[a->n_kept_ranges - 1 - i];
        r->kept[a->n_kept_ranges - 1 - i] = range;
    }
    a->prompt_tokens = last + 1 + (all ? 0 : below(8));
    if (a->prompt_tokens < a->n_tokens) a->prompt_tokens = a->n_tokens;
    for (int i = 0; i < a->n_tokens; i++)
        r->tokens[i] = below(vocab);
    for (int i = 0; i < a->prompt_tokens; i++)
        r->whole[i] = below(vocab);

    struct sampling *p = &a->sampling;
    sampling_defaults(p);
    p->max_tokens = 1 + below(OUTPUT_MAX);
    p->seed = random_bits();
    p->logprobs = below(3) - 1;
    if (index % 4 == 0) return; // greedy and nothing else
    p->min_tokens = below(p->max_tokens);
    if (index % 2) p->temperature = 0.5 + below(10) * 0.1;
    if (below(3) == 0) p->top_k = 1 + below(40);
    if (below(3) == 0) p->top_p = 0.5 + below(5) * 0.1;
    if (below(3) == 0) p->repetition_penalty = 1.3;
    if (below(3) == 0) p->frequency_penalty = 0.7;
    if (below(3) == 0) p->presence_penalty = -0.4;
    p->n_stop_ids = below(12); // some outputs end early
    for (int i = 0; i < p->n_stop_ids; i++)
        p->stop_ids[i] = below(vocab);
    for (int n = below(3) ? 0 : below(20); n > 0; n--)
        (void)!logit_bias_add(&r->bias, below(vocab), below(9) - 4);
    p->logit_bias = r->bias;
    if (below(2)) {
        a->penalty_ids = r->whole;
        a->n_penalty_ids = a->prompt_tokens;
    }
}

// ---- runs ----

static void open_scheduler(struct world *w, int token_budget, int max_seqs, int pool)
{
    struct scheduler_limits limits = {.token_budget = token_budget,
                                      .max_seqs = max_seqs,
                                      .context_tokens = CONTEXT,
                                      .kv_blocks = pool,
                                      .prefix_cache = w->prefix_cache,
                                      .pace_us = w->pace_us};
    enum status status = scheduler_create(w->engine, &limits, take_report, w, &w->scheduler);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    w->pool = pool;
    memset(w->now, 0, sizeof w->now);
    memset(w->cancelled, 0, sizeof w->cancelled);
}

static void add(struct world *w, const struct sequence_request *ask)
{
    enum status status = scheduler_add(w->scheduler, ask);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

static void step(struct world *w)
{
    enum status status = scheduler_step(w->scheduler);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

static void run_dry(struct world *w)
{
    for (long limit = w->steps + 100000; scheduler_busy(w->scheduler); step(w))
        ck_assert_int_lt(w->steps, limit);
    struct scheduler_load load = scheduler_get_load(w->scheduler);
    ck_assert_int_eq(load.kv_blocks_free, w->pool);
    ck_assert(load.running == 0 && load.waiting == 0);
}

static void check_same(const struct world *w, int i, int from, const char *how)
{
    const struct outcome *a = &w->alone[i], *b = &w->now[i];
    ck_assert_msg(a->n - from == b->n && a->finish == b->finish,
                  "%s: request %d gave %d tokens, finish %d; alone %d, %d", how, i, b->n, b->finish, a->n - from,
                  a->finish);
    for (int t = 0; t < b->n; t++) {
        ck_assert_msg(a->tokens[from + t] == b->tokens[t] &&
                          memcmp(&a->logprobs[from + t], &b->logprobs[t], sizeof(float)) == 0,
                      "%s: request %d, token %d: %d (%a), alone %d (%a)", how, i, from + t, b->tokens[t],
                      (double)b->logprobs[t], a->tokens[from + t], (double)a->logprobs[from + t]);
    }
}

struct kind {
    const char *family;
    uint64_t seed;
    const char *dtype, *kv_dtype;
    int threads;
};

static struct world *open_world_of(const struct kind *kind)
{
    log_setup("test", LOG_ERROR);
    struct world *w = calloc(1, sizeof *w);
    w->pace_us = PACE_UNLIMITED;
    struct tiny_model spec = tiny_model_spec(kind->family);
    spec.hidden = 32;
    spec.intermediate = 48;
    spec.n_heads = 2;
    spec.n_kv_heads = 1;
    spec.seed = kind->seed;
    w->dir = tiny_model_temp(&spec);
    ck_assert_int_eq(comm_open_self(&w->comm), STATUS_OK);
    struct model_options options = {.dir = w->dir,
                                    .backend = "cpu",
                                    .dtype = kind->dtype,
                                    .kv_dtype = kind->kv_dtype,
                                    .threads = kind->threads,
                                    .max_rows = BUDGET_MAX,
                                    .max_seqs = REQUESTS,
                                    .n_kv_blocks = POOL};
    enum status status = engine_open(&options, w->comm, &w->engine);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    source.state = kind->seed;
    for (int i = 0; i < REQUESTS; i++)
        random_request(&w->requests[i], i, spec.vocab_size);
    return w;
}

static struct world *open_world(const char *family, uint64_t seed)
{
    return open_world_of(&(struct kind){family, seed, "f32", "auto", 1});
}

// Every request alone, in an empty scheduler, its whole prompt in one pass.
static void run_alone(struct world *w)
{
    open_scheduler(w, BUDGET_MAX, 1, POOL);
    for (int i = 0; i < REQUESTS; i++) {
        add(w, &w->requests[i].ask);
        run_dry(w);
    }
    scheduler_free(w->scheduler);
    memcpy(w->alone, w->now, sizeof w->alone);
}

static void close_world(struct world *w)
{
    engine_close(w->engine);
    w->comm->ops->close(w->comm);
    tiny_model_remove(w->dir);
    for (int i = 0; i < REQUESTS; i++)
        logit_bias_free(&w->requests[i].bias);
    free(w);
}

// ---- tests ----

static const struct kind worlds[] = {{"llama3", 1, "f32", "auto", 1},
                                     {"qwen3", 2, "f32", "auto", 1},
                                     {"llama3", 3, "bf16", "auto", 2},
                                     {"llama3", 4, "int8", "int8", 2}};

START_TEST(alone_is_what_a_plain_loop_gives)
{
    struct world *w = open_world_of(&worlds[_i]);
    run_alone(w);
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
    close_world(w);
}
END_TEST

START_TEST(neighbours_and_chunks_change_nothing)
{
    static const struct {
        int budget, max_seqs;
    } ways[] = {{BUDGET_MAX, REQUESTS}, {64, 16}, {17, 7}, {5, 5}, {3, 1}};
    struct world *w = open_world_of(&worlds[_i]);
    run_alone(w);
    int stops = 0, lengths = 0;
    for (int i = 0; i < REQUESTS; i++) {
        stops += w->alone[i].finish == SEQUENCE_STOP;
        lengths += w->alone[i].finish == SEQUENCE_LENGTH;
    }
    ck_assert(stops > 2 && lengths > 2 && stops + lengths == REQUESTS);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        open_scheduler(w, ways[way].budget, ways[way].max_seqs, POOL);
        for (int i = 0; i < REQUESTS; i++)
            add(w, &w->requests[i].ask);
        run_dry(w);
        char how[32];
        snprintf(how, sizeof how, "budget %d", ways[way].budget);
        for (int i = 0; i < REQUESTS; i++)
            check_same(w, i, 0, how);
        scheduler_free(w->scheduler);
    }
    close_world(w);
}
END_TEST

START_TEST(preemption_changes_nothing)
{
    static const int pools[] = {10, 13, 20}; // the largest request needs 10 blocks
    struct world *w = open_world_of(&worlds[_i]);
    run_alone(w);
    uint64_t preemptions = 0;
    for (size_t p = 0; p < sizeof pools / sizeof *pools; p++) {
        for (int budget = 16; budget <= 64; budget += 48) {
            open_scheduler(w, budget, 16, pools[p]);
            for (int i = 0; i < REQUESTS; i++)
                add(w, &w->requests[i].ask);
            run_dry(w);
            for (int i = 0; i < REQUESTS; i++)
                check_same(w, i, 0, "small pool");
            preemptions += scheduler_get_load(w->scheduler).preemptions;
            scheduler_free(w->scheduler);
        }
    }
    ck_assert_int_gt(preemptions, 8);
    close_world(w);
}
END_TEST

START_TEST(the_victim_loses_fewest_tokens_of_its_own)
{
    static const struct {
        int lengths[3], shared, pool, victim; // shared: tokens that request 1 has in common with request 0
    } cases[] = {
        {{60, 45, 30}, 0, 12, 2}, {{60, 30, 45}, 0, 12, 1}, {{30, 45, 60}, 0, 12, 0}, {{96, 90, 40}, 80, 15, 1}};
    static int32_t tokens[3][96];
    struct world *w = open_world("llama", 5);
    w->prefix_cache = true;
    open_scheduler(w, BUDGET_MAX, 4, cases[_i].pool);
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < 96; t++)
            tokens[i][t] = i == 1 && t < cases[_i].shared ? tokens[0][t] : below(60);
        struct sequence_request ask = {.id = (uint64_t)i,
                                       .tokens = tokens[i],
                                       .n_tokens = cases[_i].lengths[i],
                                       .prompt_tokens = cases[_i].lengths[i]};
        sampling_defaults(&ask.sampling);
        ask.sampling.ignore_eos = true;
        ask.sampling.max_tokens = OUTPUT_MAX;
        add(w, &ask);
        step(w);
    }
    ck_assert_int_eq(scheduler_get_load(w->scheduler).running, 3);
    int before[3];
    do {
        for (int i = 0; i < 3; i++)
            before[i] = w->now[i].n;
        step(w);
    } while (scheduler_get_load(w->scheduler).preemptions == 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(w->now[i].n - before[i], i != cases[_i].victim);
    run_dry(w);
    scheduler_free(w->scheduler);
    close_world(w);
}
END_TEST

START_TEST(a_replay_continues_with_the_same_tokens)
{
    struct world *w = open_world_of(&worlds[_i]);
    run_alone(w);
    for (int from = 1; from < OUTPUT_MAX; from += 1 + from / 2) {
        open_scheduler(w, 48, 16, 40);
        bool in[REQUESTS] = {false};
        for (int i = 0; i < REQUESTS; i++) {
            struct request *r = &w->requests[i];
            struct sequence_request again = r->ask;
            // A request that ended by length after `from` tokens has nothing left to generate; one that ended by a stop
            // token has still to sample that token.
            in[i] = from < again.sampling.max_tokens && from <= w->alone[i].n;
            if (!in[i]) continue;
            memcpy(r->tokens + again.n_tokens, w->alone[i].tokens, (size_t)from * sizeof *r->tokens);
            again.n_tokens += from;
            again.n_generated = from;
            add(w, &again);
        }
        run_dry(w);
        for (int i = 0; i < REQUESTS; i++)
            if (in[i]) check_same(w, i, from, "replay");
        scheduler_free(w->scheduler);
    }
    close_world(w);
}
END_TEST

START_TEST(cancel_in_every_state_affects_no_other_request)
{
    struct world *w = open_world_of(&worlds[_i]);
    run_alone(w);
    int waiting = 0, prefilling = 0, decoding = 0;
    for (int round = 0; round < 10; round++) {
        open_scheduler(w, 24, 8, round % 2 ? 14 : 60);
        int next = 0, cancelled = 0;
        while (next < REQUESTS || scheduler_busy(w->scheduler)) {
            if (next < REQUESTS && below(3) == 0) add(w, &w->requests[next++].ask);
            if (next && below(6) == 0) {
                int i = below(next);
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
            step(w);
        }
        run_dry(w);
        ck_assert_int_lt(cancelled, REQUESTS);
        for (int i = 0; i < REQUESTS; i++)
            if (!w->cancelled[i]) check_same(w, i, 0, "cancelled neighbours");
        scheduler_free(w->scheduler);
    }
    ck_assert(waiting > 0 && prefilling > 0 && decoding > 0);

    open_scheduler(w, 24, 8, 60); // clear, then free with work left
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < REQUESTS; i++)
            add(w, &w->requests[i].ask);
        for (int i = 0; i < 5; i++)
            step(w);
        if (round == 0) scheduler_clear(w->scheduler);
        if (round == 0) ck_assert_int_eq(scheduler_get_load(w->scheduler).kv_blocks_free, 60);
        memset(w->now, 0, sizeof w->now);
    }
    scheduler_free(w->scheduler);
    close_world(w);
}
END_TEST

// ---- the prefix cache ----

// Gives many requests common prefixes: some at the same positions, some with the same gaps, some with different gaps.
static void share_prefixes(struct world *w)
{
    static int32_t heads[2][PROMPT_MAX];
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < PROMPT_MAX; i++)
            heads[h][i] = below(200);
    for (int i = 0; i < REQUESTS; i++) {
        struct request *r = &w->requests[i];
        if (i % 3 == 1) { // the prompt and kept ranges of the previous request
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
        int n = r->ask.n_tokens - below(20);
        if (n > 0) memcpy(r->tokens, heads[i % 2], (size_t)n * sizeof *r->tokens);
    }
}

START_TEST(reused_prefixes_change_nothing)
{
    struct world *w = open_world_of(&worlds[_i]);
    share_prefixes(w);
    run_alone(w);
    w->prefix_cache = true;
    static const int pools[] = {POOL, 24, 13};
    uint64_t reused = 0, preemptions = 0;
    for (int round = 0; round < 12; round++) {
        w->pace_us = round % 2 ? PACE_TWICE : PACE_UNLIMITED;
        open_scheduler(w, round % 4 < 2 ? 24 : 100, 12, pools[round % 3]);
        for (int again = 0; again < 3; again++) { // later rounds reuse blocks of earlier ones
            memset(w->now, 0, sizeof w->now);
            memset(w->cancelled, 0, sizeof w->cancelled);
            int next = 0, reported[REQUESTS] = {0};
            while (next < REQUESTS || scheduler_busy(w->scheduler)) {
                while (next < REQUESTS && below(2)) {
                    struct request *r = &w->requests[next];
                    struct sequence_request ask = r->ask;
                    if (again == 2 && w->alone[next].n > 3) { // a replay
                        memcpy(r->tokens + ask.n_tokens, w->alone[next].tokens, 3 * sizeof *r->tokens);
                        ask.n_tokens += 3;
                        ask.n_generated = 3;
                        reported[next] = 3;
                    }
                    add(w, &ask);
                    next++;
                }
                if (next && below(20) == 0) {
                    int i = below(next);
                    if (scheduler_cancel(w->scheduler, (uint64_t)i)) w->cancelled[i] = true;
                }
                step(w);
            }
            run_dry(w);
            for (int i = 0; i < REQUESTS; i++)
                if (!w->cancelled[i]) check_same(w, i, reported[i], "reused prefixes");
            if (below(2)) scheduler_clear(w->scheduler); // keeps cached blocks
        }
        reused += scheduler_get_load(w->scheduler).reused_rows;
        preemptions += scheduler_get_load(w->scheduler).preemptions;
        scheduler_free(w->scheduler);
    }
    ck_assert_int_gt(reused, 5000);
    ck_assert_int_gt(preemptions, 0);
    close_world(w);
}
END_TEST

static struct sequence_request plain_request(uint64_t id, const int32_t *tokens, int n)
{
    struct sequence_request ask = {.id = id, .tokens = tokens, .n_tokens = n, .prompt_tokens = n};
    sampling_defaults(&ask.sampling);
    ask.sampling.ignore_eos = true;
    ask.sampling.max_tokens = 4;
    return ask;
}

START_TEST(a_shared_prefix_is_computed_once)
{
    enum { HEAD = 64, N = 12 };
    static int32_t tokens[N + 1][80];
    struct world *w = open_world("llama", 5);
    int tails = 0;
    for (int on = 0; on < 2; on++) {
        w->prefix_cache = on;
        open_scheduler(w, BUDGET_MAX, 20, POOL);
        tails = 0;
        for (int i = 0; i < N; i++) { // together: the first computes the prefix, the others wait for it
            for (int t = 0; t < 80; t++)
                tokens[i][t] = t < HEAD ? t : 100 + i;
            struct sequence_request ask = plain_request((uint64_t)i, tokens[i], HEAD + 1 + i);
            tails += 1 + i;
            add(w, &ask);
        }
        struct sequence_request other = plain_request(N, tokens[N], 80);
        add(w, &other);
        step(w);
        // A request with another prefix does not wait behind them.
        ck_assert(w->now[0].n == 1 && w->now[1].n == !on && w->now[N].n == on);
        run_dry(w);
        struct scheduler_load load = scheduler_get_load(w->scheduler);
        ck_assert_int_eq(load.prompt_rows, 80 + tails + (on ? HEAD : N * HEAD));
        ck_assert_int_eq(load.reused_rows, on ? (N - 1) * HEAD : 0);
        for (int i = 0; i < N; i++)
            ck_assert_int_eq(w->cached[i], on && i ? HEAD : 0);
        ck_assert_int_eq(w->cached[N], 0);
        // The same prompt again: all blocks are cached but that of its last token.
        add(w, &other);
        memset(w->now, 0, sizeof w->now);
        run_dry(w);
        ck_assert_int_eq(w->cached[N], on ? 64 : 0);
        // The same tokens at other positions share nothing.
        struct sequence_request moved = other;
        struct token_range kept[2] = {{0, 0}, {2, 80}};
        moved.kept = kept;
        moved.n_kept_ranges = 2;
        moved.prompt_tokens = 90;
        add(w, &moved);
        memset(w->now, 0, sizeof w->now);
        run_dry(w);
        ck_assert_int_eq(w->cached[N], 0);
        scheduler_free(w->scheduler);
        memset(w->cached, 0, sizeof w->cached);
    }
    close_world(w);
}
END_TEST

START_TEST(an_answer_is_a_prefix_of_the_next_turn)
{
    struct world *w = open_world("llama", 5);
    w->prefix_cache = true;
    open_scheduler(w, BUDGET_MAX, 4, POOL);
    int32_t turn[75];
    for (int t = 0; t < 75; t++)
        turn[t] = t;
    struct sequence_request ask = plain_request(0, turn, 30);
    ask.sampling.max_tokens = 40;
    add(w, &ask);
    run_dry(w);
    memcpy(turn + 30, w->now[0].tokens, 40 * sizeof *turn); // 69 of these 70 were computed: four full blocks
    ask = plain_request(1, turn, 75);
    add(w, &ask);
    run_dry(w);
    ck_assert_int_eq(w->cached[1], 64);
    scheduler_free(w->scheduler);
    close_world(w);
}
END_TEST

// A prompt that fits is started only when a quarter of its output fits too, beside the blocks reserved for others.
START_TEST(a_quarter_of_the_output_is_reserved)
{
    static int32_t tokens[2][64];
    struct world *w = open_world("llama", 5);
    open_scheduler(w, BUDGET_MAX, 4, 10);
    for (int i = 0; i < 2; i++) {
        struct sequence_request ask = plain_request((uint64_t)i, tokens[i], 48);
        ask.sampling.max_tokens = 64; // 3 blocks now, 4 more at most, 1 of them reserved
        add(w, &ask);
    }
    step(w);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).running, 2); // 4 + 4 of 10
    struct sequence_request ask = plain_request(2, tokens[0], 32);
    ask.sampling.max_tokens = 17;
    add(w, &ask);
    step(w);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).running, 2); // 3 of 2
    scheduler_cancel(w->scheduler, 1);
    step(w);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).running, 2);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).waiting, 0);
    run_dry(w);
    scheduler_free(w->scheduler);
    close_world(w);
}
END_TEST

// A head of ten blocks and little more for each sequence, in the memory of two unshared ones. Short outputs: all twelve
// run at once. Outputs of more than a block: fewer start, and what they need beyond the reserve preempts few of them.
START_TEST(sequences_that_share_their_head_run_in_the_memory_of_two)
{
    enum { HEAD = 160, TAIL = 4, N = 12 };
    static int32_t tokens[N][HEAD + TAIL];
    struct world *w = open_world("llama", 5);
    w->prefix_cache = true;
    for (int long_outputs = 0; long_outputs < 2; long_outputs++) {
        open_scheduler(w, BUDGET_MAX, N, 2 * kv_blocks_for(HEAD + TAIL + 8));
        for (int i = 0; i < N; i++) {
            for (int t = 0; t < HEAD + TAIL; t++)
                tokens[i][t] = t < HEAD ? t : 100 + i;
            struct sequence_request ask = plain_request((uint64_t)i, tokens[i], HEAD + TAIL);
            ask.sampling.max_tokens = long_outputs ? CONTEXT - HEAD - TAIL : 8;
            add(w, &ask);
        }
        run_dry(w);
        struct scheduler_load load = scheduler_get_load(w->scheduler);
        ck_assert_int_ge(load.most_running, long_outputs ? N / 2 : N);
        ck_assert_int_le(load.preemptions, long_outputs ? N : 0);
        memset(w->now, 0, sizeof w->now);
        scheduler_free(w->scheduler);
    }
    close_world(w);
}
END_TEST

START_TEST(decodes_go_first_and_prompts_in_order)
{
    struct world *w = open_world("llama", 5);
    open_scheduler(w, 20, 4, POOL);
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
        add(w, &ask[i]);
    step(w); // 10 rows of 0 and 10 of 1
    ck_assert(w->rows == 20 && w->now[0].n == 1 && w->now[1].n == 0);
    step(w); // 1 + 19
    step(w); // 1 + 19
    ck_assert(w->rows == 60 && w->now[0].n == 3 && w->now[1].n == 0);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).waiting, 1); // no prompt is started without room
    step(w);                                                       // 1 + the last 12 of 1 + 7 of 2
    ck_assert(w->rows == 80 && w->now[0].n == 4 && w->now[1].n == 1 && w->now[2].n == 0);
    run_dry(w);
    ck_assert(w->now[0].n == 20 && w->now[1].n == 20 && w->now[2].n == 20);
    scheduler_free(w->scheduler);
    close_world(w);
}
END_TEST

START_TEST(a_short_prompt_does_not_wait_for_all_of_a_long_one)
{
    static int32_t tokens[3][160];
    struct world *w = open_world("llama", 5);
    open_scheduler(w, 20, 4, POOL);
    struct sequence_request ask[3];
    const int lengths[] = {110, 150, 8};
    for (int i = 0; i < 3; i++)
        ask[i] = plain_request((uint64_t)i, tokens[i], lengths[i]);
    add(w, &ask[0]);
    step(w);
    add(w, &ask[1]);
    add(w, &ask[2]);
    step(w); // 8 rows of the short prompt, 12 of the first; the second long prompt waits
    ck_assert(w->rows == 40 && w->now[2].n == 1 && w->now[1].n == 0);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).waiting, 1);
    step(w);
    ck_assert(w->now[2].n == 2 && w->rows == 60);
    run_dry(w);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(w->now[i].n, 4);
    scheduler_free(w->scheduler);
    close_world(w);
}
END_TEST

START_TEST(half_of_a_pass_goes_to_the_shortest_prompt)
{
    static int32_t tokens[3][160];
    struct world *w = open_world("llama", 5);
    open_scheduler(w, 20, 4, POOL);
    struct sequence_request ask[3];
    const int lengths[] = {160, 110, 50};
    for (int i = 0; i < 3; i++)
        ask[i] = plain_request((uint64_t)i, tokens[i], lengths[i]);
    add(w, &ask[0]);
    step(w);
    add(w, &ask[1]);
    step(w); // 10 of 1, 10 of 0
    add(w, &ask[2]);
    for (int i = 0; i < 5; i++)
        step(w); // 10 of 2, 10 of 0
    ck_assert(w->rows == 140 && w->now[2].n == 1 && w->now[1].n == 0 && w->now[0].n == 0);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).prompt_rows, 140);
    run_dry(w);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(w->now[i].n, 4);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).prompt_rows, 320);
    scheduler_free(w->scheduler);
    close_world(w);
}
END_TEST

// Whatever passes take on this machine: first the decodes are measured, then the prompt gets a few rows.
START_TEST(prompts_beside_decodes_are_paced)
{
    static int32_t tokens[2][150];
    struct world *w = open_world("llama", 5);
    w->pace_us = PACE_TWICE;
    open_scheduler(w, BUDGET_MAX, 4, POOL);
    struct sequence_request ask[2] = {plain_request(0, tokens[0], 10), plain_request(1, tokens[1], 150)};
    ask[0].sampling.max_tokens = OUTPUT_MAX;
    add(w, &ask[0]);
    step(w);
    add(w, &ask[1]);
    step(w);
    step(w);
    ck_assert_int_eq(w->rows, 10 + 2);
    step(w);
    ck_assert_int_ge(w->rows, 10 + 3);
    ck_assert_int_le(w->rows, 10 + 3 + 16);
    ck_assert(w->now[0].n == 4 && w->now[1].n == 0);
    run_dry(w);
    ck_assert(w->now[0].n == OUTPUT_MAX && w->now[1].n == 4);
    scheduler_free(w->scheduler);
    close_world(w);
}
END_TEST

// The last chunk of a prompt may be a single row.
START_TEST(prompt_rows_are_counted_in_all_chunks)
{
    static int32_t tokens[61];
    struct world *w = open_world("llama", 5);
    open_scheduler(w, 20, 4, POOL);
    struct sequence_request ask = plain_request(0, tokens, 61);
    add(w, &ask);
    run_dry(w);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).prompt_rows, 61);
    scheduler_free(w->scheduler);
    close_world(w);
}
END_TEST

// ---- refused requests ----

static void refuse(struct world *w, const struct sequence_request *ask, enum status expected, const char *sentence)
{
    ck_assert_int_eq(scheduler_add(w->scheduler, ask), expected);
    ck_assert_msg(strstr(status_message(), sentence) != NULL, "'%s' should say '%s'", status_message(), sentence);
}

START_TEST(bad_sequences_are_refused_with_a_sentence)
{
    struct world *w = open_world("llama", 9);
    open_scheduler(w, 64, 4, 6);
    static const int32_t tokens[200];
    int32_t wrong[4] = {1, 2, 272, 3};
    struct token_range kept[2] = {{0, 1}, {5, 6}};
    struct sequence_request good = {
        .id = 1, .tokens = tokens, .n_tokens = 4, .kept = kept, .n_kept_ranges = 2, .prompt_tokens = 8};
    sampling_defaults(&good.sampling);
    good.sampling.max_tokens = 4;
    struct sequence_request bad = good;

    bad.tokens = wrong;
    refuse(w, &bad, STATUS_INVALID, "token 272 is outside the vocabulary of 272");
    wrong[2] = -1;
    refuse(w, &bad, STATUS_INVALID, "token 4294967295 is outside");
    bad = good;
    bad.penalty_ids = wrong;
    bad.n_penalty_ids = 4;
    refuse(w, &bad, STATUS_INVALID, "penalty_ids");
    bad = good;
    bad.n_tokens = 0;
    refuse(w, &bad, STATUS_INVALID, "at least one prompt token");
    bad = good;
    bad.n_generated = 4;
    refuse(w, &bad, STATUS_INVALID, "at least one prompt token");
    bad = good;
    bad.n_tokens = 5;
    refuse(w, &bad, STATUS_INVALID, "5 prompt tokens were sent for 4 kept tokens");
    bad = good;
    bad.prompt_tokens = 3;
    refuse(w, &bad, STATUS_INVALID, "4 prompt tokens kept out of 3");
    bad.prompt_tokens = 6;
    refuse(w, &bad, STATUS_INVALID, "kept range 5..6");
    bad = good;
    kept[1] = (struct token_range){1, 2};
    refuse(w, &bad, STATUS_INVALID, "kept range 1..2: ranges must not overlap");
    kept[1] = (struct token_range){6, 5};
    refuse(w, &bad, STATUS_INVALID, "kept range 6..5");
    kept[1] = (struct token_range){5, 6};
    kept[0] = (struct token_range){-1, 0};
    refuse(w, &bad, STATUS_INVALID, "kept range 4294967295..0");
    kept[0] = (struct token_range){0, 1};
    bad.sampling.temperature = NAN;
    refuse(w, &bad, STATUS_INVALID, "temperature");
    bad = good;
    bad.sampling.max_tokens = 0;
    refuse(w, &bad, STATUS_INVALID, "max_tokens 0");
    bad = good;
    bad.n_tokens = 4;
    bad.n_generated = 2;
    bad.n_kept_ranges = 1;
    bad.sampling.max_tokens = 2;
    refuse(w, &bad, STATUS_INVALID, "nothing is left to generate");
    bad = good;
    bad.sampling.max_tokens = CONTEXT;
    refuse(w, &bad, STATUS_OUT_OF_RANGE, "exceed the context of 192");
    bad = good;
    bad.n_kept_ranges = 0;
    bad.n_tokens = bad.prompt_tokens = 94;
    refuse(w, &bad, STATUS_OUT_OF_RANGE, "the sequence needs 97 KV entries, the whole KV cache has 96");
    bad.n_tokens = bad.prompt_tokens = 93;
    add(w, &bad); // just fits
    refuse(w, &bad, STATUS_INVALID, "request 0000000000000001 is already at this group");
    good.id = 2;
    add(w, &good);
    run_dry(w);
    ck_assert(w->now[1].n > 0 && w->now[2].n > 0);
    scheduler_free(w->scheduler);

    struct scheduler_limits limits = {.token_budget = 8, .max_seqs = 9, .context_tokens = CONTEXT, .kv_blocks = 6};
    ck_assert_int_eq(scheduler_create(w->engine, &limits, take_report, w, &w->scheduler), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "max-num-seqs 9: must be 1 to max-num-batched-tokens (8)"));
    close_world(w);
}
END_TEST

int main(void)
{
    enum { WORLDS = sizeof worlds / sizeof *worlds };
    Suite *suite = suite_create("scheduler");
    TCase *tcase = tcase_create("scheduler");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, alone_is_what_a_plain_loop_gives, 0, WORLDS);
    tcase_add_loop_test(tcase, neighbours_and_chunks_change_nothing, 0, WORLDS);
    tcase_add_loop_test(tcase, preemption_changes_nothing, 0, WORLDS);
    tcase_add_loop_test(tcase, the_victim_loses_fewest_tokens_of_its_own, 0, 4);
    tcase_add_loop_test(tcase, a_replay_continues_with_the_same_tokens, 0, WORLDS);
    tcase_add_loop_test(tcase, cancel_in_every_state_affects_no_other_request, 0, WORLDS);
    tcase_add_loop_test(tcase, reused_prefixes_change_nothing, 0, WORLDS);
    tcase_add_test(tcase, a_shared_prefix_is_computed_once);
    tcase_add_test(tcase, an_answer_is_a_prefix_of_the_next_turn);
    tcase_add_test(tcase, a_quarter_of_the_output_is_reserved);
    tcase_add_test(tcase, sequences_that_share_their_head_run_in_the_memory_of_two);
    tcase_add_test(tcase, decodes_go_first_and_prompts_in_order);
    tcase_add_test(tcase, a_short_prompt_does_not_wait_for_all_of_a_long_one);
    tcase_add_test(tcase, half_of_a_pass_goes_to_the_shortest_prompt);
    tcase_add_test(tcase, prompts_beside_decodes_are_paced);
    tcase_add_test(tcase, prompt_rows_are_counted_in_all_chunks);
    tcase_add_test(tcase, bad_sequences_are_refused_with_a_sentence);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
