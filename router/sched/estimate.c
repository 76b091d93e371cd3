// SPDX-License-Identifier: Apache-2.0
#include "router/sched/estimate.h"

#include <math.h>

#include "router/sched/node_index.h"
#include "router/sched/node_time.h"

#define BACKGROUND_WAIT_US (24LL * 3600 * 1000000) // longer than any background request waits

// Speculation has to save at least this share of the prefill time of the whole prompt, because estimates are not exact.
#define SPECULATION_MARGIN 0.1

// --- look-ahead (speculator/score_pace.h)

// Returns the number of look-ahead steps that need an extra row. The first step needs none: the prompt's last row
// yields its token.
static double later_steps(const struct sched_request *r)
{
    return r->spec->prefill.look_ahead - 1;
}

static double step_us(const struct cost_model *cost, const struct sched_request *r)
{
    return cost_pass_us(cost, 1, 1, r->spec->n_tokens + later_steps(r) / 2);
}

// Returns the time of a prompt's look-ahead on a node that has `rows` prompt rows to read. The prompt itself is read in
// the first pass of these rows. The node reads the other rows during the look-ahead. Look-ahead passes get only a share
// of the time (LOOK_AHEAD_SHARE). Further steps run as rows of the passes that read prompts.
static double look_ahead_us(const struct sched_node *node, const struct cost_model *cost, const struct sched_request *r,
                            double rows)
{
    double steps = later_steps(r), alone_us = step_us(cost, r), budget = node->limits.token_budget;
    if (rows <= budget || alone_us <= 0) return steps * alone_us;
    rows = fmin(rows - budget, budget);
    double reading_us = cost_pass_us(cost, 1, rows, cost_pairs(rows, 0));
    double alone = LOOK_AHEAD_SHARE * reading_us / alone_us; // look-ahead passes per pass that reads prompts
    double saved = fmin(LOOK_AHEAD_SAVED_PASSES * alone, steps), riding = ceil((steps - saved) / (1 + alone));
    return riding * reading_us + (steps - riding) * alone_us;
}

// Returns the time that the look-ahead of other prompts takes on the node. The node reads these prompts in `passes`
// passes, which take `reading_us` in all.
static double look_ahead_of_others_us(const struct cost_model *cost, const struct sched_request *r, double passes,
                                      double reading_us)
{
    return fmin(passes * later_steps(r) * step_us(cost, r), LOOK_AHEAD_SHARE * reading_us);
}

// --- one request in one pool

// Limits of the number of nodes that an estimate examines. In a small pool, the sample is every node that takes work.
// In a large pool, it is every n-th node (SAMPLE_MAX). The estimate also examines the nodes that are likely to finish
// the request first: the nodes with the least work (FIRST_MAX), and the nodes whose caches have the request's prefix
// (SHARING_MAX). If none of these can hold the request, it examines nodes that can (HOLDING_MAX).
enum { SAMPLE_MAX = 64, FIRST_MAX = 8, SHARING_MAX = 8, HOLDING_MAX = 8 };

struct subject {
    const struct sched_view *view;
    enum node_role role;
    const struct sched_request *r;
    const struct cost_model *likely; // assumed cost of nodes with unknown costs; NULL: no node's costs are known
    const struct sched_node *nodes[SAMPLE_MAX + FIRST_MAX + SHARING_MAX + HOLDING_MAX];
    int n_sample, n_nodes;
    double stands_for; // number of nodes that each node of the sample represents
};

static void nodes_add(struct subject *s, const struct sched_node *const *nodes, int n)
{
    for (int i = 0; i < n; i++)
        if (!nodes[i]->draining) s->nodes[s->n_nodes++] = nodes[i];
}

static void nodes_sample(struct subject *s, const struct node_index *pool)
{
    int n = pool->n_nodes < SAMPLE_MAX ? pool->n_nodes : SAMPLE_MAX;
    for (int i = n; i--;) {
        const struct sched_node *node = pool->nodes[(int64_t)i * pool->n_nodes / n];
        nodes_add(s, &node, 1);
    }
    s->n_sample = s->n_nodes;
    s->stands_for = n ? (double)pool->n_nodes / n : 1;
}

static void nodes_add_likely(struct subject *s, struct node_index *pool)
{
    const struct sched_node *first[FIRST_MAX];
    struct prefix_hit hits[SHARING_MAX];
    nodes_add(s, first, node_index_first(pool, s->view, first, FIRST_MAX));
    int n = prefix_index_lookup(s->view->prefixes[s->role], s->r->prefix, s->r->n_prefix, hits, SHARING_MAX);
    for (int i = 0; i < n; i++)
        nodes_add(s, (const struct sched_node *const *)&hits[i].node, 1);
}

static void nodes_add_holding(struct subject *s, const struct node_index *pool)
{
    for (int i = 0; i < s->n_nodes; i++)
        if (sched_node_can_hold(s->nodes[i], s->r)) return;
    int most = s->n_nodes + HOLDING_MAX;
    for (int i = 0; i < pool->n_nodes && s->n_nodes < most; i++) {
        const struct sched_node *node = pool->nodes[i];
        if (sched_node_can_hold(node, s->r)) nodes_add(s, &node, 1);
    }
}

static bool is_known(const struct subject *s, const struct sched_node *node)
{
    if (node_time_is_known(s->view, node, sched_request_rows(s->r))) return true;
    return node->prefixes && node_time_is_known(s->view, node, sched_request_rows_on(s->r, node));
}

static const struct cost_model *cost_of(const struct subject *s, const struct sched_node *node)
{
    return is_known(s, node) ? &node->cost : s->likely;
}

// Returns the time of `rows` rows that the node computes before the request. On a speculator, this includes the
// look-ahead of the prompts with these rows.
static double others_us(const struct subject *s, const struct sched_node *node, const struct cost_model *cost,
                        double rows, double pairs)
{
    double us = node_time_work_us(node, cost, rows, pairs);
    if (s->role == NODE_WORKER) return us;
    return us + look_ahead_of_others_us(cost, s->r, ceil(rows / node->limits.token_budget), us);
}

// Returns the time for which the node is busy before a request of `rows` further rows. A long prompt on the node gets
// half of each pass, and also the rows that short prompts leave free.
static double busy_before_us(const struct subject *s, const struct sched_node *node, const struct cost_model *cost,
                             double rows)
{
    const struct node_account *account = &node->account;
    double short_rows = (double)(account->bin_tokens - account->long_tokens);
    double short_pairs = account->bin_attention_pairs - account->long_attention_pairs;
    double long_us = node_time_work_us(node, cost, (double)account->long_tokens, account->long_attention_pairs);
    if (rows <= (double)sched_node_pass_rows(node)) {
        double full_us = node_time_work_us(node, cost, node->limits.token_budget, 0);
        long_us = fmin(long_us, fmax(full_us, node_time_work_us(node, cost, short_rows + rows, short_pairs)));
    }
    return others_us(s, node, cost, short_rows, short_pairs) + long_us;
}

static double busy_us(const struct subject *s, const struct sched_node *node, const struct cost_model *cost)
{
    return busy_before_us(s, node, cost, sched_request_rows_on(s->r, node));
}

// Returns the time that the node spends on the request itself. A speculator reads other prompts during the look-ahead.
// Their rows are assumed to equal the rows that wait or are on the node now.
static double own_us(const struct subject *s, const struct sched_node *node, const struct cost_model *cost)
{
    int rows = sched_request_rows_on(s->r, node), cached = sched_request_rows(s->r) - rows;
    double us = node_time_work_us(node, cost, rows, cost_pairs(rows, cached));
    if (s->role == NODE_WORKER) return us + node_time_fill_us(node, cost, rows, cached);
    double waiting = s->view->computed_share[s->role] * (double)s->view->waiting[s->role].rows;
    us += look_ahead_us(node, cost, s->r, waiting + (double)node->account.bin_tokens);
    return us + s->r->frozen.further_scores * (1 + later_steps(s->r)) * step_us(cost, s->r);
}

// A copy of a request with an assumed number of kept tokens. Only nodes with enough KV blocks for these tokens can hold
// the request.
struct kept_request {
    struct request_usage usage;
    struct sched_request sched;
};

static const struct sched_request *request_keep(struct kept_request *kept, const struct sched_request *r, int tokens)
{
    *kept = (struct kept_request){*r->usage, *r};
    kept->usage.kept_tokens = tokens;
    kept->sched.usage = &kept->usage;
    return &kept->sched;
}

static struct subject subject_make(const struct sched_view *view, enum node_role role, const struct sched_request *r)
{
    struct subject s = {.view = view, .role = role, .r = r};
    struct node_index *pool = &view->pools[role];
    double least_us = INFINITY, rows = sched_request_rows(r);
    nodes_sample(&s, pool);
    if (pool->n_nodes > SAMPLE_MAX) {
        nodes_add_likely(&s, pool);
        nodes_add_holding(&s, pool);
    }
    pool->estimate_visits += (uint64_t)s.n_nodes;
    for (int i = 0; i < s.n_nodes; i++) {
        const struct sched_node *node = s.nodes[i];
        double us = cost_pass_us(&node->cost, ceil(rows / node->limits.token_budget), rows, cost_pairs(rows, 0));
        if (us >= least_us || !is_known(&s, node)) continue;
        least_us = us;
        s.likely = &node->cost;
    }
    return s;
}

static double least_own_us(const struct subject *s) // INFINITY: no node can hold the request, or no costs are known
{
    double least_us = INFINITY;
    for (int i = 0; i < s->n_nodes && s->likely; i++) {
        const struct sched_node *node = s->nodes[i];
        if (sched_node_can_hold(node, s->r)) least_us = fmin(least_us, own_us(s, node, cost_of(s, node)));
    }
    return least_us;
}

static double full_bin_us(const struct subject *s) // time of a full bin on the slowest node
{
    double longest_us = 0;
    for (int i = 0; i < s->n_sample; i++) {
        const struct sched_node *node = s->nodes[i];
        double rows = node->limits.token_budget;
        longest_us = fmax(longest_us, node_time_work_us(node, cost_of(s, node), rows, cost_pairs(rows, 0)));
    }
    return longest_us;
}

// Returns when the request will have waited max_wait in both waiting sets together. Time on a speculator does not
// count.
static int64_t max_wait_end_us(const struct sched_view *view, const struct sched_request *r, int64_t now_us)
{
    if (r->spec->background) return now_us + BACKGROUND_WAIT_US;
    int64_t left_us = view->options.max_wait_us - r->timing->queue_us - r->timing->pack_wait_us;
    return left_us > 0 ? now_us + left_us : now_us;
}

// Returns the latest time of dispatch for a request that takes `own_us` from dispatch to first token.
static int64_t latest_us(const struct subject *s, double own_us, int64_t now_us)
{
    const struct sched_request *r = s->r;
    int64_t deadline_us = r->spec->ttft_deadline_us, waited_us = max_wait_end_us(s->view, r, now_us);
    if (deadline_us == INT64_MAX || r->usage->completion_tokens) return waited_us;
    int64_t left_us = deadline_us - now_us,
            due_us = now_us + left_us / 2; // while own_us is unknown, half of the time is left for it
    if (isfinite(own_us)) {
        if (own_us > (double)left_us) return waited_us; // the request will be late anyway, so it gets no precedence
        // fmin: a node with false reports may make full_bin_us() larger than any time.
        due_us = deadline_us - (int64_t)fmin(own_us + full_bin_us(s), (double)deadline_us);
    }
    return due_us < waited_us ? due_us : waited_us;
}

// Returns the expected number of kept tokens of a prompt that is not scored yet. In a conversation, this includes the
// rows of earlier turns, later answers and the tokens that further selections add. Ignores overlaps of pinned ranges,
// tail window and chosen chunks.
static int kept_tokens_expected(const struct sched_view *view, const struct sched_request *r)
{
    const struct request_spec *spec = r->spec;
    const struct frozen_rows *frozen = &r->frozen;
    const struct prefill *p = &spec->prefill;
    double rate = p->quality > 0 ? rate_mean_get(&view->quality_rate, view->now_us) : p->keep_rate;
    if (rate < p->min_keep_rate) rate = p->min_keep_rate;
    int tokens = prefill_chunk_tokens(p), chunk = tokens > 0 ? tokens : 1; // 1: spans have any length
    int n = frozen->selected_of ? frozen->selected_of : spec->n_tokens;
    int64_t kept = (int64_t)chunk * prefill_keep_budget((n - 1) / chunk + 1, rate);
    if (!p->paper_exact) {
        kept += prefill_tail_tokens(view->options.tail_tokens, spec->n_tokens);
        for (int k = 0; k < spec->n_pinned; k++)
            if (spec->pinned[k].first >= frozen->end) kept += spec->pinned[k].last - spec->pinned[k].first + 1;
    }
    kept = (kept < n ? kept : n) + frozen->rows + frozen->answers;
    return kept < spec->n_tokens ? (int)kept : spec->n_tokens;
}

// --- the work in front of a pool

static struct cost_work work_sum(struct cost_work a, struct cost_work b)
{
    return (struct cost_work){a.rows + b.rows, a.pairs + b.pairs};
}

static struct cost_work work_min(struct cost_work a, struct cost_work b)
{
    return a.rows < b.rows ? a : b;
}

// Returns the waiting work that is dispatched before a request with this due time.
static struct cost_work work_ahead(const struct subject *s, int64_t due_us, int64_t now_us)
{
    const struct waiting_set *set = &s->view->waiting[s->role];
    bool ordered = s->view->options.policy == BIN_DATASET; // false: first come, first served
    double computed = s->view->computed_share[s->role];
    struct cost_work ahead = {0, 0};
    for (int level = ordered ? sched_priority_level(s->r->spec->priority) : 0; level < PRIORITY_LEVELS; level++)
        ahead = work_sum(ahead, set->level_work[level]);
    if (ordered) {
        // If a bin does not hold all overdue requests, they leave half of it to other requests, by priority.
        struct cost_work sooner = work_sum(set->overdue_work, waiting_set_due_between(set, now_us, due_us));
        ahead = work_min(work_sum(ahead, work_min(set->overdue_work, ahead)), sooner);
    }
    return (struct cost_work){computed * ahead.rows, computed * ahead.pairs};
}

static struct cost_work waiting_work(const struct sched_view *view, enum node_role role)
{
    const struct waiting_set *set = &view->waiting[role];
    double computed = view->computed_share[role];
    struct cost_work waiting = set->overdue_work;
    for (int level = 0; level < PRIORITY_LEVELS; level++)
        waiting = work_sum(waiting, set->level_work[level]);
    return (struct cost_work){computed * waiting.rows, computed * waiting.pairs};
}

// Estimates the time of the work from the nodes whose costs are known, and divides the work among all nodes.
struct pool_estimate estimate_pool(const struct sched_view *view, enum node_role role)
{
    struct cost_work waiting = waiting_work(view, role);
    double rows = fmax(1, waiting.rows), queue = waiting.rows > 0 ? 1 : 0, held = 0, rate = 0;
    int nodes = 0, known = 0;
    for (int i = view->pools[role].n_nodes; i--;) {
        const struct sched_node *node = view->pools[role].nodes[i];
        nodes += !node->draining;
        if (node->draining || !node_time_is_known(view, node, 1)) continue;
        const struct node_account *account = &node->account;
        double all_us = node_time_work_us(node, &node->cost, rows, waiting.pairs);
        held +=
            node_time_work_us(node, &node->cost, (double)account->bin_tokens, account->bin_attention_pairs) / all_us;
        rate += 1 / all_us;
        known++;
    }
    if (!known) return (struct pool_estimate){INFINITY, INFINITY};
    double unit_us = known / rate / nodes;
    return (struct pool_estimate){queue * unit_us, (queue + held) * unit_us};
}

// Returns the time until all work ahead is dispatched. Nodes get work as they become free, so they all finish it at the
// same time. A node that is busy beyond that time gets no work. Each round of the loop leaves out such nodes, until the
// time no longer changes.
static double dispatched_us(const struct subject *s, struct cost_work ahead)
{
    if (ahead.rows <= 0) return 0;
    for (double level_us = INFINITY;;) {
        // Both are multiples of `ahead`. rate: work that the nodes do per microsecond. work: `ahead`, plus the work
        // that the nodes could do in the time for which they are still busy.
        double work = 1, rate = 0;
        for (int i = 0; i < s->n_sample; i++) {
            const struct sched_node *node = s->nodes[i];
            const struct cost_model *cost = cost_of(s, node);
            double busy = busy_us(s, node, cost), all_us = others_us(s, node, cost, ahead.rows, ahead.pairs);
            if (busy >= level_us) continue;
            work += s->stands_for * busy / all_us;
            rate += s->stands_for / all_us;
        }
        if (work / rate >= level_us) return level_us;
        level_us = work / rate;
    }
}

// Estimates the request's time in this pool, on the node that finishes it first. `after_us` is the time that the
// request needs after this pool. The times are INFINITY if they are unknown.
static struct estimate pool_estimate(const struct subject *s, double after_us, int64_t now_us)
{
    struct estimate best = {INFINITY, INFINITY};
    double least_us = least_own_us(s) + after_us;
    if (!isfinite(least_us)) return best;
    double level_us = dispatched_us(s, work_ahead(s, latest_us(s, least_us, now_us), now_us));
    for (int i = 0; i < s->n_nodes; i++) {
        const struct sched_node *node = s->nodes[i];
        if (!sched_node_can_hold(node, s->r)) continue;
        const struct cost_model *cost = cost_of(s, node);
        struct estimate here = {fmax(level_us, busy_us(s, node, cost)), own_us(s, node, cost)};
        if (here.wait_us + here.own_us < best.wait_us + best.own_us) best = here;
    }
    return best;
}

// Prepares the estimate for the worker groups' part of a request that a speculator scores first. In a conversation,
// prefix caches may have the rows of earlier turns.
static struct subject subject_scored(const struct sched_view *view, const struct sched_request *r,
                                     struct kept_request *kept)
{
    request_keep(kept, r, kept_tokens_expected(view, r));
    kept->sched.prefix = r->frozen.prefix;
    kept->sched.n_prefix = r->frozen.n_prefix;
    return subject_make(view, NODE_WORKER, &kept->sched);
}

// Estimates the time to first token if a speculator scores the request first. While the speculator scores, worker
// groups compute the work that waits for them now.
static struct estimate speculated_estimate(const struct sched_view *view, const struct sched_request *r, int64_t now_us)
{
    struct kept_request kept;
    struct subject worker = subject_scored(view, r, &kept), speculator = subject_make(view, NODE_SPECULATOR, r);
    struct estimate prefill = pool_estimate(&worker, 0, now_us);
    struct estimate score = pool_estimate(&speculator, prefill.own_us, now_us);
    bool in_time = score.wait_us <= (double)view->options.score_timeout_us;
    if (!isfinite(score.own_us) || !in_time) return (struct estimate){INFINITY, INFINITY};
    double ready_us = score.wait_us + score.own_us;
    return (struct estimate){fmax(ready_us, prefill.wait_us) - score.own_us, score.own_us + prefill.own_us};
}

bool estimate_first_token(const struct sched_view *view, const struct sched_request *r, bool speculated, int64_t now_us,
                          struct estimate *estimate_p)
{
    if (speculated) {
        *estimate_p = speculated_estimate(view, r, now_us);
    } else {
        struct kept_request kept;
        int tokens = r->usage->kept_tokens ? r->usage->kept_tokens : r->spec->n_tokens;
        struct subject worker = subject_make(view, NODE_WORKER, request_keep(&kept, r, tokens));
        *estimate_p = pool_estimate(&worker, 0, now_us);
    }
    return isfinite(estimate_p->own_us);
}

double estimate_score_us(const struct sched_view *view, const struct sched_node *node, const struct sched_request *r)
{
    struct subject s = {.view = view, .role = NODE_SPECULATOR, .r = r, .likely = &node->cost};
    if (!is_known(&s, node)) return INFINITY;
    // The node's account already includes the request's own rows, so no further rows count here.
    double rows = sched_request_rows(r) > sched_node_pass_rows(node) ? INFINITY : 0;
    return busy_before_us(&s, node, &node->cost, rows) +
           look_ahead_us(node, &node->cost, r, (double)node->account.bin_tokens);
}

static bool nothing_is_scored(const struct sched_view *view)
{
    const struct node_index *pool = &view->pools[NODE_SPECULATOR];
    int n = waiting_set_count(&view->waiting[NODE_SPECULATOR]);
    for (int i = 0; i < pool->n_nodes && !n; i++)
        n = pool->nodes[i]->account.requests.count;
    return n == 0;
}

static bool can_be_kept_whole(const struct sched_view *view, const struct sched_request *r)
{
    struct kept_request kept;
    return sched_pool_can_hold(view, NODE_WORKER, request_keep(&kept, r, r->spec->n_tokens));
}

// Unknown costs become known either way. A scored prompt shows the costs of speculators, one prompt at a time. A prompt
// kept whole shows the costs of worker groups.
bool estimate_speculation_pays(const struct sched_view *view, const struct sched_request *r, int64_t now_us,
                               struct prefill_prediction *predicted_p)
{
    struct estimate whole, pruned;
    *predicted_p = (struct prefill_prediction){0, 0};
    struct subject speculator = subject_make(view, NODE_SPECULATOR, r);
    if (!speculator.likely) return nothing_is_scored(view);
    if (!can_be_kept_whole(view, r)) return true;
    if (!estimate_first_token(view, r, false, now_us, &whole)) return false;
    if (!estimate_first_token(view, r, true, now_us, &pruned)) return false;
    *predicted_p = (struct prefill_prediction){whole.wait_us + whole.own_us, pruned.wait_us + pruned.own_us};
    return predicted_p->pruned_us + SPECULATION_MARGIN * whole.own_us <= predicted_p->whole_us;
}

int64_t estimate_due_us(const struct sched_view *view, enum node_role role, const struct sched_request *r,
                        int64_t now_us)
{
    if (r->spec->ttft_deadline_us == INT64_MAX) return max_wait_end_us(view, r, now_us); // the usual case
    struct subject s = subject_make(view, role, r);
    double us = least_own_us(&s);
    if (role == NODE_SPECULATOR && !r->spec->score_only) {
        struct kept_request kept;
        struct subject worker = subject_scored(view, r, &kept);
        us += least_own_us(&worker);
    }
    return latest_us(&s, us, now_us);
}
