// SPDX-License-Identifier: Apache-2.0
// The engine of a simulated node. Replaces engine/engine.h and engine/model/model.h at link time: a pass moves the
// virtual clock by what it costs and answers by answers.h, from KV entries that it really stores at the blocks of the
// batch. Before it answers it checks that the entries of a sequence are the ones that were written for it.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "sim/scenario.h"

// Borrows both.
struct engine *sim_engine_create(const struct scenario *scenario, const struct scenario_node *node, uint64_t life);
void sim_engine_free(struct engine *e);

void sim_engine_set_slowness(struct engine *e, double factor); // 1: as in the scenario
void sim_engine_fail_next(struct engine *e);                   // the next pass fails

double sim_engine_pass_us(const struct engine *e, double rows, double pairs); // by the scenario's costs, without noise
bool sim_engine_is_measured(const struct engine *e); // its passes take the times that a router measured instead

// NULL, or what the last batch did wrong: entries of another sequence, a block twice, ...
int64_t sim_engine_sampling_us(const struct engine *e); // of the last pass, on the host
const char *sim_engine_fault(const struct engine *e);
