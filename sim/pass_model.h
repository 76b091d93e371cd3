// SPDX-License-Identifier: Apache-2.0
// Predicts the pass of a worker group by plain rules (worker/pass.c, admission.c, pace.h): its sequences, their order,
// and the number of rows of each. The group provides what pacing has learned (pace_model.h).
#pragma once

#include "sim/pass_budget.h"
#include "worker/scheduler_state.h"

// A sequence, before and during the prediction of the pass.
struct pass_sequence {
    const struct sequence *q; // the group's sequence, valid until the pass has run
    int cached;               // KV entries of the sequence
    int blocks;               // KV blocks of the sequence
    int rows;                 // rows in the pass, including draft rows
    int draft;                // number of draft tokens
    bool is_chunked;
    uint64_t id;
    bool has_run;      // the sequence was running before the pass
    bool is_preempted; // the pass preempts the sequence
};

// Rows of one sequence in the pass.
struct predicted_part {
    int cached, rows;
    int32_t token, position; // token and position of the first row
};

// The counts of the scheduler.
struct pass_counts {
    uint64_t preemptions, prompt_rows, reused_rows, drafted, host_sampled, most_running;
};

struct pass_model {
    const struct scheduler *s;
    struct pass_counts counts; // predicted
    struct pass_budget budget;

    // The group (pass_group.h).
    struct pass_sequence *sequences; // the running sequences, then the sequences in the queue
    struct pass_sequence **running;  // in the order of their start
    struct pass_sequence **queue;    // waiting for their start
    int n_running, n_queue, n_sequences;
    int sequences_capacity, running_capacity, queue_capacity;
    int *refs; // [kv_blocks] references of each block
    int free_blocks, blank_blocks;

    // The pass.
    struct predicted_part *parts; // [n_parts] predicted
    int n_parts, parts_capacity;
    int rows, rows_max, decodes_to_come;
    int logit_rows;     // logit rows left, in addition to one per sequence
    int host_rows;      // rows left that the host may read
    bool host_is_paced; // pacing limits host_rows
    bool is_unknown;    // the pass depends on evicted blocks, or on the prompt lookup matches that the group compares
};

void pass_model_before(struct pass_model *m, const struct scheduler *s);
// Call after the pass. Returns NULL, or what is wrong with it.
const char *pass_model_after(const struct pass_model *m, const struct scheduler *s);
void pass_model_fini(struct pass_model *m);
