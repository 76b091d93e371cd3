// SPDX-License-Identifier: Apache-2.0
// The list of nodes: attaching, losing and draining them (functions of core.h). Use on the core's thread only.
#pragma once

#include "router/core/core_state.h"

void core_nodes_check_silence(struct core *c, int64_t now_us); // at the start of a tick
void core_update_ready(struct core *c);                        // call after `draining` has changed

// Functions for health.c. When a node is lost, its stream ends and its requests go back. When a node is closed, it gets
// no new work, and requests that waited for it alone go on without it.
void core_node_lose(struct core *c, struct core_node *node, enum node_loss loss, const char *reason, int64_t now_us);
void core_node_close(struct core *c, struct core_node *node, int64_t now_us);
void core_node_open(struct core *c, struct core_node *node);

void core_nodes_free(struct core *c); // no node may have requests
