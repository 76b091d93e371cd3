// SPDX-License-Identifier: Apache-2.0
// Shares new calls between the connections of a port. C-core takes about 25 us of CPU time for each call that a client
// opens. Many connections, each within its own limit, could therefore open more calls than the port can serve. A
// connection may open some calls freely, and more once calls are answered with data (frames.h: credit). Other calls
// are paid from one token bucket. While it is empty, connections without credit wait until it is their turn. A turn
// goes to the connection that has paid least, by powers of two, and among equals to the connection that has waited
// longest. The sum that a connection has paid halves in the time in which the bucket fills. Every eighth turn goes to
// the powers of two in order, so that no connection waits for ever. Private to net/.
//
// Threads: any. The functions of turns_start() and struct turn are called under the lock.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { TURN_CLASSES = 16, TURNS_FULL_US = 2000000 };

// A connection's place. Its owner embeds this struct, zeroed.
struct turn {
    void (*resume)(struct turn *turn); // lets the connection read again; NULL: turns_next() returns the turn
    struct turn *previous, *next;      // only turns.c uses this and the following fields
    int class;                         // list that it waits in
    bool waits, given;                 // it waits; it may read once, whatever the bucket has
    int64_t paid, paid_us;             // what it has paid; time of the last halving
};

struct turns {
    pthread_mutex_t mutex;     // guards what follows
    void (*wake)(void *owner); // asks the owner to call turns_next(); NULL: no connection waits
    void *owner;
    int64_t max, left; // the bucket is full at `max` and fills in TURNS_FULL_US
    int64_t at_us;     // time of the last refill
    int64_t round_us;  // start of the round; a round gives few turns, because their cost is not known yet
    int given;         // turns given in the round
    unsigned n_given;  // turns given in all
    int waiting;
    struct turn *first[TURN_CLASSES], *last[TURN_CLASSES];
};

void turns_init(struct turns *t, int max, int64_t now_us);
void turns_fini(struct turns *t);
// From now on connections may have to wait.
void turns_start(struct turns *t, void (*wake)(void *owner), void *owner);
// Resumes all connections. None waits any more.
void turns_stop(struct turns *t);

// Returns true if the connection may read or, with `cost`, pay that much. Otherwise it waits for its turn.
bool turn_take(struct turns *t, struct turn *turn, int64_t cost, int64_t now_us);
void turn_pay(struct turns *t, struct turn *turn, int64_t cost, int64_t now_us);
// Lets a waiting connection read again, because it has credit.
void turn_excuse(struct turns *t, struct turn *turn);
bool turn_waits(struct turns *t, const struct turn *turn);
void turn_leave(struct turns *t, struct turn *turn); // `resume` is not called afterwards

// Gives the turns that are due. Returns a turn without `resume`, or NULL once no further turn is due.
struct turn *turns_next(struct turns *t, int64_t now_us);
int64_t turns_due_us(struct turns *t); // time at which the next turn is due; INT64_MAX: no connection waits
uint64_t turns_waited(void);           // number of times that a connection of this process had to wait
