// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of prompt tokens: they equal those of an independent forward pass in double precision, and have the
// same bits alone, packed, in chunks, preempted, replayed and with cached prefixes. The argument names a backend. On a
// GPU the rows of a pass can change bits (docs/gpus.md), so only values are compared there.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "tests/cuda_here.h"
#include "tests/slow_llama.h"
#include "tests/suite.h"
#include "worker/pace.h"
#include "worker/scheduler.h"

enum {
    REQUESTS = 14,
    PROMPT_MAX = 70,
    OUTPUT = 24,
    CONTEXT = PROMPT_MAX + OUTPUT,
    POOL = 128,
    BUDGET = 96,
    TOP_MAX = 5
};

static const char *backend;

struct outcome {
    struct sampled_token prompt[PROMPT_MAX]; // [n_prompt] from index 1 on
    int32_t tokens[OUTPUT];
    int n_prompt, n, cached;
};

struct world {
    struct tiny_model spec;
    char *dir;
    struct comm *comm;
    struct engine *engine;
    struct scheduler *scheduler;
    int32_t prompts[REQUESTS][PROMPT_MAX];
    struct sequence_request asks[REQUESTS];
    struct outcome alone[REQUESTS], now[REQUESTS];
    int from[REQUESTS]; // first token of a replay
    int n_requests;     // fewer on the emulated GPU, which is slow
};

static void take_report(void *arg, const struct step_report *report)
{
    struct world *w = arg;
    for (int i = 0; i < report->n_outputs; i++) {
        const struct sequence_output *out = &report->outputs[i];
        struct outcome *o = &w->now[out->id];
        ck_assert(out->n_tokens == 1 || out->n_prompt_logprobs);
        ck_assert(!out->n_prompt_logprobs || o->n == 0);
        for (int k = 0; k < out->n_prompt_logprobs; k++) {
            ck_assert_int_eq(out->prompt_logprobs_from + k, w->from[out->id] + o->n_prompt);
            o->prompt[w->from[out->id] + o->n_prompt++] = out->prompt_logprobs[k];
        }
        if (!out->n_tokens) continue;
        if (o->n == 0) o->cached = out->cached_tokens;
        o->tokens[o->n++] = out->tokens[0].token;
    }
}

// Two of three requests want log-probabilities of the prompt. Every fourth prompt begins like the one before.
static void make_request(struct world *w, int id)
{
    int n = id == 0 ? 1 : 2 + (id * 29) % (PROMPT_MAX - 1);
    for (int i = 0; i < n; i++)
        w->prompts[id][i] = (31 * id + 7 * i * i + 3) % w->spec.vocab_size;
    if (id % 4 == 3) memcpy(w->prompts[id], w->prompts[id - 1], sizeof w->prompts[id] / 2);
    struct sequence_request *ask = &w->asks[id];
    *ask = (struct sequence_request){
        .id = (uint64_t)id, .tokens = w->prompts[id], .n_tokens = n, .prompt_tokens = n, .logprobs_from = 1};
    sampling_defaults(&ask->sampling);
    ask->sampling.max_tokens = OUTPUT;
    ask->sampling.ignore_eos = true;
    if (id % 3) ask->sampling.prompt_logprobs = id % (TOP_MAX + 1);
    if (id % 2) ask->sampling.logprobs = 1;
}

static bool wants(const struct world *w, int id)
{
    return w->asks[id].sampling.prompt_logprobs >= 0;
}

static struct world *world_open(int max_seqs, int max_logit_rows)
{
    log_setup("test", LOG_ERROR);
    struct world *w = calloc(1, sizeof *w);
    w->spec = tiny_model_spec("llama3");
    if (strcmp(backend, "cuda")) { // its heads must be larger
        w->spec.hidden = 32;
        w->spec.intermediate = 48;
        w->spec.n_heads = 2;
        w->spec.n_kv_heads = 1;
    }
    w->dir = tiny_model_temp(&w->spec);
    ck_assert_int_eq(comm_open_self(&w->comm), STATUS_OK);
    struct model_options options = {.dir = w->dir,
                                    .backend = backend,
                                    .dtype = strcmp(backend, "cuda") ? "f32" : "bf16",
                                    .kv_dtype = "auto",
                                    .threads = 2,
                                    .max_rows = BUDGET,
                                    .max_seqs = max_seqs,
                                    .max_logit_rows = max_logit_rows,
                                    .n_kv_blocks = POOL};
    enum status status = engine_open(&options, w->comm, &w->engine);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    for (int id = 0; id < REQUESTS; id++)
        make_request(w, id);
    w->n_requests = strcmp(backend, "cuda") ? REQUESTS : 3;
    return w;
}

static void world_close(struct world *w)
{
    engine_close(w->engine);
    w->comm->ops->close(w->comm);
    tiny_model_remove(w->dir);
    free(w);
}

static void scheduler_begin(struct world *w, int budget, int max_seqs, int pool, bool prefix_cache, int64_t pace_us)
{
    struct scheduler_limits limits = {.token_budget = budget,
                                      .max_seqs = max_seqs,
                                      .context_tokens = CONTEXT,
                                      .kv_blocks = pool,
                                      .prefix_cache = prefix_cache,
                                      .pace_us = pace_us};
    enum status status = scheduler_create(w->engine, &limits, take_report, w, &w->scheduler);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    memset(w->now, 0, sizeof w->now);
    for (int id = 0; id < REQUESTS; id++)
        w->from[id] = 1;
}

static void add(struct world *w, const struct sequence_request *ask)
{
    enum status status = scheduler_add(w->scheduler, ask);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

static void run_dry(struct world *w)
{
    while (scheduler_busy(w->scheduler))
        ck_assert_msg(scheduler_step(w->scheduler) == STATUS_OK, "%s", status_message());
}

static void run_alone(struct world *w)
{
    scheduler_begin(w, BUDGET, 1, POOL, false, PACE_UNLIMITED);
    for (int id = 0; id < w->n_requests; id++) {
        add(w, &w->asks[id]);
        run_dry(w);
    }
    scheduler_free(w->scheduler);
    memcpy(w->alone, w->now, sizeof w->alone);
}

static void check_token(const struct sampled_token *a, const struct sampled_token *b)
{
    ck_assert_int_eq(a->token, b->token);
    ck_assert_int_eq(a->rank, b->rank);
    ck_assert_int_eq(a->n_top, b->n_top);
    ck_assert_mem_eq(&a->logprob, &b->logprob, sizeof a->logprob);
    ck_assert_mem_eq(a->top_id, b->top_id, (size_t)a->n_top * sizeof *a->top_id);
    ck_assert_mem_eq(a->top_logprob, b->top_logprob, (size_t)a->n_top * sizeof *a->top_logprob);
}

static void check_same(const struct world *w)
{
    for (int id = 0; id < REQUESTS; id++) {
        const struct outcome *a = &w->alone[id], *b = &w->now[id];
        ck_assert_int_eq(b->n, OUTPUT);
        ck_assert_mem_eq(a->tokens, b->tokens, sizeof a->tokens);
        ck_assert_int_eq(b->n_prompt, wants(w, id) ? w->asks[id].n_tokens - w->from[id] : 0);
        for (int i = w->from[id]; i < w->from[id] + b->n_prompt; i++)
            check_token(&a->prompt[i], &b->prompt[i]);
    }
}

// --- tests

static double log_softmax(const double *logits, int vocab, int32_t token)
{
    double max = -INFINITY, sum = 0;
    for (int v = 0; v < vocab; v++)
        max = fmax(max, logits[v]);
    for (int v = 0; v < vocab; v++)
        sum += exp(logits[v] - max);
    return logits[token] - max - log(sum);
}

START_TEST(prompt_logprobs_equal_an_independent_forward_pass)
{
    struct world *w = world_open(1, 0);
    struct slow_llama *slow = slow_llama_create(&w->spec);
    int vocab = w->spec.vocab_size, checked = 0;
    double tolerance = strcmp(backend, "cuda") ? 2e-3 : 0.3; // of bf16
    run_alone(w);
    for (int id = 0; id < w->n_requests; id++) {
        int32_t position[PROMPT_MAX];
        int n = w->asks[id].n_tokens;
        if (!wants(w, id)) continue;
        for (int i = 0; i < n; i++)
            position[i] = i;
        double *logits = calloc((size_t)n * (size_t)vocab, sizeof *logits);
        slow_llama_run(slow, w->prompts[id], position, n, logits, NULL);
        for (int i = 1; i < n; i++, checked++) {
            const struct sampled_token *got = &w->alone[id].prompt[i];
            const double *row = logits + (ptrdiff_t)(i - 1) * vocab;
            ck_assert_int_eq(got->token, w->prompts[id][i]);
            ck_assert_double_eq_tol((double)got->logprob, log_softmax(row, vocab, got->token), tolerance);
            int surely_ahead = 0, perhaps_ahead = 0;
            for (int v = 0; v < vocab; v++) {
                surely_ahead += row[v] > row[got->token] + tolerance;
                perhaps_ahead += row[v] > row[got->token] - tolerance && v != got->token;
            }
            ck_assert_int_gt(got->rank, surely_ahead);
            ck_assert_int_le(got->rank, perhaps_ahead + 1);
            ck_assert_int_eq(got->n_top, w->asks[id].sampling.prompt_logprobs);
            for (int t = 0; t < got->n_top; t++) {
                ck_assert_double_eq_tol((double)got->top_logprob[t], log_softmax(row, vocab, got->top_id[t]),
                                        tolerance);
                ck_assert(t == 0 || got->top_logprob[t] <= got->top_logprob[t - 1]);
                ck_assert(got->rank != t + 1 || got->top_id[t] == got->token);
            }
        }
        free(logits);
    }
    ck_assert_int_gt(checked, 50);
    slow_llama_free(slow);
    world_close(w);
}
END_TEST

// The log-probabilities of an answer are those of a prompt that contains the answer.
START_TEST(prompt_logprobs_have_the_bits_of_sampled_tokens)
{
    struct world *w = world_open(2, 0);
    run_alone(w);
    int32_t both[PROMPT_MAX + OUTPUT];
    struct sequence_request ask = w->asks[5];
    int n = ask.n_tokens;
    memcpy(both, ask.tokens, (size_t)n * sizeof *both);
    memcpy(both + n, w->alone[5].tokens, (OUTPUT - 1) * sizeof *both);
    ask.tokens = both;
    ask.n_tokens = ask.prompt_tokens = n + OUTPUT - 1;
    ask.sampling.max_tokens = 1;
    scheduler_begin(w, BUDGET, 2, POOL, false, PACE_UNLIMITED);
    add(w, &ask);
    run_dry(w);
    for (int i = 1; i < n; i++)
        check_token(&w->alone[5].prompt[i], &w->now[5].prompt[i]);
    for (int i = n; i < n + OUTPUT - 1; i++) { // greedy
        ck_assert_int_eq(w->now[5].prompt[i].rank, 1);
        ck_assert_int_eq(w->now[5].prompt[i].top_id[0], both[i]);
    }
    ck_assert_int_eq(w->now[5].tokens[0], w->alone[5].tokens[OUTPUT - 1]);
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

START_TEST(neighbours_chunks_and_preemption_change_nothing)
{
    static const struct {
        int budget, max_seqs, pool;
        bool prefix_cache;
        int64_t pace_us;
    } ways[] = {{BUDGET, REQUESTS, POOL, false, PACE_UNLIMITED},
                {40, REQUESTS, 13, false, PACE_UNLIMITED},
                {17, 7, POOL, true, PACE_UNLIMITED},
                {BUDGET, REQUESTS, 20, true, PACE_TWICE},
                {3, 3, POOL, true, PACE_TWICE},
                {BUDGET, 1, POOL, true, PACE_TWICE}};
    static const int logit_rows[] = {0, 48, BUDGET};
    uint64_t preemptions = 0;
    struct world *w = world_open(REQUESTS, logit_rows[_i]);
    run_alone(w);
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        scheduler_begin(w, ways[way].budget, ways[way].max_seqs, ways[way].pool, ways[way].prefix_cache,
                        ways[way].pace_us);
        for (int id = 0; id < REQUESTS; id++)
            add(w, &w->asks[id]);
        run_dry(w);
        check_same(w);
        preemptions += scheduler_get_load(w->scheduler).preemptions;
        scheduler_free(w->scheduler);
    }
    ck_assert_uint_gt(preemptions, 0);
    world_close(w);
}
END_TEST

// A replay continues after the log-probabilities and tokens that the router has.
START_TEST(a_replay_continues_at_any_token)
{
    enum { ID = 8 };
    struct world *w = world_open(4, 0);
    run_alone(w);
    int n = w->asks[ID].n_tokens;
    int32_t tokens[PROMPT_MAX + OUTPUT];
    memcpy(tokens, w->asks[ID].tokens, (size_t)n * sizeof *tokens);
    memcpy(tokens + n, w->alone[ID].tokens, OUTPUT * sizeof *tokens);
    ck_assert_int_gt(n, 20);
    for (int from = 1; from <= n; from++) {
        struct sequence_request ask = w->asks[ID];
        ask.tokens = tokens;
        ask.n_generated = from == n ? OUTPUT - 1 : 0;
        ask.n_tokens += ask.n_generated;
        ask.logprobs_from = from;
        scheduler_begin(w, 16, 4, POOL, true, PACE_UNLIMITED);
        w->from[ID] = from;
        add(w, &ask);
        run_dry(w);
        ck_assert_int_eq(w->now[ID].n_prompt, n - from);
        for (int i = from; i < n; i++)
            check_token(&w->alone[ID].prompt[i], &w->now[ID].prompt[i]);
        ck_assert_int_eq(w->now[ID].tokens[0], w->alone[ID].tokens[ask.n_generated]);
        scheduler_free(w->scheduler);
    }
    world_close(w);
}
END_TEST

// Cached entries have no logits, so such a prompt is computed whole; its blocks serve later prompts.
START_TEST(a_cached_prompt_is_computed_again)
{
    enum { ID = 2 };
    struct world *w = world_open(4, 0);
    run_alone(w);
    struct sequence_request plain = w->asks[ID];
    int n = plain.n_tokens;
    ck_assert_int_gt(n, 40);
    plain.sampling.prompt_logprobs = -1;
    scheduler_begin(w, BUDGET, 4, POOL, true, PACE_UNLIMITED);
    for (int round = 0; round < 4; round++) {
        bool asks = round == 0 || round == 2;
        memset(&w->now[ID], 0, sizeof w->now[ID]);
        add(w, asks ? &w->asks[ID] : &plain);
        run_dry(w);
        ck_assert_int_eq(w->now[ID].cached, asks ? 0 : (n - 1) / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS);
        ck_assert_int_eq(w->now[ID].n_prompt, asks ? n - 1 : 0);
        for (int i = 1; asks && i < n; i++)
            check_token(&w->alone[ID].prompt[i], &w->now[ID].prompt[i]);
    }
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

START_TEST(a_pruned_prompt_is_refused)
{
    struct world *w = world_open(1, 0);
    scheduler_begin(w, BUDGET, 1, POOL, false, PACE_UNLIMITED);
    struct token_range kept = {0, 3};
    struct sequence_request ask = w->asks[1];
    ask.n_tokens = 4;
    ask.kept = &kept;
    ask.n_kept_ranges = 1;
    ck_assert_int_eq(scheduler_add(w->scheduler, &ask), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(status_message(), "are pruned"));
    ask = w->asks[1];
    for (int from = 0; from <= ask.n_tokens + 1; from += ask.n_tokens + 1) {
        ask.logprobs_from = from;
        ck_assert_int_eq(scheduler_add(w->scheduler, &ask), STATUS_INVALID);
    }
    scheduler_free(w->scheduler);
    world_close(w);
}
END_TEST

SUITE("prompt_logprobs")
{
    backend = argc > 1 ? argv[1] : "cpu";
    const bool is_cuda = strcmp(backend, "cuda") == 0;
    SKIP_UNLESS(!is_cuda || cuda_is_here());
    TCASE("all");
    TIMEOUT(120);
    TEST(prompt_logprobs_equal_an_independent_forward_pass);
    if (is_cuda) return; // the emulated GPU is slow

    TCASE("bits");
    TIMEOUT(120);
    TEST(prompt_logprobs_have_the_bits_of_sampled_tokens);
    LOOP(neighbours_chunks_and_preemption_change_nothing, 0, 3);
    TEST(a_replay_continues_at_any_token);
    TEST(a_cached_prompt_is_computed_again);
    TEST(a_pruned_prompt_is_refused);
}
