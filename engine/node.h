// SPDX-License-Identifier: Apache-2.0
// A node's link to the router, the same for speculators and worker groups. It calls Cluster.Attach, sends Hello and
// heartbeats, hands the router's messages to the node, and attaches again whenever the stream ends, with exponential
// backoff (200 ms to 5 s, with jitter). So nodes find a restarted router by themselves. The backoff starts over once a
// stream has lasted 10 s: a node that is evicted each time it attaches comes back more and more slowly. A node that the
// router refuses logs the reason each time and tries again, too, after up to 30 s: a token, a certificate or the model
// of the router may be mended meanwhile.
//
// Identity: the router knows a node by its id. Without --node-id it is ROLE-HOST-SUFFIX, where the suffix is random and
// stays the same until the process ends, so that containers of equal host name and process id differ. A second process
// with the id of an attached node is refused.
//
// Before each attempt to attach the link asks for a check (struct node_callbacks), so that a node which cannot compute
// takes no requests.
//
// Threads: the link has a reader thread and a heartbeat thread. They put events into a mailbox, which the node's one
// working thread empties with node_next(); any thread may call node_send(). SIGTERM, SIGINT and SIGUSR1 (which mpirun
// forwards) request a drain, as the router's Drain and a GPU in trouble do, and arrive as an event of the mailbox too,
// so the working thread waits in one place. A second signal ends the process at once with exit code 1. After a drain
// request the link does not attach again. After SIGHUP the link looks at its files, which it reads at each attempt to
// attach, and logs those that have changed or cannot be used.
#pragma once

#include <stdint.h>

#include "lib/base/status.h"
#include "lib/net/rpc.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"

struct node;

// Of an unpacked message of the router, which has at most 64 MiB. The router counts what a bin takes of it.
enum { NODE_MESSAGE_MEMORY_MAX = 256 << 20 };

// The router and how to connect to it. The files are read before each attempt to attach, so that they can be replaced.
struct node_router {
    const char *address;    // HOST:PORT of its listener for nodes
    struct rpc_tls tls;     // `ca` NULL: plain text
    const char *token_file; // secret that the router asks its nodes for; NULL: none
};

enum node_event_kind {
    NODE_NOTHING,  // the wait timed out, or node_wake() was called
    NODE_ATTACHED, // Welcome received: work of earlier streams is void
    NODE_MESSAGE,  // score_bin, prefill_bin, advances, drafts or cancel
    NODE_DETACHED, // the stream ended: drop all work, the router has reassigned it
    NODE_DRAIN,    // drain requested, Draining is sent: finish the work at hand, then node_stop() and exit
};

struct node_event {
    enum node_event_kind kind;
    Forepack__Cluster__V1__RouterMessage *message; // NODE_MESSAGE: owned by the event
};

// The GPUs of a node's ranks, borrowed until the next call.
struct gpu_list {
    Forepack__Cluster__V1__Gpu **gpus; // [n]
    size_t n;
    const char *trouble; // why the node has to leave; NULL: it may stay
};

// The node's part of the link. Each function may be NULL.
struct node_callbacks {
    // Proves that the node can compute, or ends the process. Called on the working thread, in node_next(), before each
    // attempt to attach, which waits for it.
    void (*check)(void *arg);
    // Any thread: a number that grows with every part of a pass that the node has computed, for heartbeats.
    uint64_t (*progress)(void *arg);
    // The heartbeat thread, before each heartbeat. Must not wait.
    struct gpu_list (*gpus)(void *arg);
    // The heartbeat thread, after SIGHUP.
    void (*reload)(void *arg);
    void *arg;
};

// Copies `hello`, completed by the protocol version, the instance number of this process and, if node_id is empty, an
// id. `router` is copied. INVALID or NOT_FOUND if its address or files cannot be used. SIGTERM, SIGINT, SIGUSR1 and
// SIGHUP must be blocked in every thread before (node_block_signals() at the top of main() does that). Ends the watch
// of start_signals.h.
void node_block_signals(void);
enum status node_start(const struct node_router *router, const Forepack__Cluster__V1__Hello *hello,
                       const struct node_callbacks *callbacks, struct node **node_p);

// Waits up to timeout_ms (0: does not wait, -1: no limit) for the next event. Release it with node_event_free(). Runs
// the check that the link waits for.
void node_next(struct node *node, int timeout_ms, struct node_event *event);
// Any thread: node_next() does not wait, once, when it has no other event.
void node_wake(struct node *node);
void node_event_free(struct node_event *event);

// Packs and queues a message. Drops it without a stream, when the router has reassigned the work, and while node_next()
// has not yet returned the NODE_ATTACHED of the current stream, since the message then belongs to an earlier one.
void node_send(struct node *node, const Forepack__Cluster__V1__NodeMessage *message);

struct node_load {
    uint32_t kv_blocks_free, running, waiting; // requests
    uint64_t preemptions;                      // since the process started
    uint32_t held_prompts, held_kv_blocks;     // of a speculator, for drafts
};

// Sets the load that the next heartbeats report: with all requests of the messages that node_next() has returned, less
// those whose last result was sent. The working thread; cheap.
void node_set_load(struct node *node, const struct node_load *load);

// Returns the sentence if a GPU's trouble began the drain, else NULL. Valid until node_stop().
const char *node_trouble(struct node *node);

// Sends the queued messages, waits up to 10 s for the router to end the stream, and frees the node.
void node_stop(struct node *node);
