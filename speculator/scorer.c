// SPDX-License-Identifier: Apache-2.0
// See scorer.h. This file owns the prompts being scored, their KV blocks and the batch of a pass.
#include "speculator/scorer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/no_alloc.h"
#include "engine/kv_prefix.h"

// A prompt on its way: read up to `cached`, then looking ahead.
struct prompt {
    uint64_t request;
    int32_t *tokens; // [n] owned
    int n;
    int look_ahead; // steps at most
    int pool_window;
    struct select_policy policy; // `pinned` owned
    bool want_importance;
    int64_t added_us;

    int32_t *blocks; // [n_blocks] owned; NULL while waiting
    int n_blocks;
    int n_published;       // of them, the first: in the prefix cache
    struct kv_known known; // of it, when it was last looked for there
    kv_chain chain;        // up to the last of those
    int n_reused;          // tokens found there
    int cached;            // KV entries
    int steps;             // probes taken
    int32_t next;          // with steps > 0: the token to feed
    float *importance;     // [n] owned; sum over the steps
    uint64_t last_pass;    // in which it last had a row

    int rows;  // in the pass being made: how many,
    int probe; // and its index among the probes or -1
};

struct scorer {
    struct scorer_model model;
    scorer_result_fn on_result;
    void *context;
    struct block_manager *pool;

    // In order of arrival: the first n_running hold KV blocks, the others wait.
    struct prompt **prompts;
    int n, n_running, capacity;
    uint64_t pass;
    struct scorer_pass last;

    // The batch of a pass, sized once.
    int32_t *token, *position;                             // [token_budget]
    int32_t *row_start, *kv_len;                           // [max_seqs + 1]
    int32_t *logit_row, *importance_row, *importance_keys; // [max_seqs]
    struct row_sampling *draw;                             // [max_seqs], all of them: the likeliest
    int32_t *block_table;                                  // [max_seqs][blocks of the longest sequence there can be]
};

// --- prompts

static void prompt_free(struct scorer *s, struct prompt *p)
{
    if (p->blocks) block_manager_release(s->pool, p->blocks, p->n_blocks);
    free(p->blocks);
    free(p->importance);
    free((void *)p->policy.pinned);
    free(p->tokens);
    free(p);
}

// Drops the prompts that `done` picks, keeping the order of the others.
static void sweep(struct scorer *s, bool (*done)(const struct prompt *p, uint64_t request), uint64_t request)
{
    int kept = 0, running = 0;
    for (int i = 0; i < s->n; i++) {
        struct prompt *p = s->prompts[i];
        if (done(p, request)) {
            prompt_free(s, p);
            continue;
        }
        running += i < s->n_running;
        s->prompts[kept++] = p;
    }
    s->n = kept;
    s->n_running = running;
}

static bool is_request(const struct prompt *p, uint64_t request)
{
    return p->request == request;
}

static bool is_any(const struct prompt *p, uint64_t request)
{
    return true;
}

static bool is_finished(const struct prompt *p, uint64_t request)
{
    return p->steps == p->look_ahead;
}

void scorer_cancel(struct scorer *s, uint64_t request)
{
    sweep(s, is_request, request);
}

void scorer_clear(struct scorer *s)
{
    sweep(s, is_any, 0);
}

static int longest_sequence(const struct scorer *s)
{
    int64_t pool = (int64_t)block_manager_size(s->pool) * KV_BLOCK_TOKENS;
    return pool < s->model.context_tokens ? (int)pool : s->model.context_tokens;
}

static enum status item_check(const struct scorer *s, const struct score_item *item)
{
    if (item->n < 1) return status_fail(STATUS_INVALID, "empty prompt: at least one token is needed");
    if (item->n > longest_sequence(s)) {
        return status_fail(STATUS_OUT_OF_RANGE, "prompt of %d tokens: this speculator holds at most %d", item->n,
                           longest_sequence(s));
    }
    for (int j = 0; j < item->n; j++) {
        if (item->tokens[j] < 0 || item->tokens[j] >= s->model.config->vocab_size) {
            return status_fail(STATUS_INVALID, "token id %d at %d: must be from 0 to %d", item->tokens[j], j,
                               s->model.config->vocab_size - 1);
        }
    }
    for (int i = 0; i < item->n_pinned; i++) {
        const struct token_range *range = &item->pinned[i];
        if (range->first < 0 || range->last < range->first || range->last >= item->n) {
            return status_fail(STATUS_INVALID, "pinned range %d-%d: must lie within 0-%d", range->first, range->last,
                               item->n - 1);
        }
    }
    if (item->tail_tokens < 0 || item->tail_tokens > item->n) {
        return status_fail(STATUS_INVALID, "tail_tokens %d: must be from 0 to the prompt's %d", item->tail_tokens,
                           item->n);
    }
    return prefill_check(&item->prefill);
}

void scorer_add(struct scorer *s, const struct score_item *item)
{
    if (item_check(s, item) != STATUS_OK) {
        s->on_result(s->context, &(struct score_result){.request = item->request, .error = status_message()});
        return;
    }
    struct prompt *p = mem_alloc(sizeof *p);
    *p = (struct prompt){
        .request = item->request,
        .tokens = mem_copy(item->tokens, (size_t)item->n * sizeof *item->tokens),
        .n = item->n,
        .look_ahead = item->prefill.look_ahead,
        .pool_window = item->prefill.pool_window,
        .policy = {.keep_rate = item->prefill.keep_rate,
                   .chunk_tokens = item->prefill.chunk_tokens,
                   .paper_exact = item->prefill.paper_exact,
                   .keep_first = item->tokens[0] == s->model.config->bos_id,
                   .tail_tokens = item->tail_tokens,
                   .pinned = mem_copy(item->pinned, (size_t)item->n_pinned * sizeof *item->pinned),
                   .n_pinned = item->n_pinned},
        .want_importance = item->want_importance,
        .added_us = clock_now_us(),
    };
    // The prompt and all decoded tokens but the last, which is never fed.
    int room = longest_sequence(s) - p->n + 1;
    if (p->look_ahead > room) p->look_ahead = room;
    MEM_GROW(s->prompts, s->n, s->capacity);
    s->prompts[s->n++] = p;
}

// --- one pass

static struct kv_text text_of(const struct prompt *p)
{
    return (struct kv_text){p->tokens, NULL, p->n};
}

// Somebody is about to read what the prompt could then take from the prefix cache.
static bool waits_for_prefix(const struct scorer *s, struct prompt *p)
{
    if (!s->model.prefix_cache) return false;
    struct kv_text mine = text_of(p);
    int known = kv_prefix_look(s->pool, &mine, &p->known);
    for (int i = 0; i < s->n_running; i++) {
        struct kv_text other = text_of(s->prompts[i]);
        if (kv_prefix_worth_waiting(&mine, known, &other, s->prompts[i]->n_published)) return true;
    }
    return false;
}

// Takes the blocks for all entries, those of a known prefix first.
static bool take_blocks(struct scorer *s, struct prompt *p)
{
    struct kv_text text = text_of(p);
    int most = kv_blocks_for(p->n + p->look_ahead - 1);
    p->blocks = mem_alloc_array((size_t)most, sizeof *p->blocks);
    if (s->model.prefix_cache) p->n_published = kv_prefix_take(s->pool, &text, p->blocks, &p->chain);
    if (block_manager_allocate(s->pool, most - p->n_published, p->blocks + p->n_published)) {
        p->n_blocks = most;
        p->n_reused = p->cached = p->n_published * KV_BLOCK_TOKENS;
        return true;
    }
    block_manager_release(s->pool, p->blocks, p->n_published);
    free(p->blocks);
    p->blocks = NULL;
    p->n_published = 0;
    p->chain = 0;
    return false;
}

// First come, first served: a long prompt waits for blocks, those behind it wait for the long one. Who waits for a
// prefix lets others go first.
static void admit(struct scorer *s)
{
    for (int i = s->n_running; i < s->n && s->n_running < s->model.max_seqs; i++) {
        struct prompt *p = s->prompts[i];
        if (waits_for_prefix(s, p)) continue;
        if (!take_blocks(s, p)) return;
        p->importance = mem_alloc_array((size_t)p->n, sizeof *p->importance);
        p->last_pass = s->pass; // it waits from now on
        memmove(s->prompts + s->n_running + 1, s->prompts + s->n_running, (size_t)(i - s->n_running) * sizeof p);
        s->prompts[s->n_running++] = p;
    }
}

// A pass has one width of smoothing: that of the prompt which has gone longest without a row. Others with another
// width keep their probe rows for their own turn.
static int choose_window(const struct scorer *s)
{
    const struct prompt *longest = s->prompts[0];
    for (int i = 1; i < s->n_running; i++) {
        if (s->prompts[i]->last_pass < longest->last_pass) longest = s->prompts[i];
    }
    return longest->pool_window;
}

// Rows of the prompt in this pass, at most `room`. The last prompt row and every look-ahead row are probes.
static int plan_rows(const struct prompt *p, int room, int window)
{
    int rows = p->steps ? 1 : p->n - p->cached;
    if (rows > room) rows = room;
    bool probes = rows && p->cached + rows >= p->n;
    if (probes && p->pool_window != window) rows--;
    return rows;
}

static void add_rows(struct scorer *s, struct ragged_batch *batch, struct prompt *p)
{
    int at = batch->n_rows;
    for (int r = 0; r < p->rows; r++) {
        int entry = p->cached + r;
        s->token[at + r] = p->steps ? p->next : p->tokens[entry];
        s->position[at + r] = entry;
    }
    s->row_start[batch->n_seqs] = at;
    s->kv_len[batch->n_seqs++] = p->cached;
    batch->n_rows = at + p->rows;
    s->row_start[batch->n_seqs] = batch->n_rows;
    p->probe = -1;
    if (p->cached + p->rows < p->n) return;
    p->probe = batch->n_importance_rows;
    s->importance_row[batch->n_importance_rows] = batch->n_rows - 1;
    s->importance_keys[batch->n_importance_rows++] = p->n;
    if (p->steps + 1 < p->look_ahead) s->logit_row[batch->n_logit_rows++] = batch->n_rows - 1;
}

static void fill_block_table(struct scorer *s, struct ragged_batch *batch)
{
    for (int i = 0; i < s->n_running; i++) {
        const struct prompt *p = s->prompts[i];
        if (p->rows && p->n_blocks > batch->max_blocks) batch->max_blocks = p->n_blocks;
    }
    size_t size = (size_t)batch->n_seqs * (size_t)batch->max_blocks;
    memset(s->block_table, 0, size * sizeof *s->block_table);
    int32_t *row = s->block_table;
    for (int i = 0; i < s->n_running; i++) {
        const struct prompt *p = s->prompts[i];
        if (!p->rows) continue;
        memcpy(row, p->blocks, (size_t)p->n_blocks * sizeof *row);
        row += batch->max_blocks;
    }
}

// Look-ahead rows first: whoever has begun gets done, and its blocks come back.
static struct ragged_batch make_batch(struct scorer *s)
{
    struct ragged_batch batch = {.smoothing_window = choose_window(s)};
    int room = s->model.token_budget;
    for (int ahead = 1; ahead >= 0; ahead--) {
        for (int i = 0; i < s->n_running; i++) {
            struct prompt *p = s->prompts[i];
            if ((p->steps > 0) != ahead) continue;
            p->rows = plan_rows(p, room, batch.smoothing_window);
            room -= p->rows;
        }
    }
    // In the order of `prompts`, which is the order of the block table too.
    for (int i = 0; i < s->n_running; i++) {
        if (s->prompts[i]->rows) add_rows(s, &batch, s->prompts[i]);
    }
    fill_block_table(s, &batch);
    batch.token = s->token;
    batch.position = s->position;
    batch.row_start = s->row_start;
    batch.kv_len = s->kv_len;
    batch.block_table = s->block_table;
    batch.logit_row = s->logit_row;
    batch.importance_row = s->importance_row;
    batch.importance_keys = s->importance_keys;
    batch.tokens_only = s->model.samples && batch.n_logit_rows > 0;
    if (batch.tokens_only) batch.sampling = s->draw;
    return batch;
}

static int32_t argmax(const float *logits, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

// --- results

static void answer(struct scorer *s, struct prompt *p)
{
    struct score_result result = {.request = p->request, .n = p->n, .steps = p->steps, .cached_tokens = p->n_reused};
    struct token_range *kept = NULL;
    for (int j = 0; j < p->n && !result.error; j++) {
        p->importance[j] /= (float)p->steps;
        if (!isfinite(p->importance[j])) result.error = "the model's attention is not finite";
    }
    if (!result.error) {
        result.n_kept = select_kept(p->importance, p->n, &p->policy, &kept);
        result.kept = kept;
        if (p->want_importance) result.importance = p->importance;
    }
    result.score_us = clock_now_us() - p->added_us;
    log_debug("scored req=%llx tokens=%d steps=%d ranges=%d ms=%.1f%s%s", (unsigned long long)p->request, p->n,
              p->steps, result.n_kept, (double)result.score_us / 1000, result.error ? " " : "",
              result.error ? result.error : "");
    s->on_result(s->context, &result);
    free(kept);
}

// The token of logit row `row`. Where all logits are NaN it does not matter: so is the importance.
static int32_t take_token(const struct scorer *s, const struct forward_result *out, int row)
{
    const int n = s->model.config->vocab_size;
    if (!out->tokens) return argmax(out->logits + (size_t)row * (size_t)n, n);
    return out->tokens[row] < 0 ? 0 : out->tokens[row];
}

// What the pass brought for a prompt that had rows in it.
static void take_step(struct scorer *s, struct prompt *p, const float *probe, bool sampled, int32_t token)
{
    p->cached += p->rows;
    p->last_pass = s->pass;
    struct kv_text text = text_of(p);
    if (s->model.prefix_cache) {
        kv_prefix_publish(s->pool, &text, p->cached < p->n ? p->cached : p->n, p->blocks, &p->n_published, &p->chain);
    }
    if (!probe) return;
    for (int j = 0; j < p->n; j++)
        p->importance[j] += probe[j];
    p->steps++;
    if (!sampled) return;
    p->next = token;
    // The token that ends the text is never fed, so this step was the last.
    if (model_config_is_eos(s->model.config, p->next)) p->look_ahead = p->steps;
}

static void take_results(struct scorer *s, const struct forward_result *out)
{
    const float *probe = out->importance;
    int row = 0; // of the logits
    for (int i = 0; i < s->n_running; i++) {
        struct prompt *p = s->prompts[i];
        if (!p->rows) continue;
        bool probed = p->probe >= 0, sampled = probed && p->steps + 1 < p->look_ahead;
        take_step(s, p, probed ? probe : NULL, sampled, sampled ? take_token(s, out, row++) : 0);
        if (probed) probe += p->n;
    }
}

enum status scorer_step(struct scorer *s)
{
    s->last = (struct scorer_pass){0};
    admit(s);
    if (!s->n_running) return STATUS_OK;
    int64_t begun_us = clock_now_us();
    s->pass++;
    no_alloc_begin("scorer_step");
    struct ragged_batch batch = make_batch(s);
    no_alloc_end();
    struct forward_result out = {0};
    enum status status = s->model.forward(s->model.context, &batch, &out);
    if (status != STATUS_OK) return status;
    no_alloc_begin("scorer_step");
    take_results(s, &out);
    no_alloc_end();
    for (int i = 0; i < s->n_running; i++)
        if (is_finished(s->prompts[i], 0)) answer(s, s->prompts[i]);
    sweep(s, is_finished, 0);
    s->last = (struct scorer_pass){batch.n_rows, ragged_attention_pairs(&batch), clock_now_us() - begun_us};
    return STATUS_OK;
}

// --- the whole

struct scorer_pass scorer_last_pass(const struct scorer *s)
{
    return s->last;
}

struct scorer_load scorer_get_load(const struct scorer *s)
{
    return (struct scorer_load){s->n_running, s->n - s->n_running, block_manager_n_free(s->pool)};
}

struct scorer *scorer_create(const struct scorer_model *model, scorer_result_fn on_result, void *context)
{
    assert(model->token_budget >= 1 && model->max_seqs >= 1 && model->kv_blocks >= 1);
    struct scorer *s = mem_alloc(sizeof *s);
    s->model = *model;
    s->on_result = on_result;
    s->context = context;
    s->pool = block_manager_create(model->kv_blocks);
    size_t rows = (size_t)model->token_budget, seqs = (size_t)model->max_seqs;
    s->token = mem_alloc_array(rows, sizeof *s->token);
    s->position = mem_alloc_array(rows, sizeof *s->position);
    s->row_start = mem_alloc_array(seqs + 1, sizeof *s->row_start);
    s->kv_len = mem_alloc_array(seqs + 1, sizeof *s->kv_len);
    s->logit_row = mem_alloc_array(seqs, sizeof *s->logit_row);
    s->draw = mem_alloc_array(seqs, sizeof *s->draw);
    for (size_t i = 0; i < seqs; i++)
        s->draw[i].top_p = 1;
    s->importance_row = mem_alloc_array(seqs, sizeof *s->importance_row);
    s->importance_keys = mem_alloc_array(seqs, sizeof *s->importance_keys);
    size_t blocks = (size_t)kv_blocks_for(longest_sequence(s));
    s->block_table = mem_alloc_array(seqs * blocks, sizeof *s->block_table);
    return s;
}

void scorer_free(struct scorer *s)
{
    if (!s) return;
    scorer_clear(s);
    block_manager_free(s->pool);
    free(s->prompts);
    free(s->token);
    free(s->position);
    free(s->row_start);
    free(s->kv_len);
    free(s->logit_row);
    free(s->draw);
    free(s->importance_row);
    free(s->importance_keys);
    free(s->block_table);
    free(s);
}
