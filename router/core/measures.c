// SPDX-License-Identifier: Apache-2.0
#include "router/core/measures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

const char *node_loss_name(enum node_loss loss)
{
    static const char *const names[LOSS_COUNT] = {"stream_ended", "silent", "hung", "replaced"};
    return names[loss];
}

void core_measures_init(struct core_measures *m)
{
    *m = (struct core_measures){.finished = {0}};
    struct histogram *of_requests[] = {&m->queue, &m->pack_wait, &m->prefill, &m->end_to_end};
    for (size_t i = 0; i < sizeof of_requests / sizeof *of_requests; i++)
        histogram_init(of_requests[i], &histogram_request_us);
    histogram_init(&m->token, &histogram_token_us);
    histogram_init(&m->kept, &histogram_share_ppm);
    histogram_init(&m->keep_rate, &histogram_share_ppm);
    for (int role = 0; role < NODE_ROLES; role++)
        histogram_init(&m->plan[role], &histogram_plan_us);
}

// --- nodes

static struct node_measures *node_measures_create(const char *node_id, enum node_role role)
{
    struct node_measures *m = mem_alloc(sizeof *m);
    snprintf(m->node_id, sizeof m->node_id, "%s", node_id);
    m->role = role;
    histogram_init(&m->first_token, &histogram_request_us);
    histogram_init(&m->inter_token, &histogram_token_us);
    histogram_init(&m->score, &histogram_request_us);
    histogram_init(&m->pass, &histogram_token_us);
    histogram_init(&m->latency, &histogram_token_us);
    histogram_init(&m->fill, &histogram_share_ppm);
    return m;
}

struct node_measures *node_measures_acquire(struct node_measures_list *list, const char *node_id, enum node_role role)
{
    struct node_measures *m = list->first;
    while (m && (m->role != role || strcmp(m->node_id, node_id) != 0))
        m = m->next;
    if (!m) {
        m = node_measures_create(node_id, role);
        m->next = list->first;
        list->first = m;
    }
    m->attached++;
    return m;
}

static void node_measures_free(struct node_measures *m)
{
    node_gpus_fini(&m->gpus);
    free(m);
}

static void forget_oldest(struct node_measures_list *list)
{
    struct node_measures **oldest = NULL;
    int gone = 0;
    for (struct node_measures **m = &list->first; *m; m = &(*m)->next) {
        if ((*m)->attached) continue;
        gone++;
        if (!oldest || (*m)->gone_order < (*oldest)->gone_order) oldest = m;
    }
    if (gone <= NODES_GONE_MAX) return;
    struct node_measures *m = *oldest;
    *oldest = m->next;
    node_measures_free(m);
}

void node_measures_release(struct node_measures_list *list, struct node_measures *m)
{
    m->gone_order = ++list->n_gone;
    if (--m->attached == 0) forget_oldest(list);
}

void node_measures_fini(struct node_measures_list *list)
{
    for (struct node_measures *m; (m = list->first);) {
        list->first = m->next;
        node_measures_free(m);
    }
}
