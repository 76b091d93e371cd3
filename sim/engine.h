// SPDX-License-Identifier: Apache-2.0
// The engine of a simulated node. Replaces engine/engine.h and engine/model/model.h at link time. A pass moves the
// virtual clock by its cost and computes results by the rules of answers.h, from KV entries that the engine stores in
// the blocks of the batch. After a pass has written its rows, it checks that the entries of each sequence were written
// for that sequence. For most sequences with one row, it checks only entries at borders of blocks. These checks are
// left out with computed costs, because they would take most of the time.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "sim/scenario.h"

// Creates the engine of a node. It borrows scenario and node.
struct engine *sim_engine_create(const struct scenario *scenario, const struct scenario_node *node, uint64_t life);
void sim_engine_free(struct engine *e);

void sim_engine_set_slowness(struct engine *e, double factor); // factor 1: the scenario's speed
void sim_engine_fail_next(struct engine *e);                   // the next pass fails

// Returns the time of a pass by the scenario's costs, without noise.
double sim_engine_pass_us(const struct engine *e, double rows, double pairs);
bool sim_engine_is_linear(const struct engine *e); // false: passes take measured or computed times instead

int64_t sim_engine_sampling_us(const struct engine *e); // time in which the host sampled the last pass's rows
// Returns NULL, or the error in a batch, such as a block used twice. The error stays: later passes fail, too.
const char *sim_engine_fault(const struct engine *e);
