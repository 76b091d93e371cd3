// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_estimate.h"

#include <float.h>
#include <math.h>

#include "lib/text/generation.h"
#include "router/sched/estimate.h"
#include "router/sched/node_time.h"
#include "sim/oracle_waiting.h"

enum { NODES_MAX = 64 }; // the router looks at a sample of larger pools

// A request that waits for a pool.
struct question {
    const struct core *c;
    const struct sched_request *r;
    enum node_role role;
    const struct cost_model *cheapest; // among the nodes with known costs; NULL: none
};

struct answer {
    double wait_us, own_us;
};
static const struct answer unknown = {INFINITY, INFINITY};

// --- a node

// Returns the decode rows of each pass. Every stage of a pipeline has a pass with its part of the sequences.
static double decodes_of(const struct sched_node *node)
{
    return (double)(node->account.requests.count - node->account.requests_in_bins) / (node->limits.fill_passes + 1);
}

static double pass_time(const struct cost_model *m, double passes, double rows, double pairs)
{
    return passes * m->fixed_us + rows * m->row_us + pairs * m->pair_us;
}

// Returns the time to compute prompt rows. A pass with decodes also has the rows of its share of the node's decodes,
// and prompts get only a part of its time.
static double work_time(const struct sched_node *node, const struct cost_model *m, double rows, double pairs)
{
    if (rows <= 0) return 0;
    double passes = ceil(rows / node->limits.token_budget), decodes = decodes_of(node), us = 1;
    if (decodes <= 0) return fmax(us, pass_time(m, passes, rows, pairs));
    double entries = (double)node->account.context_blocks * node->limits.block_tokens / node->account.requests.count;
    us = fmax(us, pass_time(m, 0, rows, pairs) / cost_share_of(&node->share));
    return fmax(us, pass_time(m, passes, rows + passes * decodes, pairs + passes * decodes * entries));
}

static double pairs_of(double rows, double cached)
{
    return rows * cached + rows * (rows + 1) / 2;
}

static bool knows(const struct core *c, const struct sched_node *node, int64_t rows)
{
    int64_t budget = node->limits.token_budget;
    return cost_knows(&node->cost, rows < budget ? rows : budget, c->view.now_us);
}

static int rows_on(const struct question *q, const struct sched_node *node)
{
    return sched_request_rows_on(q->r, node);
}

static bool is_known(const struct question *q, const struct sched_node *node)
{
    return knows(q->c, node, sched_request_rows(q->r)) || (node->prefixes && knows(q->c, node, rows_on(q, node)));
}

static const struct cost_model *costs_of(const struct question *q, const struct sched_node *node)
{
    return is_known(q, node) ? &node->cost : q->cheapest;
}

// --- look-ahead

static double step_time(const struct question *q, const struct cost_model *m)
{
    double later = q->r->spec->prefill.look_ahead - 1;
    return pass_time(m, 1, 1, q->r->spec->n_tokens + later / 2);
}

// Returns the time of the prompt's look-ahead, while the node has `rows` prompt rows to read. The node reads one pass
// of these rows with the prompt, and the rest during the look-ahead. Look-ahead passes get a share of the time. Further
// steps run as extra rows of passes that read other prompts.
static double look_ahead_time(const struct question *q, const struct sched_node *node, const struct cost_model *m,
                              double rows)
{
    double steps = q->r->spec->prefill.look_ahead - 1, step = step_time(q, m), budget = node->limits.token_budget;
    double beside = fmin(rows - budget, budget);
    if (beside <= 0 || step <= 0) return steps * step;
    double reading = pass_time(m, 1, beside, pairs_of(beside, 0)), per_pass = LOOK_AHEAD_SHARE * reading / step;
    double saved = fmin(LOOK_AHEAD_SAVED_PASSES * per_pass, steps), in_passes = ceil((steps - saved) / (1 + per_pass));
    return in_passes * reading + (steps - in_passes) * step;
}

static double others_time(const struct question *q, const struct sched_node *node, const struct cost_model *m,
                          double rows, double pairs)
{
    double us = work_time(node, m, rows, pairs), passes = ceil(rows / node->limits.token_budget);
    if (q->role == NODE_WORKER) return us;
    double steps = passes * (q->r->spec->prefill.look_ahead - 1);
    return us + fmin(steps * step_time(q, m), LOOK_AHEAD_SHARE * us);
}

// --- a request on a node

// Returns the time of the work on the node. Long prompts share passes with short ones. So a short prompt waits for long
// prompts no longer than a full pass takes or, if that is longer, than all short prompts and itself take.
static double busy_time(const struct question *q, const struct sched_node *node, const struct cost_model *m,
                        double rows)
{
    const struct node_account *a = &node->account;
    double short_rows = (double)(a->bin_tokens - a->long_tokens),
           short_pairs = a->bin_attention_pairs - a->long_attention_pairs;
    double of_long = work_time(node, m, (double)a->long_tokens, a->long_attention_pairs);
    double beside =
        fmax(work_time(node, m, node->limits.token_budget, 0), work_time(node, m, short_rows + rows, short_pairs));
    bool is_long = rows > (double)sched_node_pass_rows(node);
    return others_time(q, node, m, short_rows, short_pairs) + (is_long ? of_long : fmin(of_long, beside));
}

static double own_time(const struct question *q, const struct sched_node *node, const struct cost_model *m)
{
    int rows = rows_on(q, node), cached = sched_request_rows(q->r) - rows;
    double us = work_time(node, m, rows, pairs_of(rows, cached));
    if (q->role == NODE_WORKER) {
        // The last pass still goes through the other stages.
        int full = rows > 0 ? (rows - 1) / node->limits.token_budget * node->limits.token_budget : 0,
            last = rows - full;
        return us + node->limits.fill_passes * work_time(node, m, last, pairs_of(last, cached + full));
    }
    double waiting = (double)q->c->waiting[q->role].rows * q->c->view.computed_share[q->role];
    us += look_ahead_time(q, node, m, waiting + (double)node->account.bin_tokens);
    return us + q->r->frozen.further_scores * q->r->spec->prefill.look_ahead * step_time(q, m);
}

// --- a request in front of a pool

// Visits the nodes that take work, the last attached first. The order matters if costs are equal.
#define EACH_NODE(q, node)                                                                                             \
    for (int each_ = (q)->c->nodes[(q)->role].n_nodes; each_--;)                                                       \
        for (const struct sched_node *node = (q)->c->nodes[(q)->role].nodes[each_]; node && !node->draining;           \
             node = NULL)

static struct question ask(const struct core *c, enum node_role role, const struct sched_request *r)
{
    struct question q = {.c = c, .r = r, .role = role};
    double least = INFINITY, rows = sched_request_rows(r);
    EACH_NODE(&q, node)
    {
        double us = pass_time(&node->cost, ceil(rows / node->limits.token_budget), rows, pairs_of(rows, 0));
        if (us >= least || !is_known(&q, node)) continue;
        least = us;
        q.cheapest = &node->cost;
    }
    return q;
}

static double least_time(const struct question *q)
{
    double least = INFINITY;
    if (!q->cheapest) return least;
    EACH_NODE(q, node)
    if (sched_node_can_hold(node, q->r)) least = fmin(least, own_time(q, node, costs_of(q, node)));
    return least;
}

// Returns the time of dispatch at which the request has waited max_wait, or after which it would miss its deadline.
static int64_t due_at(const struct question *q, double own_us, int64_t now_us)
{
    const struct request_timing *t = q->r->timing;
    int64_t left_us = q->c->view.options.max_wait_us - (t->queue_us + t->pack_wait_us);
    int64_t waited_us = now_us + (left_us > 0 ? left_us : 0), deadline_us = q->r->spec->ttft_deadline_us;
    if (deadline_us == INT64_MAX || q->r->usage->completion_tokens) return waited_us;
    int64_t due_us = now_us + (deadline_us - now_us) / 2;
    if (isfinite(own_us)) {
        double full_us = 0;
        EACH_NODE(q, node)
        {
            double budget = node->limits.token_budget;
            full_us = fmax(full_us, work_time(node, costs_of(q, node), budget, pairs_of(budget, 0)));
        }
        if (own_us > (double)(deadline_us - now_us)) return waited_us;
        // With a node's false reports, full_us can be too large for int64_t.
        due_us = deadline_us - (int64_t)fmin(own_us + full_us, (double)deadline_us);
    }
    return due_us < waited_us ? due_us : waited_us;
}

// Returns the waiting work that goes first. With the policy `dataset`, this is the smaller of two amounts: the work of
// the same and higher priorities plus overdue work of at most as many rows, or the work that is overdue or due before
// `due_us`. With other policies, all waiting work goes first.
static struct cost_work ahead_of(const struct question *q, int64_t due_us, int64_t now_us)
{
    const struct waiting_set *set = &q->c->waiting[q->role];
    bool by_priority = q->c->options.policy == BIN_DATASET;
    double rows = 0, pairs = 0, share = q->c->view.computed_share[q->role];
    for (int level = 0; level < PRIORITY_LEVELS; level++) {
        if (by_priority && level < sched_priority_level(q->r->spec->priority)) continue;
        rows += set->level_work[level].rows;
        pairs += set->level_work[level].pairs;
    }
    if (by_priority) {
        struct cost_work due = waiting_set_due_between(set, now_us, due_us), overdue = set->overdue_work;
        bool overdue_is_less = overdue.rows < rows;
        double all_due = overdue.rows + due.rows, all_pairs = overdue.pairs + due.pairs;
        pairs += overdue_is_less ? overdue.pairs : pairs;
        rows += overdue_is_less ? overdue.rows : rows;
        if (rows >= all_due) rows = all_due, pairs = all_pairs;
    }
    return (struct cost_work){share * rows, share * pairs};
}

// Returns the time from now until the work ahead is dispatched. This work fills the nodes evenly, like water in vessels
// of different depth.
static double level_of(const struct question *q, struct cost_work ahead)
{
    double level = INFINITY, next = DBL_MAX;
    if (ahead.rows <= 0) return 0;
    while (next < level) {
        level = next;
        double work = 1, rate = 0;
        EACH_NODE(q, node)
        {
            const struct cost_model *m = costs_of(q, node);
            double busy = busy_time(q, node, m, rows_on(q, node)),
                   all = others_time(q, node, m, ahead.rows, ahead.pairs);
            work += busy < level ? busy / all : 0;
            rate += busy < level ? 1 / all : 0;
        }
        next = work / rate;
    }
    return level;
}

static struct answer answer_of(const struct question *q, double after_us, int64_t now_us)
{
    struct answer best = unknown;
    double least_us = least_time(q);
    if (!isfinite(least_us + after_us)) return best;
    double level = level_of(q, ahead_of(q, due_at(q, least_us + after_us, now_us), now_us));
    EACH_NODE(q, node)
    {
        const struct cost_model *m = costs_of(q, node);
        if (!sched_node_can_hold(node, q->r)) continue;
        double wait_us = fmax(level, busy_time(q, node, m, rows_on(q, node))), own_us = own_time(q, node, m);
        if (wait_us + own_us < best.wait_us + best.own_us) best = (struct answer){wait_us, own_us};
    }
    return best;
}

// --- the questions that the router asks

// A copy of a request that keeps an assumed number of tokens.
struct kept {
    struct request_usage usage;
    struct sched_request r;
};

static const struct sched_request *keep(struct kept *kept, const struct sched_request *r, int tokens)
{
    kept->usage = *r->usage;
    kept->usage.kept_tokens = tokens;
    kept->r = *r;
    kept->r.usage = &kept->usage;
    return &kept->r;
}

// Returns the expected number of kept tokens: the budget of chunks or spans, the tail and the pinned ranges. A
// conversation adds the rows of earlier turns and of answers.
static int expected_tokens(const struct core *c, const struct sched_request *r)
{
    const struct request_spec *spec = r->spec;
    const struct prefill *p = &spec->prefill;
    double mean = p->quality > 0 ? rate_mean_get(&c->view.quality_rate, c->view.now_us) : p->keep_rate;
    double rate = fmax(mean, p->min_keep_rate);
    int chunk = prefill_chunk_tokens(p) > 0 ? prefill_chunk_tokens(p) : 1;
    int n = r->frozen.selected_of > 0 ? r->frozen.selected_of : spec->n_tokens;
    int64_t sum = (int64_t)prefill_keep_budget((n + chunk - 1) / chunk, rate) * chunk;
    for (int k = 0; k < spec->n_pinned && !p->paper_exact; k++)
        if (spec->pinned[k].first >= r->frozen.end) sum += 1 + spec->pinned[k].last - spec->pinned[k].first;
    if (!p->paper_exact) sum += prefill_tail_tokens(c->view.options.tail_tokens, spec->n_tokens);
    if (sum > n) sum = n;
    sum += r->frozen.rows + r->frozen.answers;
    return sum < spec->n_tokens ? (int)sum : spec->n_tokens;
}

// Makes a copy of the request as if it were scored. Caches may hold the rows of earlier turns.
static const struct sched_request *keep_expected(struct kept *kept, const struct core *c, const struct sched_request *r)
{
    keep(kept, r, expected_tokens(c, r));
    kept->r.prefix = r->frozen.prefix;
    kept->r.n_prefix = r->frozen.n_prefix;
    return &kept->r;
}

static struct answer answer_whole(const struct core *c, const struct sched_request *r, int64_t now_us)
{
    struct kept kept;
    int tokens = r->usage->kept_tokens ? r->usage->kept_tokens : r->spec->n_tokens;
    const struct question q = ask(c, NODE_WORKER, keep(&kept, r, tokens));
    return answer_of(&q, 0, now_us);
}

static struct answer answer_pruned(const struct core *c, const struct sched_request *r, int64_t now_us)
{
    struct kept kept;
    const struct question to_score = ask(c, NODE_SPECULATOR, r),
                          to_prefill = ask(c, NODE_WORKER, keep_expected(&kept, c, r));
    struct answer prefill = answer_of(&to_prefill, 0, now_us), score = answer_of(&to_score, prefill.own_us, now_us);
    if (!isfinite(score.own_us) || score.wait_us > (double)c->view.options.score_timeout_us) return unknown;
    double scored_us = score.wait_us + score.own_us;
    return (struct answer){fmax(scored_us, prefill.wait_us) - score.own_us, score.own_us + prefill.own_us};
}

static bool is_near(double a, double b)
{
    return a == b || fabs(a - b) <= 1e-6 * fmax(fabs(a), fabs(b));
}

static void check_first_token(struct world *w, const struct core *c, const struct sched_request *r, bool speculated,
                              struct answer mine)
{
    struct estimate theirs = {0, 0};
    bool is_known_to_them = estimate_first_token(&c->view, r, speculated, w->now_us, &theirs);
    HOLDS(is_known_to_them == isfinite(mine.own_us));
    if (is_known_to_them) HOLDS(is_near(theirs.wait_us, mine.wait_us) && is_near(theirs.own_us, mine.own_us));
}

static bool is_scored_alone(const struct core *c)
{
    int n = waiting_set_count(&c->waiting[NODE_SPECULATOR]);
    for (int i = 0; i < c->nodes[NODE_SPECULATOR].n_nodes; i++)
        n += c->nodes[NODE_SPECULATOR].nodes[i]->account.requests.count;
    return n == 0;
}

// Checks if speculation pays: the pruned prompt's first token has to come sooner by at least a tenth of the time that
// the whole prompt takes without waiting.
static void check_pays(struct world *w, const struct core *c, const struct sched_request *r, struct answer whole,
                       struct answer pruned)
{
    struct kept kept;
    double whole_us = whole.wait_us + whole.own_us, pruned_us = pruned.wait_us + pruned.own_us + whole.own_us / 10;
    bool pays = isfinite(whole_us) && isfinite(pruned_us) && pruned_us <= whole_us;
    if (isfinite(whole_us) && is_near(pruned_us, whole_us)) return;
    if (!sched_pool_can_hold(&c->view, NODE_WORKER, keep(&kept, r, r->spec->n_tokens))) pays = true;
    if (!ask(c, NODE_SPECULATOR, r).cheapest) pays = is_scored_alone(c);
    struct prefill_prediction theirs;
    HOLDS(estimate_speculation_pays(&c->view, r, w->now_us, &theirs) == pays);
    if (theirs.whole_us > 0) {
        HOLDS(is_near(theirs.whole_us, whole_us));
        HOLDS(is_near(theirs.pruned_us, pruned.wait_us + pruned.own_us));
    }
}

static void check_due(struct world *w, const struct core *c, enum node_role role, const struct sched_request *r)
{
    struct kept kept;
    const struct question q = ask(c, role, r);
    double us = least_time(&q);
    if (role == NODE_SPECULATOR && !r->spec->score_only) {
        const struct question to_prefill = ask(c, NODE_WORKER, keep_expected(&kept, c, r));
        us += least_time(&to_prefill);
    }
    int64_t apart = estimate_due_us(&c->view, role, r, w->now_us) - due_at(&q, us, w->now_us);
    HOLDS(apart >= -1 && apart <= 1);
}

// Checks the estimated time of a score. The prompt's rows are already in a bin of the node.
static void check_score(struct world *w, const struct core *c, const struct sched_node *node,
                        const struct sched_request *r)
{
    const struct question q = {.c = c, .r = r, .role = NODE_SPECULATOR, .cheapest = &node->cost};
    bool is_long = sched_request_rows(r) > sched_node_pass_rows(node);
    double mine = is_known(&q, node) ? busy_time(&q, node, &node->cost, is_long ? INFINITY : 0) +
                                           look_ahead_time(&q, node, &node->cost, (double)node->account.bin_tokens)
                                     : INFINITY;
    HOLDS(is_near(estimate_score_us(&c->view, node, r), mine));
}

static bool is_small(const struct core *c)
{
    return c->nodes[NODE_SPECULATOR].n_nodes <= NODES_MAX && c->nodes[NODE_WORKER].n_nodes <= NODES_MAX;
}

void oracle_estimate(struct world *w, const struct core *c, const struct sched_request *r)
{
    if (!is_small(c)) return;
    struct answer whole = answer_whole(c, r, w->now_us), pruned = answer_pruned(c, r, w->now_us);
    check_first_token(w, c, r, false, whole);
    check_first_token(w, c, r, true, pruned);
    check_pays(w, c, r, whole, pruned);
    check_due(w, c, NODE_SPECULATOR, r);
    check_due(w, c, NODE_WORKER, r);
    for (int i = 0; i < c->nodes[NODE_SPECULATOR].n_nodes; i++)
        check_score(w, c, c->nodes[NODE_SPECULATOR].nodes[i], r);
}

// --- nodes and pools

// Returns the smallest bin worth sending: half the token budget, or the fewest rows that take over seven eighths of
// the time of their pass, if these are fewer.
static int64_t least_bin(const struct core *c, const struct sched_node *node)
{
    const struct cost_model *m = &node->cost;
    int64_t half = node->limits.token_budget - node->limits.token_budget / 2;
    if (!cost_knows(m, half, c->view.now_us) || 7 * m->fixed_us >= (double)half * m->row_us) return half;
    return (int64_t)floor(7 * m->fixed_us / m->row_us) + 1;
}

// Checks the estimate of a pool. Nodes that take work share the waiting work evenly; nodes with unknown costs are taken
// to be as fast as the average node with known costs.
static void check_pool(struct world *w, const struct core *c, enum node_role role)
{
    const struct waiting_set *set = &c->waiting[role];
    double rows = set->overdue_work.rows, pairs = set->overdue_work.pairs, share = c->view.computed_share[role];
    for (int level = 0; level < PRIORITY_LEVELS; level++)
        rows += set->level_work[level].rows, pairs += set->level_work[level].pairs;
    rows *= share, pairs *= share;
    double held = 0, rate = 0;
    int nodes = 0, known = 0;
    for (int i = c->nodes[role].n_nodes; i--;) {
        const struct sched_node *node = c->nodes[role].nodes[i];
        nodes += !node->draining;
        if (node->draining || !knows(c, node, 1)) continue;
        double all = work_time(node, &node->cost, rows > 1 ? rows : 1, pairs);
        held += work_time(node, &node->cost, (double)node->account.bin_tokens, node->account.bin_attention_pairs) / all;
        rate += 1 / all;
        known++;
    }
    struct pool_estimate theirs = estimate_pool(&c->view, role);
    double one_us = known ? known / rate / nodes : INFINITY, queue_us = rows > 0 ? one_us : 0;
    HOLDS(is_near(theirs.queue_us, known ? queue_us : INFINITY));
    HOLDS(is_near(theirs.work_us, known ? queue_us + held * one_us : INFINITY));
}

void oracle_estimate_nodes(struct world *w, const struct core *c)
{
    for (const struct sched_node *node = c->view.nodes; node; node = node->next)
        HOLDS(node_time_min_bin_rows(&c->view, node) == least_bin(c, node));
    check_pool(w, c, NODE_SPECULATOR);
    check_pool(w, c, NODE_WORKER);
}
