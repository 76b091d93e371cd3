// SPDX-License-Identifier: Apache-2.0
// Reports to a router that this node loads its weights. The reports have a stream of their own, which ends before the
// node attaches with Hello (node.h), and begin only if loading takes longer than LOADING_REPORT_AFTER_MS. They are
// information for operators: if the router cannot be reached or refuses them, loading goes on, and the attempt is
// repeated.
#pragma once

#include "engine/model/model.h"
#include "engine/node_channel.h"

enum { LOADING_REPORT_AFTER_MS = 500 };

struct loading_report;

// Starts the reports of rank 0 of a group. Borrows the files' names and `progress` until
// loading_report_stop().
struct loading_report *loading_report_start(const struct node_router *router, const struct node_identity *identity,
                                            Forepack__Cluster__V1__Role role, int ranks,
                                            const struct load_progress *progress);
void loading_report_stop(struct loading_report *report);
