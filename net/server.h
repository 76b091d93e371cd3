// SPDX-License-Identifier: Apache-2.0
// The inside of a server, private to net/: server.c accepts, call.c runs one call, health.c and reflection.c are
// methods like any others.
//
// Locks: a server's mutex may be held while a call's is taken, never the other way round. Handlers run without either.
#pragma once

#include <stdatomic.h>

#include "net/core.h"

struct net_health;
struct net_symbols;

struct rpc_server {
    grpc_server *core;
    const struct rpc_method *methods; // borrowed
    void *context;                    // borrowed
    int port;
    int n_queues;
    struct net_queue *queues;
    struct net_accept *accepts;
    struct net_tag on_stopped;
    struct net_symbols *symbols; // read-only once open
    atomic_size_t queued;        // bytes in the outboxes of all calls

    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t changed;
    struct rpc_call *calls; // all that C-core still knows
    bool closing;           // health.c: no new watchers
    bool stopped;           // C-core is done with every call and connection
    struct net_health *health;
};

struct rpc_call {
    struct rpc_server *server; // good until on_close has returned
    const struct rpc_method *method;
    bool builtin; // health or reflection: not worth waiting for when the server closes
    atomic_int refs;
    void *context, *user;
    char *path, *peer; // C-core's: gpr_free()
    int64_t deadline_us;
    int n_metadata;
    char **metadata;                  // keys and values by turns
    struct rpc_call *previous, *next; // server->calls, under its mutex

    struct net_tag on_received, on_sent, on_closed;
    grpc_byte_buffer *received; // written by C-core, read by the queue's thread
    int cancelled;              // likewise
    bool asked;                 // a message came; the queue's thread only

    pthread_mutex_t mutex; // guards what follows
    grpc_call *core;       // NULL once it is closed and no batch is left
    int batches;           // with C-core now
    bool closed;           // the client knows the end, or is gone
    bool greeted;          // initial metadata went out
    bool sending;          // on_sent is outstanding
    bool finished;         // rpc_call_finish() was called
    bool status_sent;
    struct net_outbox outbox;
    grpc_status_code status;
    char *message;
    size_t n_trailers, trailers_capacity;
    grpc_metadata *trailers;
};

// call.c: takes over `core` and the request's metadata (copied) and runs the call until its end.
void net_call_begin(struct rpc_server *server, struct net_queue *queue, grpc_call *core,
                    const grpc_call_details *details, const grpc_metadata_array *metadata);
// server.c: what serves `path`, never NULL.
const struct rpc_method *net_server_method(const struct rpc_server *server, const char *path, bool *builtin_p);
void net_server_add_call(struct rpc_server *server, struct rpc_call *call);
void net_server_drop_call(struct rpc_server *server, struct rpc_call *call);

// Length of the service's name at the start of a path: "/pkg.Service/Method" -> "pkg.Service" (from path + 1).
size_t net_path_service(const char *path);

extern const struct rpc_method net_health_methods[], net_reflection_methods[];
struct net_health *net_health_create(const struct rpc_method *methods);
void net_health_free(struct net_health *health);
void net_health_end(struct rpc_server *server); // everything is NOT_SERVING, watchers are told and let go
struct net_symbols *net_symbols_create(void);
void net_symbols_free(struct net_symbols *symbols);
