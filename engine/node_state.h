// SPDX-License-Identifier: Apache-2.0
// Parts of a node's links that node.c, node_events.c and router_link.c share.
//
//   node.c         start and stop; the threads for heartbeats, signals and names of routers
//   router_link.c  one link: attaches, reads and attaches again
//   node_events.c  the mailbox of the working thread; messages to the routers
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "engine/link_id.h"
#include "engine/mailbox.h"
#include "engine/node.h"
#include "engine/router_list.h"
#include "lib/base/secret_file.h"

// The link to one router. Its reader thread owns the members that no comment gives to the mutex.
struct router_link {
    struct node *node;
    int index; // index in node.links
    struct router_address at;
    pthread_t reader;
    int64_t welcomed_us; // time of this stream's Welcome; 0: none yet
    bool refused;        // the router refused the last attempt to attach
    char *trouble;       // last logged reason why the router is unreachable; NULL: none logged since Welcome

    // guarded by node.mutex
    bool used;                 // the reader runs, or has ended and was not joined
    bool over;                 // the reader ends
    bool retired;              // the address is no longer one of a router: do not attach again
    bool is_duplicate;         // the router answered that another link of this node is attached to it
    bool check_due;            // the reader waits until the working thread has run the check
    struct rpc_stream *stream; // the stream to the router, or NULL. Only the reader closes it
    uint64_t stream_number;    // number of the current stream, unique within the node
    uint64_t working_number;   // stream whose NODE_ATTACHED the working thread received last
    uint64_t last_bin;         // last bin of stream `working_number` that the working thread has received
    bool welcomed;             // Welcome has arrived on `stream`
    uint64_t instance;         // instance of the router that sent Welcome; 0: not known
    int heartbeat_ms;
    int64_t heartbeat_due_us;
    struct link_load load;
    uint64_t reported_bin; // value of last_bin when `load` was set
};

struct node {
    char *router, *tls_cert, *tls_key, *tls_ca, *token_file; // see struct node_router
    struct router_list list;
    uint8_t *hello; // packed Hello, [hello_size]
    size_t hello_size;
    struct node_callbacks callbacks;
    pthread_t heartbeat, names;  // `names` runs if the list changes
    struct file_stamp stamps[4]; // heartbeat thread only: stamps of the node's files, see files_look()
    int signals, wake;           // signals: a signalfd; wake: an eventfd that wakes the heartbeat thread

    pthread_mutex_t mutex; // guards the members below
    pthread_cond_t changed;
    struct router_link links[NODE_LINKS_MAX];
    uint64_t n_streams;                    // number of streams so far
    Forepack__Cluster__V1__Heartbeat load; // totals over all links
    bool draining, stopping;
    int64_t signalled_us; // time of the signal that requested the drain; 0: none has come
    char *drain_reason;   // reason why the node drains by itself; NULL: the node was told to drain
    bool woken;           // set by node_wake()
    struct mailbox mails; // events for the working thread
};

// --- node_events.c. Call these with the mutex held.

void node_mail_post(struct router_link *link, struct node_event event);
// Waits for a change, at most until `until_us` of clock_now_us() (INT64_MAX: no limit). Returns false if that time has
// passed.
bool node_wait_until(struct node *node, int64_t until_us);
// Sends a message on a link that has a stream.
void node_link_send(struct router_link *link, const Forepack__Cluster__V1__NodeMessage *message);
void node_send_draining(struct router_link *link);
void node_send_heartbeat(struct router_link *link);
// Starts a drain. A second request changes nothing. `reason` is NULL if the node was told to drain.
void node_drain_start(struct node *node, const char *source, const char *reason);
// Wakes the heartbeat thread.
void node_heartbeat_wake(struct node *node);
// Returns true if another link than `link` is attached.
bool node_is_attached(const struct node *node, const struct router_link *link);
// Reports how many links are attached.
void node_count_routers(struct node *node);
