// SPDX-License-Identifier: Apache-2.0
// A simulated node process: a service of its role, its link to the router, and the faults it suffers.
//
// The link behaves as engine/node.h says: Hello, heartbeats, attaching again with exponential backoff, messages of an
// earlier stream dropped. A pass is computed immediately, but its results are sent when the pass's time is over.
// Messages that arrive before then wait, as in a process with one working thread. A node that ends starts again after a
// while, as under a launcher.
#pragma once

#include "sim/network.h"
#include "sim/world.h"

struct sim_node *sim_node_create(struct world *w, int index);
void sim_node_free(struct sim_node *node);
struct stream_events sim_node_events(void); // for network_set_events()

void sim_node_start(struct sim_node *node); // no effect if it runs

// Faults, see SCENARIO_KINDS.
void sim_node_crash(struct sim_node *node, int64_t for_us, bool told);
void sim_node_fail_pass(struct sim_node *node, int64_t for_us);
void sim_node_drain(struct sim_node *node, int64_t for_us);
void sim_node_freeze(struct sim_node *node, int64_t for_us);
void sim_node_hang(struct sim_node *node, int64_t for_us);
void sim_node_slow(struct sim_node *node, int64_t for_us, double factor);
void sim_node_lie(struct sim_node *node, int64_t for_us, int lie);
void sim_node_restart_after(struct sim_node *node, int64_t for_us); // sets the time to the restart that follows a drain
void sim_node_cut(struct sim_node *node);
void sim_node_hold(struct sim_node *node, int64_t for_us);

bool sim_node_lies(const struct sim_node *node); // lies now
const char *sim_node_id(const struct sim_node *node);
uint64_t sim_node_instance(const struct sim_node *node); // instance number of its current or last process
bool sim_node_runs(const struct sim_node *node);
const char *sim_node_check(const struct sim_node *node); // NULL, or which accounts do not agree
bool sim_node_idle(const struct sim_node *node);     // no work; attached, or refused because another node has its id
uint64_t sim_node_life(const struct sim_node *node); // number of its starts
struct prefix_set *sim_node_computed(struct sim_node *node); // prompts that it has computed in this life
int64_t sim_node_passes(const struct sim_node *node);
int64_t sim_node_busy_us(const struct sim_node *node);
