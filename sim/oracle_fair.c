// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_fair.h"

#include <math.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/text/generation.h"
#include "router/core/core_state.h"

enum { TENANTS = 8 };

// apart[a][b]: weighted service that tenant a got and tenant b did not, since both have had requests waiting.
struct oracle_fair {
    const struct scenario *scenario;
    bool applies;
    double bound;
    bool waits[TENANTS];
    double apart[TENANTS][TENANTS];
};

static double weight_of(const struct scenario *s, int tenant)
{
    return tenant == 1 ? (double)s->options.weight_of_1 / 1e3 : 1;
}

// Returns true if the bound applies to the scenario: its requests fit every group, and nothing overrides the order of
// tenants. There are no priorities, deadlines, speculation, lies or restarts of the router. waits_now() leaves out
// overdue requests.
static bool has_plain_requests(const struct scenario *s, int64_t rows_max, int64_t blocks_max)
{
    for (int i = 0; i < s->n_actions; i++) {
        const struct scenario_request *r = &s->actions[i].request;
        if (s->actions[i].kind == ACTION_LIE || s->actions[i].kind == ACTION_RESTART) return false;
        if (s->actions[i].kind != ACTION_REQUEST) continue;
        if (r->tenant >= TENANTS || r->priority || r->deadline_us || r->mode != PREFILL_OFF || r->score_only)
            return false;
        if (r->tokens + r->max_tokens > rows_max || (r->tokens + r->max_tokens) / 16 + 1 > blocks_max) return false;
    }
    return true;
}

struct oracle_fair *oracle_fair_create(const struct scenario *s)
{
    struct oracle_fair *fair = mem_alloc(sizeof *fair);
    int64_t slots = 0, rows_max = INT64_MAX, blocks_max = INT64_MAX, context = INT64_MAX;
    double largest = 0, least_weight = fmin(1, weight_of(s, 1));
    for (int i = 0; i < s->n_nodes; i++) {
        const struct scenario_node *node = &s->nodes[i];
        if (!node->role) continue;
        slots += node->max_seqs;
        if (node->budget < rows_max) rows_max = node->budget;
        if (node->context < context) context = node->context;
        if (node->kv_blocks / node->max_seqs < blocks_max) blocks_max = node->kv_blocks / node->max_seqs;
    }
    for (int i = 0; i < s->n_actions; i++) {
        const struct scenario_request *r = &s->actions[i].request;
        largest = fmax(largest, (double)r->tokens + OUTPUT_WEIGHT * (double)r->max_tokens);
    }
    fair->scenario = s;
    fair->applies = !s->load && s->options.policy == BIN_DATASET &&
                    has_plain_requests(s, rows_max / 2 < context ? rows_max / 2 : context, blocks_max);
    fair->bound = 2 * (double)(slots + 1) * largest / least_weight;
    return fair;
}

void oracle_fair_free(struct oracle_fair *fair)
{
    free(fair);
}

static int tenant_of(const struct request *r)
{
    return r->spec.tenant ? atoi(r->spec.tenant + 1) : 0;
}

void oracle_fair_served(struct oracle_fair *fair, const struct request *r, double tokens)
{
    if (!fair->applies) return;
    int a = tenant_of(r);
    for (int b = 0; b < TENANTS; b++) {
        fair->apart[a][b] += tokens / weight_of(fair->scenario, a);
        fair->apart[b][a] -= tokens / weight_of(fair->scenario, a);
    }
}

// Marks the tenants that wait now. Marks no tenant while there are overdue requests: these go first, regardless of
// their tenant.
static void waits_now(const struct core *c, bool *waits)
{
    const struct waiting_set *set = &c->waiting[NODE_WORKER];
    for (const struct sched_request *r = set->queue.first; r && !set->overdue.count; r = r->next)
        waits[tenant_of(request_of(r))] = true;
}

void oracle_fair_check(struct oracle_fair *fair, struct world *w, const struct core *c)
{
    bool waits[TENANTS] = {false};
    if (!fair->applies) return;
    if (c) waits_now(c, waits);
    for (int a = 0; a < TENANTS; a++) {
        for (int b = 0; b < TENANTS; b++) {
            bool both = waits[a] && waits[b] && fair->waits[a] && fair->waits[b];
            if (!both) fair->apart[a][b] = 0;
            if (fair->apart[a][b] > fair->bound)
                world_fail(w, "tenant %d was served %.0f tokens more than tenant %d, the bound is %.0f", a,
                           fair->apart[a][b], b, fair->bound);
        }
    }
    for (int a = 0; a < TENANTS; a++)
        fair->waits[a] = waits[a];
}
