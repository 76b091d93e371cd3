// SPDX-License-Identifier: Apache-2.0
// Lets connections with much to read take turns. C-core reads a connection until its socket is empty, so clients that
// send without end would keep its threads, and other clients would wait. A connection that waits for its turn looks
// empty to C-core. Its turn raises the event that C-core waits for. Private to net/. Any thread.
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

enum net_turn_state { NET_TURN_FREE, NET_TURN_WAITS, NET_TURN_HAS };

// A connection's place. Its owner embeds this struct.
struct net_turn {
    atomic_int state;                 // enum net_turn_state; written under the mutex of the turns
    struct net_turn *previous, *next; // in the line of waiting connections
    int fd, epoll_fd;                 // epoll_fd -1: C-core does not use epoll, and the connection never waits
    struct epoll_event event;         // the events that C-core waits for
};

struct net_turns {
    pthread_mutex_t mutex;
    struct net_turn *first, *last; // the line
    struct net_turn *holder;       // has been woken and has not read yet
    int64_t given_us;              // when the holder was woken
};

void net_turns_init(struct net_turns *turns);
void net_turns_fini(struct net_turns *turns);
// Gives the turn to the next connection if the holder has not read for a while.
void net_turns_expire(struct net_turns *turns, int64_t now_us);

// Returns false if the connection waits for its turn, so that it must not read.
bool net_turn_begin(struct net_turns *turns, struct net_turn *turn);
// Lets the connection wait for its turn. Call it while its socket has bytes to read.
void net_turn_await(struct net_turns *turns, struct net_turn *turn);
void net_turn_leave(struct net_turns *turns, struct net_turn *turn); // before its descriptor is closed
