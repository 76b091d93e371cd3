// SPDX-License-Identifier: Apache-2.0
// speculator/drafter with a model whose next token depends on every entry before it, read from the KV blocks of the
// batch. Each guess is the one that the model yields after the prompt, the known tokens and the earlier guesses. This
// holds whatever is held, released, advanced or scored meanwhile. No block is lost, held prompts stay within their
// share, and prompts are scored first.
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/random.h"
#include "speculator/scorer.h"
#include "tests/suite.h"

enum { VOCAB = 50, EOS = 2, CONTEXT = 160, BLOCKS = 40, SHARE = 24, REQUESTS = 12, BUDGET = 48, SEQS = 6, ANSWER = 40 };

static const struct model_config config = {.n_layers = 1,
                                           .hidden = 8,
                                           .intermediate = 8,
                                           .n_heads = 1,
                                           .n_kv_heads = 1,
                                           .head_size = 8,
                                           .vocab_size = VOCAB,
                                           .max_context = CONTEXT,
                                           .bos_id = -1,
                                           .eos_id = {EOS},
                                           .n_eos = 1};

static struct random_source source;
static int32_t entries[BLOCKS * KV_BLOCK_TOKENS];
static float logits[SEQS * VOCAB], importance[SEQS * CONTEXT];
static int passes_of_scores, passes_of_drafts;

static int below(int n)
{
    return (int)(random_next(&source) % (uint64_t)n);
}

// The model: the next token is one of two that depend on the last tokens.
static int32_t next_of(const int32_t *tokens, int n)
{
    uint32_t hash = 7;
    for (int i = 0; i < n; i++)
        hash = hash * 31 + (uint32_t)tokens[i];
    return hash / 64 % 40 == 0 ? EOS : 3 + (int32_t)(hash / 64 % (VOCAB - 3));
}

static enum status forward(void *context, const struct ragged_batch *batch, struct forward_result *result)
{
    int logit = 0;
    ck_assert_int_le(batch->n_rows, BUDGET);
    ck_assert_int_le(batch->n_seqs, SEQS);
    for (int s = 0; s < batch->n_seqs; s++) {
        const int32_t *blocks = batch->block_table + (ptrdiff_t)s * batch->max_blocks;
        int32_t tokens[CONTEXT + 1];
        int n = batch->kv_len[s];
        for (int row = batch->row_start[s]; row < batch->row_start[s + 1]; row++, n++) {
            ck_assert_int_eq(batch->position[row], n);
            entries[blocks[n / KV_BLOCK_TOKENS] * KV_BLOCK_TOKENS + n % KV_BLOCK_TOKENS] = batch->token[row];
            if (logit >= batch->n_logit_rows || batch->logit_row[logit] != row) continue;
            for (int i = 0; i <= n; i++)
                tokens[i] = entries[blocks[i / KV_BLOCK_TOKENS] * KV_BLOCK_TOKENS + i % KV_BLOCK_TOKENS];
            memset(logits + (ptrdiff_t)logit * VOCAB, 0, VOCAB * sizeof *logits);
            logits[logit++ * VOCAB + next_of(tokens, n + 1)] = 1;
        }
    }
    *(batch->n_importance_rows ? &passes_of_scores : &passes_of_drafts) += 1;
    *result = (struct forward_result){.logits = logits, .importance = importance};
    return STATUS_OK;
}

// A request: the prompt, and an answer that often is the one that the model would generate.
struct ask {
    int32_t tokens[CONTEXT];
    int n_prompt, n, sent;
    bool scored, drafted;
};

static struct ask asks[REQUESTS];
static struct scorer *scorer;
static int n_drafts, n_guesses, longest;

static void take_result(void *context, const struct score_result *result)
{
    ck_assert_msg(!result->error, "%s", result->error);
    asks[result->request].scored = true;
}

static void take_draft(void *context, const struct score_draft *draft)
{
    struct ask *ask = &asks[draft->request];
    int32_t tokens[CONTEXT + DRAFT_AHEAD_MAX];
    int n = ask->n_prompt + ask->sent;
    ck_assert_int_eq(draft->from, ask->sent);
    ck_assert_int_ge(draft->n, 1);
    memcpy(tokens, ask->tokens, (size_t)n * sizeof *tokens);
    for (int i = 0; i < draft->n; i++) {
        ck_assert_int_eq(draft->tokens[i], next_of(tokens, n));
        tokens[n++] = draft->tokens[i];
    }
    ask->drafted = true;
    n_drafts++;
    n_guesses += draft->n;
    if (draft->n > longest) longest = draft->n;
}

static void start(void)
{
    log_setup("test", LOG_ERROR);
    const struct scorer_model model = {.config = &config,
                                       .token_budget = BUDGET,
                                       .max_seqs = SEQS,
                                       .context_tokens = CONTEXT,
                                       .kv_blocks = BLOCKS,
                                       .draft_blocks = SHARE,
                                       .prefix_cache = true,
                                       .forward = forward};
    scorer = scorer_create(&model, take_result, NULL);
    scorer_on_draft(scorer, take_draft);
    source.state = 5;
    passes_of_scores = passes_of_drafts = n_drafts = n_guesses = longest = 0;
    memset(asks, 0, sizeof asks);
}

static void stop(void)
{
    scorer_drop_link(scorer, 0);
    ck_assert_int_eq(scorer_get_load(scorer).kv_blocks_free, BLOCKS);
    ck_assert_int_eq(scorer_get_load(scorer).draft_blocks, 0);
    ck_assert_int_eq(scorer_get_load(scorer).held_prompts, 0);
    scorer_free(scorer);
}

static void make(int id, int n)
{
    struct ask *ask = &asks[id];
    *ask = (struct ask){.n_prompt = n, .n = n};
    for (int i = 0; i < n; i++) // some share their first tokens
        ask->tokens[i] = 3 + (i < 32 ? i * (1 + id % 2) : (int32_t)below(VOCAB - 3)) % (VOCAB - 3);
}

static void add(int id, bool hold)
{
    struct score_item item = {.request = (uint64_t)id, .tokens = asks[id].tokens, .n = asks[id].n_prompt, .hold = hold};
    prefill_defaults(&item.prefill);
    scorer_add(scorer, &item);
}

static void step(void)
{
    ck_assert_msg(scorer_step(scorer) == STATUS_OK, "%s", status_message());
    ck_assert_int_le(scorer_get_load(scorer).draft_blocks, SHARE);
}

static void finish_scores(void)
{
    struct scorer_load load = scorer_get_load(scorer);
    for (int i = 0; i < 1000 && load.running + load.waiting; i++) {
        step();
        load = scorer_get_load(scorer);
    }
    ck_assert_int_eq(load.running + load.waiting, 0);
}

static void finish_drafts(void)
{
    for (int i = 0; i < 1000 && scorer_drafts(scorer); i++)
        step();
    ck_assert(!scorer_drafts(scorer));
}

// The worker group generates `n` tokens: the model's, except for one in `wrong`.
static void generate(struct ask *ask, int n, int wrong)
{
    for (; n > 0 && ask->n < CONTEXT; n--) {
        int32_t token = next_of(ask->tokens, ask->n);
        ask->tokens[ask->n++] = below(wrong) && token != EOS ? token : 3 + below(VOCAB - 3);
    }
}

// Sends an advance. `repeated` is the number of its tokens that the speculator already has.
static bool advance(int id, int repeated, int ahead, bool with_prompt)
{
    struct ask *ask = &asks[id];
    int from = ask->sent - repeated;
    ask->sent = ask->n - ask->n_prompt;
    return scorer_advance(scorer, &(struct score_advance){.request = (uint64_t)id,
                                                          .from = from,
                                                          .tokens = ask->tokens + ask->n_prompt + from,
                                                          .n = ask->sent - from,
                                                          .ahead = ahead,
                                                          .prompt = ask->tokens,
                                                          .n_prompt = with_prompt ? ask->n_prompt : 0});
}

// --- tests

START_TEST(guesses_continue_what_is_known)
{
    make(0, 40);
    add(0, true);
    finish_scores();
    ck_assert(!scorer_drafts(scorer)); // nothing is known of the answer
    for (int round = 0; round < 12; round++) {
        generate(&asks[0], 1 + below(5), 3);
        ck_assert(advance(0, 0, 6, false));
        finish_drafts();
    }
    ck_assert_int_gt(n_drafts, 20);
    ck_assert_int_eq(longest, 6);
}
END_TEST

START_TEST(no_prompt_is_held_after_the_end_of_drafts)
{
    for (int id = 0; id < 3; id++)
        make(id, 40);
    add(0, true);
    finish_scores();
    generate(&asks[0], 3, 3);
    ck_assert(advance(0, 0, 6, false));
    ck_assert(scorer_drafts(scorer));
    add(1, true);
    scorer_on_draft(scorer, NULL);
    ck_assert(!scorer_drafts(scorer));
    finish_scores();
    ck_assert(asks[1].scored);
    ck_assert_int_eq(scorer_get_load(scorer).held_prompts, 0);
    generate(&asks[2], 3, 3);
    for (int id = 0; id < 3; id++)
        ck_assert(!advance(id, 0, 6, id == 2));
    ck_assert_int_eq(n_drafts, 0);
}
END_TEST

// A message comes with the first guess, then with twice as many each time, and with the last guess.
START_TEST(long_drafts_come_in_few_messages)
{
    int complete = 0;
    for (int id = 0; id < REQUESTS; id++) {
        make(id, 20);
        asks[id].tokens[0] = 3 + id;
        add(id, true);
        finish_scores();
        generate(&asks[id], 1, 1); // not what was guessed
        n_drafts = longest = 0;
        ck_assert(advance(id, 0, 32, false));
        int before = passes_of_drafts;
        finish_drafts();
        ck_assert_int_le(n_drafts, 6);
        bool has_ended = longest < 32;
        ck_assert_int_eq(longest, passes_of_drafts - before - has_ended);
        complete += !has_ended;
        scorer_cancel(scorer, (uint64_t)id);
    }
    ck_assert_int_gt(complete, 0);
}
END_TEST

START_TEST(any_order_of_events_guesses_right)
{
    int held = 0, unheld = 0;
    for (int event = 0; event < 6000; event++) {
        int id = below(REQUESTS), kind = below(10);
        struct ask *ask = &asks[id];
        if (!ask->n || (kind == 0 && ask->scored)) {
            scorer_cancel(scorer, (uint64_t)id);
            make(id, 1 + below(100));
            ask->scored = below(4) == 0; // not to be scored
            if (!ask->scored) add(id, below(4) > 0);
        } else if (kind < 5 && ask->scored && ask->n + 6 < CONTEXT) {
            generate(ask, 1 + below(4), 2 + below(8));
            bool is_held = advance(id, 0, below(10), ask->sent == 0 && below(2));
            *(is_held ? &held : &unheld) += 1;
        } else {
            step();
        }
    }
    ck_assert_int_gt(held, 300);
    ck_assert_int_gt(unheld, 100);
    ck_assert_int_gt(n_drafts, 500);
}
END_TEST

START_TEST(scores_go_first)
{
    make(0, 40);
    add(0, true);
    finish_scores();
    generate(&asks[0], 2, 100);
    ck_assert(advance(0, 0, 8, false));
    make(1, 40);
    add(1, false);
    int drafts = passes_of_drafts;
    while (!asks[1].scored)
        step();
    ck_assert_int_eq(passes_of_drafts, drafts);
    finish_drafts();
    ck_assert_int_gt(passes_of_drafts, drafts);
}
END_TEST

// A prompt that needs all blocks gets the blocks of held prompts.
START_TEST(held_prompts_yield_to_scored_ones)
{
    for (int id = 0; id < 4; id++) {
        make(id, 60);
        asks[id].tokens[0] = 3 + id; // no common blocks
        add(id, true);
    }
    finish_scores();
    ck_assert_int_gt(scorer_get_load(scorer).draft_blocks, 10);
    ck_assert_int_eq(scorer_get_load(scorer).held_prompts, 4);
    for (int id = 4; id < 8; id++) {
        make(id, 150);
        asks[id].tokens[0] = 3 + id;
        add(id, false);
    }
    finish_scores();
    generate(&asks[0], 1, 100);
    ck_assert(!advance(0, 0, 4, false));
}
END_TEST

START_TEST(what_cannot_be_an_advance_releases_the_prompt)
{
    static const int32_t outside[] = {VOCAB}, negative[] = {-1}, fine[] = {5};
    const struct score_advance wrong[] = {
        {.tokens = outside, .n = 1, .ahead = 4},          {.tokens = negative, .n = 1, .ahead = 4},
        {.from = 1, .tokens = fine, .n = 1, .ahead = 4},  {.tokens = fine, .n = 0, .ahead = 4},
        {.from = -1, .tokens = fine, .n = 1, .ahead = 4}, {.from = INT32_MAX, .tokens = fine, .n = 1, .ahead = 4}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        make(0, 20);
        add(0, true);
        finish_scores();
        ck_assert_int_gt(scorer_get_load(scorer).draft_blocks, 0);
        ck_assert(!scorer_advance(scorer, &wrong[i]));
        ck_assert_int_eq(scorer_get_load(scorer).draft_blocks, 0);
    }
    struct score_advance longer = {.request = 1, .tokens = fine, .n = 1, .ahead = 4, .prompt = entries};
    longer.n_prompt = CONTEXT + 1;
    ck_assert(!scorer_advance(scorer, &longer));
    longer.prompt = outside;
    longer.n_prompt = 1;
    ck_assert(!scorer_advance(scorer, &longer));
}
END_TEST

START_TEST(a_prompt_that_was_not_scored_is_read_when_there_is_time)
{
    make(0, 130); // over two passes
    generate(&asks[0], 3, 100);
    ck_assert(advance(0, 0, 5, true));
    finish_drafts();
    ck_assert_int_gt(passes_of_drafts, 3);
    ck_assert(asks[0].drafted);
    generate(&asks[0], 2, 2);
    ck_assert(advance(0, 1, 5, true)); // a token twice
    finish_drafts();
}
END_TEST

SUITE("drafter")
{
    FIXTURE(start, stop);
    TEST(guesses_continue_what_is_known);
    TEST(no_prompt_is_held_after_the_end_of_drafts);
    TEST(long_drafts_come_in_few_messages);
    TEST(any_order_of_events_guesses_right);
    TEST(scores_go_first);
    TEST(held_prompts_yield_to_scored_ones);
    TEST(what_cannot_be_an_advance_releases_the_prompt);
    TEST(a_prompt_that_was_not_scored_is_read_when_there_is_time);
}
