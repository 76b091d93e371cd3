// SPDX-License-Identifier: Apache-2.0
// The prefix chain of a request (hashes of its leading blocks), computed again from its tokens, positions and salt by
// an independent implementation.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

// Checks a request that is being sent to a node of the role.
void oracle_chain(struct world *w, const struct core *c, const struct request *r, enum node_role role);
