// SPDX-License-Identifier: Apache-2.0
// Cluster.Attach: one stream per node. Node messages become events of the core, the core's actions become messages.
//
// Threads: messages are unpacked on the I/O thread and posted; `struct attachment` belongs to the core's thread.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/generation_wire.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "router/front/intake.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

struct attachment {
    struct rpc_call *call; // a reference of ours
    const struct front *front;
    struct core_node *node; // NULL before Hello and after the core gave it up
    bool greeted;
};

struct node_event {
    struct attachment *attachment;
    node_message *message;
};

static void send_message(struct attachment *a, const router_message *message)
{
    front_send(a->call, &message->base);
}

// --- node to core

static void refuse(struct attachment *a, const char *reason)
{
    Forepack__Cluster__V1__Refused refused = FOREPACK__CLUSTER__V1__REFUSED__INIT;
    refused.reason = (char *)reason;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_REFUSED;
    message.refused = &refused;
    send_message(a, &message);
    rpc_call_finish(a->call, STATUS_OK, "");
}

static bool copy_name(char *to, size_t size, const char *from)
{
    if (strlen(from) >= size || !utf8_valid(from, strlen(from), NULL)) return false;
    snprintf(to, size, "%s", from);
    return true;
}

static enum status read_hello(const Forepack__Cluster__V1__Hello *m, struct node_hello *h)
{
    *h = (struct node_hello){
        .role = m->role == FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER ? NODE_WORKER : NODE_SPECULATOR,
        .model_fingerprint = m->model_fingerprint,
        .tokenizer_fingerprint = m->tokenizer_fingerprint,
        .prefix_cache = m->prefix_cache,
    };
    if (m->role != FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER &&
        m->role != FOREPACK__CLUSTER__V1__ROLE__ROLE_SPECULATOR) {
        return status_fail(STATUS_INVALID, "role %d: must be speculator or worker", (int)m->role);
    }
    if (!copy_name(h->node_id, sizeof h->node_id, m->node_id) || !h->node_id[0] ||
        !copy_name(h->host, sizeof h->host, m->host) || !copy_name(h->dtype, sizeof h->dtype, m->dtype) ||
        !copy_name(h->version, sizeof h->version, m->version)) {
        return status_fail(STATUS_INVALID, "node_id, host, dtype and version must be short UTF-8, node_id not empty");
    }
    const struct {
        const char *name;
        uint32_t from;
        int *to;
    } counts[] = {
        {"ranks", m->ranks, &h->ranks},
        {"vocab_size", m->vocab_size, &h->vocab_size},
        {"context_tokens", m->context_tokens, &h->context_tokens},
        {"token_budget", m->token_budget, &h->token_budget},
        {"block_tokens", m->block_tokens, &h->block_tokens},
        {"kv_blocks", m->kv_blocks, &h->kv_blocks},
        {"max_seqs", m->max_seqs, &h->max_seqs},
    };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        if (counts[i].from < 1 || counts[i].from > INT_MAX / 2) {
            return status_fail(STATUS_INVALID, "%s %u: must be from 1 to %d", counts[i].name, counts[i].from,
                               INT_MAX / 2);
        }
        *counts[i].to = (int)counts[i].from;
    }
    return STATUS_OK;
}

static void on_hello(struct core *c, struct attachment *a, const Forepack__Cluster__V1__Hello *m, int64_t now_us)
{
    struct node_hello hello;
    enum status status =
        a->greeted ? status_fail(STATUS_INVALID, "a second Hello on one stream") : read_hello(m, &hello);
    if (status == STATUS_OK) status = core_attach(c, &hello, a, now_us, &a->node);
    if (status != STATUS_OK) {
        log_warn("node_refused peer=%s reason=\"%s\"", rpc_call_peer(a->call), status_message());
        refuse(a, status_message());
        return;
    }
    a->greeted = true;
    Forepack__Cluster__V1__Welcome welcome = FOREPACK__CLUSTER__V1__WELCOME__INIT;
    welcome.heartbeat_ms = (uint32_t)a->front->heartbeat_ms;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_WELCOME;
    message.welcome = &welcome;
    send_message(a, &message);
}

static int count_of(uint32_t value)
{
    return value > INT_MAX ? INT_MAX : (int)value;
}

// A node's error goes on to clients, some of which break on text that is not UTF-8. NULL: no error.
static const char *error_text(const char *error)
{
    if (!*error) return NULL;
    return utf8_valid(error, strlen(error), NULL) ? error : "the node failed, and its reason is not UTF-8";
}

static void on_pass(struct core *c, struct attachment *a, uint32_t rows, uint64_t pairs, uint32_t us, int64_t now_us)
{
    struct pass_cost pass = {rows, pairs < INT64_MAX ? (int64_t)pairs : INT64_MAX, us};
    if (us) core_passed(c, a->node, &pass, now_us);
}

static void on_scored(struct core *c, struct attachment *a, const Forepack__Cluster__V1__ScoreResults *m,
                      int64_t now_us)
{
    for (size_t i = 0; i < m->n_results; i++) {
        const Forepack__Cluster__V1__ScoreResult *from = m->results[i];
        struct token_range *kept = mem_alloc_array(from->n_kept, sizeof *kept);
        for (size_t k = 0; k < from->n_kept; k++)
            kept[k] = (struct token_range){count_of(from->kept[k]->first), count_of(from->kept[k]->last)};
        struct score_result result = {
            .request = from->request,
            .kept = kept,
            .n_kept = count_of((uint32_t)from->n_kept),
            .importance = from->n_importance ? from->importance : NULL,
            .n_importance = count_of((uint32_t)from->n_importance),
            .error = error_text(from->error),
            .cached_tokens = count_of(from->cached_tokens),
        };
        core_scored(c, a->node, &result, now_us);
        free(kept);
    }
    on_pass(c, a, m->rows, m->pairs, m->pass_us, now_us);
}

static void read_logprob(const Forepack__Cluster__V1__TokenLogprob *from, struct token_logprob *to)
{
    to->token = count_of(from->token_id);
    to->logprob = from->logprob;
    size_t n = from->n_top_ids < from->n_top_logprobs ? from->n_top_ids : from->n_top_logprobs;
    to->n_top = n > LOGPROBS_MAX ? LOGPROBS_MAX : (int)n;
    for (int i = 0; i < to->n_top; i++) {
        to->top_token[i] = count_of(from->top_ids[i]);
        to->top_logprob[i] = from->top_logprobs[i];
    }
}

static void read_sequence(const Forepack__Cluster__V1__SequenceResult *from, struct token_logprob *logprobs,
                          struct sequence_result *to)
{
    *to = (struct sequence_result){
        .request = from->request,
        .tokens = (const int32_t *)from->token_ids, // over INT_MAX reads negative, which the core refuses
        .n_tokens = count_of((uint32_t)from->n_token_ids),
        .finished = from->finish != FOREPACK__CLUSTER__V1__FINISH__FINISH_NONE,
        .reason = from->finish == FOREPACK__CLUSTER__V1__FINISH__FINISH_STOP     ? FINISH_REASON_STOP
                  : from->finish == FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH ? FINISH_REASON_LENGTH
                                                                                 : FINISH_REASON_ERROR,
        .error = error_text(from->error),
        .cached_tokens = count_of(from->cached_tokens),
    };
    if (from->n_logprobs && from->n_logprobs == from->n_token_ids) {
        for (size_t i = 0; i < from->n_logprobs; i++)
            read_logprob(from->logprobs[i], &logprobs[i]);
        to->logprobs = logprobs;
    }
}

static void on_step(struct core *c, struct attachment *a, const Forepack__Cluster__V1__StepResults *m, int64_t now_us)
{
    size_t n_logprobs = 0;
    for (size_t i = 0; i < m->n_results; i++)
        n_logprobs += m->results[i]->n_logprobs;
    struct sequence_result *results = mem_alloc_array(m->n_results, sizeof *results);
    struct token_logprob *logprobs = mem_alloc_array(n_logprobs, sizeof *logprobs);
    size_t used = 0;
    for (size_t i = 0; i < m->n_results; i++) {
        read_sequence(m->results[i], logprobs + used, &results[i]);
        used += m->results[i]->n_logprobs;
    }
    core_step(c, a->node, results, (int)m->n_results, now_us);
    on_pass(c, a, m->rows, m->pairs, m->step_us, now_us);
    free(logprobs);
    free(results);
}

static void run_event(struct core *c, void *arg, int64_t now_us)
{
    struct node_event *event = arg;
    struct attachment *a = event->attachment;
    const node_message *m = event->message;
    if (m->kind_case == FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO) {
        on_hello(c, a, m->hello, now_us);
    } else if (!a->node) {
        // Before Hello, or late words of a node that was given up.
        if (!a->greeted) rpc_call_finish(a->call, STATUS_INVALID, "the first message must be Hello");
    } else {
        switch (m->kind_case) {
        case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT:
            core_heartbeat(c, a->node, count_of(m->heartbeat->kv_blocks_free), count_of(m->heartbeat->running),
                           count_of(m->heartbeat->waiting), now_us);
            break;
        case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED: on_scored(c, a, m->scored, now_us); break;
        case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP: on_step(c, a, m->step, now_us); break;
        case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING: core_draining(c, a->node, now_us); break;
        default: break; // a newer node may say things this router does not know
        }
    }
    forepack__cluster__v1__node_message__free_unpacked(event->message, NULL);
    free(event);
}

static void run_close(struct core *c, void *arg, int64_t now_us)
{
    struct attachment *a = arg;
    if (a->node) core_detach(c, a->node, "its stream ended", now_us);
    rpc_call_unref(a->call);
    free(a);
}

static void on_open(struct rpc_call *call)
{
    struct attachment *a = mem_alloc(sizeof *a);
    rpc_call_ref(call);
    a->call = call;
    a->front = rpc_call_context(call);
    rpc_call_set_user(call, a);
}

static void on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct attachment *a = rpc_call_user(call);
    node_message *m = forepack__cluster__v1__node_message__unpack(NULL, size, bytes);
    if (!m) {
        rpc_call_finish(call, STATUS_INVALID, "not a NodeMessage");
        return;
    }
    struct node_event *event = mem_alloc(sizeof *event);
    *event = (struct node_event){a, m};
    loop_post(a->front->loop, run_event, event);
}

static void on_half_close(struct rpc_call *call)
{
    rpc_call_finish(call, STATUS_OK, "");
}

static void on_close(struct rpc_call *call, bool cancelled)
{
    struct attachment *a = rpc_call_user(call);
    loop_post(a->front->loop, run_close, a);
}

const struct rpc_method front_attach = {"/forepack.cluster.v1.Cluster/Attach", on_open, on_message, on_half_close,
                                        on_close};

// --- core to node

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

static void send_score_bin(void *link, uint64_t bin_id, struct request *const *requests, int n)
{
    struct attachment *a = link;
    Forepack__Cluster__V1__ScoreItem *items = mem_alloc_array((size_t)n, sizeof *items);
    Forepack__Cluster__V1__ScoreItem **list = mem_alloc_array((size_t)n, sizeof *list);
    for (int i = 0; i < n; i++) {
        const struct request *r = requests[i];
        Forepack__Cluster__V1__ScoreItem *m = list[i] = &items[i];
        forepack__cluster__v1__score_item__init(m);
        m->request = r->number;
        m->token_ids = (uint32_t *)r->tokens;
        m->n_token_ids = (size_t)r->n_tokens;
        prefill_to_message(&r->prefill, &m->base);
        m->want_importance = r->want_importance;
        int tail = r->n_tokens / 4;
        m->tail_tokens = (uint32_t)(tail < a->front->tail_tokens ? tail : a->front->tail_tokens);
        m->pinned = range_messages(r->pinned, r->n_pinned);
        m->n_pinned = (size_t)r->n_pinned;
    }
    Forepack__Cluster__V1__ScoreBin bin = FOREPACK__CLUSTER__V1__SCORE_BIN__INIT;
    bin.bin_id = bin_id;
    bin.items = list;
    bin.n_items = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN;
    message.score_bin = &bin;
    send_message(a, &message);
    for (int i = 0; i < n; i++)
        free(items[i].pinned);
    free(list);
    free(items);
}

// Kept prompt tokens, then what was generated before a replay.
static uint32_t *sequence_tokens(const struct request *r, size_t *n_p)
{
    uint32_t *ids = mem_alloc_array((size_t)r->usage.kept_tokens + (size_t)r->usage.completion_tokens, sizeof *ids);
    size_t n = 0;
    for (int k = 0; k < r->n_kept_ranges; k++) {
        for (int32_t t = r->kept[k].first; t <= r->kept[k].last; t++)
            ids[n++] = (uint32_t)r->tokens[t];
    }
    for (int i = 0; i < r->usage.completion_tokens; i++)
        ids[n++] = (uint32_t)r->output[i];
    *n_p = n;
    return ids;
}

static void send_prefill_bin(void *link, uint64_t bin_id, struct request *const *requests, int n)
{
    struct attachment *a = link;
    Forepack__Cluster__V1__Sequence *items = mem_alloc_array((size_t)n, sizeof *items);
    Forepack__Cluster__V1__Sequence **list = mem_alloc_array((size_t)n, sizeof *list);
    Forepack__Cluster__V1__Sampling *sampling = mem_alloc_array((size_t)n, sizeof *sampling);
    for (int i = 0; i < n; i++) {
        const struct request *r = requests[i];
        Forepack__Cluster__V1__Sequence *m = list[i] = &items[i];
        forepack__cluster__v1__sequence__init(m);
        m->request = r->number;
        m->token_ids = sequence_tokens(r, &m->n_token_ids);
        m->kept = range_messages(r->kept, r->n_kept_ranges);
        m->n_kept = (size_t)r->n_kept_ranges;
        m->prompt_tokens = (uint32_t)r->n_tokens;
        m->generated = (uint32_t)r->usage.completion_tokens;
        forepack__cluster__v1__sampling__init(&sampling[i]);
        sampling_to_message(&r->sampling, &sampling[i].base);
        m->sampling = &sampling[i];
        if (r->sampling.repetition_penalty != 1 && r->usage.kept_tokens < r->n_tokens) {
            m->penalty_ids = (uint32_t *)r->tokens; // dropped tokens still count as seen
            m->n_penalty_ids = (size_t)r->n_tokens;
        }
    }
    Forepack__Cluster__V1__PrefillBin bin = FOREPACK__CLUSTER__V1__PREFILL_BIN__INIT;
    bin.bin_id = bin_id;
    bin.sequences = list;
    bin.n_sequences = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN;
    message.prefill_bin = &bin;
    send_message(a, &message);
    for (int i = 0; i < n; i++) {
        free(items[i].token_ids);
        free(items[i].kept);
    }
    free(sampling);
    free(list);
    free(items);
}

static void send_cancel(void *link, const uint64_t *numbers, int n)
{
    Forepack__Cluster__V1__Cancel cancel = FOREPACK__CLUSTER__V1__CANCEL__INIT;
    cancel.requests = (uint64_t *)numbers;
    cancel.n_requests = (size_t)n;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_CANCEL;
    message.cancel = &cancel;
    send_message(link, &message);
}

static void node_lost(void *link, const char *reason)
{
    struct attachment *a = link;
    a->node = NULL;
    rpc_call_finish(a->call, STATUS_UNAVAILABLE, reason);
}

void front_publish_ready(struct front *front)
{
    struct rpc_server *server = __atomic_load_n(&front->server, __ATOMIC_ACQUIRE);
    if (!server) return; // main publishes it once the server is there
    rpc_server_set_serving(server, "", front->ready);
    rpc_server_set_serving(server, "forepack.v1.Inference", front->ready);
}

static void ready_changed(void *user, bool ready)
{
    struct front *front = user;
    front->ready = ready;
    front_publish_ready(front);
    log_info("ready=%s", ready ? "yes" : "no");
}

void attach_core_ops(struct front *front, struct core_ops *ops)
{
    *ops = (struct core_ops){send_score_bin, send_prefill_bin, send_cancel, node_lost, ready_changed, front};
}
