// SPDX-License-Identifier: Apache-2.0
// The inside of the scheduler, for its three files only. Each uses the ones before it:
//
//     admission.c   which sequences run: KV blocks, prefix cache, preemption
//     pass.c        which rows a pass contains
//     scheduler.c   a step: composes the pass, runs it, samples tokens; and the public functions
#pragma once

#include "engine/batch_builder.h"
#include "worker/draft_pace.h"
#include "worker/pace.h"
#include "worker/scheduler.h"
#include "worker/sequence_queue.h"

// A logit row that the host reads.
struct host_row {
    struct sequence *sequence;
    int prompt_token;   // the index of the prompt token that the row predicts; 0: the row gives a new token
    int drafted;        // drafted tokens before the new one
    enum status status; // of the sampler; the token is valid if it is STATUS_OK
};

struct scheduler {
    struct engine *engine; // borrowed
    const struct model_config *config;
    struct scheduler_limits limits;
    scheduler_report_fn *report;
    void *arg;
    struct block_manager *blocks;
    struct sampler **samplers; // [n_samplers] one for each of model_host_threads()
    int n_samplers;
    bool backend_samples; // the backend can sample tokens, see model_samples()

    struct sequence_queue queue;
    struct sequence_queue held; // until they have their matchers
    struct sequence **running;  // [max_seqs] in the order in which they were started
    int n_running, most_running;
    uint64_t preemptions, prompt_rows, reused_rows, host_sampled, n_passes, drafted, draft_accepted;
    struct pace pace;
    struct draft_pace draft_pace;

    // The pass being composed.
    struct batch_builder builder;
    int rows_max;                      // its limit for now
    bool host_is_paced;                // pacing limits the logit rows that the host reads
    int host_rows_left;                // logit rows that the host may still read
    int decodes_left;                  // decode rows still to come
    int drafts_max;                    // draft rows of a decoding sequence
    int logit_rows_left;               // logit rows beyond one for each sequence that the pass may contain
    int n_host_rows;                   // logit rows that the host reads
    struct host_row *host_rows;        // [logit_rows] by logit row
    struct sampled_token *host_tokens; // [logit_rows] their tokens
    struct sequence **batched;         // [max_seqs] its sequences, in the order of the batch
    struct sequence_output *outputs;   // [max_seqs]
    struct sampled_token *new_tokens;  // [logit_rows] of the outputs, one after the other
    int n_new_tokens;
};

// ---- admission.c

// Whether admission_start() may find memory for the waiting sequence. The cached entries that it needs may be free
// ones: true is a guess then.
bool admission_may_start(const struct scheduler *s, struct sequence *q);

// Moves a waiting sequence to the running ones if there is memory for it, see scheduler.h. False: there is not.
bool admission_start(struct scheduler *s, struct sequence *q);

// Allocates a block for each running sequence whose next row needs one, and preempts sequences when none is free. Call
// it before rows are added: a preempted sequence has none. Sequences in prefill have all their blocks from the start.
void admission_grow(struct scheduler *s);

// Whether a running sequence will soon publish blocks that this waiting sequence should reuse.
bool admission_waits_for_prefix(const struct scheduler *s, struct sequence *q);

// Entries of a waiting sequence that the prefix cache holds.
int admission_cached_entries(const struct scheduler *s, struct sequence *q);

// Publishes the blocks that the sequence has filled. When two sequences computed the same block, one copy stays.
void admission_publish(struct scheduler *s, struct sequence *q);

// How many draft rows, at most `rows`, the sequence has KV blocks for. While no sequence waits for blocks, allocates
// free ones that the running sequences are not expected to need.
int admission_grow_for_draft(struct scheduler *s, struct sequence *q, int rows);

// Releases the blocks behind that of the sequence's next row, which draft rows needed.
void admission_shrink(struct scheduler *s, struct sequence *q);

void admission_remove_running(struct scheduler *s, int index);
void admission_free_sequence(struct scheduler *s, struct sequence *q); // with its blocks

// ---- pass.c

// Composes the next pass in s->builder and s->batched.
const struct ragged_batch *pass_compose(struct scheduler *s);

// What sampling depends on beside the logits, for the token behind the sequence's next `drafted` drafted tokens.
struct sampler_context pass_sampler_context(const struct scheduler *s, const struct sequence *q, int drafted);

// Whether the backend samples the token. That depends on the request alone, not on other sequences in the pass.
bool pass_is_sampled_by_backend(const struct scheduler *s, const struct sampler_context *context);
