// SPDX-License-Identifier: Apache-2.0
#include "lib/base/peer_budget.h"

#include <malloc.h>
#include <pthread.h>

#include "lib/base/clock.h"

// The budgets, guarded by the mutex. `ending_bytes` is the memory of peers that were ended but have not left yet.
static struct {
    pthread_mutex_t mutex;
    struct peer_budget budgets[PEER_CLASSES];
    size_t ending_bytes[PEER_CLASSES];
    struct peer *first[PEER_CLASSES];
    size_t peak_bytes; // highest memory of both budgets together since the last trim
} all = {
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .budgets = {{.max_bytes = PEER_UNPROVEN_BYTES}, {.max_bytes = PEER_PROVEN_BYTES}},
};

static size_t held_bytes(void)
{
    return all.budgets[PEER_UNPROVEN].held_bytes + all.budgets[PEER_PROVEN].held_bytes;
}

static void peer_link(struct peer *peer)
{
    struct peer **first = &all.first[peer->class];
    peer->previous = NULL;
    peer->next = *first;
    if (peer->next) peer->next->previous = peer;
    *first = peer;
    all.budgets[peer->class].peers++;
    all.budgets[peer->class].held_bytes += peer->held_bytes;
    if (peer->ended) all.ending_bytes[peer->class] += peer->held_bytes;
    if (held_bytes() > all.peak_bytes) all.peak_bytes = held_bytes();
}

static void peer_unlink(struct peer *peer)
{
    *(peer->previous ? &peer->previous->next : &all.first[peer->class]) = peer->next;
    if (peer->next) peer->next->previous = peer->previous;
    all.budgets[peer->class].peers--;
    all.budgets[peer->class].held_bytes -= peer->held_bytes;
    if (peer->ended) all.ending_bytes[peer->class] -= peer->held_bytes;
}

// Returns the weight by which the busiest peer is chosen. Polite peers show their key soon, so for peers without a key
// the time since joining counts, too. That protects new peers.
static double peer_weight(const struct peer *peer, int64_t now_us)
{
    if (peer->class == PEER_PROVEN) return (double)peer->held_bytes;
    return (double)peer->held_bytes * (double)(now_us - peer->joined_us + 1000000);
}

static struct peer *busiest_find(enum peer_class class)
{
    int64_t now_us = clock_now_us();
    struct peer *busiest = NULL;
    for (struct peer *p = all.first[class]; p; p = p->next) {
        if (!p->ended && (!busiest || peer_weight(p, now_us) > peer_weight(busiest, now_us))) busiest = p;
    }
    return busiest;
}

static void budget_keep(enum peer_class class)
{
    struct peer_budget *budget = &all.budgets[class];
    while (budget->held_bytes - all.ending_bytes[class] > budget->max_bytes) {
        struct peer *peer = busiest_find(class);
        if (!peer) return;
        peer->ended = true;
        all.ending_bytes[class] += peer->held_bytes;
        budget->ended++;
        peer->end(peer);
    }
}

void peer_budgets_set(size_t unproven_bytes, size_t proven_bytes)
{
    pthread_mutex_lock(&all.mutex);
    all.budgets[PEER_UNPROVEN].max_bytes = unproven_bytes;
    all.budgets[PEER_PROVEN].max_bytes = proven_bytes;
    pthread_mutex_unlock(&all.mutex);
}

struct peer_budget peer_budget_read(enum peer_class class)
{
    pthread_mutex_lock(&all.mutex);
    struct peer_budget budget = all.budgets[class];
    pthread_mutex_unlock(&all.mutex);
    return budget;
}

void peer_join(struct peer *peer, enum peer_class class)
{
    pthread_mutex_lock(&all.mutex);
    peer->class = class;
    peer->joined = true;
    peer->ended = false;
    peer->joined_us = clock_now_us();
    peer->held_bytes = 0;
    peer_link(peer);
    pthread_mutex_unlock(&all.mutex);
}

void peer_hold(struct peer *peer, size_t bytes)
{
    pthread_mutex_lock(&all.mutex);
    if (peer->joined) {
        peer_unlink(peer);
        peer->held_bytes = bytes;
        peer_link(peer);
        budget_keep(peer->class);
    }
    pthread_mutex_unlock(&all.mutex);
}

void peer_prove(struct peer *peer)
{
    pthread_mutex_lock(&all.mutex);
    if (peer->joined) {
        peer_unlink(peer);
        peer->class = PEER_PROVEN;
        peer_link(peer);
        budget_keep(PEER_PROVEN);
    }
    pthread_mutex_unlock(&all.mutex);
}

void peer_leave(struct peer *peer)
{
    pthread_mutex_lock(&all.mutex);
    peer_unlink(peer);
    peer->joined = false;
    pthread_mutex_unlock(&all.mutex);
}

// Trims the heap, because malloc keeps the small pieces that gRPC's threads have freed. Trimming takes milliseconds, so
// it waits for a large drop.
void peer_budgets_trim(void)
{
    enum { DROP_BYTES = 32 << 20 };
    pthread_mutex_lock(&all.mutex);
    bool dropped = all.peak_bytes - held_bytes() >= DROP_BYTES;
    if (dropped) all.peak_bytes = held_bytes();
    pthread_mutex_unlock(&all.mutex);
    if (dropped) malloc_trim(0);
}
