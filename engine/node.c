// SPDX-License-Identifier: Apache-2.0
// Starts and stops the links of a node. The heartbeat thread sends heartbeats and receives signals; the thread of names
// looks up the names and files of routers, and starts and retires links.
#include "engine/node.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/node_channel.h"
#include "engine/router_link.h"
#include "engine/start_signals.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/log_writer.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/thread.h"
#include "lib/base/version.h"

enum {
    STOP_TIMEOUT_MS = 10000, // time for the routers to end the streams
    LOOK_UP_MS = 5000,       // interval between two look-ups of the names and files of routers
    SEEK_MS = 500,           // the same if the list has files and no router is attached: a router may have moved
};

// --- names of routers

static struct router_link *link_find(struct node *node, const char *address)
{
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        struct router_link *link = &node->links[i];
        if (link->used && !link->over && !link->retired && strcmp(link->at.address, address) == 0) return link;
    }
    return NULL;
}

static bool addresses_have(const struct router_addresses *addresses, const char *address)
{
    for (int i = 0; i < addresses->n; i++)
        if (strcmp(addresses->items[i].address, address) == 0) return true;
    return false;
}

// Starts a link to an address that has none. Called with the mutex held.
static void link_start(struct node *node, const struct router_address *at)
{
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        if (node->links[i].used) continue;
        router_link_start(&node->links[i], at);
        return;
    }
    log_event_limited(LOG_WARN, "router_ignored", LOG_FIELD("router", (const char *)at->address),
                      LOG_FIELD("reason", "the node has no free link"));
}

// Starts links to new addresses. If the addresses are complete, the other links do not attach again; their streams may
// go on. Called with the mutex held.
static void links_update(struct node *node, const struct router_addresses *addresses, bool complete)
{
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        struct router_link *link = &node->links[i];
        if (!link->used || link->over) continue;
        if (addresses_have(addresses, link->at.address))
            link->retired = false;
        else if (complete)
            link->retired = true;
    }
    for (int i = 0; i < addresses->n; i++)
        if (!link_find(node, addresses->items[i].address)) link_start(node, &addresses->items[i]);
    node_count_routers(node);
    pthread_cond_broadcast(&node->changed);
}

// Joins the readers that have ended. Called with the mutex held: they no longer need it.
static void links_join_ended(struct node *node)
{
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        if (node->links[i].used && node->links[i].over) router_link_join(&node->links[i]);
}

// Time of the next look-up. Called with the mutex held.
static int64_t look_up_due_us(const struct node *node, int64_t last_us)
{
    const int interval_ms = node->list.has_files && !node_is_attached(node, NULL) ? SEEK_MS : LOOK_UP_MS;
    return last_us + (int64_t)interval_ms * 1000;
}

// Looks up the names and files until the node drains or stops.
static void *names_thread(void *argument)
{
    struct node *node = argument;
    bool known = true; // the last look-up was complete, or its failure has been logged
    pthread_mutex_lock(&node->mutex);
    while (!node->stopping && !node->draining) {
        struct router_addresses addresses;
        pthread_mutex_unlock(&node->mutex);
        const bool complete = router_list_look_up(&node->list, &addresses);
        if (!complete) log_event(known ? LOG_WARN : LOG_DEBUG, "routers_not_found", LOG_REASON);
        known = complete;
        pthread_mutex_lock(&node->mutex);
        if (node->stopping || node->draining) break;
        links_join_ended(node);
        links_update(node, &addresses, complete);
        const int64_t last_us = clock_now_us();
        while (!node->stopping && !node->draining && node_wait_until(node, look_up_due_us(node, last_us)))
            continue;
    }
    pthread_mutex_unlock(&node->mutex);
    return NULL;
}

// --- heartbeats and signals

// Checks that the next attempt to attach can use the node's files, without connecting.
static enum status files_check(const struct node *node)
{
    const struct node_router router = {.tls = {node->tls_cert, node->tls_key, node->tls_ca},
                                       .token_file = node->token_file};
    return node_channel_check(&router, &node->list);
}

// Records the stamps of the link's files. If `changed` is true, logs the files whose stamps have changed.
static void files_look(struct node *node, bool changed)
{
    const char *const files[] = {node->token_file, node->tls_cert, node->tls_key, node->tls_ca};
    for (int i = 0; i < 4; i++) {
        if (files[i] && file_stamp_update(&node->stamps[i], files[i]) && changed)
            log_event(LOG_INFO, "file_changed", LOG_FIELD("file", files[i]),
                      LOG_FIELD("effect", "it is used when the node attaches again"));
    }
}

static void reload(struct node *node)
{
    log_event(LOG_INFO, "reload_started", LOG_FIELD("signal", "SIGHUP"));
    node_vitals_reload_begin(node->callbacks.vitals);
    enum status config = node->callbacks.reload ? node->callbacks.reload(node->callbacks.arg) : STATUS_OK;
    files_look(node, true);
    enum status files = files_check(node);
    if (files != STATUS_OK)
        log_event(LOG_ERROR, "file_refused", LOG_REASON,
                  LOG_FIELD("effect", "the node stays attached, but could not attach again"));
    const bool refused = status_either(config, files) != STATUS_OK;
    node_vitals_reload_end(node->callbacks.vitals, refused ? status_message() : NULL);
    log_event(LOG_INFO, "reload_done", LOG_FIELD("signal", "SIGHUP"));
}

static void signal_handle(struct node *node)
{
    struct signalfd_siginfo info;
    if (read(node->signals, &info, sizeof info) != sizeof info) return;
    if (info.ssi_signo == SIGHUP) {
        reload(node);
        return;
    }
    char signal_name[16];
    snprintf(signal_name, sizeof signal_name, "SIG%s", sigabbrev_np((int)info.ssi_signo));
    pthread_mutex_lock(&node->mutex);
    if (node->signalled_us && drain_signal_repeats(node->signalled_us)) {
        pthread_mutex_unlock(&node->mutex);
        return;
    }
    if (node->signalled_us) {
        log_event(LOG_WARN, "drain_aborted", LOG_FIELD("signal", signal_name),
                  LOG_FIELD("reason", "second signal, running work is lost"));
        log_flush();
        _exit(1);
    }
    node->signalled_us = clock_now_us();
    node_drain_start(node, signal_name, NULL);
    pthread_mutex_unlock(&node->mutex);
}

// Sends the heartbeats that are due, and returns the time until the next one; -1: no link is attached. Called with the
// mutex held.
static int send_due_heartbeats(struct node *node)
{
    const int64_t now_us = clock_now_us();
    int64_t next_us = INT64_MAX;
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        struct router_link *link = &node->links[i];
        if (!link->welcomed) continue;
        if (now_us >= link->heartbeat_due_us) {
            node_send_heartbeat(link);
            link->heartbeat_due_us = now_us + (int64_t)link->heartbeat_ms * 1000;
        }
        if (link->heartbeat_due_us < next_us) next_us = link->heartbeat_due_us;
    }
    return next_us == INT64_MAX ? -1 : (int)((next_us - now_us) / 1000) + 1;
}

static void *heartbeat_thread(void *argument)
{
    struct node *node = argument;
    struct pollfd polled[2] = {{.fd = node->signals, .events = POLLIN}, {.fd = node->wake, .events = POLLIN}};
    for (;;) {
        pthread_mutex_lock(&node->mutex);
        const bool stopping = node->stopping;
        const int timeout_ms = stopping ? 0 : send_due_heartbeats(node);
        pthread_mutex_unlock(&node->mutex);
        if (stopping) return NULL;
        if (poll(polled, 2, timeout_ms) <= 0) continue;
        uint64_t count;
        if (polled[1].revents && read(node->wake, &count, sizeof count) < 0) continue;
        if (polled[0].revents) signal_handle(node);
    }
}

// --- start and stop

static void signals_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGUSR1);
    sigaddset(set, SIGHUP);
}

void node_block_signals(void)
{
    sigset_t set;
    signals_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static uint8_t *hello_pack(const Forepack__Cluster__V1__Hello *hello, size_t *size_p)
{
    Forepack__Cluster__V1__Hello own = *hello;
    struct node_identity identity;
    own.protocol = CLUSTER_PROTOCOL_VERSION;
    if (!own.instance) {
        node_identity_draw(own.role, own.node_id, &identity);
        own.instance = identity.instance;
        own.node_id = identity.node_id;
    }
    *size_p = forepack__cluster__v1__hello__get_packed_size(&own);
    uint8_t *bytes = mem_alloc(*size_p);
    forepack__cluster__v1__hello__pack(&own, bytes);
    return bytes;
}

// Frees a node whose threads have ended.
static void node_free(struct node *node)
{
    mailbox_fini(&node->mails);
    if (node->wake >= 0) close(node->wake);
    if (node->signals >= 0) close(node->signals);
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->mutex);
    free(node->hello);
    free(node->router);
    free(node->tls_cert);
    free(node->tls_key);
    free(node->tls_ca);
    free(node->token_file);
    free(node->drain_reason);
    free(node);
    rpc_shutdown();
}

static void heartbeat_join(struct node *node)
{
    pthread_mutex_lock(&node->mutex);
    node->stopping = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->mutex);
    node_heartbeat_wake(node);
    pthread_join(node->heartbeat, NULL);
}

static char *text_copy(const char *text)
{
    return text ? mem_string(text) : NULL;
}

// Allocates a node without threads.
static struct node *node_create(const struct node_router *router, const Forepack__Cluster__V1__Hello *hello,
                                const struct node_callbacks *callbacks)
{
    struct node *node = mem_alloc(sizeof *node);
    *node = (struct node){.callbacks = *callbacks, .signals = -1, .wake = -1};
    node->router = mem_string(router->address);
    node->tls_cert = text_copy(router->tls.cert);
    node->tls_key = text_copy(router->tls.key);
    node->tls_ca = text_copy(router->tls.ca);
    node->token_file = text_copy(router->token_file);
    node->hello = hello_pack(hello, &node->hello_size);
    forepack__cluster__v1__heartbeat__init(&node->load);
    node->load.kv_blocks_free = hello->kv_blocks;
    pthread_mutex_init(&node->mutex, NULL);
    monotonic_cond_init(&node->changed);
    for (int i = 0; i < NODE_LINKS_MAX; i++) {
        node->links[i].node = node;
        node->links[i].index = i;
    }
    return node;
}

static enum status signals_open(struct node *node)
{
    sigset_t set;
    signals_set(&set);
    node->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    node->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (node->signals >= 0 && node->wake >= 0) return STATUS_OK;
    return status_fail(STATUS_INTERNAL, "signalfd, eventfd: %s", strerror(errno));
}

// Starts the links. Names are looked up by a thread, because that may take seconds.
static void links_start(struct node *node)
{
    struct router_addresses addresses;
    if (node->list.changes) {
        thread_start(&node->names, "router_names", names_thread, node);
        return;
    }
    (void)!router_list_look_up(&node->list, &addresses); // complete without names and files
    pthread_mutex_lock(&node->mutex);
    links_update(node, &addresses, true);
    pthread_mutex_unlock(&node->mutex);
}

enum status node_start(const struct node_router *router, const Forepack__Cluster__V1__Hello *hello,
                       const struct node_callbacks *callbacks, struct node **node_p)
{
    rpc_init();
    struct node *node = node_create(router, hello, callbacks);
    start_signals_release();
    enum status status = router_list_parse(node->router, &node->list);
    if (status == STATUS_OK) status = signals_open(node);
    if (status != STATUS_OK) goto free_node;
    files_look(node, false);
    status = files_check(node);
    if (status != STATUS_OK) goto free_node;
    thread_start(&node->heartbeat, "heartbeat", heartbeat_thread, node);
    links_start(node);
    *node_p = node;
    return STATUS_OK;

free_node:
    node_free(node);
    return status;
}

const char *node_trouble(struct node *node)
{
    pthread_mutex_lock(&node->mutex);
    const char *reason = node->drain_reason; // does not change once set
    pthread_mutex_unlock(&node->mutex);
    return reason;
}

// Returns true if a reader runs. Called with the mutex held.
static bool readers_run(const struct node *node)
{
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        if (node->links[i].used && !node->links[i].over) return true;
    return false;
}

void node_stop(struct node *node)
{
    heartbeat_join(node); // also sets `stopping`
    if (node->list.changes) pthread_join(node->names, NULL);
    int64_t until_us = clock_now_us() + STOP_TIMEOUT_MS * 1000;
    pthread_mutex_lock(&node->mutex);
    // Queued messages are sent first, then the routers should end the streams. Streams that do not end in time are
    // cancelled.
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        if (node->links[i].stream) rpc_stream_half_close(node->links[i].stream);
    while (readers_run(node) && node_wait_until(node, until_us))
        continue;
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        if (node->links[i].stream) rpc_stream_cancel(node->links[i].stream);
    pthread_mutex_unlock(&node->mutex);
    for (int i = 0; i < NODE_LINKS_MAX; i++)
        if (node->links[i].used) router_link_join(&node->links[i]);
    node_free(node);
}
