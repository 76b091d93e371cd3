// SPDX-License-Identifier: Apache-2.0
// A node's link to the router, the same for speculators and worker groups. It calls Cluster.Attach, sends Hello and
// heartbeats, hands the router's messages to the node, and attaches again whenever the stream ends, with exponential
// backoff (200 ms to 5 s, with jitter). So nodes find a restarted router by themselves.
//
// Threads: the link has a reader thread and a heartbeat thread. They put events into a mailbox, which the node's one
// working thread empties with node_next(); any thread may call node_send(). SIGTERM, SIGINT and SIGUSR1 (which mpirun
// forwards) request a drain and arrive as an event of the mailbox too, so the working thread waits in one place. A
// second signal ends the process at once with exit code 1. After a drain request the link does not attach again.
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"

struct node;

enum node_event_kind {
    NODE_NOTHING,  // the wait timed out
    NODE_ATTACHED, // Welcome received: work of earlier streams is void
    NODE_MESSAGE,  // score_bin, prefill_bin or cancel
    NODE_DETACHED, // the stream ended: drop all work, the router has reassigned it
    NODE_REFUSED,  // the router refuses this node, with the sentence in `reason`: exit with 2
    NODE_DRAIN,    // drain requested, Draining is sent: finish the work at hand, then node_stop() and exit with 0
};

struct node_event {
    enum node_event_kind kind;
    Forepack__Cluster__V1__RouterMessage *message; // NODE_MESSAGE: owned by the event
    char *reason;                                  // NODE_REFUSED: owned by the event
};

// Copies `hello`; an empty node_id becomes ROLE-HOST-PID. `router` is HOST:PORT. SIGTERM, SIGINT and SIGUSR1 must be
// blocked in every thread before (node_block_signals() at the top of main() does that).
void node_block_signals(void);
enum status node_start(const char *router, const Forepack__Cluster__V1__Hello *hello, struct node **node_p);

// Waits up to timeout_ms (0: does not wait, -1: no limit) for the next event. Release it with node_event_free().
void node_next(struct node *node, int timeout_ms, struct node_event *event);
void node_event_free(struct node_event *event);

// Packs and queues a message. Drops it without a stream, when the router has reassigned the work, and while node_next()
// has not yet returned the NODE_ATTACHED of the current stream, since the message then belongs to an earlier one.
void node_send(struct node *node, const Forepack__Cluster__V1__NodeMessage *message);

// Sets the load that the next heartbeats report. Any thread; cheap.
void node_set_load(struct node *node, uint32_t kv_blocks_free, uint32_t running, uint32_t waiting);

// Sends the queued messages, waits up to 10 s for the router to end the stream, and frees the node.
void node_stop(struct node *node);
