// SPDX-License-Identifier: Apache-2.0
// One run of a scenario: virtual time, future events, and every object of the run. One thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/random.h"
#include "sim/events.h"
#include "sim/scenario.h"

struct client;
struct sim_node;
struct sim_router;
struct network;

struct world {
    const struct scenario *scenario; // borrowed
    int64_t now_us;
    struct event_queue queue;
    struct network *network;
    struct sim_router *router;
    struct sim_node **nodes; // [scenario->n_nodes]
    struct clients *clients;
    struct oracle_fair *fair;
    struct oracle_shadow *shadow;

    uint64_t events;                          // handled so far
    uint64_t digest;                          // covers all events; equal for equal runs
    int64_t disturbed_until_us, disturbed_us; // see world_disturb()
    bool failed;
    char violation[512]; // the first violation
};

// Calls `fn` at the time at_us, which is not in the past. The event takes ownership of `bytes`, which may be NULL.
void world_at(struct world *w, int64_t at_us, event_fn *fn, void *object, uint64_t tag, uint8_t *bytes, size_t n_bytes);

// Records a violation; the run ends after the event. Only the first violation counts.
void world_fail(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Allows requests to be delayed until this time, because of a fault. The bound on waiting grows by all such times.
void world_disturb(struct world *w, int64_t until_us);

// Folds a value into the digest of the run.
static inline void world_digest(struct world *w, uint64_t value)
{
    uint64_t z = (w->digest ^ value) + 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    w->digest = z ^ (z >> 31);
}
void world_digest_bytes(struct world *w, const uint8_t *bytes, size_t n);
