// SPDX-License-Identifier: Apache-2.0
// A node's links to its routers, the same for speculators and worker groups. Each link calls Cluster.Attach, sends
// Hello and heartbeats, and passes its router's messages to the node. When the stream ends it attaches again, with
// exponential backoff (200 ms to 5 s, with jitter), so nodes find a restarted router by themselves. The backoff is
// reset only after a stream has lasted 10 s, so a node that is evicted each time it attaches comes back more and more
// slowly. A node that the router refuses logs the reason each time and tries again after up to 30 s, because an
// operator may correct a token, a certificate or the router's model meanwhile.
//
// Identity: the router knows a node by its id. The default id is ROLE-HOST-SUFFIX. The suffix is random, so that
// containers with the same host name and process id differ. It stays the same until the process ends. A second process
// with the id of an attached node is refused.
//
// Several routers: a router gets the results of its own requests, the load that it has caused, and the cost of every
// pass. Numbers of requests are those of link_id.h. A link that ends drops its own work only. If two addresses lead to
// one router, one link attaches. The addresses of a DNS name are looked up again every few seconds.
//
// Before an attempt to attach, a node without an attached link is checked (node_callbacks.check), so that a node that
// cannot compute gets no requests.
//
// Threads: each link has a reader thread, and all have a heartbeat thread. They put events into a mailbox, from which
// the node's one working thread takes them with node_next(). Any thread may call node_send(). SIGTERM, SIGINT and
// SIGUSR1 (which mpirun forwards) request a drain, as do the router's Drain and a GPU in trouble. A drain request is
// also an event in the mailbox, so the working thread waits only there. A second signal ends the process immediately
// with exit code 1, unless it repeats the first (drain_signal_repeats()). After a drain request, no link attaches
// again. After SIGHUP, the node checks the files that it reads at each attempt to attach, and logs which files have
// changed or cannot be used.
#pragma once

#include <stdint.h>

#include "engine/link_id.h"
#include "engine/node_vitals.h"
#include "lib/base/status.h"
#include "lib/net/rpc.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"

struct node;

// Limit in bytes on the memory of one unpacked message of the router. The packed message has at most 64 MiB. The router
// keeps each bin (the prompts of one message) below both limits.
enum { NODE_MESSAGE_MEMORY_MAX = 256 << 20 };

// Address of the router and files needed to connect. The files are read before each attempt to attach, so that they can
// be replaced.
struct node_router {
    const char *address;     // routers' listeners for nodes, see router_list.h; one HOST:PORT for node_channel_open()
    const char *server_name; // name in the router's certificate, for node_channel_open(); NULL: the host of `address`
    struct rpc_tls tls;      // plain text if `ca` is NULL
    const char *token_file;  // file with the cluster token, or NULL
};

enum node_event_kind {
    NODE_NOTHING,  // the wait timed out, or node_wake() was called
    NODE_ATTACHED, // Welcome received; drop the work of earlier streams of the link
    NODE_MESSAGE,  // score_bin, prefill_bin, advances, drafts or cancel
    NODE_DETACHED, // the stream ended: drop the work of the link, because its router has reassigned it
    // a drain was requested and Draining was sent: finish the current work, then call node_stop() and exit
    NODE_DRAIN,
};

struct node_event {
    enum node_event_kind kind;
    int link;                                      // NODE_ATTACHED, NODE_MESSAGE, NODE_DETACHED: index of the link
    Forepack__Cluster__V1__RouterMessage *message; // NODE_MESSAGE: owned by the event
};

// GPUs of a node's ranks, borrowed until the next call of node_callbacks.gpus.
struct gpu_list {
    Forepack__Cluster__V1__Gpu **gpus; // [n]
    size_t n;
    const char *trouble; // why the node must leave, or NULL if it may stay
};

// Functions of the node that the link calls. Each may be NULL.
struct node_callbacks {
    // Proves that the node can compute, or ends the process. Called on the working thread, in node_next(), before each
    // attempt to attach. The attempt waits until the check returns.
    void (*check)(void *arg);
    // Returns a number that grows with every stage of a pass that the node completes. Heartbeats report it. Called
    // under the same rules as `gpus`.
    uint64_t (*progress)(void *arg);
    // Called on the heartbeat thread, before each heartbeat, with the link's mutex held. Must not wait or call
    // functions of the link.
    struct gpu_list (*gpus)(void *arg);
    // Called on the heartbeat thread, after SIGHUP. Returns STATUS_INVALID if the configuration has an error.
    enum status (*reload)(void *arg);
    void *arg;
    struct node_vitals *vitals; // borrowed: the link reports to it
};

// Starts the link. Copies `router` and `hello`. Adds to the copy of `hello` the protocol version and, if it has no
// instance number, an identity of node_identity_draw(). Returns INVALID or NOT_FOUND if the address or files of the
// router cannot be used. SIGTERM, SIGINT, SIGUSR1 and SIGHUP must already be blocked in every thread: call
// node_block_signals() at the top of main(). Ends the watch of start_signals.h.
void node_block_signals(void);
enum status node_start(const struct node_router *router, const Forepack__Cluster__V1__Hello *hello,
                       const struct node_callbacks *callbacks, struct node **node_p);

// Waits up to timeout_ms (0: does not wait, -1: no limit) for the next event. Release the event with node_event_free().
// Calls node_callbacks.check if the link waits for it.
void node_next(struct node *node, int timeout_ms, struct node_event *event);
// Any thread: makes node_next() return once without waiting, even if it has no other event.
void node_wake(struct node *node);
void node_event_free(struct node_event *event);

// Packs and queues a message: each router gets its part, see link_part_make(). Drops the part of a link without a
// stream, because the router has reassigned the work. Also drops it while node_next() has not yet returned the
// NODE_ATTACHED of the current stream, because the part then belongs to an earlier stream.
void node_send(struct node *node, const Forepack__Cluster__V1__NodeMessage *message);

struct node_load {
    uint32_t kv_blocks_free, running, waiting; // running, waiting: numbers of requests
    uint64_t preemptions;                      // number since the process started
    uint32_t held_prompts, held_kv_blocks;     // speculators only: prompts held for drafting, and their KV blocks
    const struct link_load *links;             // [NODE_LINKS_MAX] requests by link; NULL: the node has one link
};

// Sets the load that the next heartbeats report. The load must include all requests of the messages that node_next()
// has returned, except requests whose last result was sent. Called by the working thread; cheap.
void node_set_load(struct node *node, const struct node_load *load);

// If a GPU in trouble started the drain, returns the cause as a sentence, else NULL. Valid until node_stop().
const char *node_trouble(struct node *node);

// Sends the queued messages, waits up to 10 s for the routers to end the streams, and frees the node.
void node_stop(struct node *node);
