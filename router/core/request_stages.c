// SPDX-License-Identifier: Apache-2.0
#include "router/core/request_stages.h"

#include <stdlib.h>

#include "lib/base/mem.h"
#include "router/sched/node_choice.h"

const char *stage_wait_name(enum stage_wait wait)
{
    static const char *const names[] = {
        [STAGE_WAIT_NONE] = "",     [STAGE_WAIT_QUEUE] = "queue",   [STAGE_WAIT_BUSY] = "busy",
        [STAGE_WAIT_ROOM] = "room", [STAGE_WAIT_BLOCKS] = "blocks", [STAGE_WAIT_NO_NODE] = "no_node",
    };
    return names[wait];
}

// Returns the obstacle on this node.
static enum stage_wait wait_on(const struct core *c, const struct request *r, const struct sched_node *node)
{
    if (!sched_node_can_hold(node, &r->sched)) return STAGE_WAIT_NO_NODE;
    if (!node_is_open(&c->view, node)) return STAGE_WAIT_ROOM;
    if (!node_has_room(&c->view, node, &r->sched)) return STAGE_WAIT_BLOCKS;
    return node->account.bins ? STAGE_WAIT_BUSY : STAGE_WAIT_NONE;
}

// Returns the smallest obstacle of all nodes. The enum is in this order.
static enum stage_wait wait_in(const struct core *c, const struct request *r, enum node_role role)
{
    const struct node_index *pool = &c->view.pools[role];
    enum stage_wait least = STAGE_WAIT_NO_NODE;
    for (int i = 0; i < pool->n_nodes; i++) {
        enum stage_wait here = wait_on(c, r, pool->nodes[i]);
        if (here < least) least = here;
    }
    bool others = waiting_set_count(&c->waiting[role]) > 0;
    return others && least < STAGE_WAIT_QUEUE ? STAGE_WAIT_QUEUE : least;
}

void request_stage_joined(const struct core *c, struct request *r, enum node_role role)
{
    if (!r->spec.explain) return;
    if (!r->stages) r->stages = mem_alloc_array(NODE_ROLES, sizeof *r->stages);
    r->stages[role].wait = wait_in(c, r, role);
    r->stages[role].waiting = waiting_set_count(&c->waiting[role]);
}

void request_stage_dispatched(struct request *r, const struct core_node *node, const struct bin_plan *plan)
{
    if (!r->stages) return;
    struct request_stage *stage = &r->stages[node->sched.role];
    free(stage->node_id);
    stage->node_id = mem_string(node->hello.node_id);
    stage->bin_requests = plan->n;
    stage->bin_rows = plan->rows;
    stage->token_budget = node->sched.limits.token_budget;
}

void request_stages_free(struct request_stage *stages)
{
    for (int i = 0; stages && i < NODE_ROLES; i++)
        free(stages[i].node_id);
    free(stages);
}
