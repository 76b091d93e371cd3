// SPDX-License-Identifier: Apache-2.0
// Two threads: one reads bins and answers each with one message, the other sends heartbeats.
#include "bench/commands/fake_node.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/monotonic_cond.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "proto/forepack/v1/inference.pb-c.h"

enum { ANSWER_TOKEN = 5, BLOCK_TOKENS = 16, KV_BLOCKS = 1 << 20, TOKEN_BUDGET = 8192, SEQS = 4096, PASS_US = 1 };

struct fake_node {
    struct rpc_channel *channel;
    struct rpc_stream *stream;
    pthread_t reader, heart;
    int64_t heartbeat_us;
    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t changed;
    bool closing;
};

static void node_send(struct fake_node *node, const Forepack__Cluster__V1__NodeMessage *message)
{
    size_t size = forepack__cluster__v1__node_message__get_packed_size(message);
    uint8_t *bytes = mem_resize(NULL, size, 1);
    forepack__cluster__v1__node_message__pack(message, bytes);
    rpc_stream_send(node->stream, bytes, size);
    free(bytes);
}

static void send_hello(struct fake_node *node, const Forepack__V1__ModelInfo *info)
{
    Forepack__Cluster__V1__Hello hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    char *id = mem_format("fake-%d", (int)getpid());
    hello.node_id = id;
    hello.role = FOREPACK__CLUSTER__V1__ROLE__ROLE_WORKER;
    hello.version = hello.host = hello.dtype = "fake";
    hello.ranks = 1;
    hello.model_fingerprint = 1;
    hello.tokenizer_fingerprint = info->tokenizer_fingerprint;
    hello.vocab_size = info->vocab_size;
    hello.context_tokens = info->context_tokens;
    hello.token_budget = TOKEN_BUDGET;
    hello.block_tokens = BLOCK_TOKENS;
    hello.kv_blocks = KV_BLOCKS;
    hello.max_seqs = SEQS;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    message.hello = &hello;
    node_send(node, &message);
    free(id);
}

// One pass that computes the whole bin and ends all its sequences.
static void answer_bin(struct fake_node *node, const Forepack__Cluster__V1__PrefillBin *bin)
{
    size_t n = bin->n_sequences, tokens = 0, used = 0;
    for (size_t i = 0; i < n; i++)
        tokens += bin->sequences[i]->sampling ? bin->sequences[i]->sampling->max_tokens : 0;
    Forepack__Cluster__V1__SequenceResult *results = mem_alloc_array(n, sizeof *results);
    Forepack__Cluster__V1__SequenceResult **list = mem_alloc_array(n, sizeof *list);
    uint32_t *ids = mem_alloc_array(tokens, sizeof *ids);
    Forepack__Cluster__V1__StepResults step = FOREPACK__CLUSTER__V1__STEP_RESULTS__INIT;
    for (size_t i = 0; i < n; i++) {
        const Forepack__Cluster__V1__Sequence *sequence = bin->sequences[i];
        list[i] = &results[i];
        forepack__cluster__v1__sequence_result__init(list[i]);
        list[i]->request = sequence->request;
        list[i]->token_ids = ids + used;
        list[i]->n_token_ids = sequence->sampling ? sequence->sampling->max_tokens : 0;
        list[i]->finish = FOREPACK__CLUSTER__V1__FINISH__FINISH_LENGTH;
        used += list[i]->n_token_ids;
        step.rows += (uint32_t)sequence->n_token_ids;
    }
    for (size_t t = 0; t < tokens; t++)
        ids[t] = ANSWER_TOKEN;
    step.results = list;
    step.n_results = n;
    step.step_us = PASS_US;
    step.pairs = step.rows;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_STEP;
    message.step = &step;
    node_send(node, &message);
    free(ids);
    free(list);
    free(results);
}

// The next message of the router, NULL at the end of the stream; free it.
static Forepack__Cluster__V1__RouterMessage *node_read(struct fake_node *node)
{
    struct rpc_bytes bytes;
    if (rpc_stream_read(node->stream, &bytes) != STATUS_OK || !bytes.data) return NULL;
    Forepack__Cluster__V1__RouterMessage *message =
        forepack__cluster__v1__router_message__unpack(NULL, bytes.size, bytes.data);
    rpc_bytes_free(&bytes);
    return message;
}

static void *node_run(void *argument)
{
    struct fake_node *node = argument;
    Forepack__Cluster__V1__RouterMessage *message;
    while ((message = node_read(node))) {
        if (message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_PREFILL_BIN)
            answer_bin(node, message->prefill_bin);
        forepack__cluster__v1__router_message__free_unpacked(message, NULL);
    }
    return NULL;
}

static void *heart_run(void *argument)
{
    struct fake_node *node = argument;
    Forepack__Cluster__V1__Heartbeat heartbeat = FOREPACK__CLUSTER__V1__HEARTBEAT__INIT;
    heartbeat.kv_blocks_free = KV_BLOCKS;
    Forepack__Cluster__V1__NodeMessage message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT;
    message.heartbeat = &heartbeat;
    pthread_mutex_lock(&node->mutex);
    while (!node->closing) {
        node_send(node, &message);
        int64_t until_us = clock_now_us() + node->heartbeat_us;
        while (!node->closing && monotonic_cond_wait(&node->changed, &node->mutex, until_us))
            continue;
    }
    pthread_mutex_unlock(&node->mutex);
    return NULL;
}

static enum status read_model_info(struct rpc_channel *channel, Forepack__V1__ModelInfo **info_p)
{
    struct rpc_bytes answer;
    TRY(rpc_unary(channel, "/forepack.v1.Inference/GetModelInfo", (const uint8_t *)"", 0, 10000, &answer));
    *info_p = forepack__v1__model_info__unpack(NULL, answer.size, answer.data);
    rpc_bytes_free(&answer);
    return *info_p ? STATUS_OK : status_fail(STATUS_DATA, "the router's answer is not a valid ModelInfo");
}

static enum status node_attach(struct fake_node *node)
{
    Forepack__V1__ModelInfo *info;
    TRY(read_model_info(node->channel, &info));
    TRY(rpc_stream_open(node->channel, "/forepack.cluster.v1.Cluster/Attach", 0, false, &node->stream));
    send_hello(node, info);
    forepack__v1__model_info__free_unpacked(info, NULL);
    Forepack__Cluster__V1__RouterMessage *message = node_read(node);
    bool welcome = message && message->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_WELCOME;
    if (welcome) node->heartbeat_us = (int64_t)message->welcome->heartbeat_ms * 1000;
    if (message) forepack__cluster__v1__router_message__free_unpacked(message, NULL);
    return welcome ? STATUS_OK : status_fail(STATUS_UNAVAILABLE, "the router did not accept the simulated node");
}

enum status fake_node_open(const char *server, struct fake_node **node_p)
{
    struct fake_node *node = mem_alloc(sizeof *node);
    pthread_mutex_init(&node->mutex, NULL);
    monotonic_cond_init(&node->changed);
    enum status status = rpc_channel_open(server, &node->channel);
    if (status == STATUS_OK) status = node_attach(node);
    if (status != STATUS_OK) {
        node->closing = true; // no threads
        fake_node_close(node);
        return status;
    }
    pthread_create(&node->reader, NULL, node_run, node);
    pthread_create(&node->heart, NULL, heart_run, node);
    *node_p = node;
    return STATUS_OK;
}

void fake_node_close(struct fake_node *node)
{
    if (!node) return;
    pthread_mutex_lock(&node->mutex);
    bool runs = !node->closing;
    node->closing = true;
    pthread_cond_signal(&node->changed);
    pthread_mutex_unlock(&node->mutex);
    if (node->stream) rpc_stream_cancel(node->stream);
    if (runs) {
        pthread_join(node->reader, NULL);
        pthread_join(node->heart, NULL);
    }
    rpc_stream_close(node->stream);
    rpc_channel_close(node->channel);
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->mutex);
    free(node);
}
