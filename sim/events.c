// SPDX-License-Identifier: Apache-2.0
#include "sim/events.h"

#include <stdbool.h>
#include <stdlib.h>

#include "lib/base/invariant.h"
#include "lib/base/mem.h"

static bool event_before(const struct event *a, const struct event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->order < b->order;
}

void event_queue_add(struct event_queue *queue, struct event event)
{
    MEM_GROW(queue->heap, queue->n, queue->capacity);
    event.order = ++queue->last_order;
    int at = queue->n++;
    for (int up; at && event_before(&event, &queue->heap[up = (at - 1) / 2]); at = up)
        queue->heap[at] = queue->heap[up];
    queue->heap[at] = event;
}

struct event event_queue_take(struct event_queue *queue)
{
    INVARIANT(queue->n > 0, "%d events", queue->n);
    struct event first = queue->heap[0], last = queue->heap[--queue->n];
    int at = 0;
    for (int down; (down = 2 * at + 1) < queue->n; at = down) {
        if (down + 1 < queue->n && event_before(&queue->heap[down + 1], &queue->heap[down])) down++;
        if (!event_before(&queue->heap[down], &last)) break;
        queue->heap[at] = queue->heap[down];
    }
    if (queue->n) queue->heap[at] = last;
    return first;
}

void event_queue_fini(struct event_queue *queue)
{
    for (int i = 0; i < queue->n; i++)
        free(queue->heap[i].bytes);
    free(queue->heap);
    *queue = (struct event_queue){0};
}
