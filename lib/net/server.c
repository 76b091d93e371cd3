// SPDX-License-Identifier: Apache-2.0
// Opens a server: port, completion queues, accepting calls. Closes it in order: refuse, drain, cancel, free.
#include "lib/net/server.h"

#include <grpc/grpc_security.h>
#include <grpc/support/string_util.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/descriptors.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/tls_server.h"
#include "lib/net/listener.h"
#include "lib/net/socket.h"
#include "lib/net/turns.h"

// Number of calls that a queue can accept before its thread runs again.
#define ACCEPTS 16

enum { CONNECTIONS_MAX = 20000, CALLS_MAX = 16384, IDLE_MS = 120000, UNREAD_MS = 30000 };

// Limits of a connection, no matter which SETTINGS its client acknowledges. C-core gets the same limit of headers. With
// a lower limit it would drop a part of a header block, and its table of headers would then differ from the client's.
// call.c refuses calls with more than NET_METADATA_BYTES.
enum {
    HEADER_BYTES_MAX = 2 * NET_METADATA_BYTES,
    HEADERS_MAX = 128,
    EMPTY_FRAMES_MAX = 100,
    EMPTY_FRAMES_PER_SECOND = 100,
    RESETS_MAX = 100,
    RESETS_PER_SECOND = 100,
    UNANSWERED_MAX = 5000,
    UNANSWERED_PER_SECOND = 5000,
    FREE_CALLS = 4,
    SHARED_CALLS = 4096, // in 2 s: a twentieth of a core's time in C-core
};

// --- accepting

// A request to C-core for the next call.
struct net_accept {
    struct net_tag tag;
    struct rpc_server *server;
    struct net_queue *queue;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
};

static void accept_start(struct net_accept *accept)
{
    grpc_call_details_init(&accept->details);
    grpc_metadata_array_init(&accept->metadata);
    net_tag_release(&accept->tag);
    grpc_completion_queue *queue = accept->queue->core;
    grpc_server_request_call(accept->server->core, &accept->call, &accept->details, &accept->metadata, queue, queue,
                             &accept->tag);
}

static void accept_on_call(void *owner, bool ok)
{
    struct net_accept *accept = owner, call = *accept;
    if (ok) {
        accept_start(accept); // the next call first, because this call's handler may take long
        net_call_begin(call.server, call.call, grpc_slice_to_c_string(call.details.method), call.details.deadline,
                       &call.metadata);
    }
    grpc_call_details_destroy(&call.details);
    net_metadata_free(&call.metadata);
}

static const struct rpc_method *method_find(const struct rpc_method *methods, const char *path)
{
    for (; methods && methods->path; methods++) {
        if (strcmp(methods->path, path) == 0) return methods;
    }
    return NULL;
}

static void call_refuse_unknown(struct rpc_call *call)
{
    char *message = mem_format("this server has no method %.200s", rpc_call_path(call));
    rpc_call_finish(call, STATUS_UNSUPPORTED, message);
    free(message);
}

const struct rpc_method *net_server_method(const struct rpc_server *server, const char *path, bool *builtin_p)
{
    static const struct rpc_method unknown = {.on_open = call_refuse_unknown};
    const struct rpc_method *method = method_find(server->methods, path);
    *builtin_p = !method;
    if (!method) method = method_find(net_health_methods, path);
    if (!method) method = method_find(net_reflection_methods, path);
    return method ? method : &unknown;
}

size_t net_path_service(const char *path)
{
    const char *slash = *path ? strchr(path + 1, '/') : NULL;
    return slash ? (size_t)(slash - path - 1) : 0;
}

// Ends finished calls that clients read too slowly. Running calls that leave too much unread end at their next message,
// but finished calls have no next message. So once too much is unread, this function ends the calls that were already
// finished at the previous check. The caller holds the mutex.
static void server_look(struct rpc_server *server)
{
    int64_t now_us = clock_now_us();
    if (now_us < server->next_look_us || !atomic_exchange(&server->exceeded, false)) return;
    server->next_look_us = now_us + server->unread_us;
    for (struct rpc_call *call = server->calls; call; call = call->next) {
        if (net_call_overdue(call)) rpc_call_abandon(call, STATUS_EXHAUSTED, "the client reads its answers too slowly");
    }
}

void net_server_add_call(struct rpc_server *server, struct rpc_call *call)
{
    pthread_mutex_lock(&server->mutex);
    server_look(server);
    call->next = server->calls;
    if (call->next) call->next->previous = call;
    server->calls = call;
    pthread_mutex_unlock(&server->mutex);
}

void net_server_drop_call(struct rpc_server *server, struct rpc_call *call)
{
    pthread_mutex_lock(&server->mutex);
    if (call->next) call->next->previous = call->previous;
    if (call->previous)
        call->previous->next = call->next;
    else
        server->calls = call->next;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
}

// --- opening

// Memory for incomplete messages of all connections together, in units of the largest message. Honest clients stay far
// below this limit, slow senders may reach it. Above it C-core reads less, then closes idle connections, and then ends
// the calls of one connection after another. The callers of long calls must reconnect, as nodes do.
enum { INCOMPLETE_MESSAGES_MAX = 4 };

// C-core's acceptor for connections that another part of the process has accepted. Only C-core's C++ interface declares
// it (TcpServerFdHandler). This struct has the layout of that class in the C++ ABI of all our platforms. The acceptor
// owns the `fd` passed to it.
struct net_fd_handler {
    const struct {
        void (*destroy)(struct net_fd_handler *), (*delete)(struct net_fd_handler *);
        void (*handle)(struct net_fd_handler *, int listener_fd, int fd, grpc_byte_buffer *pending);
    } * virtual;
};

// The "port" of such an acceptor, and the argument with the pointer that C-core sets to it.
#define ACCEPTOR "external:forepack"

static void server_take_connection(void *owner, int fd, const void *early, size_t early_bytes)
{
    struct rpc_server *server = owner;
    grpc_slice slice = grpc_slice_from_copied_buffer(early, early_bytes);
    grpc_byte_buffer *pending = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    server->handler->virtual->handle(server->handler, -1, fd, pending); // takes the bytes, not the buffer
    grpc_byte_buffer_destroy(pending);
}

static void *pointer_copy(void *pointer)
{
    return pointer;
}

static void pointer_destroy(void *pointer)
{
}

static int pointer_compare(void *a, void *b)
{
    return a < b ? -1 : a > b;
}

static const grpc_arg_pointer_vtable borrowed_pointer = {pointer_copy, pointer_destroy, pointer_compare};

static int max_calls(const struct rpc_server_options *options)
{
    return options->max_calls ? options->max_calls : CALLS_MAX;
}

static struct net_sockets *server_sockets_create(const struct rpc_server_options *options,
                                                 const struct networks *proxies, int port)
{
    return net_sockets_create(&(struct net_sockets_options){
        .limits = {.max_calls = max_calls(options),
                   .max_header_bytes = HEADER_BYTES_MAX,
                   .max_headers = HEADERS_MAX,
                   .max_empty = EMPTY_FRAMES_MAX,
                   .empty_per_second = EMPTY_FRAMES_PER_SECOND,
                   .max_resets = RESETS_MAX,
                   .resets_per_second = RESETS_PER_SECOND,
                   .max_unanswered = UNANSWERED_MAX,
                   .unanswered_per_second = UNANSWERED_PER_SECOND,
                   .free_calls = FREE_CALLS},
        .port = port,
        .max_per_address = options->max_connections_per_address,
        .proxies = *proxies,
        .shared_calls = options->max_shared_calls ? options->max_shared_calls : SHARED_CALLS,
        .proof = options->proof,
    });
}

static grpc_server *server_core_create(const struct rpc_server_options *options, struct net_fd_handler **handler_p)
{
    size_t limit = options->max_message_bytes ? options->max_message_bytes : NET_MESSAGE_BYTES;
    int64_t age_ms = options->max_connection_age_ms;
    size_t quota_bytes = INCOMPLETE_MESSAGES_MAX * (limit > NET_MESSAGE_BYTES ? limit : NET_MESSAGE_BYTES);
    grpc_resource_quota *quota = grpc_resource_quota_create("server");
    grpc_resource_quota_resize(quota, quota_bytes);
    grpc_arg args[] = {
        {.type = GRPC_ARG_POINTER,
         .key = GRPC_ARG_RESOURCE_QUOTA,
         .value.pointer = {quota, grpc_resource_quota_arg_vtable()}},
        {.type = GRPC_ARG_POINTER, .key = ACCEPTOR, .value.pointer = {handler_p, &borrowed_pointer}},
        net_arg("grpc.max_receive_message_length", limit > INT_MAX ? INT_MAX : (int)limit),
        // No grace period is set, so running calls are never cut off.
        net_arg("grpc.max_connection_age_ms", age_ms > 0 && age_ms < INT_MAX ? (int)age_ms : INT_MAX),
        net_arg("grpc.max_connection_idle_ms", options->idle_ms ? options->idle_ms : IDLE_MS),
        net_arg("grpc.server_handshake_timeout_ms", 10000),
        net_arg("grpc.max_concurrent_streams", max_calls(options)),
        net_arg("grpc.max_metadata_size", HEADER_BYTES_MAX),
        NET_NO_COMPRESSION_ARGS,
        net_arg("grpc.http2.min_ping_interval_without_data_ms", 1000),
        NET_KEEPALIVE_ARGS,
    };
    grpc_server *core = grpc_server_create(&(grpc_channel_args){sizeof args / sizeof args[0], args}, NULL);
    grpc_resource_quota_unref(quota); // the server has its own reference
    return core;
}

static void server_on_stopped(void *owner, bool ok)
{
    struct rpc_server *server = owner;
    pthread_mutex_lock(&server->mutex);
    server->stopped = true;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
}

// Closes the port, refuses new calls, waits up to grace_ms for running calls, cancels the remaining calls and waits for
// their last events.
static void server_stop(struct rpc_server *server, int grace_ms)
{
    net_listener_close(server->listener);
    net_tag_release(&server->on_stopped);
    grpc_server_shutdown_and_notify(server->core, server->queues[0].core, &server->on_stopped);
    int64_t until_us = clock_now_us() + (int64_t)grace_ms * 1000;
    pthread_mutex_lock(&server->mutex);
    while (!server->stopped && monotonic_cond_wait(&server->changed, &server->mutex, until_us))
        continue;
    bool late = !server->stopped;
    pthread_mutex_unlock(&server->mutex);
    if (late) grpc_server_cancel_all_calls(server->core);
    pthread_mutex_lock(&server->mutex);
    while (!server->stopped || server->calls)
        pthread_cond_wait(&server->changed, &server->mutex);
    pthread_mutex_unlock(&server->mutex);
}

// Frees a server whose calls have all ended.
static void server_free(struct rpc_server *server)
{
    grpc_server_destroy(server->core);
    for (int i = 0; i < server->n_queues; i++)
        net_queue_close(&server->queues[i]);
    net_health_free(server->health);
    net_symbols_free(server->symbols);
    net_sockets_unref(server->sockets);
    tls_server_free(server->tls);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->mutex);
    free(server->accepts);
    free(server->queues);
    free(server);
    net_object_closed();
}

static void server_open_queues(struct rpc_server *server, int threads)
{
    server->n_queues = threads;
    server->queues = mem_alloc_array((size_t)threads, sizeof *server->queues);
    for (int i = 0; i < threads; i++) {
        net_queue_open(&server->queues[i]);
        grpc_server_register_completion_queue(server->core, server->queues[i].core, NULL);
    }
}

static void server_start_accepts(struct rpc_server *server)
{
    int n = server->n_queues * ACCEPTS;
    server->accepts = mem_alloc_array((size_t)n, sizeof *server->accepts);
    for (int i = 0; i < n; i++) {
        struct net_accept *accept = &server->accepts[i];
        *accept = (struct net_accept){
            .tag = {accept_on_call, accept}, .server = server, .queue = &server->queues[i / ACCEPTS]};
        accept_start(accept);
    }
}

enum status rpc_server_open(const struct rpc_server_options *options, struct rpc_server **server_p)
{
    if (!options->address || !*options->address)
        return status_fail(STATUS_INVALID, "no address to listen on: HOST:PORT is required");
    struct networks proxies;
    TRY(networks_parse(options->trusted_proxies, &proxies));
    struct net_listener_options listen = {
        .address = options->address,
        .max_connections = options->max_connections ? options->max_connections : descriptors_share(4, CONNECTIONS_MAX),
        .max_per_address = options->max_connections_per_address,
    };
    struct net_listener *listener;
    if (options->tls) {
        const struct rpc_tls *files = options->tls;
        const struct tls_server_options tls = {
            .cert = files->cert, .key = files->key, .client_ca = files->ca, .protocol = "\x02h2"}; // gRPC needs HTTP/2
        TRY(tls_server_open(&tls, &listen.tls));
    }
    enum status status = net_listener_open(&listen, &listener);
    if (status != STATUS_OK) {
        tls_server_free(listen.tls);
        return status;
    }
    struct rpc_server *server = mem_alloc(sizeof *server);
    net_object_opened();
    server->tls = listen.tls;
    server->listener = listener;
    server->proxies = proxies;
    server->port = net_listener_port(listener);
    server->sockets = server_sockets_create(options, &server->proxies, server->port);
    server->methods = options->methods;
    server->context = options->context;
    server->authorise = options->authorise;
    server->unread_us = (int64_t)(options->unread_ms ? options->unread_ms : UNREAD_MS) * 1000;
    pthread_mutex_init(&server->mutex, NULL);
    monotonic_cond_init(&server->changed);
    server->on_stopped = (struct net_tag){server_on_stopped, server};
    server->health = net_health_create(options->methods);
    server->symbols = net_symbols_create();

    server->core = server_core_create(options, &server->handler);
    server_open_queues(server, options->threads > 0 ? options->threads : 2);
    // socket.c decrypts TLS, so C-core sees plain text.
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_server_add_http2_port(server->core, ACCEPTOR, credentials);
    grpc_server_credentials_release(credentials);
    grpc_server_start(server->core);
    if (!server->handler || !net_libc_is_taken()) {
        server_stop(server, 0);
        server_free(server);
        return status_fail(STATUS_INTERNAL,
                           "this build of gRPC does not let Forepack check connections: use the shared library of gRPC "
                           "1.51");
    }
    server_start_accepts(server);
    net_listener_start(listener, server->sockets, server_take_connection, server);
    *server_p = server;
    return STATUS_OK;
}

enum status rpc_server_reload(struct rpc_server *server)
{
    return server->tls ? tls_server_reload(server->tls) : STATUS_OK;
}

int rpc_server_port(const struct rpc_server *server)
{
    return server->port;
}

uint64_t rpc_connections_delayed(void)
{
    return turns_waited();
}

// --- closing

void rpc_server_close(struct rpc_server *server, int grace_ms)
{
    if (!server) return;
    // Clients decide when watchers and reflection sessions end; waiting for them would take the whole grace period.
    net_health_end(server);
    pthread_mutex_lock(&server->mutex);
    for (struct rpc_call *call = server->calls; call; call = call->next) {
        if (call->builtin) rpc_call_finish(call, STATUS_UNAVAILABLE, "the server is closing");
    }
    pthread_mutex_unlock(&server->mutex);
    server_stop(server, grace_ms);
    server_free(server);
}
