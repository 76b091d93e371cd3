// SPDX-License-Identifier: Apache-2.0
// The list of nodes that load their weights. Such a node has a stream but takes no requests, so the scheduler does not
// know it: it is not in the list of nodes.c. It leaves the list when its process attaches with Hello, ends its stream
// or falls silent. core_loading() and core_loading_end() of core.h are defined here. Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

struct loading_node {
    struct node_loading report; // the last one
    void *link;                 // passed back to the caller in core_ops
    int64_t begun_us, heard_us; // time of the first report, and of the last one
    struct loading_node *next;
};

// Removes the entry of the process that attaches over `link`, and the entry of `link`. Ends the stream of an entry with
// another link.
void loading_attached(struct core *c, const struct node_hello *hello, const void *link);
// Removes nodes that sent no report for three heartbeats, and brings core.silence_us forward. `absent_us`: time in
// which this process did not run, which does not count as silence.
void loading_check_silence(struct core *c, int64_t absent_us, int64_t now_us);
void loading_release(struct core *c); // ends the streams of all loading nodes
void loading_free(struct core *c);

// Returns the loading node, or NULL.
const struct loading_node *loading_find(const struct core *c, const char *node_id);
// Returns the percentage of the loading node of this role that has loaded most, or -1 if no node of the role loads.
int loading_percent(const struct core *c, enum node_role role);
