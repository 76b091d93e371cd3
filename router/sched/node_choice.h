// SPDX-License-Identifier: Apache-2.0
// Which node gets the next bin. Reads the view, changes nothing.
#pragma once

#include "router/sched/view.h"

// One round of dispatching to a pool. While the costs of all its nodes are known (for a prompt of mean length, when the
// round began), nodes are compared by time, else by tokens.
struct dispatch_round {
    const struct sched_view *view;
    enum node_role role;
    bool costs_known;
};
struct dispatch_round dispatch_round_start(const struct sched_view *view, enum node_role role);

// When the node finishes its work and further rows of a request: in microseconds, or in tokens.
double dispatch_round_finish(const struct dispatch_round *round, const struct sched_node *node, int64_t rows,
                             int64_t cached);

// Of the nodes with a free place for a bin and a sequence that have not declined in this round, the one that would
// finish its work and a prompt of mean length first. NULL: none.
const struct sched_node *dispatch_round_next_node(const struct dispatch_round *round);

// The reservation that holds from now on. A choice once made is kept: always moving to the emptiest group could go on
// for ever.
struct reservation reservation_update(const struct sched_view *view);
