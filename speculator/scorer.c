// SPDX-License-Identifier: Apache-2.0
// Owns the prompts being scored, their KV blocks, and the batch of a pass.
#include "speculator/scorer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/invariant.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/no_alloc.h"
#include "speculator/likeliest.h"
#include "speculator/scorer_parts.h"

// --- prompts

static void prompt_free(struct scorer *s, struct prompt *p)
{
    if (p->blocks) block_manager_release(s->blocks, p->blocks, p->n_blocks);
    free(p->blocks);
    free(p->importance);
    free(p->drafted);
    free((void *)p->policy.pinned);
    free(p->tokens);
    free(p);
}

// Drops the prompts for which `matches` is true. Keeps the order of the remaining prompts.
static void prompts_drop(struct scorer *s, bool (*matches)(const struct prompt *p, uint64_t request), uint64_t request)
{
    int n = 0, n_running = 0;
    for (int i = 0; i < s->n; i++) {
        struct prompt *p = s->prompts[i];
        if (matches(p, request)) {
            prompt_free(s, p);
            continue;
        }
        n_running += i < s->n_running;
        s->prompts[n++] = p;
    }
    s->n = n;
    s->n_running = n_running;
}

static bool prompt_is_request(const struct prompt *p, uint64_t request)
{
    return p->request == request;
}

static bool prompt_is_of_link(const struct prompt *p, uint64_t link)
{
    return link_id_link(p->request) == (int)link;
}

static bool prompt_is_any(const struct prompt *p, uint64_t request)
{
    return true;
}

static bool prompt_is_finished(const struct prompt *p, uint64_t request)
{
    return p->steps == p->look_ahead;
}

void scorer_cancel(struct scorer *s, uint64_t request)
{
    int before = s->n;
    prompts_drop(s, prompt_is_request, request);
    drafter_release(s->drafter, request);
    if (s->n < before) log_event(LOG_DEBUG, "score_cancelled", LOG_REQUEST(request));
}

void scorer_drop_link(struct scorer *s, int link)
{
    prompts_drop(s, prompt_is_of_link, (uint64_t)link);
    drafter_drop_link(s->drafter, link);
}

static int longest_sequence(const struct scorer *s)
{
    int64_t entries = (int64_t)block_manager_size(s->blocks) * KV_BLOCK_TOKENS;
    return entries < s->model.context_tokens ? (int)entries : s->model.context_tokens;
}

static enum status item_check_pinned(const struct score_item *item)
{
    for (int i = 0; i < item->n_pinned; i++) {
        const struct token_range *range = &item->pinned[i];
        if (range->first < 0 || range->last < range->first || range->last >= item->n) {
            return status_fail(STATUS_INVALID, "pinned range %d-%d: must lie within 0-%d", range->first, range->last,
                               item->n - 1);
        }
    }
    return STATUS_OK;
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
            return status_fail(STATUS_INVALID, "token id %d at position %d: must be from 0 to %d", item->tokens[j], j,
                               s->model.config->vocab_size - 1);
        }
    }
    TRY(item_check_pinned(item));
    if (item->tail_tokens < 0 || item->tail_tokens > item->n) {
        return status_fail(STATUS_INVALID, "tail_tokens %d: must be from 0 to %d, the tokens of the prompt",
                           item->tail_tokens, item->n);
    }
    if (item->budget_tokens < 0 || item->budget_tokens > item->n) {
        return status_fail(STATUS_INVALID, "budget_tokens %d: must be from 0 to %d, the tokens of the prompt",
                           item->budget_tokens, item->n);
    }
    return prefill_check(&item->prefill);
}

void scorer_add(struct scorer *s, const struct score_item *item)
{
    if (item_check(s, item) != STATUS_OK) {
        s->on_result(s->context, &(struct score_result){.request = item->request, .error = status_message()});
        return;
    }
    const struct calibration *calibration = s->model.calibration;
    struct prompt *p = mem_alloc(sizeof *p);
    *p = (struct prompt){
        .request = item->request,
        .salt = item->salt ^ rope_config_salt(&s->model.config->rope, item->n),
        .tokens = mem_copy(item->tokens, (size_t)item->n * sizeof *item->tokens),
        .n = item->n,
        .look_ahead = item->prefill.look_ahead,
        .smoothing_window = item->prefill.pool_window,
        .policy = select_policy_of(&item->prefill),
        .quality = item->prefill.quality,
        .min_keep_rate = item->prefill.min_keep_rate,
        .is_covered = calibration && calibration_covers(calibration, &item->prefill, item->n, item->tail_tokens),
        .want_evidence = item->want_evidence,
        .want_importance = item->want_importance,
        .hold = item->hold,
        .added_us = clock_now_us(),
    };
    p->policy.keep_first = item->tokens[0] == s->model.config->bos_id;
    p->policy.tail_tokens = item->tail_tokens;
    // A keep rate that is chosen for a quality applies to all tokens.
    p->policy.budget_tokens = p->quality > 0 ? 0 : item->budget_tokens;
    p->policy.pinned = mem_copy(item->pinned, (size_t)item->n_pinned * sizeof *item->pinned);
    p->policy.n_pinned = item->n_pinned;
    evidence_begin(&p->evidence, p->n, p->policy.keep_first ? p->smoothing_window : 0, item->tail_tokens);
    // Every prompt token and look-ahead token needs an entry, except the last look-ahead token: it is never computed.
    int room = longest_sequence(s) - p->n + 1;
    if (p->look_ahead > room) {
        p->look_ahead = room;
        p->is_covered = false; // the calibration does not cover evidence from fewer steps
    }
    p->drafted = mem_alloc_array((size_t)p->look_ahead, sizeof *p->drafted);
    MEM_GROW(s->prompts, s->n, s->capacity);
    s->prompts[s->n++] = p;
    log_event(LOG_DEBUG, "score_received", LOG_REQUEST(p->request), LOG_FIELD("tokens", p->n),
              LOG_FIELD("look_ahead", p->look_ahead), LOG_FIELD("trace", item->trace));
}

// --- admission

static struct prefix_rows prompt_rows(const struct prompt *p)
{
    return (struct prefix_rows){p->tokens, NULL, p->n, p->salt};
}

// Returns true if a running prompt will soon publish blocks that this prompt can reuse.
static bool prompt_waits_for_prefix(const struct scorer *s, struct prompt *p)
{
    if (!s->model.prefix_cache) return false;
    struct prefix_rows rows = prompt_rows(p);
    int n_cached = prefix_cache_lookup(s->blocks, &rows, &p->match);
    for (int i = 0; i < s->n_running; i++) {
        struct prefix_rows other = prompt_rows(s->prompts[i]);
        if (prefix_cache_worth_waiting(&rows, n_cached, &other, s->prompts[i]->n_published)) return true;
    }
    return false;
}

// Acquires the blocks of a cached prefix and allocates blocks for all other entries. Returns false if too few are free.
static bool prompt_allocate_blocks(struct scorer *s, struct prompt *p)
{
    struct prefix_rows rows = prompt_rows(p);
    int n_blocks = kv_blocks_for(p->n + p->look_ahead - 1);
    p->blocks = mem_alloc_array((size_t)n_blocks, sizeof *p->blocks);
    if (s->model.prefix_cache) p->n_published = prefix_cache_acquire(s->blocks, &rows, p->blocks, &p->chain);
    if (block_manager_allocate(s->blocks, n_blocks - p->n_published, p->blocks + p->n_published)) {
        p->n_blocks = n_blocks;
        p->n_reused = p->n_cached = p->n_published * KV_BLOCK_TOKENS;
        return true;
    }
    block_manager_release(s->blocks, p->blocks, p->n_published);
    free(p->blocks);
    p->blocks = NULL;
    p->n_published = 0;
    p->chain = 0;
    return false;
}

// Allocates the blocks of a prompt. Releases held prompts if needed: scoring takes precedence.
static bool prompt_takes_blocks(struct scorer *s, struct prompt *p)
{
    bool taken = prompt_allocate_blocks(s, p);
    while (!taken && drafter_release_oldest(s->drafter))
        taken = prompt_allocate_blocks(s, p);
    return taken;
}

// Admits prompts in order of arrival. If a prompt waits for blocks, all later prompts wait too. A prompt that waits for
// a prefix does not block later prompts.
static void admit_prompts(struct scorer *s)
{
    for (int i = s->n_running; i < s->n && s->n_running < s->model.max_seqs; i++) {
        struct prompt *p = s->prompts[i];
        if (prompt_waits_for_prefix(s, p)) continue;
        if (!prompt_takes_blocks(s, p)) return;
        p->importance = mem_alloc_array((size_t)p->n, sizeof *p->importance);
        p->last_pass = s->pass; // the wait for a row starts now
        memmove(s->prompts + s->n_running + 1, s->prompts + s->n_running, (size_t)(i - s->n_running) * sizeof p);
        s->prompts[s->n_running++] = p;
    }
}

// --- results

// Divides the sums by the number of steps. Returns NULL, or the reason why the importance cannot be used.
static const char *importance_mean(struct prompt *p)
{
    for (int j = 0; j < p->n; j++) {
        p->importance[j] /= (float)p->steps;
        if (!isfinite(p->importance[j])) return "the model's attention is not finite";
    }
    return NULL;
}

static bool prompt_has_evidence(const struct prompt *p)
{
    return p->want_evidence || (p->quality > 0 && p->is_covered);
}

static struct rate_choice prompt_choose_rate(const struct scorer *s, const struct prompt *p,
                                             const struct evidence *evidence)
{
    if (p->quality == 0) return (struct rate_choice){p->policy.keep_rate, RATE_FIXED};
    if (!p->is_covered) return (struct rate_choice){1, RATE_UNCALIBRATED};
    struct rate_choice choice = calibration_choose(s->model.calibration, evidence, p->quality);
    if (choice.rate < p->min_keep_rate) choice.rate = p->min_keep_rate; // more tokens reach the quality, too
    return choice;
}

static int prompt_select(const struct scorer *s, const struct prompt *p, struct token_range **kept_p)
{
    struct select_policy policy = p->policy;
    uint8_t *ends = sentence_ends_create(s->model.sentences, p->tokens, p->n);
    policy.ends = ends;
    int n_kept = select_kept(p->importance, p->n, &policy, kept_p);
    free(ends);
    return n_kept;
}

static void prompt_report(struct scorer *s, struct prompt *p)
{
    struct score_result result = {.request = p->request, .n = p->n, .steps = p->steps, .cached_tokens = p->n_reused};
    struct token_range *kept = NULL;
    struct evidence evidence = {0};
    result.error = importance_mean(p);
    if (result.error) p->hold = false;
    if (!result.error) {
        if (prompt_has_evidence(p)) evidence_finish(&p->evidence, p->importance, p->n, p->ended, &evidence);
        const struct rate_choice choice = prompt_choose_rate(s, p, &evidence);
        p->policy.keep_rate = result.keep_rate = choice.rate;
        result.reason = choice.reason;
        if (p->want_evidence) result.evidence = &evidence;
        result.n_kept = prompt_select(s, p, &kept);
        result.kept = kept;
        if (p->want_importance) result.importance = p->importance;
        result.look_ahead = p->drafted;
        result.n_look_ahead = p->n_drafted;
    }
    result.score_us = clock_now_us() - p->added_us;
    log_event(LOG_DEBUG, "score_done", LOG_REQUEST(p->request), LOG_FIELD("tokens", p->n),
              LOG_FIELD("cached", p->n_reused), LOG_FIELD("steps", p->steps), LOG_FIELD("ranges", result.n_kept),
              LOG_FIELD("keep_rate", result.keep_rate), LOG_MS("ms", result.score_us));
    s->on_result(s->context, &result);
    free(kept);
}

// Returns the likeliest token of logit row `row`. If all logits are NaN, any token may be returned, because the
// importance is not finite either and the score fails.
static int32_t prompt_next_token(const struct scorer *s, struct prompt *p, const struct forward_result *out, int row)
{
    const int n = s->model.config->vocab_size;
    if (out->tokens) return out->tokens[row] < 0 ? 0 : out->tokens[row];
    struct likeliest likeliest = likeliest_of(out->logits + (size_t)row * (size_t)n, n);
    evidence_add_margin(&p->evidence, (double)likeliest.margin);
    return likeliest.token;
}

static void prompt_add_step(struct prompt *p, const float *importance)
{
    if (prompt_has_evidence(p)) evidence_add_step(&p->evidence, p->importance, importance);
    for (int j = 0; j < p->n; j++)
        p->importance[j] += importance[j];
    p->steps++;
}

// Records that the rows of the pass are in the KV cache.
static void prompt_advance(struct scorer *s, struct prompt *p)
{
    p->n_cached += p->rows;
    p->last_pass = s->pass;
    if (!s->model.prefix_cache) return;
    struct prefix_rows rows = prompt_rows(p);
    int entries = p->n_cached < p->n ? p->n_cached : p->n;
    prefix_cache_publish(s->blocks, &rows, entries, p->blocks, &p->n_published, &p->chain);
}

static void apply_results(struct scorer *s, const struct forward_result *out)
{
    const float *importance = out->importance;
    int logit_row = 0;
    for (int i = 0; i < s->n_running; i++) {
        struct prompt *p = s->prompts[i];
        if (!p->rows) continue;
        prompt_advance(s, p);
        if (!p->has_importance) continue;
        prompt_add_step(p, importance);
        importance += p->n;
        if (!p->has_next_token) continue;
        int32_t token = prompt_next_token(s, p, out, logit_row++);
        p->ended = model_config_is_eos(s->model.config, token);
        // No row is computed for a token that ends the text, so this was the last step.
        if (p->ended)
            p->look_ahead = p->steps;
        else
            p->drafted[p->n_drafted++] = token;
    }
}

// Holds the prompt for drafts. The last draft token has no KV entry, because no look-ahead row was computed for it. If
// there is no draft token, all prompt tokens have entries.
static void prompt_hold(struct scorer *s, struct prompt *p)
{
    int n_tokens = p->n + p->n_drafted;
    drafter_hold(s->drafter, &(struct held_prompt){.request = p->request,
                                                   .salt = p->salt,
                                                   .tokens = p->tokens,
                                                   .n = p->n,
                                                   .guesses = p->drafted,
                                                   .n_guesses = p->n_drafted,
                                                   .n_cached = p->n_drafted ? n_tokens - 1 : n_tokens,
                                                   .blocks = p->blocks,
                                                   .n_blocks = p->n_blocks,
                                                   .n_published = p->n_published,
                                                   .chain = p->chain});
    p->blocks = NULL;
}

static void report_finished(struct scorer *s)
{
    for (int i = 0; i < s->n_running; i++) {
        struct prompt *p = s->prompts[i];
        if (!prompt_is_finished(p, 0)) continue;
        prompt_report(s, p);
        if (p->hold && s->on_draft) prompt_hold(s, p);
    }
    prompts_drop(s, prompt_is_finished, 0);
}

static int count_reading(const struct scorer *s)
{
    int n = 0;
    for (int i = 0; i < s->n_running; i++)
        n += !prompt_looks_ahead(s->prompts[i]);
    return n;
}

void scorer_on_draft(struct scorer *s, scorer_draft_fn *on_draft)
{
    s->on_draft = on_draft;
    if (!on_draft) drafter_clear(s->drafter);
}

bool scorer_advance(struct scorer *s, const struct score_advance *advance)
{
    return s->on_draft && drafter_advance(s->drafter, advance);
}

bool scorer_drafts(const struct scorer *s)
{
    return drafter_busy(s->drafter);
}

enum status scorer_step(struct scorer *s)
{
    s->last = (struct scorer_pass){0};
    admit_prompts(s);
    if (!s->n_running) return scorer_drafts(s) ? drafter_step(s->drafter, s->on_draft, s->context) : STATUS_OK;
    int64_t begun_us = clock_now_us();
    s->pass++;
    no_alloc_begin("scorer_step");
    struct pass_plan plan = score_pass_choose(s);
    const struct ragged_batch *batch = score_pass_compose(s, &plan);
    no_alloc_end();
    struct forward_result out = {0};
    TRY(s->model.forward(s->model.context, batch, &out));
    int64_t us = clock_now_us() - begun_us;
    if (plan.reads)
        score_pace_prompts_done(&s->pace, us);
    else
        score_pace_look_ahead_done(&s->pace, count_reading(s) > 0, us);
    no_alloc_begin("scorer_step");
    apply_results(s, &out);
    no_alloc_end();
    report_finished(s);
    s->last = (struct scorer_pass){batch->n_rows, ragged_attention_pairs(batch), clock_now_us() - begun_us};
    return STATUS_OK;
}

// --- the scorer

struct scorer_pass scorer_last_pass(const struct scorer *s)
{
    return s->last;
}

struct scorer_load scorer_get_load(const struct scorer *s)
{
    return (struct scorer_load){s->n_running, s->n - s->n_running, block_manager_n_free(s->blocks),
                                drafter_prompts(s->drafter), drafter_blocks(s->drafter)};
}

void scorer_count_links(const struct scorer *s, struct link_load *links)
{
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        links[i] = (struct link_load){0};
    for (int i = 0; i < s->n; i++) {
        struct link_load *load = &links[link_id_link(s->prompts[i]->request) % NODE_LINKS_MAX];
        if (i < s->n_running)
            load->running++;
        else
            load->waiting++;
    }
}

struct scorer *scorer_create(const struct scorer_model *model, scorer_result_fn on_result, void *context)
{
    INVARIANT(model->token_budget >= 1 && model->max_seqs >= 1 && model->kv_blocks >= 1,
              "token budget %d, %d sequences, %d KV blocks", model->token_budget, model->max_seqs, model->kv_blocks);
    struct scorer *s = mem_alloc(sizeof *s);
    s->model = *model;
    s->on_result = on_result;
    s->context = context;
    s->blocks = block_manager_create(model->kv_blocks);
    score_pace_init(&s->pace, model->config);
    const struct batch_limits limits = {.rows = model->token_budget,
                                        .seqs = model->max_seqs,
                                        .seq_blocks = kv_blocks_for(longest_sequence(s)),
                                        .logit_rows = model->max_seqs,
                                        .importance_rows = model->max_seqs};
    batch_builder_init(&s->builder, &limits);
    s->drafter = drafter_create(&s->model, s->blocks, &s->builder);
    return s;
}

void scorer_free(struct scorer *s)
{
    if (!s) return;
    prompts_drop(s, prompt_is_any, 0);
    drafter_free(s->drafter);
    block_manager_free(s->blocks);
    batch_builder_fini(&s->builder);
    free(s->prompts);
    free(s);
}
