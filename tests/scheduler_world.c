// SPDX-License-Identifier: Apache-2.0
#include "tests/scheduler_world.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/random.h"

const struct kind worlds[WORLDS] = {{"llama3", 1, "f32", "auto", 1},   {"qwen3", 2, "f32", "auto", 1},
                                    {"llama3", 3, "bf16", "auto", 2},  {"llama3", 4, "int8", "int8", 2},
                                    {"longrope", 5, "f32", "auto", 1}, // answers grow over the original context
                                    {"olmo2", 6, "f32", "auto", 1}};

static struct random_source source;

static uint64_t random_bits(void)
{
    return random_next(&source);
}

int world_random(int n)
{
    return (int)(random_bits() % (uint64_t)n);
}

void world_take_report(void *arg, const struct step_report *report)
{
    struct world *w = arg;
    w->steps++;
    w->rows += report->rows;
    for (int i = 0; i < report->n_outputs; i++) {
        const struct sequence_output *out = &report->outputs[i];
        ck_assert(out->id < REQUESTS);
        ck_assert(!w->cancelled[out->id]);
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

// Makes a request: random tokens in kept ranges with gaps, or a whole prompt in one of its two representations.
static void request_draw(struct request *r, int index, int vocab)
{
    struct sequence_request *a = &r->ask;
    *a = (struct sequence_request){.id = (uint64_t)index, .tokens = r->tokens, .kept = r->kept};
    int last = -1;
    bool all = world_random(3) == 0;
    a->n_kept_ranges = all ? world_random(2) : 1 + world_random(5);
    a->n_tokens = all ? 1 + world_random(PROMPT_MAX) : 0;
    if (all) r->kept[0] = (struct token_range){0, last = a->n_tokens - 1};
    for (int i = 0; !all && i < a->n_kept_ranges; i++) {
        r->kept[i].first = last + 1 + world_random(6);
        r->kept[i].last = last = r->kept[i].first + world_random(17);
        a->n_tokens += r->kept[i].last - r->kept[i].first + 1;
    }
    for (int i = 0; i < a->n_kept_ranges / 2 && index % 3 == 0; i++) { // spans that are recalled after later ones
        struct token_range range = r->kept[i];
        r->kept[i] = r->kept[a->n_kept_ranges - 1 - i];
        r->kept[a->n_kept_ranges - 1 - i] = range;
    }
    a->prompt_tokens = last + 1 + (all ? 0 : world_random(8));
    if (a->prompt_tokens < a->n_tokens) a->prompt_tokens = a->n_tokens;
    for (int i = 0; i < a->n_tokens; i++)
        r->tokens[i] = world_random(vocab);
    for (int i = 0; i < a->prompt_tokens; i++)
        r->whole[i] = world_random(vocab);

    struct sampling *p = &a->sampling;
    sampling_defaults(p);
    p->max_tokens = 1 + world_random(OUTPUT_MAX);
    p->seed = random_bits();
    p->logprobs = world_random(3) - 1;
    if (index % 4 == 0) return; // greedy, with no other options
    p->min_tokens = world_random(p->max_tokens);
    if (index % 2) p->temperature = 0.5 + world_random(10) * 0.1;
    if (world_random(3) == 0) p->top_k = 1 + world_random(40);
    if (world_random(3) == 0) p->top_p = 0.5 + world_random(5) * 0.1;
    if (world_random(3) == 0) p->repetition_penalty = 1.3;
    if (world_random(3) == 0) p->frequency_penalty = 0.7;
    if (world_random(3) == 0) p->presence_penalty = -0.4;
    p->n_stop_ids = world_random(12); // some outputs end early
    for (int i = 0; i < p->n_stop_ids; i++)
        p->stop_ids[i] = world_random(vocab);
    for (int n = world_random(3) ? 0 : world_random(20); n > 0; n--)
        (void)!logit_bias_add(&r->bias, world_random(vocab), world_random(9) - 4);
    p->logit_bias = r->bias;
    if (world_random(2)) {
        a->penalty_ids = r->whole;
        a->n_penalty_ids = a->prompt_tokens;
    }
}

// ---- runs ----

void world_start(struct world *w, int token_budget, int max_seqs, int pool)
{
    struct scheduler_limits limits = {.token_budget = token_budget,
                                      .max_seqs = max_seqs,
                                      .context_tokens = CONTEXT,
                                      .kv_blocks = pool,
                                      .prefix_cache = w->prefix_cache,
                                      .pace_us = w->pace_us};
    enum status status = scheduler_create(w->engine, &limits, world_take_report, w, &w->scheduler);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    w->pool = pool;
    memset(w->now, 0, sizeof w->now);
    memset(w->cancelled, 0, sizeof w->cancelled);
}

void world_add(struct world *w, const struct sequence_request *ask)
{
    enum status status = scheduler_add(w->scheduler, ask);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

void world_step(struct world *w)
{
    enum status status = scheduler_step(w->scheduler);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
}

void world_run(struct world *w)
{
    for (long limit = w->steps + 100000; scheduler_busy(w->scheduler); world_step(w))
        ck_assert_int_lt(w->steps, limit);
    struct scheduler_load load = scheduler_get_load(w->scheduler);
    ck_assert_int_eq(load.kv_blocks_free, w->pool);
    ck_assert_int_eq(load.running, 0);
    ck_assert_int_eq(load.waiting, 0);
}

void world_check_same(const struct world *w, int i, int from, const char *how)
{
    const struct outcome *a = &w->alone[i], *b = &w->now[i];
    ck_assert_msg(a->n - from == b->n, "%s: request %d gave %d tokens; alone %d", how, i, b->n, a->n - from);
    ck_assert_msg(a->finish == b->finish, "%s: request %d: finish %d; alone %d", how, i, b->finish, a->finish);
    for (int t = 0; t < b->n; t++) {
        ck_assert_msg(a->tokens[from + t] == b->tokens[t], "%s: request %d, token %d: %d, alone %d", how, i, from + t,
                      b->tokens[t], a->tokens[from + t]);
        ck_assert_msg(memcmp(&a->logprobs[from + t], &b->logprobs[t], sizeof(float)) == 0,
                      "%s: request %d, token %d: log-probability %a, alone %a", how, i, from + t,
                      (double)b->logprobs[t], (double)a->logprobs[from + t]);
    }
}

struct world *world_open_of(const struct kind *kind)
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
        request_draw(&w->requests[i], i, spec.vocab_size);
    return w;
}

struct world *world_open(const char *family, uint64_t seed)
{
    return world_open_of(&(struct kind){family, seed, "f32", "auto", 1});
}

void world_run_alone(struct world *w)
{
    world_start(w, BUDGET_MAX, 1, POOL);
    for (int i = 0; i < REQUESTS; i++) {
        world_add(w, &w->requests[i].ask);
        world_run(w);
    }
    scheduler_free(w->scheduler);
    memcpy(w->alone, w->now, sizeof w->alone);
}

void world_close(struct world *w)
{
    engine_close(w->engine);
    w->comm->ops->close(w->comm);
    tiny_model_remove(w->dir);
    for (int i = 0; i < REQUESTS; i++)
        logit_bias_free(&w->requests[i].bias);
    free(w);
}

struct sequence_request plain_request(uint64_t id, const int32_t *tokens, int n)
{
    struct sequence_request ask = {.id = id, .tokens = tokens, .n_tokens = n, .prompt_tokens = n};
    sampling_defaults(&ask.sampling);
    ask.sampling.ignore_eos = true;
    ask.sampling.max_tokens = 4;
    return ask;
}
