// SPDX-License-Identifier: Apache-2.0
// How a node is doing, for the service manager (lib/base/service_manager.h) and the probe port (node_probe.h). Rank 0
// of a group has one of these; its writers are the links to the routers, the loader and the working thread.
//
// A thread looks at the node each second, if anyone wants to know. The node is alive while its working thread has
// nothing to do, or makes progress: it asks for its next event, or completes a stage of a pass.
//
// Every function may be called from any thread and allows NULL.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

// A working thread without progress for this long is not alive.
enum { NODE_LIVE_LIMIT_S = 30 };

enum node_phase {
    NODE_PHASE_LOADING,  // opens the group and the model
    NODE_PHASE_DETACHED, // ready, but not attached to a router
    NODE_PHASE_ATTACHED,
    NODE_PHASE_DRAINING,
};
const char *node_phase_name(enum node_phase phase); // "loading", ...

struct node_vitals;

// State of the node at this moment.
struct node_picture {
    enum node_phase phase;
    bool live;
    int loaded_percent; // of the weights
    uint64_t progress;  // completed stages of passes
    int64_t kv_blocks;  // size of the KV cache
    int64_t kv_blocks_free;
    int64_t running, waiting; // requests
    uint64_t preemptions;
    int routers_attached, routers_known;
};

// `router` has the routers' addresses for the sentence, borrowed.
struct node_vitals *node_vitals_create(const char *router);
// Starts the thread. The functions below work without it, but a node then stays alive.
void node_vitals_watch(struct node_vitals *v);
void node_vitals_free(struct node_vitals *v); // joins the thread
void node_vitals_read(struct node_vitals *v, struct node_picture *picture);

// The loader's progress, then the engine. Both are borrowed until they are set to NULL.
void node_vitals_set_loading(struct node_vitals *v, const struct load_progress *loading);
void node_vitals_set_engine(struct node_vitals *v, const struct engine *engine);

// Called by the links.
// `attached` of the `known` routers are attached. The node is attached if one of them is.
void node_vitals_set_routers(struct node_vitals *v, int attached, int known);
void node_vitals_set_draining(struct node_vitals *v);
void node_vitals_reload_begin(struct node_vitals *v);
void node_vitals_reload_end(struct node_vitals *v, const char *refused); // NULL: nothing was refused
void node_vitals_set_load(struct node_vitals *v, int64_t running, int64_t waiting, int64_t kv_blocks_free,
                          uint64_t preemptions);
// The working thread has nothing to do: it waits, and no event is there for it.
void node_vitals_set_idle(struct node_vitals *v, bool idle);
// The working thread asks for its next event, which is progress.
void node_vitals_turn(struct node_vitals *v);
