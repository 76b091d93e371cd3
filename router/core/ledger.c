// SPDX-License-Identifier: Apache-2.0
#include "router/core/ledger.h"

#include <limits.h>
#include <stdlib.h>

#include "router/sched/node_index.h"
#include "router/sched/node_time.h"
#include "router/sched/tenant_queue.h"

enum { COMPUTED_MEMORY = 8 }; // the share of computed rows forgets a bin after about this many bins

// The weight of a generated token in its tenant's counter. A row that is read has weight 1 (as in arXiv 2401.00588).
enum { OUTPUT_WEIGHT = 2 };

// The host samples from this many vocabulary entries in about the time in which a GPU computes OUTPUT_WEIGHT rows of an
// 8B model.
enum { SAMPLED_ENTRIES_PER_TOKEN = 32768 };

enum queue_class ledger_class_of(int32_t priority)
{
    return priority < 0 ? QUEUE_LOW : priority > 0 ? QUEUE_HIGH : QUEUE_NORMAL;
}

int64_t ledger_waiting_tokens(const struct ledger *ledger)
{
    int64_t tokens = 0;
    for (int k = 0; k < QUEUE_CLASSES; k++)
        tokens += ledger->waiting[k].tokens;
    return tokens;
}

static void waiting_add(struct ledger *ledger, const struct request *r, int sign)
{
    struct class_count *count = &ledger->waiting[ledger_class_of(r->spec.priority)];
    ledger->background += r->spec.background ? sign : 0;
    int64_t tokens = sign * request_queue_tokens(r);
    count->requests += sign;
    count->tokens += tokens;
    r->account.tenant->waiting += sign;
    r->account.tenant->waiting_tokens += tokens;
}

static bool on_worker(const struct request *r)
{
    return r->account.node && r->account.node->sched.role == NODE_WORKER;
}

// --- arrival

void ledger_arrived(struct ledger *ledger, struct request *r)
{
    ledger->totals.requests++;
    r->usage.prompt_tokens = r->spec.n_tokens;
    r->account.charged_us = r->spec.arrived_us;
}

void ledger_resumed(struct request *r)
{
    r->usage.completion_tokens = r->resume.n;
}

// Returns the number of tokens that this request has received from worker groups.
static int new_tokens(const struct request *r)
{
    return r->usage.completion_tokens - r->resume.n;
}

void ledger_refused(struct ledger *ledger, struct request *r, enum status status, int64_t now_us)
{
    ledger->totals.refused++;
    ledger->measures.refused[status]++;
    r->timing.total_us = now_us - r->spec.arrived_us;
}

void ledger_admitted(struct ledger *ledger, struct request *r, const char *tenant)
{
    r->account.tenant = tenant_accounts_acquire(&ledger->tenants, tenant);
    waiting_add(ledger, r, 1);
    if (r->shadow) return;
    ledger->totals.prompt_tokens += (uint64_t)r->spec.n_tokens;
    r->account.usage = tenant_usages_find(&ledger->usages, r->spec.tenant);
    if (r->account.usage) r->account.usage->prompt_tokens += (uint64_t)r->spec.n_tokens;
}

// --- time

static enum trace_phase phase_of(const struct request *r)
{
    switch (r->state) {
    case REQUEST_SCORING: return r->account.node ? TRACE_SCORE : TRACE_QUEUE;
    case REQUEST_READY:
    case REQUEST_PACKED: return TRACE_PACK_WAIT;
    case REQUEST_PREFILL: return TRACE_PREFILL;
    case REQUEST_DECODE: return TRACE_DECODE;
    default: return TRACE_QUEUE;
    }
}

static void trace_time(struct request *r, enum trace_phase phase, int64_t now_us)
{
    if (phase == TRACE_PACK_WAIT && r->spec.score_only) return; // a score-only request ends when it becomes READY
    bool on_node = phase == TRACE_SCORE || phase == TRACE_PREFILL || phase == TRACE_DECODE;
    trace_phase_end(r->trace, phase, on_node ? r->account.node->hello.node_id : NULL, now_us);
}

void ledger_charge_time(struct request *r, int64_t now_us)
{
    struct request_timing *t = &r->timing;
    enum trace_phase phase = phase_of(r);
    int64_t us = now_us - r->account.charged_us;
    bool answering = new_tokens(r) > 0;
    r->account.charged_us = now_us;
    if (r->trace) trace_time(r, phase, now_us);
    switch (phase) {
    case TRACE_QUEUE: t->queue_us += us; break;
    case TRACE_SCORE: t->score_us += us; break;
    case TRACE_PACK_WAIT: *(answering ? &t->queue_us : &t->pack_wait_us) += us; break;
    case TRACE_PREFILL: *(answering ? &t->queue_us : &t->prefill_us) += us; break;
    default: break; // the rest of total_us is decoding
    }
}

// --- bins and nodes

// KV blocks: a prompt block in the node's prefix index is charged to the node once, even if several requests hold it.
// Every other block belongs to one request.

static int held_blocks(const struct request *r)
{
    return sched_node_shares_blocks(&r->account.node->sched) ? prefix_run_blocks(r->sched.run) : 0;
}

static void set_own_blocks(struct request *r, int blocks)
{
    struct node_account *in = &r->account.node->sched.account;
    in->kv_blocks += blocks - r->sched.own_blocks;
    in->context_blocks += blocks - r->sched.own_blocks;
    r->sched.own_blocks = blocks;
}

static void set_share(struct request *r, double share)
{
    if (r->shadow) return; // a shadow has no tenant
    r->sched.tenant_queue->held += share - r->sched.share;
    r->sched.share = share;
}

void ledger_kv_blocks_updated(struct request *r)
{
    if (!on_worker(r)) return;
    const struct sched_node *node = &r->account.node->sched;
    node_index_note_change(&r->account.node->sched);
    int blocks = sched_request_kv_blocks(&r->sched, node->limits.block_tokens);
    set_own_blocks(r, blocks - held_blocks(r));
    set_share(r, sched_node_share(node, blocks));
}

// Returns the number of blocks that the node's requests hold in its prefix index.
static int64_t shared_blocks(const struct sched_node *node)
{
    return sched_node_shares_blocks(node) ? prefix_record_blocks_held(node->prefixes) : 0;
}

static void hold_blocks(struct request *r)
{
    struct sched_node *node = &r->account.node->sched;
    int64_t before = shared_blocks(node);
    r->sched.run = node->prefixes ? prefix_record_hold(node->prefixes, r->sched.prefix, r->sched.n_prefix) : NULL;
    node->account.kv_blocks += shared_blocks(node) - before;
    node->account.context_blocks += held_blocks(r);
    ledger_kv_blocks_updated(r);
}

static void release_blocks(struct request *r)
{
    struct sched_node *node = &r->account.node->sched;
    int64_t before = shared_blocks(node);
    set_own_blocks(r, 0);
    node->account.context_blocks -= held_blocks(r);
    if (node->prefixes) prefix_record_release(node->prefixes, r->sched.run);
    node->account.kv_blocks += shared_blocks(node) - before;
    r->sched.run = NULL;
}

static void long_prompt_count(struct node_account *in, const struct request_account *a, int sign)
{
    in->long_prompts += sign;
    in->long_tokens += sign * (int64_t)a->rows;
    in->long_attention_pairs += sign * a->attention_pairs;
}

// Counts the request in the bin and in the work of its node, until work_uncount().
static void work_count(struct core_bin *bin, struct node_account *in, const struct request_account *a)
{
    bin->open_fitting += !a->is_long;
    in->requests_in_bins++;
    in->bin_tokens += a->rows;
    in->bin_attention_pairs += a->attention_pairs;
    if (a->is_long) long_prompt_count(in, a, 1);
}

void ledger_placed(struct ledger *ledger, struct request *r, struct core_node *node, struct core_bin *bin)
{
    struct node_account *in = &node->sched.account;
    struct request_account *a = &r->account;
    int rows = sched_request_rows(&r->sched), computed = sched_request_rows_on(&r->sched, &node->sched);
    node->measures->counts.tokens_in += (uint64_t)rows;
    a->node = node;
    a->bin = bin;
    a->bin_id = bin->id;
    a->rows = computed;
    a->attention_pairs = cost_pairs(computed, rows - computed);
    a->is_background = r->spec.background;
    a->is_long = computed > sched_node_pass_rows(&node->sched) && !a->is_background;
    bin->open++;
    if (!a->is_background) work_count(bin, in, a);
    hold_blocks(r);
    in->running_alone += r->sched.runs_alone;
    request_list_append(&in->requests, &r->sched);
    node_index_note_change(&node->sched);
    r->sched.placed_tokens = r->usage.completion_tokens;
    r->sched.free_rows = 0;
    if (!on_worker(r)) return;
    if (!r->shadow) tenant_queue_add_slots(r->sched.tenant_queue, 1);
    ledger->running++;
    ledger->background += r->spec.background;
    waiting_add(ledger, r, -1);
}

void ledger_bin_sent(struct ledger *ledger, struct sched_view *view, struct core_node *node, const struct core_bin *bin,
                     int64_t rows, int64_t uncached_rows)
{
    enum node_role role = node->sched.role;
    int64_t budget = node->sched.limits.token_budget;
    double *computed = &view->computed_share[role];
    *computed += ((double)rows / (double)uncached_rows - *computed) / COMPUTED_MEMORY;
    node->sched.account.bins += bin->open_fitting > 0;
    struct bin_totals *bins = &ledger->bins[role];
    bins->bins++;
    bins->items += (uint64_t)bin->open;
    bins->tokens += (uint64_t)rows;
    int64_t capacity = budget > rows ? budget : rows;
    bins->capacity_tokens += (uint64_t)capacity;
    ledger->pools[role].dispatched_rows += (uint64_t)uncached_rows;
    node->measures->counts.bins++;
    histogram_add(&node->measures->fill, histogram_share(rows, capacity));
}

void ledger_scanned(struct ledger *ledger, enum node_role role, uint64_t scan_cost)
{
    ledger->bins[role].scan_cost += scan_cost;
}

static void work_uncount(struct core_bin *bin, struct node_account *in, const struct request_account *a)
{
    in->requests_in_bins--;
    in->bin_tokens -= a->rows;
    in->bin_attention_pairs -= a->attention_pairs;
    if (a->is_long) {
        long_prompt_count(in, a, -1);
    } else if (--bin->open_fitting == 0) {
        in->bins--;
    }
}

// Notes that the bin does not wait for the request any more. Frees the bin when it waits for no request.
static void bin_settled(struct request *r)
{
    struct core_bin *bin = r->account.bin;
    if (!bin) return;
    r->account.bin = NULL;
    if (!r->account.is_background) work_uncount(bin, &r->account.node->sched.account, &r->account);
    if (--bin->open == 0) free(bin);
    node_index_note_change(&r->account.node->sched);
}

void ledger_left_node(struct ledger *ledger, struct request *r)
{
    struct request_account *a = &r->account;
    bin_settled(r);
    release_blocks(r);
    a->node->sched.account.running_alone -= r->sched.runs_alone;
    node_index_note_change(&a->node->sched);
    if (on_worker(r)) {
        set_share(r, 0);
        if (!r->shadow) tenant_queue_add_slots(r->sched.tenant_queue, -1);
        ledger->running--;
        ledger->background -= r->spec.background;
        waiting_add(ledger, r, 1);
    }
    request_list_remove(&r->sched);
    if (!a->node->sched.account.requests.count) a->node->passed_us = 0; // the node waits for work: no gap is measured
    a->node = NULL;
}

// --- results

// Learns the prompt share of a pass with prompts and decodes. The prompts' time is the time of the pass less the
// expected time of its decode rows.
static void learn_share(struct sched_node *node, const struct pass_cost *pass, int64_t now_us)
{
    const struct node_account *account = &node->account;
    double decodes = node_time_pass_decodes(node) + node->other_rows;
    if (node->role != NODE_WORKER || decodes <= 0 || !account->requests_in_bins) return;
    if (!cost_knows(&node->cost, 1, now_us)) return;
    double entries = (double)account->context_blocks * node->limits.block_tokens / account->requests.count;
    double decode_us = cost_pass_us(&node->cost, 1, decodes, decodes * entries);
    cost_share_learn(&node->share, (double)pass->us - decode_us, (double)pass->us);
}

// Returns the time of the pass, capped so that the sum over the node's passes is at most its attached time. So a wrong
// report cannot show a pool as busier than possible.
static uint64_t busy_us_of(const struct core_node *node, const struct pass_cost *pass, int64_t now_us)
{
    int64_t before_us = (int64_t)(node->measures->counts.pass_us - node->at_attach.pass_us);
    int64_t left_us = now_us - node->attached_us - before_us;
    if (left_us < 0) left_us = 0;
    return (uint64_t)(pass->us < left_us ? pass->us : left_us);
}

void ledger_node_gone(struct ledger *ledger, const struct core_node *node, int64_t now_us)
{
    ledger->pools[node->sched.role].gone_us += (uint64_t)(now_us - node->attached_us);
}

// Measures the gap between two passes. A node that still has requests when it reports a pass begins the next pass
// immediately. So the time between the two reports, less the time of the second pass, was spent between the passes. A
// gap may be negative, because the latencies of the reports vary. In the sum of the gaps, these differences cancel out.
static void gap_measure(struct core_node *node, const struct pass_cost *pass, int64_t now_us)
{
    struct node_counts *counts = &node->measures->counts;
    if (node->passed_us) {
        counts->pass_gaps++;
        counts->pass_gap_us += now_us - node->passed_us - pass->us;
    }
    node->passed_us = node->sched.account.requests.count ? now_us : 0;
}

void ledger_node_measured(struct core_node *node, int64_t now_us)
{
    const struct node_hello *hello = &node->hello;
    struct cost_pass passes[NODE_MEASURED_MAX];
    int n = 0;
    for (int i = 0; i < hello->n_measured; i++) {
        const struct pass_cost *pass = &hello->measured[i];
        if (node_pass_is_possible(node, pass)) passes[n++] = (struct cost_pass){pass->rows, pass->pairs, pass->us};
    }
    cost_begin(&node->sched.cost, passes, n, now_us);
}

void ledger_pass_reported(struct ledger *ledger, struct core_node *node, const struct pass_cost *pass, int64_t now_us)
{
    ledger->pools[node->sched.role].busy_us += busy_us_of(node, pass, now_us);
    learn_share(&node->sched, pass, now_us);
    gap_measure(node, pass, now_us);
    bool known = cost_knows(&node->sched.cost, pass->rows, now_us);
    double predicted_us = cost_pass_us(&node->sched.cost, 1, (double)pass->rows, (double)pass->pairs);
    pass_times_add(&node->pass_times, pass->has_prompts, pass->rows, pass->pairs, pass->us, known ? predicted_us : 0);
    cost_learn(&node->sched.cost, pass->rows, pass->pairs, pass->us, now_us);
    histogram_add(&node->measures->pass, pass->us);
    struct node_counts *counts = &node->measures->counts;
    counts->passes++;
    counts->pass_rows += (uint64_t)pass->rows;
    counts->pass_pairs += (uint64_t)pass->pairs;
    counts->pass_us += (uint64_t)pass->us;
    node_index_note_change(&node->sched);
}

void ledger_scored(struct request *r, int cached_tokens, int64_t now_us)
{
    struct core_node *node = r->account.node;
    int n_tokens = sched_request_rows(&r->sched);
    r->usage.scored_tokens += n_tokens;
    cost_prompt_done(&node->sched.cost, n_tokens - cached_tokens, now_us);
    histogram_add(&node->measures->score, now_us - r->account.charged_us); // time since the dispatch
    if (cached_tokens <= 0) return;
    if (cached_tokens > n_tokens) cached_tokens = n_tokens;
    r->usage.score_cached_tokens += cached_tokens;
    node->measures->counts.cached_tokens += (uint64_t)cached_tokens;
}

static void count_keep_rate(struct ledger *ledger, double keep_rate)
{
    histogram_add(&ledger->measures.keep_rate, (int64_t)(1e6 * keep_rate));
}

void ledger_score_reused(struct ledger *ledger, struct request *r)
{
    r->usage.scored_tokens += r->spec.n_tokens;
    r->usage.score_cached_tokens += r->spec.n_tokens;
    ledger->totals.scores_reused++;
    if (r->spec.prefill.quality > 0) count_keep_rate(ledger, r->keep_rate);
}

void ledger_rate_chosen(struct ledger *ledger, struct sched_view *view, const struct request *r, double keep_rate,
                        int64_t now_us)
{
    struct node_counts *counts = &r->account.node->measures->counts;
    counts->quality_scores++;
    counts->quality_rates += keep_rate;
    count_keep_rate(ledger, keep_rate);
    rate_mean_add(&view->quality_rate, keep_rate, now_us);
}

void ledger_conversation_kept(struct request *r, int frozen, int recalled)
{
    r->usage.frozen_tokens = frozen;
    r->usage.recalled_tokens = recalled;
}

void ledger_ready(struct request *r)
{
    r->account.losses = 0;
    r->usage.kept_tokens = request_kept_tokens(r);
}

void ledger_speculation_decided(struct ledger *ledger, const struct request *r)
{
    ledger->totals.skipped[r->skip]++;
    ledger->totals.limited[r->spec.limited_by.kind]++;
    ledger->totals.kept_tokens += (uint64_t)r->usage.kept_tokens;
    if (r->account.usage) r->account.usage->kept_tokens += (uint64_t)r->usage.kept_tokens;
    ledger->totals.frozen_tokens += (uint64_t)r->usage.frozen_tokens;
    ledger->totals.recalled_tokens += (uint64_t)r->usage.recalled_tokens;
    if (r->skip >= SKIP_NO_NODE) ledger->totals.degraded++;
    if (r->skip == SKIP_NONE)
        histogram_add(&ledger->measures.kept, histogram_share(r->usage.kept_tokens, r->spec.n_tokens));
}

void ledger_prefill_cached(struct request *r, int cached_tokens)
{
    if (cached_tokens <= 0) return;
    int kept = r->usage.kept_tokens;
    r->usage.cached_tokens = cached_tokens < kept ? cached_tokens : kept;
    r->account.node->measures->counts.cached_tokens += (uint64_t)r->usage.cached_tokens;
}

static int clamp_count(int count, int max)
{
    return count < 0 ? 0 : count < max ? count : max;
}

void ledger_draft_verified(struct ledger *ledger, struct request *r, const struct sequence_result *result, int n_used)
{
    int before = r->usage.completion_tokens - n_used;
    int verified = clamp_count(result->draft_tokens, r->spec.sampling.max_tokens - before);
    int accepted = clamp_count(result->draft_accepted_tokens, verified < n_used ? verified : n_used);
    r->usage.draft_tokens = clamp_count(r->usage.draft_tokens + verified, INT_MAX / 2);
    r->usage.draft_accepted_tokens += accepted;
    if (r->shadow) return;
    ledger->totals.draft_tokens += (uint64_t)verified;
    ledger->totals.draft_accepted_tokens += (uint64_t)accepted;
}

void ledger_prompt_computed(struct request *r, int cached_tokens, int64_t now_us)
{
    cost_prompt_done(&r->account.node->sched.cost, sched_request_rows(&r->sched) - cached_tokens, now_us);
}

static void first_token_measure(struct core_measures *measures, struct request *r)
{
    const struct request_timing *t = &r->timing;
    histogram_add(&r->account.node->measures->first_token, t->ttft_us);
    histogram_add(&measures->queue, t->queue_us + t->pack_wait_us);
    histogram_add(&measures->pack_wait, t->pack_wait_us);
    histogram_add(&measures->prefill, t->prefill_us);
}

void ledger_tokens_received(struct ledger *ledger, struct request *r, int n, int64_t now_us)
{
    ledger_charge_time(r, now_us);
    if (new_tokens(r) == 0 && !r->spec.sampling.no_output) {
        r->timing.ttft_us = now_us - r->spec.arrived_us;
        if (!r->shadow) first_token_measure(&ledger->measures, r);
    }
    r->usage.completion_tokens += n;
    r->account.losses = 0;
    r->account.node->sched.account.running_alone -= r->sched.runs_alone;
    r->sched.runs_alone = false;
    bin_settled(r);
}

double ledger_output_tokens(int n, int on_host, int vocab_size)
{
    return n + (double)on_host * vocab_size / SAMPLED_ENTRIES_PER_TOKEN;
}

// Returns the charge for the latest `n` output tokens.
static double output_tokens(const struct ledger *ledger, const struct request *r, int n)
{
    int end = r->usage.completion_tokens, on_host = 0;
    for (int index = end - n; index < end; index++)
        on_host += sampling_needs_host(&r->spec.sampling, index);
    return ledger_output_tokens(n, on_host, ledger->vocab_size);
}

static void output_charge(struct request *r, double tokens)
{
    if (!r->shadow) tenant_queue_charge(r->sched.tenant_queue, OUTPUT_WEIGHT * tokens);
    r->account.output_tokens += tokens;
}

void ledger_prompt_logprobs_received(struct ledger *ledger, struct request *r, int n)
{
    output_charge(r, ledger_output_tokens(0, n, ledger->vocab_size));
}

static void tokens_measure(struct request *r, int n_used)
{
    struct histogram *gaps = &r->account.node->measures->inter_token;
    int64_t received_us = r->account.charged_us;
    bool is_first = new_tokens(r) == n_used;
    for (int i = is_first; i < n_used; i++)
        histogram_add(gaps, i ? 0 : received_us - r->account.token_us);
    r->account.token_us = received_us;
}

void ledger_tokens_used(struct ledger *ledger, struct request *r, int n, int n_used)
{
    r->usage.completion_tokens -= n - n_used;
    if (!r->shadow) tokens_measure(r, n_used);
    if (!r->shadow) ledger->totals.completion_tokens += (uint64_t)n_used;
    if (r->account.usage) r->account.usage->completion_tokens += (uint64_t)n_used;
    output_charge(r, output_tokens(ledger, r, n_used));
    r->account.node->measures->counts.tokens_out += (uint64_t)n;
}

// --- a lost node, a preemption, the end

void ledger_lost_at_speculator(struct request *r)
{
    r->account.losses++;
}

void ledger_replayed(struct ledger *ledger, struct request *r, enum node_loss loss)
{
    ledger->measures.replays[loss]++;
    r->usage.replays++;
    r->account.losses++;
    ledger->totals.replays++;
}

void ledger_preempted(struct ledger *ledger, struct request *r)
{
    r->usage.preemptions++;
    ledger->totals.preemptions++;
    r->sched.free_rows = sched_request_rows(&r->sched);
}

static void answer_measure(struct core_measures *measures, const struct request *r)
{
    const struct request_timing *t = &r->timing;
    histogram_add(&measures->end_to_end, t->total_us);
    int later = new_tokens(r) - 1;
    if (later > 0) histogram_add(&measures->token, (t->total_us - t->ttft_us) / later);
}

void ledger_ended(struct ledger *ledger, struct request *r, enum finish_reason reason, enum status status,
                  int64_t now_us)
{
    bool done = reason == FINISH_REASON_STOP || reason == FINISH_REASON_LENGTH;
    waiting_add(ledger, r, -1);
    tenant_accounts_release(&ledger->tenants, r->account.tenant);
    r->account.tenant = NULL;
    r->timing.total_us = now_us - r->spec.arrived_us;
    if (r->shadow) return;
    if (done && !new_tokens(r) && !r->spec.score_only) r->timing.ttft_us = r->timing.total_us;
    if (done) ledger->totals.done++;
    if (reason == FINISH_REASON_CANCELLED) ledger->totals.cancelled++;
    if (reason == FINISH_REASON_ERROR) ledger->totals.failed++;
    ledger->measures.finished[reason]++;
    if (r->account.usage) r->account.usage->finished[reason]++;
    if (reason == FINISH_REASON_ERROR) ledger->measures.errors[status]++;
    if (done && !r->spec.score_only) answer_measure(&ledger->measures, r);
}
