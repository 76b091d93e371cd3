// SPDX-License-Identifier: Apache-2.0
#include "worker/sequence_queue.h"

#include <stddef.h>

void sequence_queue_push_back(struct sequence_queue *queue, struct sequence *s)
{
    s->previous = queue->tail;
    s->next = NULL;
    *(queue->tail ? &queue->tail->next : &queue->head) = s;
    queue->tail = s;
    queue->n++;
}

void sequence_queue_push_front(struct sequence_queue *queue, struct sequence *s)
{
    s->previous = NULL;
    s->next = queue->head;
    *(queue->head ? &queue->head->previous : &queue->tail) = s;
    queue->head = s;
    queue->n++;
}

void sequence_queue_remove(struct sequence_queue *queue, struct sequence *s)
{
    *(s->previous ? &s->previous->next : &queue->head) = s->next;
    *(s->next ? &s->next->previous : &queue->tail) = s->previous;
    queue->n--;
}

struct sequence *sequence_queue_find(const struct sequence_queue *queue, uint64_t id)
{
    struct sequence *s = queue->head;
    while (s && s->id != id)
        s = s->next;
    return s;
}
