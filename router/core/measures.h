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
    uint64_t errors[STATUS_COUNT];              // by status, of requests finished with FINISH_REASON_ERROR
    uint64_t refused[STATUS_COUNT];             // by status, of requests that core_submit() refused
    uint64_t replays[LOSS_COUNT];               // replayed requests, by the cause of the worker group's loss
    uint64_t gpu_drains;                        // nodes that left because a GPU was in trouble; written by nodes.c
    struct histogram queue, pack_wait, prefill; // times of requests that got a first token
    struct histogram end_to_end,                // time from arrival to the last token, of answered requests
        token;                                  // mean time per token after the first, of answered requests
    struct histogram kept;                      // share of the prompt tokens that were kept, of speculated requests
    struct histogram keep_rate;                 // keep rate of requests with a quality
    struct histogram plan[NODE_ROLES];          // time to plan a bin; written by dispatch.c
};

struct node_counts {
    uint64_t tokens_in, tokens_out, cached_tokens, bins;
    uint64_t preemptions; // preemptions that the node reported; written by node_reports.c
    uint64_t passes, pass_rows, pass_pairs, pass_us;
    uint64_t pass_gaps;      // number of gaps between two passes while the node had work, see ledger.c: gap_measure()
    int64_t pass_gap_us;     // total time of the gaps; may be negative
    uint64_t quality_scores; // prompts whose keep rate a speculator chose
    double quality_rates;    // sum of these keep rates
};

// Measures of one node id and role. Dashboards identify a node by its id, so the counters continue when the id attaches
// again. If more than NODES_GONE_MAX ids are gone, the ids that left longest ago are forgotten.
struct node_measures {
    char node_id[128];
    enum node_role role;
    int attached;        // number of attached nodes with this id; 2 while a process replaces its own lost stream
    uint64_t gone_order; // larger for an id that left later
    struct node_counts counts;
    struct node_gpus gpus;                     // written by node_reports.c
    struct histogram first_token, inter_token; // worker groups: time to first token; time between two tokens
    struct histogram score;                    // speculators: time from dispatch to the answer
    struct histogram latency;                  // time from the start of a pass to its results; worker groups
    struct histogram pass, fill;               // time of a pass; rows of a bin divided by the node's token budget
    struct node_measures *next;
};
enum { NODES_GONE_MAX = 64 };

struct node_measures_list {
    struct node_measures *first;
    uint64_t n_gone; // number of times that an id left; also the latest gone_order
};

void core_measures_init(struct core_measures *measures);

struct node_measures *node_measures_acquire(struct node_measures_list *list, const char *node_id, enum node_role role);
void node_measures_release(struct node_measures_list *list, struct node_measures *measures);
void node_measures_fini(struct node_measures_list *list);
