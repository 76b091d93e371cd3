// SPDX-License-Identifier: Apache-2.0
// A node's link to one router. See node.h for what a link does, and node_state.h for its members.
#pragma once

#include "engine/node_state.h"

// Starts the reader of an unused link. Called with the mutex held.
void router_link_start(struct router_link *link, const struct router_address *at);
// Joins the reader and frees the link's memory. The reader must be over, or about to end. Called without the mutex.
void router_link_join(struct router_link *link);
