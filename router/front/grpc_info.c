// SPDX-License-Identifier: Apache-2.0
// Inference.Tokenize, Detokenize, GetModelInfo and GetClusterInfo. The first two need no core and are answered on the
// I/O thread; the others look into the core on its own thread.
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/version.h"
#include "proto/forepack/v1/inference.pb-c.h"
#include "router/front/intake.h"

// A few bytes of ids become many of text.
enum { DETOKENIZE_IDS_MAX = 1 << 20 };

static void on_tokenize(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    Forepack__V1__TokenizeRequest *m = front_unpack(&forepack__v1__tokenize_request__descriptor, bytes, size);
    if (!m) {
        front_refuse(call, STATUS_INVALID);
        return;
    }
    int32_t *tokens = NULL;
    int n = 0;
    enum status status = front_check_model(front, m->model);
    if (status == STATUS_OK) {
        if (m->n_messages) {
            status = front_tokenise(front, &m->text, NULL, 0, m->messages, m->n_messages, &tokens, &n, NULL, NULL);
        } else {
            unsigned flags = TOKENIZER_PARSE_SPECIAL | (m->no_special ? 0 : TOKENIZER_ADD_SPECIAL);
            status = front_encode(front, &m->text, flags, &tokens, &n);
        }
    }
    if (status == STATUS_OK) {
        Forepack__V1__TokenizeResponse response = FOREPACK__V1__TOKENIZE_RESPONSE__INIT;
        response.token_ids = (uint32_t *)tokens;
        response.n_token_ids = (size_t)n;
        front_answer(call, &response.base);
    } else {
        front_refuse(call, status);
    }
    free(tokens);
    forepack__v1__tokenize_request__free_unpacked(m, NULL);
}

static void on_detokenize(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    Forepack__V1__DetokenizeRequest *m = front_unpack(&forepack__v1__detokenize_request__descriptor, bytes, size);
    if (!m) {
        front_refuse(call, STATUS_INVALID);
        return;
    }
    char *text = NULL;
    size_t text_bytes = 0;
    enum status status = front_check_model(front, m->model);
    if (status == STATUS_OK && m->n_token_ids > DETOKENIZE_IDS_MAX) {
        status = status_fail(STATUS_OUT_OF_RANGE, "token_ids: %zu given, at most %d are allowed", m->n_token_ids,
                             DETOKENIZE_IDS_MAX);
    }
    for (size_t i = 0; i < m->n_token_ids && status == STATUS_OK; i++) {
        if (m->token_ids[i] > INT_MAX)
            status = status_fail(STATUS_INVALID, "token_ids: %u is no token", m->token_ids[i]);
    }
    if (status == STATUS_OK) {
        status = tokenizer_decode(front->tokenizer, (const int32_t *)m->token_ids, (int)m->n_token_ids,
                                  (m->keep_special ? 0 : TOKENIZER_SKIP_SPECIAL) |
                                      (m->continuation ? TOKENIZER_CONTINUATION : 0),
                                  &text, &text_bytes);
    }
    if (status == STATUS_OK) {
        Forepack__V1__DetokenizeResponse response = FOREPACK__V1__DETOKENIZE_RESPONSE__INIT;
        response.text = (ProtobufCBinaryData){text_bytes, (uint8_t *)text};
        front_answer(call, &response.base);
    } else {
        front_refuse(call, status);
    }
    free(text);
    forepack__v1__detokenize_request__free_unpacked(m, NULL);
}

// --- the core's thread. The job is the call itself, with a reference.

static void run_model_info(struct core *c, void *arg, int64_t now_us)
{
    struct rpc_call *call = arg;
    const struct front *front = rpc_call_context(call);
    struct core_status status;
    core_get_status(c, &status);
    Forepack__V1__ModelInfo info = FOREPACK__V1__MODEL_INFO__INIT;
    info.name = (char *)front->model_name;
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
    front_answer(call, &info.base);
    core_status_fini(&status);
    rpc_call_unref(call);
}

static void on_model_info(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    Forepack__V1__GetModelInfoRequest *m = front_unpack(&forepack__v1__get_model_info_request__descriptor, bytes, size);
    enum status status = m ? front_check_model(front, m->model) : STATUS_INVALID;
    if (m) forepack__v1__get_model_info_request__free_unpacked(m, NULL);
    if (status != STATUS_OK) {
        front_refuse(call, status);
        return;
    }
    rpc_call_ref(call);
    loop_post(front->loop, run_model_info, call);
}

static void fill_node(const struct node_status *node, int64_t now_us, Forepack__V1__NodeInfo *m)
{
    forepack__v1__node_info__init(m);
    m->node_id = (char *)node->hello.node_id;
    m->role = node->hello.role == NODE_WORKER ? "worker" : "speculator";
    m->state = (char *)node->state;
    m->host = (char *)node->hello.host;
    m->ranks = (uint32_t)node->hello.ranks;
    m->dtype = (char *)node->hello.dtype;
    m->token_budget = (uint32_t)node->hello.token_budget;
    m->kv_blocks = (uint32_t)node->hello.kv_blocks;
    m->kv_blocks_free = (uint32_t)node->kv_blocks_free;
    m->running = (uint32_t)node->running;
    m->tokens_in = node->tokens_in;
    m->tokens_out = node->tokens_out;
    m->cached_tokens = node->cached_tokens;
    m->attached_s = (double)(now_us - node->attached_us) / 1e6;
    m->pass_fixed_us = node->pass_fixed_us;
    m->pass_row_us = node->pass_row_us;
    m->pass_pair_us = node->pass_pair_us;
}

static void fill_bins(const struct bin_totals *bins, Forepack__V1__PackInfo *m)
{
    forepack__v1__pack_info__init(m);
    m->bins = bins->bins;
    m->items = bins->items;
    m->tokens = bins->tokens;
    m->capacity_tokens = bins->capacity_tokens;
}

// The messages and their list in one block, which is to be freed.
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

static void fill_class(const struct class_status *status, enum queue_class queue_class, Forepack__V1__QueueClass *m)
{
    forepack__v1__queue_class__init(m);
    m->name = (char *)queue_class_name(queue_class);
    m->waiting = (uint32_t)status->waiting;
    m->waiting_tokens = (uint64_t)status->waiting_tokens;
    m->capacity_requests = (uint32_t)status->max_requests;
    m->capacity_tokens = (uint64_t)status->max_tokens;
}

static void fill_totals(const struct core_totals *totals, Forepack__V1__Totals *m)
{
    forepack__v1__totals__init(m);
    m->requests = totals->requests;
    m->done = totals->done;
    m->failed = totals->failed;
    m->cancelled = totals->cancelled;
    m->refused = totals->refused;
    m->replays = totals->replays;
    m->degraded = totals->degraded;
    m->prompt_tokens = totals->prompt_tokens;
    m->kept_tokens = totals->kept_tokens;
    m->completion_tokens = totals->completion_tokens;
}

static void run_cluster_info(struct core *c, void *arg, int64_t now_us)
{
    struct rpc_call *call = arg;
    const struct front *front = rpc_call_context(call);
    struct core_status status;
    core_get_status(c, &status);
    Forepack__V1__NodeInfo *nodes = mem_alloc_array((size_t)status.n_nodes, sizeof *nodes);
    Forepack__V1__NodeInfo **list = mem_alloc_array((size_t)status.n_nodes, sizeof *list);
    for (int i = 0; i < status.n_nodes; i++) {
        fill_node(&status.nodes[i], now_us, &nodes[i]);
        list[i] = &nodes[i];
    }
    Forepack__V1__QueueInfo queue = FOREPACK__V1__QUEUE_INFO__INIT;
    queue.waiting = (uint32_t)status.waiting;
    queue.waiting_tokens = (uint64_t)status.waiting_tokens;
    queue.running = (uint32_t)status.running;
    queue.capacity_requests = (uint32_t)front->max_queue_requests;
    queue.capacity_tokens = (uint64_t)front->max_queue_tokens;
    Forepack__V1__QueueClass classes[QUEUE_CLASSES], *class_list[QUEUE_CLASSES];
    for (int k = 0; k < QUEUE_CLASSES; k++) {
        class_list[k] = &classes[k];
        fill_class(&status.classes[k], (enum queue_class)k, &classes[k]);
    }
    queue.classes = class_list;
    queue.n_classes = QUEUE_CLASSES;
    Forepack__V1__PackInfo score_bins, prefill_bins;
    fill_bins(&status.score_bins, &score_bins);
    fill_bins(&status.prefill_bins, &prefill_bins);
    Forepack__V1__Totals totals;
    fill_totals(&status.totals, &totals);
    totals.prefill_skipped = skip_messages(&status.totals) + 1; // but SKIP_NONE
    totals.n_prefill_skipped = SKIP_COUNT - 1;

    Forepack__V1__ClusterInfo info = FOREPACK__V1__CLUSTER_INFO__INIT;
    info.ready = status.ready;
    info.draining = status.draining;
    info.version = FOREPACK_VERSION;
    info.uptime_s = (double)(now_us - front->started_us) / 1e6;
    info.nodes = list;
    info.n_nodes = (size_t)status.n_nodes;
    info.queue = &queue;
    info.score_bins = &score_bins;
    info.prefill_bins = &prefill_bins;
    info.totals = &totals;
    front_answer(call, &info.base);
    free(totals.prefill_skipped - 1);
    free(list);
    free(nodes);
    core_status_fini(&status);
    rpc_call_unref(call);
}

static void on_cluster_info(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    const struct front *front = rpc_call_context(call);
    rpc_call_ref(call);
    loop_post(front->loop, run_cluster_info, call);
}

const struct rpc_method front_tokenize = {"/forepack.v1.Inference/Tokenize", NULL, on_tokenize, NULL, NULL};
const struct rpc_method front_detokenize = {"/forepack.v1.Inference/Detokenize", NULL, on_detokenize, NULL, NULL};
const struct rpc_method front_model_info = {"/forepack.v1.Inference/GetModelInfo", NULL, on_model_info, NULL, NULL};
const struct rpc_method front_cluster_info = {"/forepack.v1.Inference/GetClusterInfo", NULL, on_cluster_info, NULL,
                                              NULL};
