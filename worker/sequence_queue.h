// SPDX-License-Identifier: Apache-2.0
// A queue of waiting sequences. The sequences have the links of the list as members. The scheduler owns the queue.
#pragma once

#include <stdint.h>

#include "worker/sequence.h"

struct sequence_queue {
    struct sequence *head, *tail;
    int n;
};

void sequence_queue_push_back(struct sequence_queue *queue, struct sequence *s);
void sequence_queue_push_front(struct sequence_queue *queue, struct sequence *s);
void sequence_queue_remove(struct sequence_queue *queue, struct sequence *s);
struct sequence *sequence_queue_find(const struct sequence_queue *queue, uint64_t id); // NULL: not in the queue
