// SPDX-License-Identifier: Apache-2.0
#include "engine/node_vitals.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/monotonic_cond.h"
#include "lib/base/service_manager.h"
#include "lib/base/thread.h"

enum { LOOK_US = 1000000, EXTENSION_US = 60000000 };

struct node_vitals {
    const char *router;
    pthread_t thread;
    bool watched;        // the thread runs
    atomic_bool idle;    // the working thread has nothing to do
    atomic_ullong turns; // how often the working thread asked for an event

    pthread_mutex_t mutex; // guards the members below
    pthread_cond_t changed;
    bool stopping;
    bool attached, draining, told_ready;
    const struct load_progress *loading;
    const struct engine *engine;
    char *refused;            // reason why the last reload was refused, or NULL
    struct node_picture load; // the members that describe the load
    uint64_t seen_turns, seen_progress;
    int64_t alive_us; // time of the last look that found progress
};

const char *node_phase_name(enum node_phase phase)
{
    static const char *const names[] = {"loading", "detached", "attached", "draining"};
    return names[phase];
}

struct node_vitals *node_vitals_create(const char *router)
{
    struct node_vitals *v = mem_alloc(sizeof *v);
    v->router = router;
    pthread_mutex_init(&v->mutex, NULL);
    monotonic_cond_init(&v->changed);
    v->alive_us = clock_now_us();
    return v;
}

// --- the picture, with the mutex held

static enum node_phase phase_of(const struct node_vitals *v)
{
    if (v->draining) return NODE_PHASE_DRAINING;
    if (!v->engine) return NODE_PHASE_LOADING;
    return v->attached ? NODE_PHASE_ATTACHED : NODE_PHASE_DETACHED;
}

static void picture_take(struct node_vitals *v, struct node_picture *picture)
{
    *picture = v->load;
    picture->phase = phase_of(v);
    picture->loaded_percent = v->engine ? 100 : v->loading ? load_progress_percent(v->loading) : 0;
    picture->progress = v->engine ? engine_progress(v->engine) : 0;
    picture->kv_blocks = v->engine ? model_kv_blocks(engine_model((struct engine *)v->engine)) : 0;
    picture->live = clock_now_us() - v->alive_us < (int64_t)NODE_LIVE_LIMIT_S * 1000000;
}

// Returns true if the node has made progress since the last look. Loading has its own time limits.
static bool makes_progress(struct node_vitals *v, const struct node_picture *now)
{
    const uint64_t turns = atomic_load(&v->turns);
    const bool moved = turns != v->seen_turns || now->progress != v->seen_progress;
    v->seen_turns = turns;
    v->seen_progress = now->progress;
    return moved || atomic_load(&v->idle) || now->phase == NODE_PHASE_LOADING;
}

// --- the sentence

#define LOAD "%lld requests running, %lld waiting; %lld of %lld KV blocks free"
#define LOAD_ARGS(now)                                                                                                 \
    (long long)(now)->running, (long long)(now)->waiting, (long long)(now)->kv_blocks_free, (long long)(now)->kv_blocks

static void sentence_send(const struct node_vitals *v, const struct node_picture *now)
{
    char state[256] = "";
    const bool attached = now->phase == NODE_PHASE_ATTACHED;
    if (now->phase == NODE_PHASE_LOADING)
        snprintf(state, sizeof state, "Loads the model: %d %%", now->loaded_percent);
    else if (now->phase == NODE_PHASE_DETACHED)
        snprintf(state, sizeof state, "Is not attached to the router %s", v->router);
    else if (attached && now->routers_known > 1)
        snprintf(state, sizeof state, "Attached to %d of %d routers %s: " LOAD, now->routers_attached,
                 now->routers_known, v->router, LOAD_ARGS(now));
    else
        snprintf(state, sizeof state, "%s %s: " LOAD, attached ? "Attached to the router" : "Drains from the router",
                 v->router, LOAD_ARGS(now));
    service_manager_set_status("%s%s%s", state, v->refused ? ". The last reload was refused: " : "",
                               v->refused ? v->refused : "");
}

static void look(struct node_vitals *v)
{
    struct node_picture now;
    const int64_t now_us = clock_now_us();
    picture_take(v, &now);
    if (makes_progress(v, &now)) {
        v->alive_us = now_us;
        service_manager_alive(now_us);
    }
    if (!v->told_ready) service_manager_extend_start(EXTENSION_US); // loading may take minutes, and so may the router
    sentence_send(v, &now);
}

static void *vitals_thread(void *arg)
{
    struct node_vitals *v = arg;
    const int64_t interval_us = service_manager_interval_us(LOOK_US);
    pthread_mutex_lock(&v->mutex);
    while (!v->stopping) {
        look(v);
        monotonic_cond_wait(&v->changed, &v->mutex, clock_now_us() + interval_us);
    }
    pthread_mutex_unlock(&v->mutex);
    return NULL;
}

void node_vitals_watch(struct node_vitals *v)
{
    if (!v) return;
    v->watched = true;
    thread_start(&v->thread, "vitals", vitals_thread, v);
}

void node_vitals_free(struct node_vitals *v)
{
    if (!v) return;
    pthread_mutex_lock(&v->mutex);
    v->stopping = true;
    pthread_cond_signal(&v->changed);
    pthread_mutex_unlock(&v->mutex);
    if (v->watched) pthread_join(v->thread, NULL);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->mutex);
    free(v->refused);
    free(v);
}

void node_vitals_read(struct node_vitals *v, struct node_picture *picture)
{
    pthread_mutex_lock(&v->mutex);
    picture_take(v, picture);
    if (!v->watched) picture->live = true; // nobody looks for progress
    pthread_mutex_unlock(&v->mutex);
}

// --- the writers

void node_vitals_set_loading(struct node_vitals *v, const struct load_progress *loading)
{
    if (!v) return;
    pthread_mutex_lock(&v->mutex);
    v->loading = loading;
    pthread_mutex_unlock(&v->mutex);
}

void node_vitals_set_engine(struct node_vitals *v, const struct engine *engine)
{
    if (!v) return;
    pthread_mutex_lock(&v->mutex);
    v->engine = engine;
    pthread_mutex_unlock(&v->mutex);
}

void node_vitals_set_routers(struct node_vitals *v, int attached, int known)
{
    if (!v) return;
    pthread_mutex_lock(&v->mutex);
    v->attached = attached > 0;
    v->load.routers_attached = attached;
    v->load.routers_known = known;
    if (attached && !v->told_ready) {
        v->told_ready = true;
        service_manager_ready();
    }
    pthread_mutex_unlock(&v->mutex);
}

void node_vitals_set_draining(struct node_vitals *v)
{
    if (!v) return;
    pthread_mutex_lock(&v->mutex);
    v->draining = true;
    pthread_mutex_unlock(&v->mutex);
    service_manager_stopping();
}

void node_vitals_reload_begin(struct node_vitals *v)
{
    if (v) service_manager_reloading();
}

void node_vitals_reload_end(struct node_vitals *v, const char *refused)
{
    if (!v) return;
    char *reason = refused ? mem_string(refused) : NULL;
    pthread_mutex_lock(&v->mutex);
    free(v->refused);
    v->refused = reason;
    if (v->told_ready) service_manager_ready(); // a node that is still starting stays so
    pthread_mutex_unlock(&v->mutex);
}

void node_vitals_set_load(struct node_vitals *v, int64_t running, int64_t waiting, int64_t kv_blocks_free,
                          uint64_t preemptions)
{
    if (!v) return;
    pthread_mutex_lock(&v->mutex);
    v->load.running = running;
    v->load.waiting = waiting;
    v->load.kv_blocks_free = kv_blocks_free;
    v->load.preemptions = preemptions;
    pthread_mutex_unlock(&v->mutex);
}

void node_vitals_set_idle(struct node_vitals *v, bool idle)
{
    if (!v) return;
    atomic_store_explicit(&v->idle, idle, memory_order_relaxed); // a look may come a moment too early
}

void node_vitals_turn(struct node_vitals *v)
{
    if (v) atomic_fetch_add_explicit(&v->turns, 1, memory_order_relaxed); // only compared with an earlier value
}
