// SPDX-License-Identifier: Apache-2.0
// The virtual token counters of all tenant queues, recomputed from the messages alone: the rows of each bin, the tokens
// that clients receive, and what a queue that was empty catches up.
#pragma once

#include "router/core/core_state.h"
#include "sim/world.h"

void oracle_ledger_begin(void); // when a core starts
// Charges the request's queue for rows that a bin has, and for tokens or prompt log-probabilities that its client got.
// `on_host`: those that the worker's host samples or computes.
void oracle_ledger_rows(const struct request *r, int64_t rows);
void oracle_ledger_output(const struct world *w, const struct request *r, int tokens, int on_host);
void oracle_ledger_check(struct world *w, const struct waiting_set *set);
