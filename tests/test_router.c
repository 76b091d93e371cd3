// SPDX-License-Identifier: Apache-2.0
#include "tests/test_router.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "tests/test_port.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

static void message_send(struct rpc_call *call, const router_message *message)
{
    size_t size = forepack__cluster__v1__router_message__get_packed_size(message);
    uint8_t *bytes = mem_alloc(size);
    forepack__cluster__v1__router_message__pack(message, bytes);
    rpc_call_send(call, bytes, size);
    free(bytes);
}

static void hello_answer(struct test_router *router, struct rpc_call *call)
{
    router->hellos++;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    if (router->nonsense) {
        rpc_call_send(call, (const uint8_t *)"\xff\xff\xff", 3);
        router->nonsense = false;
        return;
    }
    const Forepack__Cluster__V1__Hello *hello = router->hello->hello;
    bool duplicate = false;
    for (size_t i = 0; i < hello->n_attached; i++)
        duplicate |= hello->attached[i] == router->instance;
    router->duplicates += duplicate;
    if (router->refuse || duplicate) {
        Forepack__Cluster__V1__Refused refused = FOREPACK__CLUSTER__V1__REFUSED__INIT;
        refused.reason = duplicate ? "" : (char *)router->refuse;
        refused.duplicate = duplicate;
        message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_REFUSED;
        message.refused = &refused;
        message_send(call, &message);
        rpc_call_finish(call, STATUS_OK, NULL);
        return;
    }
    Forepack__Cluster__V1__Welcome welcome = FOREPACK__CLUSTER__V1__WELCOME__INIT;
    welcome.heartbeat_ms = 20;
    welcome.instance = router->instance;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_WELCOME;
    message.welcome = &welcome;
    message_send(call, &message);
    if (router->call) rpc_call_unref(router->call);
    rpc_call_ref(call);
    router->call = call;
}

// Handles a message. Either stores it and sets *message_p to NULL, or leaves it for the caller to free.
static void message_handle(struct test_router *router, struct rpc_call *call, node_message **message_p)
{
    node_message *message = *message_p;
    switch (message->kind_case) {
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HELLO:
        if (router->hello) forepack__cluster__v1__node_message__free_unpacked(router->hello, NULL);
        router->hello = message;
        *message_p = NULL;
        hello_answer(router, call);
        break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_HEARTBEAT:
        router->heartbeats++;
        router->load_running = (int)message->heartbeat->running;
        router->load_last_bin = (int)message->heartbeat->last_bin;
        router->load_progress = (int)message->heartbeat->progress;
        router->load_gpus = (int)message->heartbeat->n_gpus;
        for (int i = 0; i < router->load_gpus; i++)
            router->load_gpu_celsius = (int)message->heartbeat->gpus[i]->temperature_celsius;
        break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_SCORED:
        router->results += (int)message->scored->n_results;
        router->passes += message->scored->pass_us > 0;
        router->scored = mem_resize(router->scored, (size_t)router->n_scored + 1, sizeof *router->scored);
        router->scored[router->n_scored++] = message;
        *message_p = NULL;
        break;
    case FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_DRAINING:
        router->drainings++;
        snprintf(router->drain_reason, sizeof router->drain_reason, "%s", message->draining->reason);
        break;
    default: ck_abort_msg("message %d", (int)message->kind_case);
    }
}

static void attach_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    struct test_router *router = rpc_call_context(call);
    node_message *message = forepack__cluster__v1__node_message__unpack(NULL, size, bytes);
    ck_assert_ptr_nonnull(message);
    pthread_mutex_lock(&router->mutex);
    message_handle(router, call, &message);
    pthread_cond_broadcast(&router->changed);
    pthread_mutex_unlock(&router->mutex);
    if (message) forepack__cluster__v1__node_message__free_unpacked(message, NULL);
}

static void attach_on_half_close(struct rpc_call *call)
{
    struct test_router *router = rpc_call_context(call);
    pthread_mutex_lock(&router->mutex);
    router->half_closes++;
    pthread_cond_broadcast(&router->changed);
    pthread_mutex_unlock(&router->mutex);
    rpc_call_finish(call, STATUS_OK, NULL);
}

static void attach_on_close(struct rpc_call *call, bool cancelled)
{
    struct test_router *router = rpc_call_context(call);
    pthread_mutex_lock(&router->mutex);
    router->closes++;
    pthread_cond_broadcast(&router->changed);
    pthread_mutex_unlock(&router->mutex);
}

static const struct rpc_method methods[] = {
    {.path = "/forepack.cluster.v1.Cluster/Attach",
     .on_message = attach_on_message,
     .on_half_close = attach_on_half_close,
     .on_close = attach_on_close},
    {0},
};

void test_router_open(struct test_router *router, int port)
{
    *router = (struct test_router){.mutex = PTHREAD_MUTEX_INITIALIZER};
    monotonic_cond_init(&router->changed);
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", port ? port : test_port());
    enum status status = rpc_server_open(
        &(struct rpc_server_options){.address = address, .methods = methods, .context = router}, &router->server);
    ck_assert_msg(status == STATUS_OK, "%s", status_message());
    router->port = rpc_server_port(router->server);
}

void test_router_close(struct test_router *router)
{
    rpc_server_close(router->server, 0);
    if (router->call) rpc_call_unref(router->call);
    if (router->hello) forepack__cluster__v1__node_message__free_unpacked(router->hello, NULL);
    for (int i = 0; i < router->n_scored; i++)
        forepack__cluster__v1__node_message__free_unpacked(router->scored[i], NULL);
    free(router->scored);
}

void test_router_await(struct test_router *router, const int *counter, int count)
{
    int64_t until_us = clock_now_us() + (int64_t)TEST_ROUTER_BOUND_MS * 1000;
    pthread_mutex_lock(&router->mutex);
    while (*counter < count) {
        bool in_time = monotonic_cond_wait(&router->changed, &router->mutex, until_us);
        ck_assert_msg(in_time, "still %d of %d after %d s", *counter, count, TEST_ROUTER_BOUND_MS / 1000);
    }
    pthread_mutex_unlock(&router->mutex);
}

int test_router_count(struct test_router *router, const int *counter)
{
    pthread_mutex_lock(&router->mutex);
    int value = *counter;
    pthread_mutex_unlock(&router->mutex);
    return value;
}

void test_router_await_more(struct test_router *router, const int *counter, int more)
{
    test_router_await(router, counter, test_router_count(router, counter) + more);
}

void test_router_send(struct test_router *router, const router_message *message)
{
    pthread_mutex_lock(&router->mutex);
    message_send(router->call, message);
    pthread_mutex_unlock(&router->mutex);
}

void test_router_send_bytes(struct test_router *router, const void *bytes, size_t size)
{
    pthread_mutex_lock(&router->mutex);
    rpc_call_send(router->call, bytes, size);
    pthread_mutex_unlock(&router->mutex);
}

void test_router_send_bin(struct test_router *router, uint64_t bin_id, Forepack__Cluster__V1__ScoreItem **items,
                          size_t n_items)
{
    Forepack__Cluster__V1__ScoreBin bin = FOREPACK__CLUSTER__V1__SCORE_BIN__INIT;
    bin.bin_id = bin_id;
    bin.items = items;
    bin.n_items = n_items;
    router_message message = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_SCORE_BIN;
    message.score_bin = &bin;
    test_router_send(router, &message);
}

const Forepack__Cluster__V1__ScoreResult *test_router_result(struct test_router *router, uint64_t request)
{
    const Forepack__Cluster__V1__ScoreResult *found = NULL;
    pthread_mutex_lock(&router->mutex);
    for (int i = 0; i < router->n_scored; i++) {
        for (size_t r = 0; r < router->scored[i]->scored->n_results; r++) {
            const Forepack__Cluster__V1__ScoreResult *result = router->scored[i]->scored->results[r];
            if (result->request == request) found = result;
        }
    }
    pthread_mutex_unlock(&router->mutex);
    return found;
}
