// SPDX-License-Identifier: Apache-2.0
// Drafts change no token. Requests with every sampling option first run alone and without drafts. Then they run with
// drafts that are right, wrong from some token on, too long, or not tokens at all: packed, in chunks, preempted,
// replayed, after cached prefixes, and with new drafts between passes. Tokens, log-probabilities and finish reasons
// must have the same bits, in fewer passes, and every block must be released. Some prompts are pruned, and some models
// run on two ranks. The argument names a backend.
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/random.h"
#include "tests/comm_threads.h"
#include "tests/cuda_here.h"
#include "tests/fake_llguidance.h"
#include "tests/suite.h"
#include "tests/tiny_model.h"
#include "worker/pace.h"
#include "worker/scheduler_state.h"

enum {
    REQUESTS = 24,
    PROMPT_MAX = 60,
    OUTPUT_MAX = 40,
    CONTEXT = 128,
    POOL = 256,
    BUDGET = 128,
    DRAFT_MAX = 48,
    PRUNED = 9
};

static const char *backend;
static struct random_source source;

static int below(int n)
{
    return (int)(random_next(&source) % (uint64_t)n);
}

struct outcome {
    struct sampled_token tokens[OUTPUT_MAX];
    int n, passes;
    enum sequence_finish finish;
};

struct world {
    char *dir;
    int n_ranks;
    struct comm *comms[2]; // of the ranks
    struct model_options options;
    pthread_t follower;
    struct engine *engine;
    struct grammar_library *grammars;
    struct scheduler *scheduler;
    int n_requests, vocab, eos, pool;
    bool prefix_cache, exact;
    int64_t pace_us;
    int32_t prompts[REQUESTS][PROMPT_MAX + OUTPUT_MAX], drafts[REQUESTS][DRAFT_MAX];
    struct token_range kept[REQUESTS][2];
    int32_t pruned[REQUESTS][PRUNED];
    struct sequence_request asks[REQUESTS];
    struct outcome alone[REQUESTS], now[REQUESTS];
    long accepted;
};

static void take_report(void *arg, const struct step_report *report)
{
    struct world *w = arg;
    for (int i = 0; i < report->n_outputs; i++) {
        const struct sequence_output *out = &report->outputs[i];
        struct outcome *o = &w->now[out->id];
        ck_assert_int_eq(o->finish, SEQUENCE_GOES_ON);
        ck_assert_int_ge(out->draft_accepted, 0);
        ck_assert_int_le(out->draft_accepted, out->drafted);
        ck_assert_int_ge(out->n_tokens, out->draft_accepted);
        ck_assert_int_le(out->n_tokens, out->draft_accepted + 1);
        ck_assert_int_le(o->n + out->n_tokens, OUTPUT_MAX);
        ck_assert_msg(out->finish != SEQUENCE_ERROR, "%s", out->error);
        if (out->n_tokens) memcpy(o->tokens + o->n, out->tokens, (size_t)out->n_tokens * sizeof *o->tokens);
        o->n += out->n_tokens;
        o->passes++;
        o->finish = out->finish;
        w->accepted += out->draft_accepted;
    }
}

static bool has_grammar(int id)
{
    return id % 5 == 4;
}

// Prunes the middle and the end of the prompt, and sets a repetition penalty, which counts pruned tokens.
static void prune(struct world *w, int id)
{
    struct sequence_request *ask = &w->asks[id];
    int half = ask->n_tokens / 2, gap = 1 + below(PRUNED - 1);
    w->kept[id][0] = (struct token_range){0, half - 1};
    w->kept[id][1] = (struct token_range){half + gap, ask->n_tokens + gap - 1};
    ask->kept = w->kept[id];
    ask->n_kept_ranges = 2;
    ask->prompt_tokens += PRUNED;
    for (int i = 0; i < PRUNED; i++)
        w->pruned[id][i] = below(w->vocab);
    ask->penalty_ids = w->pruned[id];
    ask->n_penalty_ids = PRUNED;
}

static void make_request(struct world *w, int id)
{
    int n = 1 + below(PROMPT_MAX);
    for (int i = 0; i < n; i++)
        w->prompts[id][i] = below(w->vocab);
    if (id % 4 == 3) memcpy(w->prompts[id], w->prompts[id - 1], sizeof w->prompts[id] / 2);
    struct sequence_request *ask = &w->asks[id];
    *ask = (struct sequence_request){
        .id = (uint64_t)id, .tokens = w->prompts[id], .n_tokens = n, .prompt_tokens = n, .logprobs_from = 1};
    struct sampling *p = &ask->sampling;
    sampling_defaults(p);
    p->max_tokens = 1 + below(OUTPUT_MAX);
    p->seed = random_next(&source);
    if (id % 6 == 0) return; // greedy and nothing else
    p->logprobs = below(4) - 1;
    p->ignore_eos = !has_grammar(id) && below(2);
    p->min_tokens = !has_grammar(id) && below(2) ? below(p->max_tokens) : 0;
    if (id % 2) p->temperature = 0.5 + below(10) * 0.1;
    if (below(3) == 0) p->top_k = 1 + below(40);
    if (below(3) == 0) p->top_p = 0.5 + below(5) * 0.1;
    if (below(3) == 0) p->repetition_penalty = 1.3;
    if (below(3) == 0) p->frequency_penalty = 0.7;
    if (below(3) == 0) p->presence_penalty = -0.4;
    if (below(4) == 0) p->prompt_logprobs = below(3);
    p->n_stop_ids = below(12); // some outputs end early
    for (int i = 0; i < p->n_stop_ids; i++)
        p->stop_ids[i] = below(w->vocab);
    for (int k = below(3) ? 0 : below(20); k > 0; k--)
        (void)!logit_bias_add(&p->logit_bias, below(w->vocab), below(9) - 4);
    if (n > 1 && p->prompt_logprobs < 0 && below(2)) prune(w, id);
}

static void open_grammars(struct world *w)
{
    struct tokenizer *tokenizer;
    ck_assert_int_eq(tokenizer_open(w->dir, &tokenizer), STATUS_OK);
    int32_t eos = w->eos;
    enum status status = grammar_library_open(FAKE_LLGUIDANCE, tokenizer, w->vocab, &eos, 1, &w->grammars);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    tokenizer_free(tokenizer);
}

static void *follow(void *arg)
{
    const struct world *w = arg;
    struct engine *engine;
    ck_assert_int_eq(engine_open(&w->options, w->comms[1], &engine), STATUS_OK);
    ck_assert_int_eq(engine_follow(engine), STATUS_OK);
    engine_close(engine);
    return NULL;
}

static void open_engine(struct world *w, int n_ranks)
{
    w->n_ranks = n_ranks;
    ck_assert_int_eq(comm_open_threads(n_ranks, w->comms), STATUS_OK);
    if (n_ranks > 1) ck_assert_int_eq(pthread_create(&w->follower, NULL, follow, w), 0);
    ck_assert_msg(engine_open(&w->options, w->comms[0], &w->engine) == STATUS_OK, "%s", status_message());
}

static struct world *world_open(uint64_t seed, const char *dtype, int n_ranks)
{
    log_setup("test", LOG_ERROR);
    bool is_cuda = strcmp(backend, "cuda") == 0;
    struct world *w = calloc(1, sizeof *w);
    struct tiny_model spec = tiny_model_spec("llama3");
    spec.seed = seed;
    spec.tokenizer = true;
    if (spec.vocab_size < TINY_TOKENIZER_SIZE) spec.vocab_size = TINY_TOKENIZER_SIZE;
    if (!is_cuda) { // its heads must be larger
        spec.hidden = 32;
        spec.intermediate = 48;
        spec.n_heads = 2;
        spec.n_kv_heads = 1;
    }
    w->dir = tiny_model_temp(&spec);
    w->options = (struct model_options){.dir = w->dir,
                                        .backend = backend,
                                        .dtype = is_cuda ? "bf16" : dtype,
                                        .kv_dtype = "auto",
                                        .threads = n_ranks == 1 ? 2 : 1,
                                        .max_rows = BUDGET,
                                        .max_seqs = REQUESTS,
                                        .max_logit_rows = REQUESTS + 60,
                                        .n_kv_blocks = POOL};
    open_engine(w, n_ranks);
    w->exact = !is_cuda; // see docs/gpus.md
    w->vocab = spec.vocab_size;
    w->eos = model_get_config(engine_model(w->engine))->eos_id[0];
    w->n_requests = is_cuda ? 4 : REQUESTS;
    w->pace_us = PACE_UNLIMITED;
    source.state = seed;
    open_grammars(w);
    for (int id = 0; id < w->n_requests; id++)
        make_request(w, id);
    return w;
}

static void world_close(struct world *w)
{
    ck_assert_int_eq(fake_llguidance_matchers(), 0);
    grammar_library_free(w->grammars);
    engine_close(w->engine);
    if (w->n_ranks > 1) pthread_join(w->follower, NULL);
    for (int i = 0; i < w->n_ranks; i++)
        w->comms[i]->ops->close(w->comms[i]);
    tiny_model_remove(w->dir);
    for (int id = 0; id < REQUESTS; id++)
        logit_bias_free(&w->asks[id].sampling.logit_bias);
    free(w);
}

static void begin(struct world *w, int budget, int max_seqs, int pool)
{
    struct scheduler_limits limits = {.token_budget = budget,
                                      .max_seqs = max_seqs,
                                      .context_tokens = CONTEXT,
                                      .kv_blocks = pool,
                                      .prefix_cache = w->prefix_cache,
                                      .pace_us = w->pace_us};
    enum status status = scheduler_create(w->engine, &limits, take_report, w, &w->scheduler);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    w->pool = pool;
    memset(w->now, 0, sizeof w->now);
}

static void add(struct world *w, const struct sequence_request *ask)
{
    struct sequence_request mine = *ask;
    if (has_grammar((int)ask->id)) mine.sampling.grammar = grammar_spec_of(GRAMMAR_REGEX, "steps 23");
    ck_assert_msg(scheduler_add(w->scheduler, &mine) == STATUS_OK, "%s", status_message());
    if (!has_grammar((int)ask->id)) return;
    struct grammar_matcher *matcher;
    ck_assert_int_eq(grammar_matcher_create(w->grammars, &mine.sampling.grammar, &matcher), STATUS_OK);
    int n = mine.n_generated;
    ck_assert_int_eq(grammar_matcher_accept(matcher, mine.tokens + mine.n_tokens - n, n), STATUS_OK);
    scheduler_set_matcher(w->scheduler, ask->id, matcher);
}

static void step(struct world *w)
{
    ck_assert_msg(scheduler_step(w->scheduler) == STATUS_OK, "%s", status_message());
}

static void finish(struct world *w)
{
    while (scheduler_busy(w->scheduler))
        step(w);
    struct scheduler_load load = scheduler_get_load(w->scheduler);
    ck_assert_int_eq(load.running, 0);
    ck_assert_int_eq(load.waiting, 0);
    ck_assert_int_eq(load.kv_blocks_free, w->pool);
    ck_assert_int_le(load.draft_accepted, load.drafted);
    scheduler_free(w->scheduler);
}

static void run_alone(struct world *w)
{
    begin(w, BUDGET, 1, POOL);
    for (int id = 0; id < w->n_requests; id++) {
        add(w, &w->asks[id]);
        while (scheduler_busy(w->scheduler))
            step(w);
    }
    finish(w);
    memcpy(w->alone, w->now, sizeof w->alone);
}

// Makes a draft of the output tokens from `from` on: right for `right` tokens, then random, perhaps with a stop token.
// It may exceed max_tokens.
static int make_draft(const struct world *w, int id, int from, int right, int32_t *draft)
{
    const struct outcome *alone = &w->alone[id];
    int n = 1 + below(DRAFT_MAX);
    for (int i = 0; i < n; i++) {
        bool is_known = i < right && from + i < alone->n;
        draft[i] = is_known ? alone->tokens[from + i].token : below(8) ? below(w->vocab) : w->eos;
    }
    return n;
}

enum draft_kind { RIGHT, WRONG_LATER, WRONG, INVALID, NO_DRAFT, DRAFT_KINDS };

static void draft_for(struct world *w, struct sequence_request *ask, enum draft_kind kind)
{
    int id = (int)ask->id;
    int right = kind == RIGHT || kind == INVALID ? OUTPUT_MAX : kind == WRONG_LATER ? below(12) : 0;
    ask->draft = w->drafts[id];
    ask->n_draft = kind == NO_DRAFT ? 0 : make_draft(w, id, 0, right, w->drafts[id]);
    if (kind == INVALID) w->drafts[id][below(ask->n_draft)] = below(2) ? w->vocab : -1;
}

static void check_token(const struct sampled_token *a, const struct sampled_token *b)
{
    ck_assert_int_eq(a->token, b->token);
    ck_assert_int_eq(a->n_top, b->n_top);
    ck_assert_mem_eq(&a->logprob, &b->logprob, sizeof a->logprob);
    ck_assert_mem_eq(a->top_id, b->top_id, (size_t)a->n_top * sizeof *a->top_id);
    ck_assert_mem_eq(a->top_logprob, b->top_logprob, (size_t)a->n_top * sizeof *a->top_logprob);
}

static void check_same(const struct world *w, int id, int from)
{
    const struct outcome *a = &w->alone[id], *b = &w->now[id];
    ck_assert_int_ne(b->finish, SEQUENCE_GOES_ON);
    if (!w->exact) return;
    ck_assert_msg(a->n - from == b->n, "request %d: %d tokens; alone %d", id, b->n, a->n - from);
    ck_assert_msg(a->finish == b->finish, "request %d: finish %d; alone %d", id, b->finish, a->finish);
    for (int i = 0; i < b->n; i++)
        check_token(&a->tokens[from + i], &b->tokens[i]);
}

// --- tests

START_TEST(a_right_draft_is_a_pass_for_all_its_tokens)
{
    struct world *w = world_open(3, "f32", 1);
    run_alone(w);
    begin(w, BUDGET, 1, POOL);
    for (int id = 0; id < w->n_requests; id++) {
        struct sequence_request ask = w->asks[id];
        ask.draft = w->drafts[id];
        ask.n_draft = w->alone[id].n;
        for (int i = 0; i < ask.n_draft; i++)
            w->drafts[id][i] = w->alone[id].tokens[i].token;
        add(w, &ask);
        while (scheduler_busy(w->scheduler))
            step(w);
        check_same(w, id, 0);
        if (w->exact && ask.sampling.prompt_logprobs < 0) ck_assert_int_le(w->now[id].passes, 2);
    }
    ck_assert_int_gt(w->accepted, w->exact ? 20 : 0);
    finish(w);
    world_close(w);
}
END_TEST

static const struct {
    int budget, max_seqs, pool;
    bool prefix_cache;
    int64_t pace_us;
} ways[] = {{BUDGET, REQUESTS, POOL, false, PACE_UNLIMITED},
            {64, 16, 40, true, PACE_TWICE},
            {17, 7, 12, false, PACE_UNLIMITED},
            {5, 5, POOL, true, PACE_UNLIMITED},
            {BUDGET, 16, 10, true, PACE_TWICE}};
static const char *const dtypes[] = {"f32", "bf16", "int8"};

static void begin_way(struct world *w, size_t way)
{
    w->prefix_cache = ways[way].prefix_cache;
    w->pace_us = ways[way].pace_us;
    begin(w, ways[way].budget, ways[way].max_seqs, ways[way].pool);
}

// The last case has two ranks.
START_TEST(drafts_of_every_kind_change_nothing)
{
    struct world *w = world_open((uint64_t)_i, dtypes[_i % 3], 1 + _i / 3);
    run_alone(w);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        begin_way(w, way);
        for (int id = 0; id < w->n_requests; id++) {
            struct sequence_request ask = w->asks[id];
            draft_for(w, &ask, (enum draft_kind)below(DRAFT_KINDS));
            ask.prompt_lookup = below(2);
            add(w, &ask);
            if (below(3) == 0) step(w);
        }
        finish(w);
        for (int id = 0; id < w->n_requests; id++)
            check_same(w, id, 0);
    }
    ck_assert_int_gt(w->accepted, w->exact ? 20 : 0);
    world_close(w);
}
END_TEST

// Answers of three tokens repeat themselves.
START_TEST(copies_change_nothing)
{
    struct world *w = world_open((uint64_t)(20 + _i), dtypes[_i % 3], 1);
    for (int id = 0; id < w->n_requests; id++)
        for (int token = 3; token < 6; token++)
            (void)!logit_bias_add(&w->asks[id].sampling.logit_bias, token, 100);
    run_alone(w);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        begin_way(w, way);
        for (int id = 0; id < w->n_requests; id++) {
            struct sequence_request ask = w->asks[id];
            ask.prompt_lookup = true;
            add(w, &ask);
        }
        finish(w);
        for (int id = 0; id < w->n_requests; id++)
            check_same(w, id, 0);
    }
    ck_assert_int_gt(w->accepted, w->exact ? 20 : 0);
    world_close(w);
}
END_TEST

START_TEST(a_replay_continues_with_its_draft)
{
    struct world *w = world_open(11, "f32", 1);
    run_alone(w);
    for (int from = 1; from < 20; from += 1 + from / 2) {
        bool in[REQUESTS] = {false};
        begin(w, BUDGET, REQUESTS, POOL);
        for (int id = 0; id < w->n_requests; id++) {
            struct sequence_request ask = w->asks[id];
            in[id] = from <= w->alone[id].n && from < ask.sampling.max_tokens && ask.sampling.prompt_logprobs < 0;
            if (!in[id]) continue;
            for (int i = 0; i < from; i++)
                w->prompts[id][ask.n_tokens + i] = w->alone[id].tokens[i].token;
            ask.n_tokens += from;
            ask.n_generated = from;
            draft_for(w, &ask, id % 2 ? RIGHT : WRONG_LATER);
            if (id % 3 == 0) ask.n_draft = from < ask.n_draft ? from : ask.n_draft; // ends before the next token
            add(w, &ask);
        }
        finish(w);
        for (int id = 0; id < w->n_requests; id++)
            if (in[id]) check_same(w, id, from);
    }
    ck_assert_int_gt(w->accepted, w->exact ? 20 : 0);
    world_close(w);
}
END_TEST

// A drafter also sends late drafts, drafts for tokens that the sequence has, and drafts for sequences that have ended.
START_TEST(drafts_may_come_between_any_passes)
{
    struct world *w = world_open((uint64_t)_i, dtypes[_i % 3], 1);
    run_alone(w);
    int refused = 0;
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        begin_way(w, way);
        for (int id = 0; id < w->n_requests; id++)
            add(w, &w->asks[id]);
        while (scheduler_busy(w->scheduler)) {
            for (int k = below(6); k > 0; k--) {
                int32_t draft[DRAFT_MAX];
                int id = below(w->n_requests), has = w->now[id].n, from = has - below(4) + (below(8) == 0);
                int n = make_draft(w, id, from < 0 ? 0 : from, below(16), draft);
                bool is_invalid = below(10) == 0;
                if (is_invalid) draft[0] = w->vocab;
                if (from < 0) from = INT_MIN;
                enum status status = scheduler_set_draft(w->scheduler, (uint64_t)id, from, draft, n);
                bool ended = w->now[id].finish != SEQUENCE_GOES_ON;
                ck_assert_int_eq(status, ended ? STATUS_NOT_FOUND : is_invalid ? STATUS_INVALID : STATUS_OK);
                refused += status != STATUS_OK;
            }
            step(w);
        }
        finish(w);
        for (int id = 0; id < w->n_requests; id++)
            check_same(w, id, 0);
    }
    ck_assert_int_gt(w->accepted, w->exact ? 20 : 0);
    ck_assert_int_gt(refused, 0);
    world_close(w);
}
END_TEST

// A prompt that continues with the tokens of a refused draft reuses no entries of the draft.
START_TEST(refused_entries_are_not_in_the_prefix_cache)
{
    enum { PROMPT = 30, DRAFT = 40 };
    struct world *w = world_open(5, "f32", 1);
    w->prefix_cache = true;
    int32_t turn[PROMPT + DRAFT];
    for (int i = 0; i < PROMPT + DRAFT; i++)
        turn[i] = (7 * i + 1) % w->vocab;
    struct sequence_request ask = {.id = 0, .tokens = turn, .n_tokens = PROMPT, .prompt_tokens = PROMPT};
    sampling_defaults(&ask.sampling);
    ask.sampling.ignore_eos = true;
    ask.sampling.max_tokens = OUTPUT_MAX;
    struct sequence_request next = ask;
    next.id = 1;
    next.n_tokens = next.prompt_tokens = PROMPT + DRAFT;
    begin(w, BUDGET, 2, POOL);
    add(w, &next);
    step(w);
    memcpy(w->alone, w->now, sizeof w->alone);
    finish(w);
    begin(w, BUDGET, 2, POOL);
    ask.draft = turn + PROMPT;
    ask.n_draft = DRAFT;
    add(w, &ask);
    step(w);
    struct scheduler_load load = scheduler_get_load(w->scheduler);
    ck_assert_int_eq(load.drafted, OUTPUT_MAX - 1);
    ck_assert_int_eq(load.draft_accepted, 0);
    ck_assert_int_eq(load.kv_blocks_free, POOL - 2); // of 70 entries that the pass computed 30 are left
    ck_assert_int_eq(load.prompt_rows, PROMPT);
    add(w, &next);
    step(w);
    load = scheduler_get_load(w->scheduler);
    ck_assert_int_eq(load.reused_rows, 16);
    if (w->exact) check_token(&w->alone[1].tokens[0], &w->now[1].tokens[0]);
    scheduler_drop_link(w->scheduler, 0);
    finish(w);
    world_close(w);
}
END_TEST

// Draft rows get the rows that prompts leave. A pass that the prompts of a bin fill completes all of them.
START_TEST(prompts_go_before_drafts)
{
    enum { N = 4 };
    struct world *w = world_open(6, "f32", 1);
    begin(w, N * 16, N + 1, POOL);
    for (int i = 0; i < N; i++) {
        struct sequence_request ask = {.id = (uint64_t)i, .tokens = w->prompts[i], .n_tokens = 16, .prompt_tokens = 16};
        sampling_defaults(&ask.sampling);
        ask.sampling.max_tokens = 20;
        ask.sampling.ignore_eos = true;
        ask.draft = w->drafts[i];
        ask.n_draft = 8;
        ck_assert_int_eq(scheduler_add(w->scheduler, &ask), STATUS_OK);
    }
    step(w);
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(w->now[i].n, 1);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).drafted, 0);
    finish(w);
    world_close(w);
}
END_TEST

static void add_greedy(struct world *w, int id, int n)
{
    struct sequence_request ask = {.id = (uint64_t)id, .tokens = w->prompts[id], .n_tokens = n, .prompt_tokens = n};
    for (int i = 0; i < n; i++)
        w->prompts[id][i] = (7 * i + id) % w->vocab;
    sampling_defaults(&ask.sampling);
    ask.sampling.max_tokens = OUTPUT_MAX;
    ask.sampling.ignore_eos = true;
    ck_assert_int_eq(scheduler_add(w->scheduler, &ask), STATUS_OK);
}

static void give_draft(struct world *w, int id, int n)
{
    ck_assert_int_eq(scheduler_set_draft(w->scheduler, (uint64_t)id, w->now[id].n, w->drafts[id], n), STATUS_OK);
}

// The group is full, so the waiting prompt cannot use the rows.
START_TEST(prompts_that_cannot_start_leave_their_rows_to_drafts)
{
    struct world *w = world_open(6, "f32", 1);
    begin(w, 16, 1, POOL);
    add_greedy(w, 0, 10);
    step(w);
    add_greedy(w, 1, 60);
    give_draft(w, 0, 8);
    step(w);
    ck_assert_int_eq(scheduler_get_load(w->scheduler).drafted, 8);
    scheduler_drop_link(w->scheduler, 0);
    finish(w);
    world_close(w);
}
END_TEST

// Pacing measures decode rows alone. Drafts that come before every pass prevent neither this measurement nor the start
// of a prompt.
START_TEST(the_time_of_decodes_is_measured_without_drafts)
{
    struct world *w = world_open(6, "f32", 1);
    w->pace_us = PACE_TWICE;
    begin(w, BUDGET, 2, POOL);
    add_greedy(w, 0, 10);
    step(w);
    struct scheduler *s = w->scheduler;
    s->draft_pace.costs[0].times[0].pass_us = s->draft_pace.costs[0].times[1].pass_us =
        1; // known, so that drafts are verified
    bool has_prompt = false;
    while (w->now[0].n < OUTPUT_MAX - 8) {
        double decode_us = s->pace.decode_us;
        uint64_t drafted = s->drafted;
        give_draft(w, 0, 2);
        step(w);
        if (s->drafted > drafted) ck_assert(s->pace.decode_us == decode_us);
        if (!has_prompt && w->now[0].n > 5) add_greedy(w, 1, 40);
        has_prompt |= w->now[0].n > 5;
    }
    ck_assert_int_gt(s->drafted, 0);
    ck_assert(s->pace.decode_us > 0);
    ck_assert_int_gt(s->prompt_rows, 10); // rows of the second prompt are included
    scheduler_drop_link(s, 0);
    finish(w);
    world_close(w);
}
END_TEST

SUITE("drafts")
{
    backend = argc > 1 ? argv[1] : "cpu";
    const bool is_cuda = strcmp(backend, "cuda") == 0, is_cpu = strcmp(backend, "cpu") == 0;
    SKIP_UNLESS(!is_cuda || cuda_is_here());
    TCASE("all");
    TIMEOUT(120);
    TEST(a_right_draft_is_a_pass_for_all_its_tokens);
    if (is_cuda) return; // the emulated GPU is slow

    TCASE("bits");
    TIMEOUT(120);
    LOOP(copies_change_nothing, 0, 3);
    LOOP(drafts_of_every_kind_change_nothing, 0, is_cpu ? 4 : 1);
    TEST(a_replay_continues_with_its_draft);
    LOOP(drafts_may_come_between_any_passes, 0, is_cpu ? 3 : 1);
    TEST(refused_entries_are_not_in_the_prefix_cache);
    TEST(prompts_go_before_drafts);
    TEST(prompts_that_cannot_start_leave_their_rows_to_drafts);
    TEST(the_time_of_decodes_is_measured_without_drafts);
}
