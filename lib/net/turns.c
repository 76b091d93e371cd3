// SPDX-License-Identifier: Apache-2.0
#include "lib/net/turns.h"

#include <stddef.h>

#include "lib/base/clock.h"

enum { HOLD_US = 100000 }; // C-core reads sooner, unless it waits for memory

void net_turns_init(struct net_turns *turns)
{
    *turns = (struct net_turns){0};
    pthread_mutex_init(&turns->mutex, NULL);
}

void net_turns_fini(struct net_turns *turns)
{
    pthread_mutex_destroy(&turns->mutex);
}

// --- under the mutex

static void line_remove(struct net_turns *turns, struct net_turn *turn)
{
    *(turn->previous ? &turn->previous->next : &turns->first) = turn->next;
    *(turn->next ? &turn->next->previous : &turns->last) = turn->previous;
    turn->previous = turn->next = NULL;
}

// Gives the turn to the first connection of the line. Setting the events again raises them, although C-core waits for
// changes only.
static void turn_give(struct net_turns *turns)
{
    struct net_turn *turn = turns->first;
    turns->holder = turn;
    if (!turn) return;
    line_remove(turns, turn);
    atomic_store(&turn->state, NET_TURN_HAS);
    turns->given_us = clock_now_us();
    epoll_ctl(turn->epoll_fd, EPOLL_CTL_MOD, turn->fd, &turn->event);
}

// --- public

void net_turns_expire(struct net_turns *turns, int64_t now_us)
{
    pthread_mutex_lock(&turns->mutex);
    if (turns->holder && turns->given_us + HOLD_US < now_us) turn_give(turns);
    pthread_mutex_unlock(&turns->mutex);
}

bool net_turn_begin(struct net_turns *turns, struct net_turn *turn)
{
    if (atomic_load(&turn->state) == NET_TURN_FREE) return true;
    pthread_mutex_lock(&turns->mutex);
    bool has = atomic_load(&turn->state) == NET_TURN_HAS;
    if (has) atomic_store(&turn->state, NET_TURN_FREE);
    if (turns->holder == turn) turn_give(turns);
    pthread_mutex_unlock(&turns->mutex);
    return has;
}

void net_turn_await(struct net_turns *turns, struct net_turn *turn)
{
    if (turn->epoll_fd < 0) return;
    pthread_mutex_lock(&turns->mutex);
    turn->previous = turns->last;
    *(turns->last ? &turns->last->next : &turns->first) = turn;
    turns->last = turn;
    atomic_store(&turn->state, NET_TURN_WAITS);
    if (!turns->holder) turn_give(turns);
    pthread_mutex_unlock(&turns->mutex);
}

void net_turn_leave(struct net_turns *turns, struct net_turn *turn)
{
    pthread_mutex_lock(&turns->mutex);
    if (atomic_load(&turn->state) == NET_TURN_WAITS) line_remove(turns, turn);
    atomic_store(&turn->state, NET_TURN_FREE);
    if (turns->holder == turn) turn_give(turns);
    pthread_mutex_unlock(&turns->mutex);
}
