// SPDX-License-Identifier: Apache-2.0
// speculator/scorer with a fake model: thousands of random prompts, arrivals, cancellations, budgets and sizes of the
// KV cache. Every number of the fake model depends on the whole content of its KV cache, so that a wrong row, block or
// step changes the result. check_scorer.c uses real models.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/check.h"
#include "lib/base/mem.h"
#include "speculator/scorer.h"
#include "tests/suite.h"

enum { VOCAB = 60, CONTEXT = 200, MAX_BLOCKS = 64, MAX_ITEMS = 40 };

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// Returns a number of the fake model from `hash`, which covers the tokens of a sequence up to and including a row.
static float probe_of(uint64_t hash, int window, int j)
{
    return (float)(mix(hash + (uint64_t)window * 1000 + (uint64_t)j) >> 40) / (1 << 24);
}

static int32_t choice_of(uint64_t hash)
{
    return (int32_t)(mix(hash) % VOCAB);
}

static uint64_t hash_token(uint64_t hash, int32_t token)
{
    return mix(hash + 1 + (uint64_t)token);
}

struct fake {
    struct backend_shape shape;
    int32_t kv[MAX_BLOCKS * KV_BLOCK_TOKENS];
    float logits[MAX_ITEMS * VOCAB], probes[MAX_ITEMS * CONTEXT];
    int passes, fail_at;
    bool prefix_cache;
    int max_rows_seen, max_seqs_seen;
};

static enum status fake_forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    struct fake *f = context;
    if (++f->passes == f->fail_at) return status_fail(STATUS_UNAVAILABLE, "rank 1 is lost");
    ck_assert_msg(ragged_batch_check(batch, &f->shape) == STATUS_OK, "%s", status_message());
    ck_assert_int_le(batch->n_logit_rows, batch->n_seqs);
    if (batch->n_rows > f->max_rows_seen) f->max_rows_seen = batch->n_rows;
    if (batch->n_seqs > f->max_seqs_seen) f->max_seqs_seen = batch->n_seqs;
    float *logits = f->logits, *probes = f->probes;
    int next_logit = 0, next_probe = 0;
    for (int s = 0; s < batch->n_seqs; s++) {
        const int32_t *table = batch->block_table + s * batch->max_blocks;
        for (int row = batch->row_start[s]; row < batch->row_start[s + 1]; row++) {
            int entry = batch->kv_len[s] + row - batch->row_start[s];
            ck_assert_int_eq(batch->position[row], entry);
            f->kv[table[entry / KV_BLOCK_TOKENS] * KV_BLOCK_TOKENS + entry % KV_BLOCK_TOKENS] = batch->token[row];
            uint64_t hash = 0;
            for (int e = 0; e <= entry; e++)
                hash = hash_token(hash, f->kv[table[e / KV_BLOCK_TOKENS] * KV_BLOCK_TOKENS + e % KV_BLOCK_TOKENS]);
            if (next_logit < batch->n_logit_rows && batch->logit_row[next_logit] == row) {
                memset(logits, 0, VOCAB * sizeof *logits);
                logits[choice_of(hash)] = 1;
                logits += VOCAB;
                next_logit++;
            }
            if (next_probe < batch->n_importance_rows && batch->importance_row[next_probe] == row) {
                for (int j = 0; j < batch->importance_keys[next_probe]; j++)
                    *probes++ = probe_of(hash, batch->smoothing_window, j);
                next_probe++;
            }
        }
    }
    ck_assert_int_eq(next_logit, batch->n_logit_rows);
    ck_assert_int_eq(next_probe, batch->n_importance_rows);
    *result = (struct forward_result){.logits = f->logits, .importance = f->probes};
    return STATUS_OK;
}

static const struct model_config config = {.vocab_size = VOCAB, .bos_id = 5, .eos_id = {7, 8, 9}, .n_eos = 3};

// With these dimensions a row after 40 entries is as much work as four rows without entries before them.
static const struct model_config attending = {.vocab_size = VOCAB,
                                              .hidden = 8,
                                              .intermediate = 16,
                                              .n_heads = 2,
                                              .n_kv_heads = 2,
                                              .head_size = 8,
                                              .bos_id = 5,
                                              .eos_id = {7, 8, 9},
                                              .n_eos = 3};

struct expected {
    int32_t tokens[CONTEXT];
    int n, look_ahead, window;
    float importance[CONTEXT];
    int steps;
    int answers; // results received
    bool cancelled;
    const char *error; // text that the error must contain
};

// Computes the expected scores by definition, one prompt at a time.
static void expect_scores(struct expected *e, int longest)
{
    uint64_t hash = 0;
    for (int j = 0; j < e->n; j++)
        hash = hash_token(hash, e->tokens[j]);
    memset(e->importance, 0, sizeof e->importance);
    for (e->steps = 0; e->steps < e->look_ahead && e->n + e->steps <= longest;) {
        for (int j = 0; j < e->n; j++)
            e->importance[j] += probe_of(hash, e->window, j);
        e->steps++;
        int32_t token = choice_of(hash);
        if (token >= 7 && token <= 9) break;
        hash = hash_token(hash, token);
    }
    for (int j = 0; j < e->n; j++)
        e->importance[j] /= (float)e->steps;
}

static long reused; // prompt tokens found in the prefix cache

static void take_result(void *context, const struct score_result *result)
{
    struct expected *e = (struct expected *)context + result->request;
    ck_assert_int_lt((int)result->request, MAX_ITEMS);
    ck_assert(!e->cancelled);
    e->answers++;
    if (e->error) {
        ck_assert_ptr_nonnull(result->error);
        ck_assert_ptr_nonnull(strstr(result->error, e->error));
        return;
    }
    ck_assert_msg(!result->error, "%s", result->error);
    ck_assert_int_eq(result->steps, e->steps);
    ck_assert_int_eq(result->n, e->n);
    ck_assert_int_lt(result->cached_tokens, e->n);
    ck_assert_int_eq(result->cached_tokens % KV_BLOCK_TOKENS, 0);
    reused += result->cached_tokens;
    ck_assert_mem_eq(result->importance, e->importance, (size_t)e->n * sizeof(float));
    struct token_range *kept;
    struct select_policy policy = {.keep_rate = 0.3, .chunk_tokens = 4, .keep_first = e->tokens[0] == 5};
    int n_kept = select_kept(e->importance, e->n, &policy, &kept);
    ck_assert_int_eq(n_kept, result->n_kept);
    ck_assert_mem_eq(kept, result->kept, (size_t)n_kept * sizeof *kept);
    free(kept);
}

static struct score_item make_item(struct expected *e, uint64_t request)
{
    return (struct score_item){
        .request = request,
        .tokens = e->tokens,
        .n = e->n,
        .prefill = {.keep_rate = 0.3, .look_ahead = e->look_ahead, .chunk_tokens = 4, .pool_window = e->window},
        .want_importance = true};
}

static struct fake *fake_open(int token_budget, int max_seqs, int kv_blocks)
{
    struct fake *f = mem_alloc(sizeof *f);
    static const float inv_freq[1] = {1};
    f->shape = (struct backend_shape){.n_layers = 1,
                                      .n_heads = 1,
                                      .n_kv_heads = 1,
                                      .head_size = 2,
                                      .rope.inv_freq = inv_freq,
                                      .max_rows = token_budget,
                                      .max_seqs = max_seqs,
                                      .max_context = CONTEXT,
                                      .n_kv_blocks = kv_blocks};
    return f;
}

static struct scorer_model fake_model(struct fake *f)
{
    return (struct scorer_model){.config = &config,
                                 .token_budget = f->shape.max_rows,
                                 .max_seqs = f->shape.max_seqs,
                                 .context_tokens = CONTEXT,
                                 .kv_blocks = f->shape.n_kv_blocks,
                                 .prefix_cache = f->prefix_cache,
                                 .forward = fake_forward,
                                 .context = f};
}

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

START_TEST(random_loads_score_as_if_alone)
{
    random_state = (uint64_t)_i + 1;
    static struct expected items[MAX_ITEMS];
    for (int round = 0; round < 60; round++) {
        int budgets[] = {1, 3, 17, 64, 1000};
        struct fake *f = fake_open(budgets[random_below(5)], 1 + (int)random_below(12), 4 + (int)random_below(60));
        f->prefix_cache = _i % 2;
        struct scorer_model model = fake_model(f);
        model.config = &attending;
        struct scorer *s = scorer_create(&model, take_result, items);
        int longest = smaller(CONTEXT, f->shape.n_kv_blocks * KV_BLOCK_TOKENS);
        int n_items = 1 + (int)random_below(MAX_ITEMS), added = 0;
        bool one_window = random_below(2);
        for (int pass = 0; pass < 100000; pass++) {
            while (added < n_items && random_below(3)) {
                struct expected *e = &items[added];
                *e = (struct expected){.look_ahead = 1 + (int)random_below(random_below(2) ? 8 : LOOK_AHEAD_MAX),
                                       .window = one_window ? 13 : 1 + 2 * (int)random_below(3)};
                e->n = 1 + (int)random_below((uint32_t)smaller(longest, random_below(4) ? 40 : CONTEXT));
                if (random_below(20) == 0) e->n = longest;
                for (int j = 0; j < e->n; j++)
                    e->tokens[j] = (int32_t)random_below(VOCAB);
                if (added && random_below(2)) { // shares a prefix with an earlier prompt
                    const struct expected *earlier = &items[random_below((uint32_t)added)];
                    int head = (int)random_below((uint32_t)smaller(earlier->n, e->n) + 1);
                    memcpy(e->tokens, earlier->tokens, (size_t)head * sizeof *e->tokens);
                }
                expect_scores(e, longest);
                struct score_item item = make_item(e, (uint64_t)added++);
                scorer_add(s, &item);
            }
            if (added && random_below(30) == 0) {
                int victim = (int)random_below((uint32_t)added);
                if (!items[victim].answers) items[victim].cancelled = true;
                scorer_cancel(s, (uint64_t)victim);
            }
            ck_assert_int_eq(scorer_step(s), STATUS_OK);
            struct scorer_load load = scorer_get_load(s);
            ck_assert_int_le(load.running, f->shape.max_seqs);
            if (added == n_items && load.running + load.waiting == 0) break;
        }
        for (int i = 0; i < n_items; i++)
            ck_assert_int_eq(items[i].answers, items[i].cancelled ? 0 : 1);
        ck_assert_int_eq(scorer_get_load(s).kv_blocks_free, f->shape.n_kv_blocks);
        scorer_free(s);
        free(f);
    }
    ck_assert(_i % 2 ? reused > 500 : reused == 0);
}
END_TEST

START_TEST(a_shared_prefix_is_computed_once)
{
    enum { HEAD = 96, N = 8 };
    static struct expected items[N];
    for (int on = 0; on < 2; on++) {
        struct fake *f = fake_open(200, N, MAX_BLOCKS);
        f->prefix_cache = on;
        struct scorer_model model = fake_model(f);
        struct scorer *s = scorer_create(&model, take_result, items);
        reused = 0;
        for (int i = 0; i < N; i++) {
            items[i] = (struct expected){.n = HEAD + 1 + i, .look_ahead = 1, .window = 13};
            for (int j = 0; j < items[i].n; j++)
                items[i].tokens[j] = (int32_t)(j < HEAD ? j % 40 : 41 + i);
            expect_scores(&items[i], CONTEXT);
            struct score_item item = make_item(&items[i], (uint64_t)i);
            scorer_add(s, &item);
        }
        while (scorer_get_load(s).running + scorer_get_load(s).waiting)
            ck_assert_int_eq(scorer_step(s), STATUS_OK);
        for (int i = 0; i < N; i++)
            ck_assert_int_eq(items[i].answers, 1);
        ck_assert_int_eq(reused, on ? (N - 1) * HEAD : 0);
        ck_assert_int_eq(f->passes,
                         on ? 2 : 5); // the prefix with the first prompt, then the others; 804 rows in passes of 200
        ck_assert_int_eq(scorer_get_load(s).kv_blocks_free, MAX_BLOCKS);
        scorer_free(s);
        free(f);
    }
}
END_TEST

// Another question on a scored document computes only its own rows, rounded up to blocks, and the look-ahead.
START_TEST(a_second_question_computes_its_own_rows_and_the_look_ahead)
{
    enum { DOCUMENT = 10 * KV_BLOCK_TOKENS, QUESTION = 5, LOOK_AHEAD = 8 };
    static struct expected items[2];
    struct fake *f = fake_open(64, 4, MAX_BLOCKS);
    f->prefix_cache = true;
    struct scorer_model model = fake_model(f);
    struct scorer *s = scorer_create(&model, take_result, items);
    for (int i = 0; i < 2; i++) {
        struct expected *e = &items[i];
        *e = (struct expected){.n = DOCUMENT + QUESTION, .look_ahead = LOOK_AHEAD, .window = 13};
        do { // until the look-ahead of the question has no EOS
            for (int j = 0; j < e->n; j++)
                e->tokens[j] = (int32_t)(j < DOCUMENT ? j % 40 : 10 + (int)random_below(40));
            expect_scores(e, CONTEXT);
        } while (e->steps < LOOK_AHEAD);
        struct score_item item = make_item(e, (uint64_t)i);
        scorer_add(s, &item);
        int rows = 0;
        while (scorer_get_load(s).running + scorer_get_load(s).waiting) {
            ck_assert_int_eq(scorer_step(s), STATUS_OK);
            rows += scorer_last_pass(s).rows;
        }
        ck_assert_int_eq(e->answers, 1);
        ck_assert_int_eq(rows, (i ? 0 : DOCUMENT) + QUESTION + LOOK_AHEAD - 1);
    }
    scorer_free(s);
    free(f);
}
END_TEST

START_TEST(passes_fill_up_across_prompts)
{
    // 10 prompts of 50 tokens with a budget of 100.
    struct fake *f = fake_open(100, 10, MAX_BLOCKS);
    struct scorer_model model = fake_model(f);
    static struct expected items[10];
    struct scorer *s = scorer_create(&model, take_result, items);
    for (int i = 0; i < 10; i++) {
        items[i] = (struct expected){.n = 50, .look_ahead = 8, .window = 13};
        for (int j = 0; j < 50; j++)
            items[i].tokens[j] = (int32_t)(20 + i);
        expect_scores(&items[i], CONTEXT);
        struct score_item item = make_item(&items[i], (uint64_t)i);
        scorer_add(s, &item);
    }
    while (scorer_get_load(s).running + scorer_get_load(s).waiting)
        ck_assert_int_eq(scorer_step(s), STATUS_OK);
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(items[i].answers, 1);
    ck_assert_int_eq(f->max_rows_seen, 100);
    ck_assert_int_le(f->passes, 5 + 5 * 7); // after a pass that was slow by chance, separate look-ahead passes may run
    int idle = f->passes;
    ck_assert_int_eq(scorer_step(s), STATUS_OK); // nothing to do, no pass
    ck_assert_int_eq(f->passes, idle);
    scorer_free(s);
    free(f);
}
END_TEST

START_TEST(bad_items_answer_with_a_sentence)
{
    struct fake *f = fake_open(64, 4, 8); // 128 KV entries
    struct scorer_model model = fake_model(f);
    static struct expected items[12];
    struct scorer *s = scorer_create(&model, take_result, items);
    struct token_range beyond = {3, 10}, backwards = {4, 3};
    for (int i = 0; i < 12; i++)
        items[i] = (struct expected){.n = 10, .look_ahead = 4, .window = 13};
    items[0].n = 0;
    items[0].error = "empty prompt";
    items[1].n = 129;
    items[1].error = "holds at most 128";
    items[2].tokens[4] = VOCAB;
    items[2].error = "token id 60 at position 4: must be from 0 to 59";
    items[3].tokens[0] = -1;
    items[3].error = "token id -1";
    items[4].error = "keep_rate 1.5";
    items[5].look_ahead = LOOK_AHEAD_MAX + 1;
    items[5].error = "look_ahead 65";
    items[6].window = 4;
    items[6].error = "pool_window 4";
    items[7].error = "pinned range 3-10: must lie within 0-9";
    items[8].error = "pinned range 4-3";
    items[9].error = "tail_tokens 11";
    items[10].error = "chunk_tokens -2: must be auto or from 0 to 4096";
    expect_scores(&items[11], CONTEXT); // a valid item
    for (int i = 11; i >= 0; i--) {
        struct score_item item = make_item(&items[i], (uint64_t)i);
        if (i == 4) item.prefill.keep_rate = 1.5;
        if (i == 7) item.pinned = &beyond;
        if (i == 8) item.pinned = &backwards;
        item.n_pinned = i == 7 || i == 8;
        if (i == 9) item.tail_tokens = 11;
        if (i == 10) item.prefill.chunk_tokens = -2;
        scorer_add(s, &item);
        if (i < 11) ck_assert_int_eq(items[i].answers, 1);
    }
    while (!items[11].answers)
        ck_assert_int_eq(scorer_step(s), STATUS_OK);
    scorer_free(s);
    free(f);
}
END_TEST

START_TEST(cancel_and_clear_free_blocks_immediately)
{
    struct fake *f = fake_open(8, 4, MAX_BLOCKS);
    struct scorer_model model = fake_model(f);
    static struct expected items[6];
    struct scorer *s = scorer_create(&model, take_result, items);
    for (int i = 0; i < 6; i++) {
        items[i] = (struct expected){.n = 100, .look_ahead = 8, .window = 13};
        struct score_item item = make_item(&items[i], (uint64_t)i);
        scorer_add(s, &item);
    }
    ck_assert_int_eq(scorer_step(s), STATUS_OK);
    struct scorer_load load = scorer_get_load(s);
    ck_assert_int_eq(load.running, 4);
    ck_assert_int_eq(load.waiting, 2);
    ck_assert_int_eq(load.kv_blocks_free, MAX_BLOCKS - 4 * 7); // 107 entries each
    scorer_cancel(s, 2);
    scorer_cancel(s, 99);
    load = scorer_get_load(s);
    ck_assert_int_eq(load.running, 3);
    ck_assert_int_eq(load.waiting, 2);
    ck_assert_int_eq(load.kv_blocks_free, MAX_BLOCKS - 3 * 7);
    ck_assert_int_eq(scorer_step(s), STATUS_OK);
    ck_assert_int_eq(scorer_get_load(s).running, 4);
    scorer_drop_link(s, 0);
    load = scorer_get_load(s);
    ck_assert_int_eq(load.running + load.waiting, 0);
    ck_assert_int_eq(load.kv_blocks_free, MAX_BLOCKS);
    scorer_free(s);
    free(f);
}
END_TEST

START_TEST(a_link_that_ends_drops_its_own_prompts)
{
    struct fake *f = fake_open(8, 4, MAX_BLOCKS);
    struct scorer_model model = fake_model(f);
    static struct expected items[6];
    struct scorer *s = scorer_create(&model, take_result, items);
    for (int i = 0; i < 6; i++) {
        items[i] = (struct expected){.n = 100, .look_ahead = 8, .window = 13};
        struct score_item item = make_item(&items[i], (uint64_t)i);
        item.request = link_id_make(i & 1, (uint64_t)i);
        scorer_add(s, &item);
    }
    struct link_load links[NODE_LINKS_MAX];
    ck_assert_int_eq(scorer_step(s), STATUS_OK);
    scorer_count_links(s, links);
    ck_assert_uint_eq(links[0].running, 2);
    ck_assert_uint_eq(links[1].running, 2);
    ck_assert_uint_eq(links[1].waiting, 1);
    scorer_drop_link(s, 1);
    scorer_count_links(s, links);
    ck_assert_uint_eq(links[1].running + links[1].waiting, 0);
    ck_assert_uint_eq(links[0].running + links[0].waiting, 3);
    ck_assert_int_eq(scorer_get_load(s).kv_blocks_free, MAX_BLOCKS - 2 * 7);
    scorer_free(s);
    free(f);
}
END_TEST

START_TEST(a_failed_pass_is_reported_and_nothing_leaks)
{
    struct fake *f = fake_open(8, 4, MAX_BLOCKS);
    f->fail_at = 3;
    struct scorer_model model = fake_model(f);
    static struct expected items[1] = {{.n = 100, .look_ahead = 8, .window = 13}};
    struct scorer *s = scorer_create(&model, take_result, items);
    struct score_item item = make_item(&items[0], 0);
    scorer_add(s, &item);
    ck_assert_int_eq(scorer_step(s), STATUS_OK);
    ck_assert_int_eq(scorer_step(s), STATUS_OK);
    ck_assert_int_eq(scorer_step(s), STATUS_UNAVAILABLE);
    ck_assert_int_eq(items[0].answers, 0);
    scorer_free(s);
    free(f);
}
END_TEST

SUITE("scorer_schedule")
{
    TIMEOUT(60);
    LOOP(random_loads_score_as_if_alone, 0, 6);
    TEST(a_shared_prefix_is_computed_once);
    TEST(a_second_question_computes_its_own_rows_and_the_look_ahead);
    TEST(passes_fill_up_across_prompts);
    TEST(bad_items_answer_with_a_sentence);
    TEST(cancel_and_clear_free_blocks_immediately);
    TEST(a_link_that_ends_drops_its_own_prompts);
    TEST(a_failed_pass_is_reported_and_nothing_leaks);
}
