// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_preempt.h"

#include <math.h>
#include <string.h>

#include "router/core/requests.h"
#include "sim/client_state.h"
#include "sim/oracle_waiting.h"

// Limits of what is checked: requests that wait, priorities and tenants in the queue.
enum { WAITING_MAX = 200, QUEUES_MAX = 8 };
#define ROUNDING 1e-6

static bool watches;
static const char *problem;

void oracle_preempt_watch(bool watch)
{
    watches = watch;
}

const char *oracle_preempt_problem(void)
{
    const char *last = problem;
    problem = NULL;
    return last;
}

// --- what tenants hold

static double share_of(const struct sched_request *r, const struct core_node *node)
{
    int blocks = sched_request_kv_blocks(r, node->hello.block_tokens);
    return fmax(1.0 / node->sched.limits.max_seqs, (double)blocks / node->hello.kv_blocks);
}

// Returns the number of requests of the queue on the worker groups, and in *held_p what they hold.
static int count_held(const struct core *c, const struct tenant_queue *queue, double *held_p)
{
    int n = 0;
    *held_p = 0;
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        const struct sched_request *r = node->hello.role == NODE_WORKER ? node->sched.account.requests.first : NULL;
        for (; r; r = r->next) {
            if (r->tenant_queue != queue) continue;
            n++;
            *held_p += r->share;
        }
    }
    return n;
}

// --- what is allowed

static int sign_of(int32_t priority)
{
    return (priority > 0) - (priority < 0);
}

static const char *tenant_of(const struct sched_request *r)
{
    return r->spec->tenant ? r->spec->tenant : "";
}

static int new_tokens(const struct sched_request *r)
{
    const struct client *client = request_of((struct sched_request *)r)->sink.user;
    return r->usage->completion_tokens - client->placed_tokens;
}

// Returns true if the waiting request may take the place of the running one, on the running request's node.
static bool is_allowed(const struct core *c, const struct sched_request *waits, const struct sched_request *runs,
                       double rounding)
{
    const struct tenant_queue *to = waits->tenant_queue, *from = runs->tenant_queue;
    int32_t priority = priority_clamp(waits->spec->priority), other = priority_clamp(runs->spec->priority);
    double held, other_held, more = share_of(waits, request_of((struct sched_request *)runs)->account.node);
    int slots = count_held(c, to, &held);
    count_held(c, from, &other_held);
    if (sign_of(priority) > sign_of(other) && (!runs->was_overdue || new_tokens(runs) >= 16)) return true;
    if (priority < other || strcmp(tenant_of(waits), tenant_of(runs)) == 0) return false;
    bool is_under = (held + more) / to->weight <= (other_held - runs->share) / from->weight + rounding;
    bool is_next = priority != other || to->served <= from->served;
    return slots == 0 ? is_under || (is_next && new_tokens(runs) >= 16) : is_under && is_next;
}

// Returns the tokens that a request computes after a preemption until the next one: 16 at first, twice as many after
// each, and at least a sixteenth of its rows.
static int64_t tokens_between(const struct sched_request *r)
{
    int64_t tokens = 16, rows = r->usage->kept_tokens + r->usage->completion_tokens;
    for (int i = 1; i < r->usage->preemptions; i++)
        tokens *= 2;
    return tokens > rows / 16 ? tokens : rows / 16;
}

static bool is_due(const struct sched_request *r)
{
    return !r->runs_alone && r->tenant_queue && (r->usage->preemptions == 0 || new_tokens(r) >= tokens_between(r));
}

// Returns true if every waiting request that may take the place of `r` may also take that of `other`.
static bool is_allowed_as_well(const struct core *c, const struct sched_request *r, const struct sched_request *other)
{
    const struct waiting_set *set = &c->waiting[NODE_WORKER];
    const struct request_list *lists[] = {&set->overdue, &set->queue};
    for (int k = 0; k < 2; k++)
        for (const struct sched_request *waits = lists[k]->first; waits; waits = waits->next)
            if (is_allowed(c, waits, r, ROUNDING) && !is_allowed(c, waits, other, 0)) return false;
    return true;
}

// Checks that no request of a lower priority that frees as many blocks could have left instead.
static const char *check_order(const struct core *c, const struct sched_request *r)
{
    const struct sched_node *node = &request_of((struct sched_request *)r)->account.node->sched;
    if (node->prefixes) return NULL; // the blocks that a request frees then depend on the others
    for (const struct sched_request *other = node->account.requests.first; other; other = other->next) {
        if (!other->tenant_queue || other->tenant_queue->level >= r->tenant_queue->level) continue;
        if (other->own_blocks < r->own_blocks || !is_due(other)) continue;
        if (is_allowed_as_well(c, r, other)) return "a request was preempted before one of a lower priority";
    }
    return NULL;
}

static const char *check_preempted(const struct core *c, const struct sched_request *r)
{
    const struct waiting_set *set = &c->waiting[NODE_WORKER];
    const struct request_list *lists[] = {&set->overdue, &set->queue};
    if (!is_due(r)) return "a request was preempted again too soon";
    for (int k = 0; k < 2; k++)
        for (const struct sched_request *waits = lists[k]->first; waits; waits = waits->next)
            if (is_allowed(c, waits, r, ROUNDING)) return NULL;
    return "a request was preempted though no request that waits may take its place";
}

void __real_core_request_preempt(struct core *c, struct request *r, int64_t now_us);
void __wrap_core_request_preempt(struct core *c, struct request *r, int64_t now_us);

void __wrap_core_request_preempt(struct core *c, struct request *r, int64_t now_us)
{
    bool is_small = waiting_set_count(&c->waiting[NODE_WORKER]) <= WAITING_MAX;
    if (watches && is_small && !problem) problem = check_preempted(c, &r->sched);
    if (watches && is_small && !problem) problem = check_order(c, &r->sched);
    __real_core_request_preempt(c, r, now_us);
}

// --- places that are not taken

// Returns the longest packable request of the queue.
static const struct sched_request *longest_of(const struct waiting_set *set, const struct tenant_queue *queue)
{
    const struct request_list *lists[] = {&set->overdue, &set->queue};
    const struct sched_request *longest = NULL;
    for (int k = 0; k < 2; k++)
        for (const struct sched_request *r = lists[k]->first; r; r = r->next)
            if (r->packable && r->tenant_queue == queue && (!longest || r->need.rows > longest->need.rows)) longest = r;
    return longest;
}

// Returns true if the request would fit the node without the running request.
static bool fits_instead(const struct core *c, const struct core_node *node, const struct sched_request *waits,
                         const struct sched_request *runs)
{
    const struct node_account *account = &node->sched.account;
    if (node->sched.draining || account->running_alone ||
        account->bins >= c->options.bins_ahead + node->hello.stages - 1)
        return false;
    if (waits->runs_alone || account->long_prompts || !sched_node_can_hold(&node->sched, waits)) return false;
    int64_t left = node->hello.kv_blocks - account->kv_blocks + runs->own_blocks;
    return account->requests.count <= node->sched.limits.max_seqs &&
           sched_node_blocks_needed(&node->sched, waits) <= left;
}

static void check_places(struct world *w, const struct core *c, const struct sched_request *waits)
{
    for (const struct core_node *node = core_first_node(c); node; node = core_node_next(node)) {
        const struct sched_request *r = node->hello.role == NODE_WORKER ? node->sched.account.requests.first : NULL;
        // A node with a free slot and blocks may have declined the request for other reasons.
        bool has_place = node->sched.account.requests.count < node->sched.limits.max_seqs &&
                         sched_node_blocks_needed(&node->sched, waits) <= sched_node_blocks_left(&node->sched);
        for (; r && !has_place; r = r->next)
            HOLDS(!is_due(r) || !fits_instead(c, node, waits, r) || !is_allowed(c, waits, r, 0));
    }
}

void oracle_preempt_tick(struct world *w, const struct core *c)
{
    const struct waiting_set *set = &c->waiting[NODE_WORKER];
    if (c->in_round[NODE_WORKER] || c->options.policy != BIN_DATASET || waiting_set_count(set) > WAITING_MAX) return;
    for (size_t b = 0; b < set->tenants.n_buckets; b++) {
        for (const struct tenant_queue *queue = set->tenants.buckets[b]; queue; queue = queue->next) {
            double held;
            HOLDS(queue->slots == count_held(c, queue, &held) && fabs(held - queue->held) < ROUNDING);
            HOLDS(queue->n_picked == 0);
            const struct sched_request *waits = longest_of(set, queue);
            if (waits && set->tenants.n <= QUEUES_MAX) check_places(w, c, waits);
        }
    }
}
