// SPDX-License-Identifier: Apache-2.0
// The list of nodes: attaching, losing and draining them (functions of core.h). Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

void core_nodes_check_silence(struct core *c, int64_t now_us); // at the start of a tick
void core_update_ready(struct core *c);                        // call after core.draining has changed

// Functions for health.c. A lost node's stream ends, and its requests return to the queue. A closed node gets no new
// work until core_node_open(). Requests that only the closed node could take go on without it.
void core_node_lose(struct core *c, struct core_node *node, enum node_loss loss, const char *reason, int64_t now_us);
void core_node_close(struct core *c, struct core_node *node, int64_t now_us);
void core_node_open(struct core *c, struct core_node *node);

void core_nodes_free(struct core *c); // no node may have requests
