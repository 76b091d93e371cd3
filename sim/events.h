// SPDX-License-Identifier: Apache-2.0
// The future events of a run, by time. Events of equal times are handled in the order in which they were added, so a
// run depends only on its scenario. The owner frees the memory; operations take O(log n).
#pragma once

#include <stddef.h>
#include <stdint.h>

struct world;
struct event;

typedef void event_fn(struct world *w, const struct event *event);

struct event {
    int64_t at_us;
    uint64_t order;
    event_fn *fn;
    void *object;
    uint64_t tag;   // number of the object's life, timer or stream that the event is for
    uint8_t *bytes; // [n_bytes] a message, owned by the event
    size_t n_bytes;
};

struct event_queue {
    struct event *heap;
    int n, capacity;
    uint64_t last_order;
};

void event_queue_add(struct event_queue *queue, struct event event); // sets event.order
struct event event_queue_take(struct event_queue *queue);            // the first event; the queue must not be empty
void event_queue_fini(struct event_queue *queue);                    // frees the messages of the remaining events
