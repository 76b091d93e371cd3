// SPDX-License-Identifier: Apache-2.0
// What must hold of the router at every event, and when everything is over. Every number that the ledger keeps is
// counted again from the requests. Violations go to world_fail(). Answers are verified by the clients, KV blocks by the
// nodes.
#pragma once

#include "sim/world.h"

void oracles_check(struct world *w);      // O(requests): every few events
void oracles_check_tick(struct world *w); // right after a tick: nothing waits that a node has room for
void oracles_check_idle(struct world *w); // nothing is left: no request, bin, block, timer or tenant
