// SPDX-License-Identifier: Apache-2.0
// A router for tests of nodes, made of lib/net/rpc.h alone. It welcomes nodes, sends the bins of the test and stores
// the results. Call rpc_init() first; failures abort the test.
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "lib/net/rpc.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"

enum { TEST_ROUTER_BOUND_MS = 300000 }; // bound of every wait

struct test_router {
    struct rpc_server *server;
    int port;
    pthread_mutex_t mutex; // guards the fields below
    pthread_cond_t changed;
    struct rpc_call *call;  // the last stream that sent Hello; a reference
    const char *refuse;     // refuses nodes with this reason; NULL: welcomes them
    uint64_t instance;      // sent in Welcome; a Hello that names it is refused as a duplicate
    bool nonsense;          // answers the next Hello with bytes that are not a message
    int duplicates, passes; // refused duplicates; messages with the cost of a pass
    int hellos, heartbeats, results, drainings, half_closes, closes; // received so far; `results` counts prompts
    Forepack__Cluster__V1__NodeMessage *hello;                       // the last Hello
    Forepack__Cluster__V1__NodeMessage **scored;                     // [n_scored] messages with results
    int n_scored;
    int load_running, load_progress, load_last_bin; // values of the last heartbeat
    int load_gpus, load_gpu_celsius;                // values of the last heartbeat; the temperature is its last GPU's
    char drain_reason[256];                         // reason in the last Draining
};

void test_router_open(struct test_router *router, int port); // 0: a free port
void test_router_close(struct test_router *router);

// Waits until a counter of the struct has reached `count`, or has grown by `more`.
void test_router_await(struct test_router *router, const int *counter, int count);
void test_router_await_more(struct test_router *router, const int *counter, int more);
int test_router_count(struct test_router *router, const int *counter);

// Send a message to the node of the last stream.
void test_router_send(struct test_router *router, const Forepack__Cluster__V1__RouterMessage *message);
void test_router_send_bytes(struct test_router *router, const void *bytes, size_t size);
void test_router_send_bin(struct test_router *router, uint64_t bin_id, Forepack__Cluster__V1__ScoreItem **items,
                          size_t n_items);

// Returns the received result of a request, or NULL. Valid until the router is closed.
const Forepack__Cluster__V1__ScoreResult *test_router_result(struct test_router *router, uint64_t request);
