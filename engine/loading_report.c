// SPDX-License-Identifier: Apache-2.0
#include "engine/loading_report.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/router_list.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/thread.h"
#include "lib/base/version.h"
#include "lib/messages/unpack.h"

typedef Forepack__Cluster__V1__NodeMessage node_message;
typedef Forepack__Cluster__V1__RouterMessage router_message;

enum { RETRY_MS = 2000, HEARTBEAT_DEFAULT_MS = 1000, HEARTBEAT_MAX_MS = 60000 };

struct loading_report {
    char address[ROUTER_ADDRESS_MAX];
    struct node_router router; // its address is `address`
    struct node_identity identity;
    Forepack__Cluster__V1__Role role;
    int ranks;
    const struct load_progress *progress;
    char host[HOST_NAME_MAX + 1];
    pthread_t link, sender; // the link opens streams and reads them; the sender sends reports at intervals
    pthread_mutex_t mutex;  // guards the members below
    pthread_cond_t changed;
    struct rpc_stream *stream; // NULL: none
    int heartbeat_ms;          // 0: the router has not answered on this stream
    bool stop;
};

// Sends a report. Called with the mutex held and a stream open.
static void report_send(struct loading_report *r)
{
    Forepack__Cluster__V1__Loading loading = FOREPACK__CLUSTER__V1__LOADING__INIT;
    loading.node_id = r->identity.node_id;
    loading.role = r->role;
    loading.version = (char *)FOREPACK_VERSION;
    loading.host = r->host;
    loading.ranks = (uint32_t)r->ranks;
    loading.protocol = CLUSTER_PROTOCOL_VERSION;
    loading.instance = r->identity.instance;
    loading.percent = (uint32_t)load_progress_percent(r->progress);
    node_message message = FOREPACK__CLUSTER__V1__NODE_MESSAGE__INIT;
    message.kind_case = FOREPACK__CLUSTER__V1__NODE_MESSAGE__KIND_LOADING;
    message.loading = &loading;
    const size_t size = forepack__cluster__v1__node_message__get_packed_size(&message);
    uint8_t *bytes = mem_alloc(size);
    forepack__cluster__v1__node_message__pack(&message, bytes);
    rpc_stream_send(r->stream, bytes, size);
    free(bytes);
}

// Waits for this time or until the reports end. Returns false if they end. Called with the mutex held.
static bool pause_ms(struct loading_report *r, int ms)
{
    const int64_t until_us = clock_now_us() + (int64_t)ms * 1000;
    while (!r->stop && monotonic_cond_wait(&r->changed, &r->mutex, until_us))
        continue;
    return !r->stop;
}

static void *sender_thread(void *arg)
{
    struct loading_report *r = arg;
    pthread_mutex_lock(&r->mutex);
    while (!r->stop) {
        if (!r->heartbeat_ms) {
            pthread_cond_wait(&r->changed, &r->mutex);
        } else if (pause_ms(r, r->heartbeat_ms) && r->stream) {
            report_send(r);
        }
    }
    pthread_mutex_unlock(&r->mutex);
    return NULL;
}

static void welcome_handle(struct loading_report *r, const Forepack__Cluster__V1__Welcome *welcome)
{
    const uint32_t ms = welcome->heartbeat_ms;
    pthread_mutex_lock(&r->mutex);
    r->heartbeat_ms = ms >= 1 && ms <= HEARTBEAT_MAX_MS ? (int)ms : HEARTBEAT_DEFAULT_MS;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
}

// Reads the router's messages until the stream ends. Only Welcome matters: the node has no work that could be drained
// or cancelled, and the router logs why it refuses a node.
static void stream_read(struct loading_report *r, struct rpc_stream *stream)
{
    struct rpc_bytes bytes = {0};
    while (rpc_stream_read(stream, &bytes) == STATUS_OK && bytes.data) {
        router_message *m =
            proto_unpack(&forepack__cluster__v1__router_message__descriptor, bytes.data, bytes.size, 1 << 20, NULL);
        rpc_bytes_free(&bytes);
        if (!m) return;
        if (m->kind_case == FOREPACK__CLUSTER__V1__ROUTER_MESSAGE__KIND_WELCOME) welcome_handle(r, m->welcome);
        forepack__cluster__v1__router_message__free_unpacked(m, NULL);
    }
}

static void stream_run(struct loading_report *r, struct rpc_channel *channel)
{
    struct rpc_stream *stream;
    if (rpc_stream_open(channel, NODE_ATTACH_PATH, 0, false, &stream) != STATUS_OK) return;
    pthread_mutex_lock(&r->mutex);
    const bool stop = r->stop;
    if (!stop) {
        r->stream = stream;
        report_send(r);
    }
    pthread_mutex_unlock(&r->mutex);
    if (!stop) stream_read(r, stream);
    pthread_mutex_lock(&r->mutex);
    r->stream = NULL;
    r->heartbeat_ms = 0;
    pthread_mutex_unlock(&r->mutex);
    rpc_stream_close(stream);
}

static void *link_thread(void *arg)
{
    struct loading_report *r = arg;
    pthread_mutex_lock(&r->mutex);
    bool runs = pause_ms(r, LOADING_REPORT_AFTER_MS);
    const bool uses_rpc = runs; // opening the library would delay short starts
    if (uses_rpc) rpc_init();
    while (runs) {
        pthread_mutex_unlock(&r->mutex);
        struct rpc_channel *channel;
        if (node_channel_open(&r->router, &channel) == STATUS_OK) {
            stream_run(r, channel);
            rpc_channel_close(channel);
        }
        pthread_mutex_lock(&r->mutex);
        runs = pause_ms(r, RETRY_MS);
    }
    pthread_mutex_unlock(&r->mutex);
    if (uses_rpc) rpc_shutdown();
    return NULL;
}

struct loading_report *loading_report_start(const struct node_router *router, const struct node_identity *identity,
                                            Forepack__Cluster__V1__Role role, int ranks,
                                            const struct load_progress *progress)
{
    struct loading_report *r = mem_alloc(sizeof *r);
    *r = (struct loading_report){
        .router = *router, .identity = *identity, .role = role, .ranks = ranks, .progress = progress};
    snprintf(r->address, sizeof r->address, "%s", router->address);
    r->router.address = r->address;
    gethostname(r->host, sizeof r->host - 1);
    pthread_mutex_init(&r->mutex, NULL);
    monotonic_cond_init(&r->changed);
    thread_start(&r->link, "loading_link", link_thread, r);
    thread_start(&r->sender, "loading_sender", sender_thread, r);
    return r;
}

void loading_report_stop(struct loading_report *r)
{
    pthread_mutex_lock(&r->mutex);
    r->stop = true;
    if (r->stream) rpc_stream_cancel(r->stream);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    pthread_join(r->link, NULL);
    pthread_join(r->sender, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}
