// SPDX-License-Identifier: Apache-2.0
// Compares the status of the cluster with its requests and nodes.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

void oracle_status(struct world *w, const struct core *c);
