// SPDX-License-Identifier: Apache-2.0
// The status of the cluster, against the requests and nodes.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

void oracle_status(struct world *w, const struct core *c);
