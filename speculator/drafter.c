// SPDX-License-Identifier: Apache-2.0
// See drafter.h. Owns the held prompts and composes drafting passes.
#include "speculator/drafter.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model/model.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/no_alloc.h"
#include "speculator/likeliest.h"

struct held {
    uint64_t request, salt;
    int32_t *tokens; // [n_tokens] the prompt, what worker groups have generated, and guesses
    int capacity;
    int n_prompt, n_known, n_tokens; // the first n_known tokens are no guesses
    int n_cached;                    // KV entries of the first tokens; less than n_tokens while there is work
    int ahead;                       // guesses wanted behind the known tokens
    int n_sent;                      // the first n_sent tokens were known or sent as guesses
    bool ended;                      // the token behind the last guess ends the text
    int32_t *blocks;                 // [n_blocks] owned
    int n_blocks, n_published;
    kv_chain chain;

    // In the pass being composed:
    int rows;
    bool is_complete; // its last row yields a guess
};

struct drafter {
    const struct scorer_model *model;
    struct block_manager *blocks;
    struct batch_builder *builder;
    struct held **held; // [n] the one that advanced longest ago first
    int n, capacity;
    int n_blocks; // of all
    int turn;     // where the next pass begins, so that all get rows
};

struct drafter *drafter_create(const struct scorer_model *model, struct block_manager *blocks,
                               struct batch_builder *builder)
{
    struct drafter *d = mem_alloc(sizeof *d);
    *d = (struct drafter){.model = model, .blocks = blocks, .builder = builder};
    return d;
}

void drafter_free(struct drafter *d)
{
    drafter_clear(d);
    free(d->held);
    free(d);
}

// --- held prompts

static void held_free(struct drafter *d, struct held *h)
{
    block_manager_release(d->blocks, h->blocks, h->n_blocks);
    d->n_blocks -= h->n_blocks;
    free(h->blocks);
    free(h->tokens);
    free(h);
}

static int held_find(const struct drafter *d, uint64_t request)
{
    for (int i = 0; i < d->n; i++)
        if (d->held[i]->request == request) return i;
    return -1;
}

static struct held *held_remove(struct drafter *d, int index)
{
    struct held *h = d->held[index];
    memmove(d->held + index, d->held + index + 1, (size_t)(--d->n - index) * sizeof h);
    return h;
}

static void held_append(struct drafter *d, struct held *h)
{
    MEM_GROW(d->held, d->n, d->capacity);
    d->held[d->n++] = h;
}

static void held_drop(struct drafter *d, int index)
{
    struct held *h = held_remove(d, index);
    log_event(LOG_DEBUG, "prompt_released", LOG_REQUEST(h->request), LOG_FIELD("blocks", h->n_blocks));
    held_free(d, h);
}

bool drafter_release(struct drafter *d, uint64_t request)
{
    int index = held_find(d, request);
    if (index >= 0) held_drop(d, index);
    return index >= 0;
}

bool drafter_release_oldest(struct drafter *d)
{
    if (!d->n) return false;
    held_drop(d, 0);
    return true;
}

void drafter_clear(struct drafter *d)
{
    while (d->n)
        held_free(d, d->held[--d->n]);
}

int drafter_prompts(const struct drafter *d)
{
    return d->n;
}

int drafter_blocks(const struct drafter *d)
{
    return d->n_blocks;
}

static void held_reserve_tokens(struct held *h, int n)
{
    if (n <= h->capacity) return;
    h->capacity = n + n / 4;
    h->tokens = mem_resize(h->tokens, (size_t)h->capacity, sizeof *h->tokens);
}

static void held_append_tokens(struct held *h, const int32_t *tokens, int n)
{
    held_reserve_tokens(h, h->n_tokens + n);
    if (n) memcpy(h->tokens + h->n_tokens, tokens, (size_t)n * sizeof *tokens);
    h->n_tokens += n;
}

// Beyond the share the prompt that advanced longest ago goes first, perhaps this one.
static void release_beyond_share(struct drafter *d)
{
    while (d->n_blocks > d->model->draft_blocks)
        held_drop(d, 0);
}

void drafter_hold(struct drafter *d, const struct held_prompt *prompt)
{
    drafter_release(d, prompt->request); // a request has one answer: the cancel releases one prompt
    struct held *h = mem_alloc(sizeof *h);
    *h = (struct held){.request = prompt->request,
                       .salt = prompt->salt,
                       .n_cached = prompt->n_cached,
                       .blocks = prompt->blocks,
                       .n_blocks = prompt->n_blocks,
                       .n_published = prompt->n_published,
                       .chain = prompt->chain};
    held_append_tokens(h, prompt->tokens, prompt->n);
    h->n_prompt = h->n_known = prompt->n;
    held_append_tokens(h, prompt->guesses, prompt->n_guesses);
    h->n_sent = h->n_tokens; // with the score
    d->n_blocks += h->n_blocks;
    held_append(d, h);
    release_beyond_share(d);
}

static struct prefix_rows held_rows(const struct held *h)
{
    return (struct prefix_rows){h->tokens, NULL, h->n_prompt, h->salt};
}

// A prompt that was not scored, with the entries that the prefix cache has.
static void hold_unread(struct drafter *d, const struct score_advance *advance)
{
    struct held_prompt prompt = {
        .request = advance->request, .salt = advance->salt, .tokens = advance->prompt, .n = advance->n_prompt};
    prompt.blocks = mem_alloc_array((size_t)kv_blocks_for(prompt.n), sizeof *prompt.blocks);
    struct prefix_rows rows = {prompt.tokens, NULL, prompt.n, prompt.salt};
    if (d->model->prefix_cache)
        prompt.n_published = prefix_cache_acquire(d->blocks, &rows, prompt.blocks, &prompt.chain);
    prompt.n_blocks = prompt.n_published;
    prompt.n_cached = prompt.n_published * KV_BLOCK_TOKENS;
    drafter_hold(d, &prompt);
}

// --- what worker groups have generated

static bool tokens_are_valid(const struct drafter *d, const int32_t *tokens, int n)
{
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= d->model->config->vocab_size) return false;
    return true;
}

// Appends a known token: the next guess stays if it is the same.
static void held_learn(struct held *h, int32_t token)
{
    if (h->n_known < h->n_tokens && h->tokens[h->n_known] == token) {
        h->n_known++;
        return;
    }
    h->n_tokens = h->n_known;
    if (h->n_sent > h->n_known) h->n_sent = h->n_known;
    h->ended = false;
    if (h->n_cached > h->n_tokens) h->n_cached = h->n_tokens;
    held_append_tokens(h, &token, 1);
    h->n_known++;
}

static bool can_hold(const struct drafter *d, const struct score_advance *advance)
{
    return advance->n_prompt > 0 && kv_blocks_for(advance->n_prompt) <= d->model->draft_blocks &&
           advance->n_prompt <= d->model->context_tokens && tokens_are_valid(d, advance->prompt, advance->n_prompt);
}

bool drafter_advance(struct drafter *d, const struct score_advance *advance)
{
    int index = held_find(d, advance->request);
    if (index < 0 && can_hold(d, advance)) {
        hold_unread(d, advance);
        index = held_find(d, advance->request);
    }
    if (index < 0) return false;
    struct held *h = d->held[index];
    int known = h->n_known - h->n_prompt - advance->from; // of these tokens
    bool is_next = advance->n >= 1 && known >= 0 && known < advance->n;
    if (!is_next || !tokens_are_valid(d, advance->tokens, advance->n)) {
        held_drop(d, index);
        return false;
    }
    held_append(d, held_remove(d, index));
    for (int i = known; i < advance->n; i++)
        held_learn(h, advance->tokens[i]);
    h->ahead = advance->ahead < DRAFT_AHEAD_MAX ? advance->ahead : DRAFT_AHEAD_MAX;
    return true;
}

// --- a pass

// The last guess needs no entry.
static bool held_has_work(const struct drafter *d, const struct held *h)
{
    return !h->ended && h->n_tokens - h->n_known < h->ahead && h->n_cached < h->n_tokens &&
           h->n_tokens <= d->model->context_tokens;
}

bool drafter_busy(const struct drafter *d)
{
    for (int i = 0; i < d->n; i++)
        if (held_has_work(d, d->held[i])) return true;
    return false;
}

// The blocks for all tokens of the prompt, at the cost of those that advanced before it. False: there are not enough.
static bool held_grow(struct drafter *d, struct held *h)
{
    int needed = kv_blocks_for(h->n_tokens), more = needed - h->n_blocks;
    if (more <= 0) return true;
    while (d->n_blocks + more > d->model->draft_blocks || block_manager_n_free(d->blocks) < more) {
        if (d->held[0] == h) return false;
        held_drop(d, 0);
    }
    h->blocks = mem_resize(h->blocks, (size_t)needed, sizeof *h->blocks);
    if (!block_manager_allocate(d->blocks, more, h->blocks + h->n_blocks)) return false;
    h->n_blocks = needed;
    d->n_blocks += more;
    return true;
}

// Gives the prompt its next rows, at most `room`.
static int held_plan(struct held *h, int room)
{
    int pending = h->n_tokens - h->n_cached;
    h->rows = pending < room ? pending : room;
    h->is_complete = h->rows == pending;
    held_reserve_tokens(h, h->n_tokens + 1);
    return h->rows;
}

// Those with work get rows in turn. A prompt without room for its entries is released.
static void plan_pass(struct drafter *d)
{
    int room = d->model->token_budget, seqs = d->model->max_seqs;
    for (int i = 0; i < d->n; i++) {
        struct held *h = d->held[i];
        h->rows = 0;
        int n = d->n;
        if (!held_has_work(d, h)) continue;
        bool grown = held_grow(d, h);
        i -= n - d->n; // those that were released lay before it
        if (!grown) held_drop(d, i--);
    }
    d->turn = d->n ? (d->turn + 1) % d->n : 0;
    for (int k = 0; k < d->n && room > 0 && seqs > 0; k++) {
        struct held *h = d->held[(d->turn + k) % d->n];
        if (!held_has_work(d, h)) continue;
        room -= held_plan(h, room);
        seqs--;
    }
}

static void held_add_rows(struct drafter *d, const struct held *h)
{
    struct batch_builder *b = d->builder;
    batch_builder_add_sequence(b, h->blocks, h->n_blocks, h->n_cached);
    for (int entry = h->n_cached; entry < h->n_cached + h->rows; entry++)
        batch_builder_add_row(b, h->tokens[entry], entry);
    if (!h->is_complete) return;
    const struct row_sampling greedy = batch_greedy();
    if (d->model->samples)
        batch_builder_want_token(b, b->batch.n_rows - 1, &greedy);
    else
        batch_builder_want_logits(b, b->batch.n_rows - 1);
}

static const struct ragged_batch *compose_pass(struct drafter *d)
{
    batch_builder_reset(d->builder);
    d->builder->batch.smoothing_window = 1;
    for (int i = 0; i < d->n; i++)
        if (d->held[i]->rows) held_add_rows(d, d->held[i]);
    return d->builder->batch.n_rows ? batch_builder_finish(d->builder) : NULL;
}

static int32_t next_token(const struct drafter *d, const struct forward_result *out, int row)
{
    const int n = d->model->config->vocab_size;
    if (out->tokens) return out->tokens[row] < 0 ? 0 : out->tokens[row];
    return likeliest_of(out->logits + (size_t)row * (size_t)n, n).token;
}

// The rows of the pass are in the KV cache now.
static void held_publish(struct drafter *d, struct held *h)
{
    struct prefix_rows rows = held_rows(h);
    int entries = h->n_cached < h->n_prompt ? h->n_cached : h->n_prompt;
    if (d->model->prefix_cache) prefix_cache_publish(d->blocks, &rows, entries, h->blocks, &h->n_published, &h->chain);
}

static void apply_results(struct drafter *d, const struct forward_result *out)
{
    int row = 0;
    for (int i = 0; i < d->n; i++) {
        struct held *h = d->held[i];
        if (!h->rows) continue;
        h->n_cached += h->rows;
        held_publish(d, h);
        if (!h->is_complete) continue;
        int32_t token = next_token(d, out, row++);
        h->ended = model_config_is_eos(d->model->config, token);
        if (!h->ended) h->tokens[h->n_tokens++] = token;
    }
}

// The first guess at once, then when the draft has twice as many or is complete: a message costs the router and the
// group about as much as a pass of a small model.
static bool held_is_due(const struct held *h)
{
    int sent = h->n_sent > h->n_known ? h->n_sent - h->n_known : 0, guesses = h->n_tokens - h->n_known;
    bool is_complete = h->ended || guesses >= h->ahead;
    return guesses > sent && (is_complete || guesses >= 2 * sent);
}

static void report_guesses(struct drafter *d, scorer_draft_fn *on_draft, void *context)
{
    for (int i = 0; i < d->n; i++) {
        struct held *h = d->held[i];
        if (!h->rows || !h->is_complete || !held_is_due(h)) continue;
        h->n_sent = h->n_tokens;
        on_draft(context, &(struct score_draft){.request = h->request,
                                                .from = h->n_known - h->n_prompt,
                                                .tokens = h->tokens + h->n_known,
                                                .n = h->n_tokens - h->n_known});
    }
}

enum status drafter_step(struct drafter *d, scorer_draft_fn *on_draft, void *context)
{
    plan_pass(d);
    no_alloc_begin("drafter_step");
    const struct ragged_batch *batch = compose_pass(d);
    no_alloc_end();
    if (!batch) return STATUS_OK; // the prompts with work were released
    struct forward_result out = {0};
    TRY(d->model->forward(d->model->context, batch, &out));
    no_alloc_begin("drafter_step");
    apply_results(d, &out);
    no_alloc_end();
    report_guesses(d, on_draft, context);
    return STATUS_OK;
}
