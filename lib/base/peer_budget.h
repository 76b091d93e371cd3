// SPDX-License-Identifier: Apache-2.0
// Memory that this process holds for the peers of its ports: two budgets, one for peers that still have to show a key
// or token, one for all others. While the peers of a budget hold more than it has, the busiest of them is closed. The
// budgets belong to the process, because its memory does. Any thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum peer_class { PEER_UNPROVEN, PEER_PROVEN, PEER_CLASSES };
enum { PEER_UNPROVEN_BYTES = 64 << 20, PEER_PROVEN_BYTES = 512 << 20 }; // the defaults

// A connection. It belongs to its owner, and to a budget from peer_join() to peer_leave().
struct peer {
    void (*end)(struct peer *peer); // closes the connection soon; called under the budgets' lock, from any thread
    struct peer *previous, *next;   // this and the following are the budgets'
    enum peer_class class;
    bool joined, ended;
    int64_t joined_us;
    size_t held_bytes;
};

struct peer_budget {
    size_t max_bytes, held_bytes;
    int peers;
    uint64_t ended; // peers that were closed because they held most
};

void peer_budgets_set(size_t unproven_bytes, size_t proven_bytes);
struct peer_budget peer_budget_read(enum peer_class class);

// `peer`: `end` is set. It holds nothing yet.
void peer_join(struct peer *peer, enum peer_class class);
// Sets the memory that the peer holds. May end peers, and `peer` itself; the caller holds no lock that `end` takes.
// This and the next: no effect on a peer that has left.
void peer_hold(struct peer *peer, size_t bytes);
void peer_prove(struct peer *peer); // it has shown its key
void peer_leave(struct peer *peer); // `end` is not called any more
// Gives freed memory back to the system once peers hold much less than before. A listener calls it every second.
void peer_budgets_trim(void);
