// SPDX-License-Identifier: Apache-2.0
// Runs a router in the test's process: a front, a core with its thread, a gRPC server and an HTTP server. The test
// provides nodes as functions and sets the other fields of `front`. front_stop() frees everything that the fixture
// made.
#pragma once

#include <semaphore.h>
#include <stdlib.h>

#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/version.h"
#include "router/front/front.h"
#include "router/front/http/http_service.h"
#include "router/front/nodes/node_link.h"
#include "router/front/request/intake_pool.h"
#include "router/front/request/parsed_message.h"
#include "tests/rpc_client.h"

static struct front front;
static struct core *core;
static struct rpc_server *server;
static struct http_service *service;
static sem_t done; // an event has run

// --- the router

// Opens the main model of the demo pair under the name "demo", with prompts and answers of `context` tokens.
static inline void front_open_demo(int context)
{
    static char *names[] = {"demo"};
    const char *source = getenv("FOREPACK_SOURCE");
    char *dir = mem_format("%s/deploy/demo-model/main", source ? source : ".");
    front = (struct front){.model_names = names, .n_model_names = 1, .config = {.max_context = context}};
    ck_assert_msg(tokenizer_open(dir, &front.tokenizer) == STATUS_OK, "%s", status_message());
    free(dir);
    front.config.vocab_size = tokenizer_vocab_size(front.tokenizer);
    prefill_defaults(&front.prefill);
    front.chat_problem = "no chat template";
}

// Starts the core. The fixture sets the options about the model and heartbeats.
static inline void front_start(struct core_options options)
{
    options.heartbeat_us = 3600000000; // the nodes send none
    options.bins_ahead = 2;
    options.vocab_size = front.config.vocab_size;
    if (front.tokenizer) options.tokenizer_fingerprint = tokenizer_fingerprint(front.tokenizer);
    rpc_init();
    sem_init(&done, 0, 0);
    struct core_ops ops;
    front_core_ops_init(&front, &ops);
    core = core_create(&options, &ops);
    front.loop = loop_start(core);
    front.parsed_messages = parsed_message_table_create();
}

// Serves the methods, which outlive the server, and opens a channel to it. `threads`: 0 for the default.
static inline void front_serve_grpc(const struct rpc_method *methods, int threads)
{
    const struct rpc_server_options options = {
        .address = "127.0.0.1:0", .methods = methods, .context = &front, .threads = threads};
    ck_assert_msg(rpc_server_open(&options, &server) == STATUS_OK, "%s", status_message());
    open_channel(rpc_server_port(server));
}

static inline void front_serve_http(struct http_service_options options)
{
    options.host = "127.0.0.1";
    ck_assert_msg(http_service_open(&front, &options, &service) == STATUS_OK, "%s", status_message());
}

static inline void front_stop(void)
{
    if (server) {
        rpc_channel_close(channel);
        rpc_server_close(server, 0);
    }
    if (service) http_service_close(service, 0);
    if (front.pool) intake_pool_close(front.pool);
    loop_stop(front.loop);
    http_service_free(service);
    core_free(core);
    intake_pool_free(front.pool);
    parsed_message_table_free(front.parsed_messages);
    tokenizer_free(front.tokenizer);
    rpc_shutdown();
}

// Runs an event, which posts `done`, on the core's thread and waits for it.
static inline void run_event(loop_fn event, void *arg)
{
    loop_post(front.loop, event, arg);
    sem_wait(&done);
}

// --- nodes

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;
typedef Forepack__Cluster__V1__Hello node_hello_message;

static inline void node_finish(struct node_link *link, enum status status, const char *reason)
{
}

static inline const char *node_peer(const struct node_link *link)
{
    return "test";
}

// Makes the Hello of a node that serves the router's model.
static inline node_hello_message make_hello(Forepack__Cluster__V1__Role role, char *id)
{
    static uint64_t instances;
    node_hello_message hello = FOREPACK__CLUSTER__V1__HELLO__INIT;
    hello.protocol = CLUSTER_PROTOCOL_VERSION;
    hello.role = role;
    hello.node_id = id;
    hello.version = hello.host = hello.backend = hello.dtype = hello.kv_dtype = "test";
    hello.instance = ++instances;
    hello.model_fingerprint = 1;
    hello.ranks = 1;
    hello.max_seqs = 16;
    if (front.tokenizer) hello.tokenizer_fingerprint = tokenizer_fingerprint(front.tokenizer);
    hello.vocab_size = (uint32_t)front.config.vocab_size;
    hello.context_tokens = (uint32_t)front.config.max_context;
    hello.token_budget = 8192;
    hello.block_tokens = 16;
    hello.kv_blocks = 1 << 20;
    return hello;
}

// Attaches a node that has no transport: ops->receive gets the router's messages. Call it on the core's thread.
static inline void node_attach(struct node_link *node, const struct node_link_ops *ops, node_hello_message hello,
                               int64_t now_us)
{
    *node = (struct node_link){.ops = ops, .heartbeat_ms = 1000};
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO;
    message.hello = &hello;
    node_link_handle(node, core, &message, now_us);
}
