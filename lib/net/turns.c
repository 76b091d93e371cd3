// SPDX-License-Identifier: Apache-2.0
#include "lib/net/turns.h"

#include <stdatomic.h>
#include <stddef.h>

enum { ROUND_US = 1000, TURNS_PER_ROUND = 4, TURNS_PER_FAIR_ONE = 8 };

static atomic_ullong waited;

void turns_init(struct turns *t, int max, int64_t now_us)
{
    *t = (struct turns){.max = max, .left = max, .at_us = now_us};
    pthread_mutex_init(&t->mutex, NULL);
}

void turns_fini(struct turns *t)
{
    pthread_mutex_destroy(&t->mutex);
}

static void refill(struct turns *t, int64_t now_us)
{
    int64_t more = (now_us - t->at_us) * t->max / TURNS_FULL_US;
    if (more <= 0) return;
    t->at_us = t->left + more < t->max ? t->at_us + more * TURNS_FULL_US / t->max : now_us;
    t->left = t->left + more < t->max ? t->left + more : t->max;
}

// --- lists

// Returns the class of a connection that will have paid `paid`: the number of its bits.
static int class_of(int64_t paid)
{
    int bits = paid > 0 ? 64 - __builtin_clzll((unsigned long long)paid) : 0;
    return bits < TURN_CLASSES ? bits : TURN_CLASSES - 1;
}

static void wait_add(struct turns *t, struct turn *turn, int class)
{
    turn->class = class;
    turn->waits = true;
    turn->next = NULL;
    turn->previous = t->last[class];
    *(turn->previous ? &turn->previous->next : &t->first[class]) = turn;
    t->last[class] = turn;
    t->waiting++;
}

static void wait_remove(struct turns *t, struct turn *turn)
{
    *(turn->previous ? &turn->previous->next : &t->first[turn->class]) = turn->next;
    *(turn->next ? &turn->next->previous : &t->last[turn->class]) = turn->previous;
    turn->waits = false;
    t->waiting--;
}

// Returns the first connection of the lowest class, beginning with `class` and going round.
static struct turn *wait_first(const struct turns *t, unsigned class)
{
    for (unsigned i = 0; i < TURN_CLASSES; i++)
        if (t->first[(class + i) % TURN_CLASSES]) return t->first[(class + i) % TURN_CLASSES];
    return NULL;
}

static void paid_halve(struct turn *turn, int64_t now_us)
{
    int64_t halvings = (now_us - turn->paid_us) / TURNS_FULL_US;
    turn->paid = halvings < 63 ? turn->paid >> halvings : 0;
    turn->paid_us += halvings * TURNS_FULL_US;
}

static struct turn *turn_give(struct turns *t)
{
    unsigned n = ++t->n_given;
    struct turn *turn = wait_first(t, n % TURNS_PER_FAIR_ONE ? 0 : n / TURNS_PER_FAIR_ONE);
    wait_remove(t, turn);
    turn->given = turn->resume != NULL;
    if (turn->resume) turn->resume(turn);
    return turn;
}

// --- public

void turns_start(struct turns *t, void (*wake)(void *owner), void *owner)
{
    pthread_mutex_lock(&t->mutex);
    t->wake = wake;
    t->owner = owner;
    pthread_mutex_unlock(&t->mutex);
}

void turns_stop(struct turns *t)
{
    pthread_mutex_lock(&t->mutex);
    t->wake = NULL;
    while (t->waiting)
        turn_give(t);
    pthread_mutex_unlock(&t->mutex);
}

bool turn_take(struct turns *t, struct turn *turn, int64_t cost, int64_t now_us)
{
    pthread_mutex_lock(&t->mutex);
    refill(t, now_us);
    bool may = turn->given || !t->wake || (!t->waiting && t->left > 0);
    if (may) {
        turn->given = false;
    } else if (!turn->waits) {
        atomic_fetch_add_explicit(&waited, 1, memory_order_relaxed); // read by metrics only
        paid_halve(turn, now_us);
        wait_add(t, turn, class_of(turn->paid + cost));
        if (t->waiting == 1) t->wake(t->owner);
    }
    pthread_mutex_unlock(&t->mutex);
    return may;
}

void turn_pay(struct turns *t, struct turn *turn, int64_t cost, int64_t now_us)
{
    pthread_mutex_lock(&t->mutex);
    refill(t, now_us);
    t->left -= cost;
    paid_halve(turn, now_us);
    turn->paid += cost;
    pthread_mutex_unlock(&t->mutex);
}

void turn_excuse(struct turns *t, struct turn *turn)
{
    pthread_mutex_lock(&t->mutex);
    if (turn->waits) {
        wait_remove(t, turn);
        turn->resume(turn);
    }
    pthread_mutex_unlock(&t->mutex);
}

bool turn_waits(struct turns *t, const struct turn *turn)
{
    pthread_mutex_lock(&t->mutex);
    bool waits = turn->waits;
    pthread_mutex_unlock(&t->mutex);
    return waits;
}

void turn_leave(struct turns *t, struct turn *turn)
{
    pthread_mutex_lock(&t->mutex);
    if (turn->waits) wait_remove(t, turn);
    pthread_mutex_unlock(&t->mutex);
}

struct turn *turns_next(struct turns *t, int64_t now_us)
{
    struct turn *turn = NULL;
    pthread_mutex_lock(&t->mutex);
    refill(t, now_us);
    if (now_us >= t->round_us + ROUND_US) {
        t->round_us = now_us;
        t->given = 0;
    }
    while (t->waiting && t->left > 0 && t->given < TURNS_PER_ROUND && !turn) {
        t->given++;
        turn = turn_give(t);
        if (turn->resume) turn = NULL;
    }
    pthread_mutex_unlock(&t->mutex);
    return turn;
}

int64_t turns_due_us(struct turns *t)
{
    pthread_mutex_lock(&t->mutex);
    int64_t due_us = INT64_MAX;
    if (t->waiting) {
        due_us = t->at_us + (t->left < 1 ? ((1 - t->left) * TURNS_FULL_US + t->max - 1) / t->max : 0);
        if (due_us < t->round_us + ROUND_US) due_us = t->round_us + ROUND_US;
    }
    pthread_mutex_unlock(&t->mutex);
    return due_us;
}

uint64_t turns_waited(void)
{
    return atomic_load_explicit(&waited, memory_order_relaxed);
}
