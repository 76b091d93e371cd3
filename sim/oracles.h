// SPDX-License-Identifier: Apache-2.0
// Checks that must hold for the router at every event and at the end. Counts every number of the ledger again from the
// requests. Violations go to world_fail(). Clients verify answers, nodes verify KV blocks.
#pragma once

#include "sim/world.h"

void oracles_check(struct world *w);      // O(requests), so called every few events
void oracles_check_tick(struct world *w); // right after a tick: nothing waits that fits a node
void oracles_check_idle(struct world *w); // no request, bin, block, timer or tenant is left
