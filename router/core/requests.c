// SPDX-License-Identifier: Apache-2.0
// The life of one request inside the core. Every step goes through the same few helpers, so that lists, counters, node
// accounts, timers and timings cannot disagree: charge() before anything changes, core_request_leave() whatever it was
// in, then the new state and the new list, core_request_retime() last.
#include "router/core/state.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

// A request under which this many groups went away in a row, without one new token, is likely what kills them.
enum { LOSSES_MAX = 5 };

// A node's mean time of stay forgets a request after about so many others.
enum { STAY_MEMORY = 256 };

// What a generated token counts in its tenant's account, beside one for a token that is read (as arXiv 2401.00588).
enum { OUTPUT_WEIGHT = 2 };

static bool on_worker(const struct request *r)
{
    return r->node && r->node->hello.role == NODE_WORKER;
}

int core_request_rows(const struct request *r)
{
    return r->kept ? r->usage.kept_tokens + r->usage.completion_tokens : r->n_tokens;
}

int core_request_rows_after(const struct request *r, int blocks)
{
    int rows = core_request_rows(r), most = (rows - 1) / PREFIX_BLOCK; // the last row is always computed
    return rows - PREFIX_BLOCK * (blocks < most ? blocks : most);
}

int core_request_known_blocks(const struct request *r, const struct core_node *node)
{
    return node->prefixes ? prefix_index_match(node->prefixes, r->prefix, r->n_prefix) : 0;
}

int core_request_rows_on(const struct request *r, const struct core_node *node)
{
    return core_request_rows_after(r, core_request_known_blocks(r, node));
}

void core_request_set_prefix(struct request *r, const struct token_range *kept, int n_kept)
{
    free(r->prefix);
    r->n_prefix = prefix_chain_make(r->tokens, kept, n_kept, &r->prefix);
}

static int64_t blocks_for(int64_t tokens, int block_tokens)
{
    return (tokens + block_tokens - 1) / block_tokens;
}

// Most texts end long before max_tokens: what is there plus a quarter of what may come, at least a block. The node
// itself allocates block by block and can preempt, so an estimate that is low costs time, not correctness.
int core_request_blocks(const struct request *r, int block_tokens)
{
    int64_t have = (int64_t)r->usage.kept_tokens + r->usage.completion_tokens;
    int64_t most = blocks_for((int64_t)r->usage.kept_tokens + r->sampling.max_tokens, block_tokens);
    int64_t share = (blocks_for(r->sampling.max_tokens - r->usage.completion_tokens, block_tokens) + 3) / 4;
    int64_t expected = blocks_for(have, block_tokens) + (share > 1 ? share : 1);
    return (int)(expected < most ? expected : most);
}

// Accounts for the time since the last step in the part of `timing` that the present state stands for.
static void charge(struct request *r, int64_t now_us)
{
    int64_t us = now_us - r->charged_us;
    bool answering = r->usage.completion_tokens > 0;
    r->charged_us = now_us;
    switch (r->state) {
    case REQUEST_TOKENISED: r->timing.queue_us += us; break;
    case REQUEST_SCORING: *(r->node ? &r->timing.score_us : &r->timing.queue_us) += us; break;
    case REQUEST_READY:
    case REQUEST_PACKED: *(answering ? &r->timing.queue_us : &r->timing.pack_wait_us) += us; break;
    case REQUEST_PREFILL: *(answering ? &r->timing.queue_us : &r->timing.prefill_us) += us; break;
    default: break; // decoding is what the rest of the total is
    }
}

static void sooner(int64_t *due_us, int64_t at_us)
{
    if (at_us < *due_us) *due_us = at_us;
}

static int64_t grace_end_us(const struct core *c, const struct request *r)
{
    int64_t since_us = r->arrived_us > c->workers_gone_us ? r->arrived_us : c->workers_gone_us;
    return since_us + c->options.worker_grace_us;
}

// Under the other policies what came first goes first anyhow.
static bool may_become_urgent(const struct core *c, const struct request *r)
{
    return r->list && !r->node && !r->urgent && c->options.policy == BIN_DATASET;
}

void core_request_retime(struct core *c, struct request *r)
{
    int64_t due_us = INT64_MAX;
    if (r->usage.completion_tokens == 0) sooner(&due_us, r->ttft_deadline_us);
    if (r->state == REQUEST_SCORING) sooner(&due_us, r->score_deadline_us);
    if (may_become_urgent(c, r)) sooner(&due_us, r->due_us);
    if (r->state == REQUEST_READY && !core_pool_can_hold(c, NODE_WORKER, r)) sooner(&due_us, grace_end_us(c, r));
    request_timers_set(&c->timers, r, due_us);
}

// --- lists and accounts

static void count_waiting(struct core *c, const struct request *r, int sign)
{
    struct waiting *waiting = &c->waiting[core_priority_class(r->priority)];
    waiting->requests += sign;
    waiting->tokens += sign * (int64_t)r->n_tokens;
}

void core_request_admit(struct core *c, struct request *r)
{
    request_table_add(&c->table, r);
    count_waiting(c, r, 1);
    c->totals.prompt_tokens += (uint64_t)r->n_tokens;
}

// The bin waits for this request no more.
static void settle_bin(struct request *r)
{
    struct core_bin *bin = r->bin;
    if (!bin) return;
    r->node->in_bins--;
    r->node->bin_tokens -= r->bin_tokens;
    r->node->bin_pairs -= r->bin_pairs;
    r->bin = NULL;
    if (--bin->open) return;
    r->node->bins--;
    free(bin);
}

void core_request_leave(struct core *c, struct request *r, int64_t now_us)
{
    charge(r, now_us);
    if (r->node) {
        settle_bin(r);
        r->node->stay += ((double)(r->node->bins_out - r->bins_before) - r->node->stay) / STAY_MEMORY;
        r->node->kv_blocks -= r->kv_blocks;
        if (on_worker(r)) {
            c->running--;
            count_waiting(c, r, 1);
        }
        r->node = NULL;
        r->kv_blocks = 0;
        request_list_remove(r);
    } else if (r->list) {
        core_queue_remove(c, r);
    }
    if (c->starved == r) c->starved = NULL;
}

static void enqueue(struct core *c, struct request *r)
{
    r->due_us = core_request_due_us(c, r, r->charged_us);
    core_queue_add(c, r);
    core_request_retime(c, r);
}

void core_request_place(struct core *c, struct request *r, struct core_node *node, struct core_bin *bin, int64_t now_us)
{
    int rows = core_request_rows_on(r, node);
    node->tokens_in += (uint64_t)core_request_rows(r);
    if (node->prefixes) prefix_index_add(node->prefixes, r->prefix, r->n_prefix);
    core_request_leave(c, r, now_us);
    if (node->hello.role == NODE_WORKER) {
        request_set_state(r, REQUEST_PACKED, now_us);
        r->packed_us = now_us;
        r->kv_blocks = core_node_blocks_of(node, r);
        c->running++;
        count_waiting(c, r, -1);
    }
    r->node = node;
    r->bin = bin;
    r->bin_tokens = rows;
    r->bin_pairs = cost_pairs(rows, core_request_rows(r) - rows);
    r->bins_before = node->bins_out;
    bin->open++;
    node->in_bins++;
    node->bin_tokens += rows;
    node->bin_pairs += r->bin_pairs;
    node->kv_blocks += r->kv_blocks;
    request_list_append(&node->requests, r);
    core_request_retime(c, r);
}

void core_request_handed(struct request *r, int64_t now_us)
{
    if (r->state != REQUEST_PACKED) return; // SCORING goes on being what it is
    charge(r, now_us);
    request_set_state(r, REQUEST_PREFILL, now_us);
}

// --- the end

static void log_end(const struct request *r, enum finish_reason reason, enum status status)
{
    const struct request_usage *u = &r->usage;
    const struct request_timing *t = &r->timing;
    log_info("request_done req=%llu finish=%s status=%s tokens=%d scored=%d kept=%d cached=%d skip=%s completion=%d "
             "replays=%d queue_ms=%.1f score_ms=%.1f pack_wait_ms=%.1f prefill_ms=%.1f ttft_ms=%.1f total_ms=%.1f",
             (unsigned long long)r->number, finish_reason_name(reason), status_name(status), u->prompt_tokens,
             u->scored_tokens, u->kept_tokens, u->cached_tokens, skip_reason_name(r->skip), u->completion_tokens,
             u->replays, (double)t->queue_us / 1e3, (double)t->score_us / 1e3, (double)t->pack_wait_us / 1e3,
             (double)t->prefill_us / 1e3, (double)t->ttft_us / 1e3, (double)t->total_us / 1e3);
}

void core_request_finish(struct core *c, struct request *r, enum finish_reason reason, enum status status,
                         const char *message, bool tell_node, int64_t now_us)
{
    // The sentence may be this thread's status_message(), which the sink is free to overwrite.
    char text[512];
    snprintf(text, sizeof text, "%s", message);
    struct core_node *node = r->node;
    if (node && tell_node) c->ops.send_cancel(node->link, &r->number, 1);
    core_request_leave(c, r, now_us);
    request_timers_set(&c->timers, r, INT64_MAX);
    request_table_remove(&c->table, r);
    tenant_queue_release(c, r);
    count_waiting(c, r, -1);
    r->timing.total_us = now_us - r->arrived_us;
    switch (reason) {
    case FINISH_REASON_STOP:
    case FINISH_REASON_LENGTH:
        if (!r->usage.completion_tokens && !r->score_only) r->timing.ttft_us = r->timing.total_us; // the end came first
        request_set_state(r, REQUEST_DONE, now_us);
        c->totals.done++;
        break;
    case FINISH_REASON_CANCELLED:
        request_set_state(r, REQUEST_CANCELLED, now_us);
        c->totals.cancelled++;
        break;
    case FINISH_REASON_ERROR:
        request_set_state(r, REQUEST_FAILED, now_us);
        c->totals.failed++;
        break;
    }
    log_end(r, reason, status);
    r->sink.done(r->sink.user, r, reason, status, text);
    request_free(r);
}

void core_request_fail(struct core *c, struct request *r, enum status status, const char *message, int64_t now_us)
{
    core_request_finish(c, r, FINISH_REASON_ERROR, status, message, true, now_us);
}

// --- scoring

void core_request_wait_for_score(struct core *c, struct request *r, int64_t now_us)
{
    core_request_leave(c, r, now_us);
    if (r->state != REQUEST_SCORING) request_set_state(r, REQUEST_SCORING, now_us);
    enqueue(c, r);
}

// Its kept tokens are known: into the queue for worker groups.
static void make_ready(struct core *c, struct request *r, int64_t now_us)
{
    core_request_leave(c, r, now_us);
    request_set_state(r, REQUEST_READY, now_us);
    r->losses = 0;
    r->usage.kept_tokens = 0;
    for (int k = 0; k < r->n_kept_ranges; k++)
        r->usage.kept_tokens += r->kept[k].last - r->kept[k].first + 1;
    if (r->score_only) {
        core_request_finish(c, r, FINISH_REASON_STOP, STATUS_OK, "", false, now_us);
        return;
    }
    c->totals.skipped[r->skip]++;
    c->totals.kept_tokens += (uint64_t)r->usage.kept_tokens;
    if (r->skip >= SKIP_NO_NODE) c->totals.degraded++;
    // Contexts were looked at on arrival, KV blocks can only be now. (A context that went away meanwhile may come
    // back.)
    bool fits_context = (int64_t)r->n_tokens + r->sampling.max_tokens <= core_pool_context(c, NODE_WORKER);
    if (fits_context && !core_pool_can_hold(c, NODE_WORKER, r)) {
        status_fail(STATUS_OUT_OF_RANGE,
                    "%d kept prompt tokens and max_tokens %d need more KV blocks than any attached worker group has: "
                    "ask for less, or keep less",
                    r->usage.kept_tokens, r->sampling.max_tokens);
        core_request_fail(c, r, STATUS_OUT_OF_RANGE, status_message(), now_us);
        return;
    }
    enqueue(c, r);
}

void core_request_keep_all(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us)
{
    r->skip = reason;
    r->kept = mem_alloc(sizeof *r->kept);
    r->kept[0] = (struct token_range){0, r->n_tokens - 1};
    r->n_kept_ranges = 1;
    make_ready(c, r, now_us);
}

void core_request_unscorable(struct core *c, struct request *r, enum skip_reason reason, int64_t now_us)
{
    core_request_leave(c, r, now_us); // first, so that a node which gave up on it is not sent a cancel
    if (!r->score_only) {
        core_request_keep_all(c, r, reason, now_us);
        return;
    }
    switch (reason) {
    case SKIP_TOO_LONG:
        status_fail(STATUS_OUT_OF_RANGE, "the prompt of %d tokens is over the context of every speculator: at most %d",
                    r->n_tokens, core_pool_context(c, NODE_SPECULATOR) - r->prefill.look_ahead + 1);
        core_request_fail(c, r, STATUS_OUT_OF_RANGE, status_message(), now_us);
        break;
    case SKIP_TIMEOUT:
        core_request_fail(c, r, STATUS_UNAVAILABLE, "no speculator answered in time: try again later", now_us);
        break;
    case SKIP_LOST:
        core_request_fail(c, r, STATUS_UNAVAILABLE, "the speculator was lost or gave no usable answer: try again",
                          now_us);
        break;
    default:
        core_request_fail(c, r, STATUS_UNAVAILABLE, "no speculator is attached: start a forepack-speculator", now_us);
        break;
    }
}

// NULL when the node's answer can be used, else what is wrong with it.
static const char *scored_wrong(const struct request *r, const struct score_result *result)
{
    if (result->error) return result->error;
    if (result->n_kept < 1) return "no kept ranges";
    int32_t next = 0;
    for (int k = 0; k < result->n_kept; k++) {
        const struct token_range *range = &result->kept[k];
        if (range->first < next || range->last < range->first) return "kept ranges are not ascending";
        if (range->last >= r->n_tokens) return "a kept range is outside the prompt";
        next = range->last + 1;
    }
    if (!r->want_importance) return NULL;
    if (!result->importance || result->n_importance != r->n_tokens) return "not one importance a token";
    for (int i = 0; i < r->n_tokens; i++) {
        if (!isfinite(result->importance[i])) return "an importance is not a number";
    }
    return NULL;
}

void core_request_scored(struct core *c, struct request *r, const struct score_result *result, int64_t now_us)
{
    const char *wrong = scored_wrong(r, result);
    if (wrong) {
        log_warn("score_failed req=%llu node=%s reason=\"%s\"", (unsigned long long)r->number, r->node->hello.node_id,
                 wrong);
        core_request_unscorable(c, r, SKIP_LOST, now_us);
        return;
    }
    r->scored_us = now_us;
    r->usage.scored_tokens = r->n_tokens;
    cost_prompt_done(&r->node->cost, r->n_tokens - result->cached_tokens, now_us);
    if (result->cached_tokens > 0) {
        r->node->cached_tokens += (uint64_t)(result->cached_tokens < r->n_tokens ? result->cached_tokens : r->n_tokens);
    }
    r->kept = mem_alloc_array((size_t)result->n_kept, sizeof *r->kept);
    for (int k = 0; k < result->n_kept; k++) {
        bool touches = r->n_kept_ranges && r->kept[r->n_kept_ranges - 1].last + 1 == result->kept[k].first;
        if (touches) {
            r->kept[r->n_kept_ranges - 1].last = result->kept[k].last;
        } else {
            r->kept[r->n_kept_ranges++] = result->kept[k];
        }
    }
    core_request_set_prefix(r, r->kept, r->n_kept_ranges);
    if (r->want_importance) r->importance = mem_copy(result->importance, (size_t)r->n_tokens * sizeof *r->importance);
    make_ready(c, r, now_us);
}

// --- on a worker group

void core_request_replay(struct core *c, struct request *r, int64_t now_us)
{
    core_request_leave(c, r, now_us);
    request_set_state(r, REQUEST_READY, now_us);
    r->usage.replays++;
    c->totals.replays++;
    // There are tokens left to generate: with the last one core_request_step() ended it, whatever the group said.
    assert(r->usage.completion_tokens < r->sampling.max_tokens);
    if (++r->losses >= LOSSES_MAX) {
        core_request_fail(c, r, STATUS_UNAVAILABLE,
                          "its worker group went away too many times in a row: try again later", now_us);
    } else {
        enqueue(c, r);
    }
}

// NULL when the node's tokens can be used, else what is wrong with them.
static const char *step_wrong(const struct core *c, const struct request *r, const struct sequence_result *result)
{
    if (result->n_tokens < 0 || result->n_tokens > r->sampling.max_tokens - r->usage.completion_tokens) {
        return "the worker group sent more tokens than max_tokens";
    }
    for (int i = 0; i < result->n_tokens; i++) {
        if (result->tokens[i] < 0 || result->tokens[i] >= c->options.vocab_size) {
            return "the worker group sent a token outside the vocabulary";
        }
    }
    return NULL;
}

static void append_output(struct request *r, const int32_t *tokens, int n)
{
    while (r->output_capacity < r->usage.completion_tokens + n) {
        r->output_capacity = r->output_capacity ? 2 * r->output_capacity : 64;
        r->output = mem_resize(r->output, (size_t)r->output_capacity, sizeof *r->output);
    }
    memcpy(r->output + r->usage.completion_tokens, tokens, (size_t)n * sizeof *tokens);
    r->usage.completion_tokens += n;
}

// Streams the tokens on; true when a stop string ended the text.
static bool take_tokens(struct core *c, struct request *r, const struct sequence_result *result, int64_t now_us)
{
    int before = r->usage.completion_tokens, used = result->n_tokens;
    charge(r, now_us);
    if (before == 0) {
        r->first_token_us = now_us;
        r->timing.ttft_us = now_us - r->arrived_us;
    }
    append_output(r, result->tokens, result->n_tokens);
    settle_bin(r);
    if (r->state == REQUEST_PREFILL) request_set_state(r, REQUEST_DECODE, now_us);
    r->losses = 0;
    bool stopped = r->sink.tokens(r->sink.user, result->tokens, result->logprobs, result->n_tokens, &used);
    if (stopped && used >= 0 && used < result->n_tokens) r->usage.completion_tokens = before + used;
    c->totals.completion_tokens += (uint64_t)(r->usage.completion_tokens - before);
    tenant_queue_charge(r->share, OUTPUT_WEIGHT * (r->usage.completion_tokens - before));
    r->node->tokens_out += (uint64_t)result->n_tokens;
    return stopped;
}

void core_request_step(struct core *c, struct request *r, const struct sequence_result *result, int64_t now_us)
{
    const char *wrong = step_wrong(c, r, result);
    if (wrong) {
        log_warn("step_wrong req=%llu node=%s reason=\"%s\"", (unsigned long long)r->number, r->node->hello.node_id,
                 wrong);
        core_request_finish(c, r, FINISH_REASON_ERROR, STATUS_INTERNAL, wrong, !result->finished, now_us);
        return;
    }
    if (result->cached_tokens > 0) {
        bool all = result->cached_tokens > r->usage.kept_tokens;
        r->usage.cached_tokens = all ? r->usage.kept_tokens : result->cached_tokens;
        r->node->cached_tokens += (uint64_t)r->usage.cached_tokens;
    }
    if (r->bin && result->n_tokens)
        cost_prompt_done(&r->node->cost, core_request_rows(r) - result->cached_tokens, now_us);
    if (result->n_tokens && take_tokens(c, r, result, now_us)) {
        core_request_finish(c, r, FINISH_REASON_STOP, STATUS_OK, "", !result->finished, now_us);
    } else if (result->finished) {
        if (result->reason == FINISH_REASON_STOP || result->reason == FINISH_REASON_LENGTH) {
            core_request_finish(c, r, result->reason, STATUS_OK, "", false, now_us);
        } else {
            status_fail(STATUS_INTERNAL, "the worker group failed: %s",
                        result->error ? result->error : "no reason given");
            core_request_finish(c, r, FINISH_REASON_ERROR, STATUS_INTERNAL, status_message(), false, now_us);
        }
    } else if (r->usage.completion_tokens == r->sampling.max_tokens) {
        core_request_finish(c, r, FINISH_REASON_LENGTH, STATUS_OK, "", true, now_us);
    } else if (result->n_tokens) {
        int blocks = core_node_blocks_of(r->node, r);
        r->node->kv_blocks += blocks - r->kv_blocks;
        r->kv_blocks = blocks;
        core_request_retime(c, r);
    }
}

// --- time

void core_request_due(struct core *c, struct request *r, int64_t now_us)
{
    if (r->usage.completion_tokens == 0 && r->ttft_deadline_us <= now_us) {
        status_fail(STATUS_DEADLINE, "no %s came before %s: allow more, or send less at once",
                    r->score_only ? "score" : "token", request_deadline_name(r));
        core_request_fail(c, r, STATUS_DEADLINE, status_message(), now_us);
        return;
    }
    if (r->state == REQUEST_SCORING && r->score_deadline_us <= now_us) {
        if (r->node) c->ops.send_cancel(r->node->link, &r->number, 1);
        core_request_unscorable(c, r, SKIP_TIMEOUT, now_us);
        return;
    }
    if (r->state == REQUEST_READY && !core_pool_can_hold(c, NODE_WORKER, r) && grace_end_us(c, r) <= now_us) {
        core_request_fail(c, r, STATUS_UNAVAILABLE,
                          "the worker group that could serve this went away and did not come back: try again later",
                          now_us);
        return;
    }
    if (may_become_urgent(c, r) && r->due_us <= now_us) core_queue_make_urgent(c, r);
    core_request_retime(c, r);
}
