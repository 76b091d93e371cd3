// SPDX-License-Identifier: Apache-2.0
// Counts that the ledger keeps only for metrics: nothing here influences a decision. Counters only grow, as Prometheus
// expects. One thread.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/status.h"
#include "router/core/histogram.h"
#include "router/core/node_gpus.h"
#include "router/core/request.h"
#include "router/sched/view.h"

enum node_loss { LOSS_STREAM_ENDED, LOSS_SILENT, LOSS_HUNG, LOSS_REPLACED, LOSS_COUNT };
const char *node_loss_name(enum node_loss loss); // "stream_ended", "silent", "hung", "replaced"

enum { FINISH_REASON_COUNT = FINISH_REASON_ERROR + 1 };

// Measures of all requests together.
struct core_measures {
    uint64_t finished[FINISH_REASON_COUNT];
    uint64_t errors[STATUS_COUNT];  // by status, of requests finished with FINISH_REASON_ERROR
    uint64_t refused[STATUS_COUNT]; // by core_submit()
    uint64_t replays[LOSS_COUNT];
    uint64_t gpu_drains;                        // nodes that left because of a GPU; nodes.c
    struct histogram queue, pack_wait, prefill; // requests with a first token
    struct histogram end_to_end, token;         // answered requests; token: mean time of later tokens
    struct histogram kept;                      // kept share of scored prompts
    struct histogram keep_rate;                 // requests with a quality
    struct histogram plan[NODE_ROLES];          // time to plan a bin; dispatch.c
};

struct node_counts {
    uint64_t tokens_in, tokens_out, cached_tokens, bins;
    uint64_t preemptions; // counted by the node since its process started; node_reports.c
    uint64_t passes, pass_rows, pass_pairs, pass_us;
    uint64_t pass_gaps; // gaps between two passes while the node had work, by the times of their reports
    int64_t pass_gap_us;
    uint64_t quality_scores; // prompts whose keep rate a speculator chose
    double quality_rates;    // the sum of these rates
};

// Measures of all nodes that have attached with this id and role. Dashboards know a node by its id, so counters go on
// when it comes back. If more than NODES_GONE_MAX nodes are gone, the nodes that left longest ago are forgotten.
struct node_measures {
    char node_id[128];
    enum node_role role;
    int attached;        // attached nodes; two while a process replaces its own lost stream
    uint64_t gone_order; // larger if it left later
    struct node_counts counts;
    struct node_gpus gpus;                     // node_reports.c
    struct histogram first_token, inter_token; // worker groups
    struct histogram score;                    // speculators
    struct histogram pass, fill;
    struct node_measures *next;
};
enum { NODES_GONE_MAX = 64 };

struct node_measures_list {
    struct node_measures *first;
    uint64_t n_gone; // ever gone
};

void core_measures_init(struct core_measures *measures);

struct node_measures *node_measures_acquire(struct node_measures_list *list, const char *node_id, enum node_role role);
void node_measures_release(struct node_measures_list *list, struct node_measures *measures);
void node_measures_fini(struct node_measures_list *list);
