// SPDX-License-Identifier: Apache-2.0
// Implements grpc.health.v1.Health: Check answers once, Watch answers now and after each change. The known services are
// the services of the server's methods, and the services named in rpc_server_set_serving(). A service is NOT_SERVING
// until rpc_server_set_serving() changes it.
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/messages/unpack.h"
#include "lib/net/server.h"
#include "proto/grpc_health/v1/health.pb-c.h"

#define CHECK_PATH "/grpc.health.v1.Health/Check"
#define WATCH_PATH "/grpc.health.v1.Health/Watch"

// A watcher with more unread bytes than this is treated as not reading (a state has 2 bytes).
#define WATCH_BYTES 4096

#define STATE(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus state;

struct service {
    char *name; // "": the server
    bool serving;
};

struct net_health { // guarded by the server's mutex
    int count, capacity;
    struct service *services;
    struct watch *watches, **watches_end; // the oldest first
    int n_watches;
};

// The user data of a Watch call, guarded by the server's mutex.
struct watch {
    struct rpc_call *call;
    struct watch *next, **link; // link is NULL once the watch is removed
    char *name;
    int sent; // the last state that was sent; -1: none was sent
};

enum { WATCHES_MAX = 4096 };

static struct service *service_find(struct net_health *health, const char *name, size_t length)
{
    for (int i = 0; i < health->count; i++) {
        const char *known = health->services[i].name;
        if (strlen(known) == length && memcmp(known, name, length) == 0) return &health->services[i];
    }
    return NULL;
}

static struct service *service_find_or_add(struct net_health *health, const char *name, size_t length)
{
    struct service *service = service_find(health, name, length);
    if (service) return service;
    MEM_GROW(health->services, health->count, health->capacity);
    service = &health->services[health->count++];
    *service = (struct service){.name = mem_format("%.*s", (int)length, name)};
    return service;
}

struct net_health *net_health_create(const struct rpc_method *methods)
{
    struct net_health *health = mem_alloc(sizeof *health);
    health->watches_end = &health->watches;
    service_find_or_add(health, "", 0);
    for (; methods && methods->path; methods++) {
        size_t length = net_path_service(methods->path);
        if (length) service_find_or_add(health, methods->path + 1, length);
    }
    return health;
}

void net_health_free(struct net_health *health)
{
    for (int i = 0; i < health->count; i++)
        free(health->services[i].name);
    free(health->services);
    free(health);
}

static state service_state(struct net_health *health, const char *name)
{
    const struct service *service = service_find(health, name, strlen(name));
    if (!service) return STATE(SERVICE_UNKNOWN);
    return service->serving ? STATE(SERVING) : STATE(NOT_SERVING);
}

static void health_send_state(struct rpc_call *call, state now)
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = now;
    uint8_t bytes[16];
    size_t size = grpc__health__v1__health_check_response__pack(&response, bytes);
    if (rpc_call_send(call, bytes, size) > WATCH_BYTES)
        rpc_call_finish(call, STATUS_EXHAUSTED, "the watcher does not read");
}

// --- watches; the caller of these functions holds the server's mutex

// Sends a watcher the state of its service if the state has changed.
static void watch_notify(struct net_health *health, struct watch *watch)
{
    state now = service_state(health, watch->name);
    if (watch->sent != (int)now) health_send_state(watch->call, now);
    watch->sent = (int)now;
}

static void watches_notify(struct net_health *health)
{
    for (struct watch *watch = health->watches; watch; watch = watch->next)
        watch_notify(health, watch);
}

static void watch_remove(struct net_health *health, struct watch *watch)
{
    if (!watch->link) return;
    *watch->link = watch->next;
    if (watch->next)
        watch->next->link = watch->link;
    else
        health->watches_end = watch->link;
    watch->link = NULL;
    health->n_watches--;
}

// Adds a watch. At the limit it ends the oldest watch, so that no client keeps other clients out. gRPC's clients then
// watch again.
static void watch_add(struct net_health *health, struct watch *watch)
{
    if (health->n_watches == WATCHES_MAX) {
        rpc_call_abandon(health->watches->call, STATUS_EXHAUSTED,
                         "too many clients watch the health of this server: use Check");
        watch_remove(health, health->watches);
    }
    watch->link = health->watches_end;
    *watch->link = watch;
    health->watches_end = &watch->next;
    health->n_watches++;
    watch_notify(health, watch);
}

// --- states

void rpc_server_set_serving(struct rpc_server *server, const char *service, bool serving)
{
    pthread_mutex_lock(&server->mutex);
    service_find_or_add(server->health, service, strlen(service))->serving = serving && !server->closing;
    watches_notify(server->health);
    pthread_mutex_unlock(&server->mutex);
}

void net_health_end(struct rpc_server *server)
{
    pthread_mutex_lock(&server->mutex);
    server->closing = true;
    for (int i = 0; i < server->health->count; i++)
        server->health->services[i].serving = false;
    watches_notify(server->health);
    pthread_mutex_unlock(&server->mutex);
}

// --- methods

// Returns the name of the service in a request, which the caller frees. For a malformed request it finishes the call
// and returns NULL.
static char *health_read_name(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    Grpc__Health__V1__HealthCheckRequest *request =
        proto_unpack(&grpc__health__v1__health_check_request__descriptor, bytes, size, NET_BUILTIN_MEMORY_BYTES, NULL);
    if (!request) {
        rpc_call_finish(call, STATUS_INVALID, status_message());
        return NULL;
    }
    char *name = mem_string(request->service);
    grpc__health__v1__health_check_request__free_unpacked(request, NULL);
    return name;
}

static void health_check_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    char *name = health_read_name(call, bytes, size);
    if (!name) return;
    pthread_mutex_lock(&call->server->mutex);
    state now = service_state(call->server->health, name);
    pthread_mutex_unlock(&call->server->mutex);
    if (now == STATE(SERVICE_UNKNOWN)) {
        rpc_call_finish(call, STATUS_NOT_FOUND, "this server has no such service");
    } else {
        health_send_state(call, now);
        rpc_call_finish(call, STATUS_OK, NULL);
    }
    free(name);
}

static void health_watch_on_message(struct rpc_call *call, const uint8_t *bytes, size_t size)
{
    if (call->user) return; // one request per Watch call
    char *name = health_read_name(call, bytes, size);
    if (!name) return;
    struct watch *watch = mem_alloc(sizeof *watch);
    *watch = (struct watch){.call = call, .name = name, .sent = -1};
    call->user = watch;
    pthread_mutex_lock(&call->server->mutex);
    bool closing = call->server->closing;
    watch_add(call->server->health, watch);
    pthread_mutex_unlock(&call->server->mutex);
    if (closing) rpc_call_finish(call, STATUS_UNAVAILABLE, "the server is closing");
}

static void health_watch_on_close(struct rpc_call *call, bool cancelled)
{
    struct watch *watch = call->user;
    if (!watch) return;
    pthread_mutex_lock(&call->server->mutex);
    watch_remove(call->server->health, watch);
    pthread_mutex_unlock(&call->server->mutex);
    call->user = NULL;
    free(watch->name);
    free(watch);
}

// Ends the call of a client that half-closes without a request. A finished call ignores it.
static void health_on_half_close(struct rpc_call *call)
{
    bool watching = call->user != NULL; // set by this thread
    if (!watching) rpc_call_finish(call, STATUS_INVALID, "the call ended without a HealthCheckRequest");
}

const struct rpc_method net_health_methods[] = {
    {.path = CHECK_PATH,
     .on_message = health_check_on_message,
     .max_message_bytes = NET_BUILTIN_MESSAGE_BYTES,
     .on_half_close = health_on_half_close},
    {.path = WATCH_PATH,
     .on_message = health_watch_on_message,
     .max_message_bytes = NET_BUILTIN_MESSAGE_BYTES,
     .on_half_close = health_on_half_close,
     .on_close = health_watch_on_close},
    {0},
};
