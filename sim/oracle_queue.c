// SPDX-License-Identifier: Apache-2.0
#include "sim/oracle_queue.h"

#include <string.h>

#include "worker/sequence_queue.h"

enum { SEQUENCES = 6, STEPS = 48 };

struct model {
    struct sequence sequences[SEQUENCES], *order[SEQUENCES];
    int n;
};

static int place_of(const struct model *m, const struct sequence *s)
{
    int i = 0;
    while (i < m->n && m->order[i] != s)
        i++;
    return i;
}

static void step(struct model *m, struct sequence_queue *queue, struct sequence *s, bool front)
{
    int at = place_of(m, s);
    if (at < m->n) {
        sequence_queue_remove(queue, s);
        memmove(m->order + at, m->order + at + 1, (size_t)(m->n - at - 1) * sizeof *m->order);
        m->n--;
    } else if (front) {
        sequence_queue_push_front(queue, s);
        memmove(m->order + 1, m->order, (size_t)m->n * sizeof *m->order);
        m->order[0] = s;
        m->n++;
    } else {
        sequence_queue_push_back(queue, s);
        m->order[m->n++] = s;
    }
}

static bool is_same(const struct model *m, const struct sequence_queue *queue)
{
    const struct sequence *q = queue->head, *previous = NULL;
    for (int i = 0; i < m->n; i++, previous = q, q = q->next)
        if (q != m->order[i] || q->previous != previous) return false;
    return !q && queue->tail == previous && queue->n == m->n;
}

static bool finds_all(struct model *m, const struct sequence_queue *queue)
{
    for (int i = 0; i < SEQUENCES; i++) {
        struct sequence *s = &m->sequences[i];
        if (sequence_queue_find(queue, s->id) != (place_of(m, s) < m->n ? s : NULL)) return false;
    }
    return true;
}

const char *oracle_queue(struct random_source *random)
{
    struct model m = {.n = 0};
    struct sequence_queue queue = {.n = 0};
    for (int i = 0; i < SEQUENCES; i++)
        m.sequences[i].id = (uint64_t)i + 1;
    for (int i = 0; i < STEPS; i++) {
        step(&m, &queue, &m.sequences[random_below(random, SEQUENCES)], random_below(random, 2));
        if (!is_same(&m, &queue) || !finds_all(&m, &queue))
            return "a queue of sequences has a wrong order, link, count or search result";
    }
    return NULL;
}
