// SPDX-License-Identifier: Apache-2.0
// Limits the memory that this process holds for the peers of its ports. There are two budgets: one for peers that still
// have to show a key or token, one for all other peers. While the peers of a budget hold too much, the busiest peer is
// closed: the peer with the most memory. Among peers that have not shown a key, the time since peer_join() also counts.
// The budgets are global to the process, because memory is. Any thread may call.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum peer_class { PEER_UNPROVEN, PEER_PROVEN, PEER_CLASSES };
enum { PEER_UNPROVEN_BYTES = 64 << 20, PEER_PROVEN_BYTES = 512 << 20 }; // the defaults

// A connection. Its owner embeds this struct. The peer is in a budget from peer_join() to peer_leave().
struct peer {
    void (*end)(struct peer *peer); // closes the connection soon; called under the budgets' lock, from any thread
    struct peer *previous, *next;   // only peer_budget.c writes this and the following fields
    enum peer_class class;
    bool joined, ended;
    int64_t joined_us;
    size_t held_bytes;
};

struct peer_budget {
    size_t max_bytes, held_bytes;
    int peers;
    uint64_t ended; // number of peers closed because they were the busiest
};

void peer_budgets_set(size_t unproven_bytes, size_t proven_bytes);
struct peer_budget peer_budget_read(enum peer_class class);

// Adds the peer to a budget, with no memory held. The caller has set peer->end.
void peer_join(struct peer *peer, enum peer_class class);
// Sets the memory that the peer holds. May call `end` of any peer, including `peer` itself, so the caller must not hold
// a lock that `end` takes. No effect on a peer that has left.
void peer_hold(struct peer *peer, size_t bytes);
void peer_prove(struct peer *peer); // the peer has shown its key; no effect on a peer that has left
void peer_leave(struct peer *peer); // `end` is not called afterwards
// Returns freed memory to the system once peers hold much less than before. A listener calls it every second.
void peer_budgets_trim(void);
