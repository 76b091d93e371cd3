// SPDX-License-Identifier: Apache-2.0
// The router refuses a node that differs from an attached one, or from its options, in one number or name that must
// agree.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

// After the node has attached. What was refused has changed nothing.
void oracle_attach(struct world *w, struct core *c, const struct core_node *node);
