// SPDX-License-Identifier: Apache-2.0
// Inference.Tokenize, Detokenize, GetModelInfo and GetClusterInfo. The thread that reads a message of Tokenize or
// Detokenize also answers it (grpc_intake.h). GetModelInfo and GetClusterInfo read the core's state on the core's
// thread.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/version.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/core/core_metrics.h"
#include "router/core/node.h"
#include "router/front/grpc/grpc_access.h"
#include "router/front/grpc/grpc_intake.h"
#include "router/front/grpc/wire_request.h"
#include "router/front/request/reply.h"

enum { INFO_BYTES_MAX = 4096 };

static void tokenize_read_message(const struct grpc_message *message)
{
    struct rpc_call *call = message->call;
    const struct front *front = rpc_call_context(call);
    if (message->dropped) return;
    Forepack__V1__TokenizeRequest *m =
        grpc_message_unpack(&forepack__v1__tokenize_request__descriptor, message->bytes, message->size);
    if (!m) {
        reply_refuse(call, STATUS_INVALID);
        return;
    }
    int32_t *tokens = NULL;
    int n = 0;
    enum status status = wire_tokenize(front, m, NULL, &tokens, &n);
    if (status == STATUS_OK) {
        Forepack__V1__TokenizeResponse response = FOREPACK__V1__TOKENIZE_RESPONSE__INIT;
        response.token_ids = (uint32_t *)tokens;
        response.n_token_ids = (size_t)n;
        reply_unary(call, &response.base);
    } else {
        reply_refuse(call, status);
    }
    free(tokens);
    forepack__v1__tokenize_request__free_unpacked(m, NULL);
}

// The user data of a Tokenize or Detokenize call is a struct intake_owner.
static void text_on_open(struct rpc_call *call)
{
    rpc_call_set_user(call, mem_alloc(sizeof(struct intake_owner)));
}

static void text_on_close(struct rpc_call *call, bool cancelled)
{
    const struct front *front = rpc_call_context(call);
    intake_pool_cancel(front->pool, rpc_call_user(call));
    free(rpc_call_user(call));
}

static void text_read(struct rpc_call *call, const uint8_t *bytes, size_t size, grpc_read_fn *read)
{
    if (!grpc_admit_call(call)) return;
    enum status status = grpc_message_read(call, bytes, size, 0, rpc_call_user(call), read, NULL);
    if (status != STATUS_OK) reply_refuse(call, status);
}

static void tokenize_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    text_read(call, bytes, size, tokenize_read_message);
}

static void detokenize_read_message(const struct grpc_message *message)
{
    struct rpc_call *call = message->call;
    const struct front *front = rpc_call_context(call);
    if (message->dropped) return;
    Forepack__V1__DetokenizeRequest *m =
        grpc_message_unpack(&forepack__v1__detokenize_request__descriptor, message->bytes, message->size);
    if (!m) {
        reply_refuse(call, STATUS_INVALID);
        return;
    }
    char *text = NULL;
    size_t text_bytes = 0;
    enum status status = wire_detokenize(front, m, &text, &text_bytes);
    if (status == STATUS_OK) {
        Forepack__V1__DetokenizeResponse response = FOREPACK__V1__DETOKENIZE_RESPONSE__INIT;
        response.text = (ProtobufCBinaryData){text_bytes, (uint8_t *)text};
        if (m->return_ends) {
            response.n_ends = m->n_token_ids;
            response.ends = mem_alloc_array(m->n_token_ids, sizeof *response.ends);
            wire_token_ends(front, m, text, text_bytes, response.ends);
        }
        reply_unary(call, &response.base);
        free(response.ends);
    } else {
        reply_refuse(call, status);
    }
    free(text);
    forepack__v1__detokenize_request__free_unpacked(m, NULL);
}

static void detokenize_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    text_read(call, bytes, size, detokenize_read_message);
}

// --- core's thread. The argument of each event is the call, with a reference

static void event_model_info(struct core *c, void *arg, int64_t now_us)
{
    struct rpc_call *call = arg;
    const struct front *front = rpc_call_context(call);
    struct core_status status;
    core_get_status(c, &status);
    Forepack__V1__ModelInfo info = FOREPACK__V1__MODEL_INFO__INIT;
    info.name = front->model_names[0];
    info.context_tokens = (uint32_t)front->config.max_context;
    info.vocab_size = (uint32_t)front->config.vocab_size;
    if (front->chat) info.chat_template = (char *)chat_template_name(front->chat);
    info.tokenizer_fingerprint = tokenizer_fingerprint(front->tokenizer);
    info.model_fingerprint = status.model_fingerprint;
    uint32_t eos[MODEL_MAX_EOS];
    for (int i = 0; i < front->config.n_eos; i++)
        eos[i] = (uint32_t)front->config.eos_id[i];
    info.eos_token_ids = eos;
    info.n_eos_token_ids = (size_t)front->config.n_eos;
    reply_unary(call, &info.base);
    core_status_fini(&status);
    rpc_call_unref(call);
}

static void model_info_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    Forepack__V1__GetModelInfoRequest *m =
        grpc_message_unpack(&forepack__v1__get_model_info_request__descriptor, bytes, size);
    enum status status = m ? intake_check_model(front, m->model) : STATUS_INVALID;
    if (status == STATUS_OK) status = intake_check_backlog(front);
    if (m) forepack__v1__get_model_info_request__free_unpacked(m, NULL);
    if (status != STATUS_OK) {
        reply_refuse(call, status);
        return;
    }
    rpc_call_ref(call);
    loop_post(front->loop, event_model_info, call);
}

static void pass_class_fill(const struct pass_class *class, bool prompts, Forepack__V1__PassClass *m)
{
    forepack__v1__pass_class__init(m);
    m->prompts = prompts;
    m->passes = class->passes;
    m->rows = class->rows;
    m->pairs = class->pairs;
    m->seconds = (double)class->us / 1e6;
    m->deviations = (uint64_t *)class->deviation.counts;
    m->n_deviations = (size_t) class->deviation.scale->n + 1;
}

// Returns one allocation with the list and its messages, which borrow counts from `times`. The caller frees it.
static Forepack__V1__PassClass **pass_class_messages(const struct pass_times *times, size_t *n_p)
{
    const size_t most = PASS_KINDS * COST_SIZES;
    Forepack__V1__PassClass **list = mem_alloc(most * (sizeof *list + sizeof **list));
    Forepack__V1__PassClass *items = (void *)(list + most);
    size_t n = 0;
    for (int kind = 0; kind < PASS_KINDS; kind++) {
        for (int size = 0; size < COST_SIZES; size++) {
            if (!times->classes[kind][size]) continue;
            list[n] = &items[n];
            pass_class_fill(times->classes[kind][size], kind, &items[n++]);
        }
    }
    *n_p = n;
    return list;
}

static void node_fill(const struct node_status *node, int64_t now_us, Forepack__V1__NodeInfo *m)
{
    forepack__v1__node_info__init(m);
    m->node_id = (char *)node->hello.node_id;
    m->role = node->hello.role == NODE_WORKER ? "worker" : "speculator";
    m->state = (char *)node->state;
    m->host = (char *)node->hello.host;
    m->ranks = (uint32_t)node->hello.ranks;
    m->stages = (uint32_t)node->hello.stages;
    m->dtype = (char *)node->hello.dtype;
    m->cores = (char *)node->hello.cores;
    m->cores_decided_by = (char *)node->hello.cores_decided_by;
    m->token_budget = (uint32_t)node->hello.token_budget;
    m->kv_blocks = (uint32_t)node->hello.kv_blocks;
    m->kv_blocks_free = (uint32_t)node->kv_blocks_free;
    m->held_prompts = (uint32_t)node->held_prompts;
    m->held_kv_blocks = (uint32_t)node->held_kv_blocks;
    m->running = (uint32_t)node->running;
    m->tokens_in = node->tokens_in;
    m->tokens_out = node->tokens_out;
    m->cached_tokens = node->cached_tokens;
    m->attached_s = (double)(now_us - node->attached_us) / 1e6;
    m->pass_fixed_us = node->pass_fixed_us;
    m->pass_row_us = node->pass_row_us;
    m->pass_pair_us = node->pass_pair_us;
    m->pass_noise = node->pass_noise;
    m->passes = node->passes;
    m->pass_rows = node->pass_rows;
    m->pass_pairs = node->pass_pairs;
    m->pass_s = (double)node->pass_us / 1e6;
    m->pass_classes = pass_class_messages(node->pass_times, &m->n_pass_classes);
    m->pass_gap_count = node->pass_gaps;
    m->pass_gap_s = (double)node->pass_gap_us / 1e6;
    m->calibrated_for = node->hello.calibration.main_fingerprint;
    m->quality_scores = node->quality_scores;
    m->quality_keep_rate = node->quality_keep_rate;
}

static void bins_fill(const struct bin_totals *bins, Forepack__V1__PackInfo *m)
{
    forepack__v1__pack_info__init(m);
    m->bins = bins->bins;
    m->items = bins->items;
    m->tokens = bins->tokens;
    m->capacity_tokens = bins->capacity_tokens;
}

// Returns one allocation with the list and its messages. The caller frees it.
static Forepack__V1__SkipCount **skip_messages(const struct core_totals *totals)
{
    Forepack__V1__SkipCount **list = mem_alloc(SKIP_COUNT * (sizeof *list + sizeof **list));
    Forepack__V1__SkipCount *items = (void *)(list + SKIP_COUNT);
    for (int reason = 0; reason < SKIP_COUNT; reason++) {
        list[reason] = &items[reason];
        forepack__v1__skip_count__init(list[reason]);
        list[reason]->reason = (char *)skip_reason_name((enum skip_reason)reason);
        list[reason]->requests = totals->skipped[reason];
    }
    return list;
}

static void class_fill(const struct class_status *status, enum queue_class queue_class, Forepack__V1__QueueClass *m)
{
    forepack__v1__queue_class__init(m);
    m->name = (char *)queue_class_name(queue_class);
    m->waiting = (uint32_t)status->waiting;
    m->waiting_tokens = (uint64_t)status->waiting_tokens;
    m->capacity_requests = (uint32_t)status->max_requests;
    m->capacity_tokens = (uint64_t)status->max_tokens;
}

static void totals_fill(const struct core_status *status, Forepack__V1__Totals *m)
{
    const struct core_totals *totals = &status->totals;
    forepack__v1__totals__init(m);
    m->node_ejections = status->ejections;
    m->node_hangs = status->hangs;
    m->requests = totals->requests;
    m->done = totals->done;
    m->failed = totals->failed;
    m->cancelled = totals->cancelled;
    m->refused = totals->refused;
    m->replays = totals->replays;
    m->degraded = totals->degraded;
    m->scores_reused = totals->scores_reused;
    m->draft_tokens = totals->draft_tokens;
    m->draft_accepted_tokens = totals->draft_accepted_tokens;
    m->frozen_tokens = totals->frozen_tokens;
    m->recalled_tokens = totals->recalled_tokens;
    m->prompt_tokens = totals->prompt_tokens;
    m->kept_tokens = totals->kept_tokens;
    m->completion_tokens = totals->completion_tokens;
}

// The queue message, and the messages of its classes.
struct queue_message {
    Forepack__V1__QueueInfo queue;
    Forepack__V1__QueueClass classes[QUEUE_CLASSES], *list[QUEUE_CLASSES];
};

static void queue_fill(const struct core_status *status, struct queue_message *m)
{
    forepack__v1__queue_info__init(&m->queue);
    m->queue.waiting = (uint32_t)status->waiting;
    m->queue.waiting_tokens = (uint64_t)status->waiting_tokens;
    m->queue.running = (uint32_t)status->running;
    // the highest class may fill the whole queue
    m->queue.capacity_requests = (uint32_t)status->classes[QUEUE_HIGH].max_requests;
    m->queue.capacity_tokens = (uint64_t)status->classes[QUEUE_HIGH].max_tokens;
    for (int k = 0; k < QUEUE_CLASSES; k++) {
        m->list[k] = &m->classes[k];
        class_fill(&status->classes[k], (enum queue_class)k, &m->classes[k]);
    }
    m->queue.classes = m->list;
    m->queue.n_classes = QUEUE_CLASSES;
}

// Replies with the fields that every client may see. Only operators may see the nodes and the load of other clients.
static void send_limited_info(struct rpc_call *call, const struct core_status *status)
{
    Forepack__V1__ClusterInfo info = FOREPACK__V1__CLUSTER_INFO__INIT;
    info.ready = status->ready;
    info.draining = status->draining;
    info.version = FOREPACK_VERSION;
    info.limited = true;
    reply_unary(call, &info.base);
}

static void pool_fill(const struct pool_metrics *pool, enum node_role role, Forepack__V1__PoolInfo *m)
{
    forepack__v1__pool_info__init(m);
    m->role = (char *)role_name(role);
    m->nodes = (uint32_t)pool->nodes;
    m->waiting = (uint32_t)pool->waiting;
    m->running = (uint32_t)pool->running;
    m->queue_tokens = (uint64_t)pool->waiting_rows;
    if (isfinite(pool->queue_us)) {
        m->queue_s_known_case = FOREPACK__V1__POOL_INFO__QUEUE_S_KNOWN_QUEUE_S;
        m->queue_s = pool->queue_us / 1e6;
    }
    if (isfinite(pool->work_us)) {
        m->work_s_known_case = FOREPACK__V1__POOL_INFO__WORK_S_KNOWN_WORK_S;
        m->work_s = pool->work_us / 1e6;
    }
    m->busy_s = (double)pool->busy_us / 1e6;
    m->attached_s = (double)pool->attached_us / 1e6;
}

// The messages of both pools, and the list that points to them.
struct pools_message {
    Forepack__V1__PoolInfo pools[NODE_ROLES], *list[NODE_ROLES];
};

static void pools_fill(const struct core *c, int64_t now_us, struct pools_message *m)
{
    struct pool_metrics pools[NODE_ROLES];
    core_get_pools(c, now_us, pools);
    for (enum node_role role = NODE_SPECULATOR; role <= NODE_WORKER; role++) {
        m->list[role] = &m->pools[role];
        pool_fill(&pools[role], role, &m->pools[role]);
    }
}

static void agreement_fill(const struct tenant_agreement *tenant, const struct agreement_state *state,
                           Forepack__V1__AgreementInfo *m)
{
    forepack__v1__agreement_info__init(m);
    m->tenant = tenant->tenant;
    m->quality = state->key.quality;
    m->keep_rate = state->key.keep_rate;
    m->compared = (uint32_t)state->n;
    m->first_token = (uint32_t)state->n_first;
    m->answer = (uint32_t)state->n_whole;
    m->lower_bound = state->lower;
    m->promise = state->promise;
    m->falls_back = state->falls_back;
}

// The messages of all windows, and the list that points to them; owned.
struct agreements_message {
    Forepack__V1__AgreementInfo *items, **list;
    size_t n;
};

static void agreements_fill(const struct shadow_status *shadow, struct agreements_message *m)
{
    *m = (struct agreements_message){.n = 0};
    m->items = mem_alloc_array((size_t)shadow->n_tenants * AGREEMENT_WINDOWS, sizeof *m->items);
    m->list = mem_alloc_array((size_t)shadow->n_tenants * AGREEMENT_WINDOWS, sizeof *m->list);
    for (int i = 0; i < shadow->n_tenants; i++) {
        for (int k = 0; k < shadow->tenants[i].n_windows; k++, m->n++) {
            agreement_fill(&shadow->tenants[i], &shadow->tenants[i].windows[k], &m->items[m->n]);
            m->list[m->n] = &m->items[m->n];
        }
    }
}

// The messages of the nodes that load, and the list that points to them; owned.
struct loading_message {
    Forepack__V1__LoadingNode *items, **list;
};

static void loading_fill(const struct core_status *status, int64_t now_us, struct loading_message *m)
{
    m->items = mem_alloc_array((size_t)status->n_loading, sizeof *m->items);
    m->list = mem_alloc_array((size_t)status->n_loading, sizeof *m->list);
    for (int i = 0; i < status->n_loading; i++) {
        const struct node_loading *report = &status->loading[i].report;
        Forepack__V1__LoadingNode *item = m->list[i] = &m->items[i];
        forepack__v1__loading_node__init(item);
        item->node_id = (char *)report->node_id;
        item->role = (char *)role_name(report->role);
        item->host = (char *)report->host;
        item->ranks = (uint32_t)report->ranks;
        item->percent = (uint32_t)report->percent;
        item->loading_s = (double)(now_us - status->loading[i].begun_us) / 1e6;
    }
}

static void send_cluster_info(struct rpc_call *call, const struct core *c, const struct core_status *status,
                              int64_t now_us)
{
    const struct front *front = rpc_call_context(call);
    Forepack__V1__NodeInfo *nodes = mem_alloc_array((size_t)status->n_nodes, sizeof *nodes);
    Forepack__V1__NodeInfo **list = mem_alloc_array((size_t)status->n_nodes, sizeof *list);
    for (int i = 0; i < status->n_nodes; i++) {
        node_fill(&status->nodes[i], now_us, &nodes[i]);
        if (status->calibration_problem && nodes[i].calibrated_for)
            nodes[i].calibration_unused = (char *)status->calibration_problem;
        list[i] = &nodes[i];
    }
    struct queue_message queue;
    queue_fill(status, &queue);
    struct pools_message pools;
    pools_fill(c, now_us, &pools);
    Forepack__V1__PackInfo score_bins, prefill_bins;
    bins_fill(&status->score_bins, &score_bins);
    bins_fill(&status->prefill_bins, &prefill_bins);
    Forepack__V1__Totals totals;
    totals_fill(status, &totals);
    totals.prefill_skipped = skip_messages(&status->totals) + 1; // without SKIP_NONE
    totals.n_prefill_skipped = SKIP_COUNT - 1;

    Forepack__V1__ClusterInfo info = FOREPACK__V1__CLUSTER_INFO__INIT;
    info.ready = status->ready;
    info.draining = status->draining;
    info.version = FOREPACK_VERSION;
    info.uptime_s = (double)(now_us - front->started_us) / 1e6;
    info.nodes = list;
    info.n_nodes = (size_t)status->n_nodes;
    info.queue = &queue.queue;
    info.pools = pools.list;
    info.n_pools = NODE_ROLES;
    info.score_bins = &score_bins;
    info.prefill_bins = &prefill_bins;
    info.totals = &totals;
    struct agreements_message agreements;
    agreements_fill(&status->shadow, &agreements);
    info.agreements = agreements.list;
    info.n_agreements = agreements.n;
    struct loading_message loading;
    loading_fill(status, now_us, &loading);
    info.loading = loading.list;
    info.n_loading = (size_t)status->n_loading;
    reply_unary(call, &info.base);
    free(loading.list);
    free(loading.items);
    free(agreements.list);
    free(agreements.items);
    free(totals.prefill_skipped - 1);
    for (int i = 0; i < status->n_nodes; i++)
        free(nodes[i].pass_classes);
    free(list);
    free(nodes);
}

static void event_cluster_info(struct core *c, void *arg, int64_t now_us)
{
    struct rpc_call *call = arg;
    struct core_status status;
    core_get_status(c, &status);
    if (grpc_is_operator(call))
        send_cluster_info(call, c, &status, now_us);
    else
        send_limited_info(call, &status);
    core_status_fini(&status);
    rpc_call_unref(call);
}

static void cluster_info_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    enum status status = intake_check_backlog(front);
    if (status != STATUS_OK) {
        reply_refuse(call, status);
        return;
    }
    rpc_call_ref(call);
    loop_post(front->loop, event_cluster_info, call);
}

const struct rpc_method front_tokenize = {.path = "/forepack.v1.Inference/Tokenize",
                                          .on_open = text_on_open,
                                          .on_message = tokenize_on_message,
                                          .on_close = text_on_close};
const struct rpc_method front_detokenize = {.path = "/forepack.v1.Inference/Detokenize",
                                            .on_open = text_on_open,
                                            .on_message = detokenize_on_message,
                                            .on_close = text_on_close};
const struct rpc_method front_model_info = {.path = "/forepack.v1.Inference/GetModelInfo",
                                            .on_message = model_info_on_message,
                                            .max_message_bytes = INFO_BYTES_MAX};
const struct rpc_method front_cluster_info = {.path = "/forepack.v1.Inference/GetClusterInfo",
                                              .on_message = cluster_info_on_message,
                                              .max_message_bytes = INFO_BYTES_MAX};
