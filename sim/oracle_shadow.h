// SPDX-License-Identifier: Apache-2.0
// Checks the shadows of pruned requests (router/core/shadow.h): each begins after its request has ended with an answer,
// runs alone on a worker group while no request waits for it, is bounded in number, memory and time, ends once, and
// measures the agreement that the simulated models have. Does nothing in scenarios without shadows.
#pragma once

#include "router/core/request.h"
#include "sim/world.h"

struct core;

struct oracle_shadow *oracle_shadow_create(void);
void oracle_shadow_free(struct oracle_shadow *oracle);

void oracle_shadow_started(struct oracle_shadow *oracle);                  // a router has started
void oracle_shadow_answered(struct world *w, const struct request *r);     // a client's request ended with an answer
void oracle_shadow_taint(struct world *w, const struct core *c, int node); // the node lies
void oracle_shadow_check(struct world *w, const struct core *c);           // call after every event; NULL: no router
void oracle_shadow_check_tick(struct world *w, const struct core *c);      // call after a tick
