// SPDX-License-Identifier: Apache-2.0
// Checks that the router refuses a node that differs from an attached one, or from the router's options, in one field
// that must agree.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

// Call after the node has attached. The refused hellos change nothing.
void oracle_attach(struct world *w, struct core *c, const struct core_node *node);
