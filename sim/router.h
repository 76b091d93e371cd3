// SPDX-License-Identifier: Apache-2.0
// The simulated router process: the product's core, its end of every node's stream, and the loop that ticks the core.
// The process can end and start again, and stall.
#pragma once

#include "router/core/measures.h"
#include "sim/network.h"
#include "sim/world.h"

#define SIM_TOKENIZER_FINGERPRINT UINT64_C(77)

struct core;
struct request;
struct sim_node;

struct sim_router *sim_router_create(struct world *w); // begins to listen
void sim_router_free(struct sim_router *router);
struct stream_events sim_router_events(void);

bool sim_router_listens(const struct sim_router *router); // nodes and clients can connect

// Runs fn(w, event) in the router's thread as soon as the thread runs. A tick follows.
void sim_router_post(struct sim_router *router, event_fn *fn, void *object, uint64_t tag);

// Faults.
#define SIM_DRAIN_US 2000000
void sim_router_restart(struct sim_router *router, int64_t for_us, bool drains);
// Lets an operator drain the node: every process with its id, or only the current one.
void sim_router_drain_node(struct sim_router *router, struct sim_node *node, bool this_process);
void sim_router_stall(struct sim_router *router, int64_t for_us);

struct core *sim_router_core(const struct sim_router *router); // NULL while the router is down
bool sim_router_ended(const struct sim_router *router);        // the router is ending, and so are its requests
bool sim_router_node_leaves(const struct sim_router *router);  // an attached node drains
bool sim_router_has_shadows(const struct sim_router *router);  // shadows run or wait
bool sim_router_drains(const struct sim_router *router);
int64_t sim_router_workers_gone_us(const struct sim_router *router); // when a worker group last closed; 0: never
void sim_router_check(struct world *w);                              // call after every event
// Returns the counts of all nodes with this id at the time when the node at the other end of a link attached.
const struct node_counts *sim_router_counts_at_attach(const void *link);
// Returns the index of the node at the other end of a link of the core.
int sim_router_node_of(const void *link);
