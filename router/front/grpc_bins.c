// SPDX-License-Identifier: Apache-2.0
// The core's actions (struct core_ops) as messages: bins and cancellations to nodes, readiness to the health service.
// Core's thread.
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "model/generation_wire.h"
#include "router/front/grpc_cluster.h"

typedef Forepack__Cluster__V1__RouterMessage router_message;

// One block with the list and its messages; free() it.
static Forepack__Cluster__V1__Range **range_messages(const struct token_range *ranges, int n)
{
    Forepack__Cluster__V1__Range **list = mem_alloc((size_t)n * (sizeof *list + sizeof **list) + 1);
    Forepack__Cluster__V1__Range *items = (void *)(list + n);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        forepack__cluster__v1__range__init(list[i]);
        list[i]->first = (uint32_t)ranges[i].first;
        list[i]->last = (uint32_t)ranges[i].last;
    }
    return list;
}

// --- score bins

// `m->pinned` is free()d by the caller.
static void score_item_fill(const struct front *front, const struct request *r, Forepack__Cluster__V1__ScoreItem *m)
{
    forepack__cluster__v1__score_item__init(m);
    m->request = r->number;
    m->token_ids = (uint32_t *)r->spec.tokens;
    m->n_token_ids = (size_t)r->spec.n_tokens;
    prefill_to_message(&r->spec.prefill, &m->base);
    m->want_importance = r->spec.want_importance;
    m->tail_tokens = (uint32_t)prefill_tail_tokens(front->tail_tokens, r->spec.n_tokens);
    m->pinned = range_messages(r->spec.pinned, r->spec.n_pinned);
    m->n_pinned = (size_t)r->spec.n_pinned;
}

static void send_score_bin(void *link, uint64_t bin_id, struct request *const *requests, int n)
{
    struct attachment *a = link;
    Forepack__Cluster__V1__ScoreItem *items = mem_alloc_array((size_t)n, sizeof *items);
    Forepack__Cluster__V1__ScoreItem **list = mem_alloc_array((size_t)n, sizeof *list);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        score_item_fill(a->front, requests[i], &items[i]);
    }
    Forepack__Cluster__V1__ScoreBin bin = FOREPACK__CLUSTER__V1__SCORE_BIN__INIT;
    bin.bin_id = bin_id;
    bin.items = list;
    bin.n_items = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN;
    message.score_bin = &bin;
    attachment_send(a, &message);
    for (int i = 0; i < n; i++)
        free(items[i].pinned);
    free(list);
    free(items);
}

// --- prefill bins

// The kept prompt tokens, then the tokens generated before a replay; free() them.
static uint32_t *sequence_tokens(const struct request *r, size_t *n_p)
{
    uint32_t *ids = mem_alloc_array((size_t)r->usage.kept_tokens + (size_t)r->usage.completion_tokens, sizeof *ids);
    size_t n = 0;
    for (int k = 0; k < r->n_kept_ranges; k++) {
        for (int32_t t = r->kept[k].first; t <= r->kept[k].last; t++)
            ids[n++] = (uint32_t)r->spec.tokens[t];
    }
    for (int i = 0; i < r->usage.completion_tokens; i++)
        ids[n++] = (uint32_t)r->output[i];
    *n_p = n;
    return ids;
}

// `m->token_ids` and `m->kept` are free()d by the caller.
static void sequence_fill(const struct request *r, Forepack__Cluster__V1__Sampling *sampling,
                          Forepack__Cluster__V1__Sequence *m)
{
    forepack__cluster__v1__sequence__init(m);
    m->request = r->number;
    m->token_ids = sequence_tokens(r, &m->n_token_ids);
    m->kept = range_messages(r->kept, r->n_kept_ranges);
    m->n_kept = (size_t)r->n_kept_ranges;
    m->prompt_tokens = (uint32_t)r->spec.n_tokens;
    m->generated = (uint32_t)r->usage.completion_tokens;
    forepack__cluster__v1__sampling__init(sampling);
    sampling_to_message(&r->spec.sampling, &sampling->base);
    m->sampling = sampling;
    if (r->spec.sampling.repetition_penalty != 1 && r->usage.kept_tokens < r->spec.n_tokens) {
        m->penalty_ids = (uint32_t *)r->spec.tokens; // the penalty counts pruned tokens too
        m->n_penalty_ids = (size_t)r->spec.n_tokens;
    }
}

static void send_prefill_bin(void *link, uint64_t bin_id, struct request *const *requests, int n)
{
    struct attachment *a = link;
    Forepack__Cluster__V1__Sequence *items = mem_alloc_array((size_t)n, sizeof *items);
    Forepack__Cluster__V1__Sequence **list = mem_alloc_array((size_t)n, sizeof *list);
    Forepack__Cluster__V1__Sampling *sampling = mem_alloc_array((size_t)n, sizeof *sampling);
    for (int i = 0; i < n; i++) {
        list[i] = &items[i];
        sequence_fill(requests[i], &sampling[i], &items[i]);
    }
    Forepack__Cluster__V1__PrefillBin bin = FOREPACK__CLUSTER__V1__PREFILL_BIN__INIT;
    bin.bin_id = bin_id;
    bin.sequences = list;
    bin.n_sequences = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN;
    message.prefill_bin = &bin;
    attachment_send(a, &message);
    for (int i = 0; i < n; i++) {
        free(items[i].token_ids);
        free(items[i].kept);
    }
    free(sampling);
    free(list);
    free(items);
}

// --- everything else

static void send_cancel(void *link, const uint64_t *numbers, int n)
{
    Forepack__Cluster__V1__Cancel cancel = FOREPACK__CLUSTER__V1__CANCEL__INIT;
    cancel.requests = (uint64_t *)numbers;
    cancel.n_requests = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL;
    message.cancel = &cancel;
    attachment_send(link, &message);
}

static void node_lost(void *link, const char *reason)
{
    struct attachment *a = link;
    a->node = NULL;
    rpc_call_finish(a->call, reason ? STATUS_UNAVAILABLE : STATUS_OK, reason ? reason : "");
}

void front_publish_ready(struct front *front)
{
    struct rpc_server *server = __atomic_load_n(&front->server, __ATOMIC_ACQUIRE);
    if (!server) return; // main() calls again once the server is open
    rpc_server_set_serving(server, "", front->ready);
    rpc_server_set_serving(server, "forepack.v1.Inference", front->ready);
}

static void ready_changed(void *user, bool ready)
{
    struct front *front = user;
    front->ready = ready;
    front_publish_ready(front);
    log_event(LOG_INFO, "readiness_changed", LOG_FIELD("ready", ready));
}

void front_core_ops_init(struct front *front, struct core_ops *ops)
{
    *ops = (struct core_ops){send_score_bin, send_prefill_bin, send_cancel, node_lost, ready_changed, front};
}
