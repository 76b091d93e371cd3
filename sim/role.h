// SPDX-License-Identifier: Apache-2.0
// The service of a node process, for both roles: the product's service on a simulated engine. worker_role.c and
// speculator_role.c are separate files because the headers of the two programs share names.
#pragma once

#include <stdbool.h>

#include "lib/base/status.h"
#include "proto/forepack/cluster/v1/cluster.pb-c.h"
#include "sim/engine.h"
#include "sim/world.h"

struct role_load {
    int kv_blocks_free, running, waiting, held_prompts, held_kv_blocks;
};

// Like service_send_fn of the worker. `node` is the struct sim_node.
typedef void role_send_fn(void *node, const Forepack__Cluster__V1__NodeMessage *message);

struct role_ops {
    void *(*create)(struct engine *engine, const struct scenario_node *plan, role_send_fn *send, void *node);
    void (*free)(void *service); // also frees its work; fails an INVARIANT if a KV block leaks
    void (*handle)(void *service, const Forepack__Cluster__V1__RouterMessage *message);
    void (*drop_all)(void *service);
    bool (*busy)(const void *service);
    enum status (*step)(void *service);
    struct role_load (*load)(const void *service);
    const char *(*check)(const void *service); // recounts the KV blocks; returns NULL, or what does not agree
};

extern const struct role_ops worker_role, speculator_role;
