// SPDX-License-Identifier: Apache-2.0
// The internals of the scheduler, for its files only. Each file uses the files listed before it:
//
//     admission.c     which sequences run: KV blocks, prefix cache, preemption
//     pass.c          which rows a pass contains
//     pass_results.c  the results of a pass: sampling on the host, new tokens, ended sequences
//     scheduler.c     a step: composes a pass, runs it, applies its results; and the public functions
#pragma once

#include "worker/draft_pace.h"
#include "worker/pace.h"
#include "worker/pass_builder.h"
#include "worker/scheduler.h"
#include "worker/sequence_queue.h"

struct scheduler {
    struct engine *engine; // borrowed
    const struct model_config *config;
    struct scheduler_limits limits;
    scheduler_report_fn *report;
    void *arg;
    struct block_manager *blocks;
    struct sampler **samplers; // [n_samplers] one for each thread; n_samplers is model_host_threads()
    int n_samplers;
    bool backend_samples; // the backend can sample tokens, see model_samples()

    struct sequence_queue queue;
    struct sequence_queue held; // sequences that wait for their matchers
    struct sequence **running;  // [max_seqs] in the order of their starts
    int n_running, most_running;
    uint32_t n_of_link[NODE_LINKS_MAX]; // number of sequences of each link, in any state
    bool is_background;                 // the current pass is for background sequences
    uint64_t preemptions, prompt_rows, reused_rows, host_sampled, n_passes, drafted, draft_accepted;
    struct pace pace;
    struct draft_pace draft_pace;

    struct scheduled_pass pass; // memory of the current pass, readable until the next pass begins

    // The results of the latest pass.
    struct sequence_output *outputs;  // [max_seqs]
    struct sampled_token *new_tokens; // [logit_rows] tokens of the outputs, one output after the other
    int n_new_tokens;
};

// ---- admission.c

// Returns true if admission_start() may find memory for the waiting sequence. The answer is a guess: a free block with
// cached entries of the sequence counts twice, as cached and as free.
bool admission_may_start(const struct scheduler *s, struct sequence *q);

// Moves a waiting sequence to the running sequences. Preempts paused sequences for it. Returns false if there is still
// no memory for it (see scheduler.h) or max_seqs sequences run.
bool admission_start(struct scheduler *s, struct sequence *q);

// Sets which sequences are paused in the next pass: background sequences, if there are others.
void admission_pause(struct scheduler *s);

// Allocates a block for each running sequence whose next row needs a block, unless it is paused. Preempts sequences
// when no block is free, paused ones first. Call it before a pass is built, because a preempted sequence must not have
// rows. Sequences in prefill have all their blocks from the start.
void admission_grow(struct scheduler *s);

// Returns true if a running sequence will soon publish blocks that this waiting sequence can reuse.
bool admission_waits_for_prefix(const struct scheduler *s, struct sequence *q);

// Returns how many entries of a waiting sequence the prefix cache holds.
int admission_cached_entries(const struct scheduler *s, struct sequence *q);

// Publishes the blocks that the sequence has filled. If two sequences have computed the same block, only one copy is
// kept.
void admission_publish(struct scheduler *s, struct sequence *q);

// Returns how many draft rows (up to `rows`) the sequence has KV blocks for. Allocates more blocks first, if no
// sequence waits for blocks and the running sequences are not expected to need them.
int admission_grow_for_draft(struct scheduler *s, struct sequence *q, int rows);

// Releases the blocks that only draft rows needed: the blocks after the block of the sequence's next row.
void admission_shrink(struct scheduler *s, struct sequence *q);

int admission_find_running(const struct scheduler *s, uint64_t id); // index of the running sequence, or -1
void admission_remove_running(struct scheduler *s, int index);
void admission_free_sequence(struct scheduler *s, struct sequence *q); // also releases its blocks

// ---- pass.c

// Composes the next pass in the memory of `pass`. The previous batch of `pass` is no longer valid.
const struct ragged_batch *pass_compose(struct scheduler *s, struct scheduled_pass *pass);

// ---- pass_results.c

// Samples tokens on the host from the returned logits, before the sequences advance. Returns the time in microseconds
// that pacing counts, which is 0 if the backend cannot sample.
int64_t pass_sample_on_host(struct scheduler *s, struct scheduled_pass *pass, const struct forward_result *result);

// Advances the sequences of the pass and frees those that have ended. Returns how many entries of s->outputs are
// filled, in the order of the batch.
int pass_apply_results(struct scheduler *s, const struct scheduled_pass *pass, const struct forward_result *result);
