// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process. Each rank publishes the address of its buffer, then all ranks work on the buffers in
// place. A wait blocks on a condition variable, so there may be more ranks than cores.
//
// The elements of a reduction are divided over the ranks. One rank sums an element over ranks 0, 1, 2, ... and writes
// the sum to all buffers, so the result depends neither on the division nor on the count.
#include "tests/comm_threads.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

struct slot {
    void *data; // the rank's buffer in the current collective
    size_t count;
};

struct group {
    pthread_mutex_t lock; // guards turned .. open; the barrier orders accesses to `slots`
    pthread_cond_t turned;
    int arrived; // ranks waiting at the barrier
    // Number of barriers passed. A thread that wakes late must not take the next barrier for its own.
    unsigned generation;
    int open; // handles not yet closed
    int size;
    struct comm **parts; // [size] comms that rank 0 made for a split
    // A message from each rank, in place. NULL: the rank sends nothing.
    struct slot *sent; // [size]
    struct slot slots[];
};

struct thread_comm {
    struct comm base;
    struct group *group;
};

static struct group *group_of(struct comm *c)
{
    return ((struct thread_comm *)c)->group;
}

static void barrier(struct comm *c)
{
    struct group *g = group_of(c);
    c->waits = true;
    pthread_mutex_lock(&g->lock);
    unsigned generation = g->generation;
    if (++g->arrived == g->size) {
        g->arrived = 0;
        g->generation++;
        pthread_cond_broadcast(&g->turned);
    }
    while (generation == g->generation)
        pthread_cond_wait(&g->turned, &g->lock);
    pthread_mutex_unlock(&g->lock);
    c->waits = false;
}

// Publishes this rank's buffer and waits for all ranks. Different counts are a bug of the caller, which all ranks
// report.
static enum status buffers_publish(struct comm *c, void *data, size_t count)
{
    struct group *g = group_of(c);
    g->slots[c->rank] = (struct slot){data, count};
    barrier(c);
    for (int r = 0; r < g->size; r++)
        if (g->slots[r].count != g->slots[0].count) {
            enum status status = status_fail(STATUS_INTERNAL, "collective: rank %d has %zu items, rank 0 has %zu", r,
                                             g->slots[r].count, g->slots[0].count);
            barrier(c);
            return status;
        }
    return STATUS_OK;
}

static enum status threads_reduce(struct comm *c, float *data, size_t count, float (*combine)(float, float))
{
    struct group *g = group_of(c);
    enum status status = buffers_publish(c, data, count);
    if (status) return status;
    size_t size = (size_t)g->size, rank = (size_t)c->rank;
    for (size_t i = count * rank / size; i < count * (rank + 1) / size; i++) {
        float value = ((float *)g->slots[0].data)[i];
        for (int r = 1; r < g->size; r++)
            value = combine(value, ((float *)g->slots[r].data)[i]);
        for (int r = 0; r < g->size; r++)
            ((float *)g->slots[r].data)[i] = value;
    }
    barrier(c);
    return STATUS_OK;
}

static float float_add(float a, float b)
{
    return a + b;
}

static float float_max(float a, float b)
{
    return b > a ? b : a;
}

static enum status threads_all_reduce_sum(struct comm *c, float *data, size_t count)
{
    return threads_reduce(c, data, count, float_add);
}

static enum status threads_all_reduce_max(struct comm *c, float *data, size_t count)
{
    return threads_reduce(c, data, count, float_max);
}

static enum status threads_gather(struct comm *c, const float *data, size_t count, float *out)
{
    struct group *g = group_of(c);
    enum status status = buffers_publish(c, c->rank ? (void *)data : (void *)out, count);
    if (status) return status;
    // Each rank copies its part into rank 0's `out`, which rank 0 has published.
    if (count) memmove((float *)g->slots[0].data + (size_t)c->rank * count, data, count * sizeof *data);
    barrier(c);
    return STATUS_OK;
}

static enum status threads_broadcast(struct comm *c, void *bytes, size_t size_bytes)
{
    struct group *g = group_of(c);
    enum status status = buffers_publish(c, bytes, size_bytes);
    if (status) return status;
    if (c->rank && size_bytes) memcpy(bytes, g->slots[0].data, size_bytes);
    barrier(c);
    return STATUS_OK;
}

// Rank 0 opens the comms of all parts.
static enum status threads_split(struct comm *c, int n_parts)
{
    struct group *g = group_of(c);
    const int size = g->size / n_parts;
    for (int r = 0; c->rank == 0 && r < g->size; r += size)
        if (comm_open_threads(size, g->parts + r) != STATUS_OK) abort();
    barrier(c);
    c->part = g->parts[c->rank];
    barrier(c);
    return STATUS_OK;
}

// Returns when the other rank has copied the data.
static enum status threads_send(struct comm *c, int rank, const float *data, size_t count)
{
    struct group *g = group_of(c);
    struct slot *slot = &g->sent[c->rank];
    c->waits = true;
    pthread_mutex_lock(&g->lock);
    *slot = (struct slot){(void *)data, count};
    pthread_cond_broadcast(&g->turned);
    while (slot->data)
        pthread_cond_wait(&g->turned, &g->lock);
    pthread_mutex_unlock(&g->lock);
    c->waits = false;
    return STATUS_OK;
}

static enum status threads_receive(struct comm *c, int rank, float *data, size_t count)
{
    struct group *g = group_of(c);
    struct slot *slot = &g->sent[rank];
    c->waits = true;
    pthread_mutex_lock(&g->lock);
    while (!slot->data)
        pthread_cond_wait(&g->turned, &g->lock);
    const size_t sent = slot->count;
    if (sent == count) memcpy(data, slot->data, count * sizeof *data);
    slot->data = NULL;
    pthread_cond_broadcast(&g->turned);
    pthread_mutex_unlock(&g->lock);
    c->waits = false;
    return sent == count ? STATUS_OK : status_fail(STATUS_INTERNAL, "message: %zu floats, not %zu", sent, count);
}

static void threads_close(struct comm *c)
{
    struct group *g = group_of(c);
    struct comm *part = c->part;
    if (part) part->ops->close(part);
    pthread_mutex_lock(&g->lock);
    int left = --g->open;
    pthread_mutex_unlock(&g->lock);
    if (left == 0) {
        pthread_cond_destroy(&g->turned);
        pthread_mutex_destroy(&g->lock);
        free(g->parts);
        free(g->sent);
        free(g);
    }
    free(c);
}

static const struct comm_ops thread_ops = {.all_reduce_sum = threads_all_reduce_sum,
                                           .all_reduce_max = threads_all_reduce_max,
                                           .gather = threads_gather,
                                           .broadcast = threads_broadcast,
                                           .close = threads_close,
                                           .split = threads_split,
                                           .send = threads_send,
                                           .receive = threads_receive};

enum status comm_open_threads(int size, struct comm **comms)
{
    if (size < 1) return status_fail(STATUS_INVALID, "%d ranks: must be 1 or more", size);
    struct group *g = mem_alloc(sizeof *g + (size_t)size * sizeof g->slots[0]);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->turned, NULL);
    g->size = g->open = size;
    g->parts = mem_alloc_array((size_t)size, sizeof(struct comm *));
    g->sent = mem_alloc_array((size_t)size, sizeof *g->sent);
    for (int r = 0; r < size; r++) {
        struct thread_comm *c = mem_alloc(sizeof *c);
        *c = (struct thread_comm){.base = {.rank = r, .size = size, .ops = &thread_ops}, .group = g};
        comms[r] = &c->base;
    }
    return STATUS_OK;
}
