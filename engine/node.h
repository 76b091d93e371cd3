// SPDX-License-Identifier: Apache-2.0
// A node's link to the router, the same for speculators and worker groups: dials Cluster.Attach, says Hello, sends
// heartbeats, hands the router's messages to the node, and dials again with exponential backoff (200 ms to 5 s, with
// jitter) whenever the stream ends, so that a restarted router finds its nodes back without anyone's help.
//
// Threads: the link owns its reader. It puts everything into a mailbox that the node's one working thread empties with
// node_next(); node_send() may be called by any thread. SIGTERM, SIGINT and SIGUSR1 (what mpirun forwards) ask to drain
// and are taken here too, as an event of the mailbox, so the working thread waits in one place. A second one ends the
// process at once, with 1. Once asked to drain, the link does not dial again.
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"

struct node;

enum node_event_kind {
    NODE_NOTHING,  // the wait timed out
    NODE_ATTACHED, // Welcome received: no work of an earlier stream counts any more
    NODE_MESSAGE,  // work: score_bin, prefill_bin or cancel
    NODE_DETACHED, // the stream ended: drop all running work, the router has taken it back
    NODE_REFUSED,  // the router will not have this node; status_message-like sentence in `reason`: exit 2
    NODE_DRAIN,    // asked to end: the link has sent Draining; finish what runs, then node_stop and exit 0
};

struct node_event {
    enum node_event_kind kind;
    Forepack__Cluster__V1__RouterMessage *message; // NODE_MESSAGE: owned by the event
    char *reason;                                  // NODE_REFUSED: owned by the event
};

// `hello` is copied; node_id empty: made of role, host and pid. `router` is host:port. Must be called after SIGTERM,
// SIGINT and SIGUSR1 were blocked in every thread (node_block_signals at the top of main does it).
void node_block_signals(void);
enum status node_start(const char *router, const Forepack__Cluster__V1__Hello *hello, struct node **node_p);

// Waits up to timeout_ms (0: looks only, -1: for ever) for the next event. Release it with node_event_free.
void node_next(struct node *node, int timeout_ms, struct node_event *event);
void node_event_free(struct node_event *event);

// Packs and queues a message; dropped silently when no stream is up (the router has taken the work back by then), and
// while node_next() has not yet handed out the NODE_ATTACHED of the stream that is: it would be of earlier work.
void node_send(struct node *node, const Forepack__Cluster__V1__NodeMessage *message);

// What the next heartbeats tell. Any thread; cheap.
void node_set_load(struct node *node, uint32_t kv_blocks_free, uint32_t running, uint32_t waiting);

// Sends what is queued, waits a moment for the router to end the stream, frees the node.
void node_stop(struct node *node);
