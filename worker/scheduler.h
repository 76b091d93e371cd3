// SPDX-License-Identifier: Apache-2.0
// Iteration-level ("continuous") batching: every step is one pass with one row for each sequence that decodes, and the
// rest of the token budget for prompts, first come first served, cut into chunks where they are longer than the room
// (Orca, OSDI'22; chunked prefill: arXiv 2308.16369). The KV cache is paged (arXiv 2309.06180).
//
// Prompts take what decodes leave of a pass (see pace.h). Before one that is too long for a pass go, in half of it,
// those that it can finish and then part of the shortest: a long prompt takes at most twice as long, short ones do not
// wait for all of it.
//
// Prefix cache: full blocks stay findable when their sequence has ended (see block_manager.h), and a sequence whose
// tokens begin with them, at the same positions, is begun behind them; its last token is always computed, for the
// logits. A sequence that shares more with a prompt being prefilled waits until that has computed what they share;
// those behind it may go ahead. Prompts that share a head therefore cost one head, though they came at once.
//
// Memory: a sequence is begun when there are blocks for all tokens it has and a quarter of the output it may still
// write, beside what was counted on so for the running ones; then it grows block by block. When none is free, the
// running sequence with the fewest cached tokens that no other shares gives its blocks back and returns to the head of
// the queue, to be computed again later with the tokens it has generated. The one with the most is never the victim
// while another is there, so every step brings somebody closer to his end; a sequence too large for the whole cache is
// refused when it comes.
//
// Exact: tokens depend on model, request and tensor-parallel degree alone, not on company, chunks, preemption, replay
// or what the prefix cache held.
//
// Owned by one thread, the engine's. No sockets, no clock but for step_us. A step allocates nothing.
#pragma once

#include "engine/engine.h"
#include "worker/sampler.h"
#include "worker/sequence.h"

struct scheduler;

enum sequence_finish {
    SEQUENCE_GOES_ON,
    SEQUENCE_STOP,   // EOS or a stop token, which is not reported
    SEQUENCE_LENGTH, // max_tokens
    SEQUENCE_ERROR,
};

struct sequence_output {
    uint64_t id;
    bool has_token, has_logprob; // the latter when the request asked for log-probabilities
    struct sampled_token token;
    int cached_tokens; // with the first output: prompt tokens taken from the prefix cache
    enum sequence_finish finish;
    char error[160]; // with SEQUENCE_ERROR
};

// All that one step produced; valid during the callback.
struct step_report {
    const struct sequence_output *outputs;
    int n_outputs; // 0 when the step fed nothing but parts of prompts
    int rows;
    int64_t pairs; // of a row and an entry it attends to
    int64_t step_us;
};

typedef void scheduler_report_fn(void *arg, const struct step_report *report);

struct scheduler_limits {
    int token_budget;   // rows of a step, at most the model's max_rows
    int max_seqs;       // running at once, at most token_budget and the model's max_seqs
    int context_tokens; // prompt and output of a sequence, at most the model's
    int kv_blocks;      // at most the model's
    bool prefix_cache;
    int64_t pace_us; // time of a pass with decodes, see pace.h: PACE_TWICE, PACE_FREELY or a target
};

// Borrows the engine. STATUS_INVALID with a sentence when limits contradict each other.
enum status scheduler_create(struct engine *engine, const struct scheduler_limits *limits, scheduler_report_fn *report,
                             void *arg, struct scheduler **scheduler_p);
void scheduler_free(struct scheduler *s); // drops what is left

// Queues a sequence. INVALID, OUT_OF_RANGE (it can never fit), EXHAUSTED (far too many wait), with a sentence.
enum status scheduler_add(struct scheduler *s, const struct sequence_request *request);

// Drops the sequence and frees its blocks at once, whatever its state; nothing more is reported of it. False when it
// is not here (any more). Not from within the callback; the same goes for clear.
bool scheduler_cancel(struct scheduler *s, uint64_t id);
void scheduler_clear(struct scheduler *s); // all of them

bool scheduler_busy(const struct scheduler *s); // a step would do something

// One pass and its report. A failure is the engine's: the group cannot go on.
enum status scheduler_step(struct scheduler *s);

struct scheduler_load {
    int running, waiting, kv_blocks_free;
    uint64_t preemptions; // since the start, like the rest:
    uint64_t prompt_rows; // fed, those of preempted sequences again
    uint64_t reused_rows; // taken from the prefix cache in their place
};
struct scheduler_load scheduler_get_load(const struct scheduler *s);
