// SPDX-License-Identifier: Apache-2.0
// The pass of a worker group written again by plain rules (worker/pass.c, admission.c, pace.h): which sequences it has,
// in which order, and how many rows of each. What pacing has learned is the group's own (see pace_model.h).
#pragma once

#include "sim/pass_budget.h"
#include "worker/scheduler_state.h"

// A sequence, before the pass and while it is predicted.
struct pass_sequence {
    const struct sequence *q; // of the group, until the pass has run
    int cached, blocks;       // entries and blocks that it has
    int rows;                 // in the pass, with those of its draft
    int draft;                // tokens of its draft
    bool is_chunked;
    uint64_t id;
    bool has_run, is_preempted; // before the pass; by it
};

// Rows of one sequence in the pass.
struct predicted_part {
    int cached, rows;
    int32_t token, position; // of the first row
};

// What the scheduler counts.
struct pass_counts {
    uint64_t preemptions, prompt_rows, reused_rows, drafted, host_sampled, most_running;
};

struct pass_model {
    const struct scheduler *s;
    struct pass_counts counts; // predicted
    struct pass_budget budget;

    // The group (pass_group.h).
    struct pass_sequence *sequences; // the running ones, then those in the queue
    struct pass_sequence **running;  // in the order of their start
    struct pass_sequence **queue;    // that have not been started
    int n_running, n_queue, n_sequences;
    int sequences_capacity, running_capacity, queue_capacity;
    int *refs; // [kv_blocks] of each block
    int free_blocks, blank_blocks;

    // The pass.
    struct predicted_part *parts; // [n_parts] predicted
    int n_parts, parts_capacity;
    int rows, rows_max, decodes_to_come;
    int logit_rows, host_rows; // left: beside one of each sequence, and for the host to read
    bool host_is_paced;        // pacing limits host_rows
    bool is_unknown;           // it depends on which blocks the cache evicts, or on which places prompt lookup compares
};

void pass_model_before(struct pass_model *m, const struct scheduler *s);
// After the pass. NULL, or what is wrong with it.
const char *pass_model_after(const struct pass_model *m, const struct scheduler *s);
void pass_model_fini(struct pass_model *m);
