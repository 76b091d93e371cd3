// SPDX-License-Identifier: Apache-2.0
// Defines the structures of a server: server.c accepts calls, call.c runs one call, health.c and reflection.c implement
// methods. Private to net/.
//
// Locks: the server's mutex is locked before a call's mutex. Handlers run with neither.
#pragma once

#include <netinet/in.h>
#include <stdatomic.h>

#include "lib/base/forwarded.h"
#include "lib/net/core.h"

struct net_fd_handler;
struct net_health;
struct net_listener;
struct net_sockets;
struct net_symbols;

enum { NET_REFLECTIONS_MAX = 64 };  // limit of open reflection calls, which need no authorisation
enum { NET_METADATA_BYTES = 8192 }; // limit of a call's metadata; each header counts 32 additional bytes

struct rpc_server {
    grpc_server *core;
    const struct rpc_method *methods; // borrowed
    void *context;                    // borrowed
    enum status (*authorise)(struct rpc_call *call);
    int port;
    struct net_listener *listener;
    struct net_sockets *sockets;    // connections of C-core
    struct networks proxies;        // trusted ones
    struct net_fd_handler *handler; // C-core's acceptor, see server.c
    int n_queues;
    struct net_queue *queues;
    struct net_accept *accepts;
    struct net_tag on_stopped;
    struct net_symbols *symbols; // read-only once open
    struct tls_server *tls;      // NULL: plain text
    atomic_size_t queued;        // bytes in the outboxes of all calls except builtin calls
    atomic_int n_sharing;        // calls, except builtin calls, whose outbox is not small (lib/base/equal_share.h)
    atomic_bool exceeded;        // rpc_call_share() has found too much unread since the last check
    int64_t unread_us;           // interval between two checks

    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t changed;
    struct rpc_call *calls; // calls that C-core has not released
    int64_t next_look_us;   // time of the next check for overdue calls
    bool closing;           // health.c accepts no new watchers
    bool stopped;           // C-core has ended every call and connection
    struct net_health *health;
    int n_reflections;
    struct rpc_call *reflections[NET_REFLECTIONS_MAX]; // calls of reflection.c, the oldest first
};

struct rpc_call {
    struct rpc_server *server; // valid until on_close has returned
    const struct rpc_method *method;
    bool builtin; // a call of health or reflection: it bounds what it queues, and a closing server does not wait for it
    atomic_int refs;
    void *context, *user, *identity;
    void (*release_identity)(void *identity);
    char *path;             // gpr_free()
    char *peer, *peer_name; // free()
    struct in6_addr client; // address that a trusted proxy forwarded, if the call counts for it
    bool client_counted;    // used only by the queue's thread
    int64_t deadline_us;
    int n_metadata;
    char **metadata;                  // key, value, key, value...
    struct rpc_call *previous, *next; // server->calls, under its mutex

    struct net_tag on_received, on_sent, on_closed;
    grpc_byte_buffer *received;      // written by C-core, read by the queue's thread
    int cancelled;                   // written by C-core, read by the queue's thread
    bool asked;                      // a message was received; used only by the queue's thread
    struct rpc_bytes *message_bytes; // the message that is being handled; used only by the queue's thread

    pthread_mutex_t mutex; // guards what follows
    grpc_call *core;       // NULL once the call is closed and no batch is in flight
    int batches;           // number of batches in flight
    bool closed;           // the client has the status, or is gone
    bool greeted;          // initial metadata was sent
    bool sending;          // on_sent is outstanding
    bool finished;         // rpc_call_finish() was called
    bool status_sent;
    bool overdue; // at the last check it was finished and had unsent messages
    struct net_outbox outbox;
    grpc_status_code status;
    char *message;
    size_t n_trailers, trailers_capacity;
    grpc_metadata *trailers;
};

// call.c: runs the call until its end. Takes ownership of `core` and `path` (gpr_free()) and copies the metadata.
void net_call_begin(struct rpc_server *server, grpc_call *core, char *path, gpr_timespec deadline,
                    const grpc_metadata_array *metadata);
// call.c: checks the call once. Returns true if the call was finished with unsent messages at the previous check and
// still is.
bool net_call_overdue(struct rpc_call *call);
// server.c: returns the method that serves `path`, never NULL.
const struct rpc_method *net_server_method(const struct rpc_server *server, const char *path, bool *builtin_p);
void net_server_add_call(struct rpc_server *server, struct rpc_call *call);
void net_server_drop_call(struct rpc_server *server, struct rpc_call *call);

// Returns the length of the service's name in a path: "/pkg.Service/Method" -> "pkg.Service" (from path + 1).
size_t net_path_service(const char *path);

// Limits of the messages of health and reflection, which need no authorisation. Their messages hold only a name.
enum { NET_BUILTIN_MESSAGE_BYTES = 4096, NET_BUILTIN_MEMORY_BYTES = 256 << 10 };
extern const struct rpc_method net_health_methods[], net_reflection_methods[];
struct net_health *net_health_create(const struct rpc_method *methods);
void net_health_free(struct net_health *health);
void net_health_end(struct rpc_server *server); // every service becomes NOT_SERVING and watchers are notified
struct net_symbols *net_symbols_create(void);
void net_symbols_free(struct net_symbols *symbols);
