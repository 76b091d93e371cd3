// SPDX-License-Identifier: Apache-2.0
// Iteration-level ("continuous") batching: every step is one pass with a row for each sequence that decodes. The rest
// of the token budget goes to prompts, first come first served, cut into chunks when they are longer than the room left
// (Orca, OSDI'22; chunked prefill: arXiv 2308.16369). The KV cache is paged (arXiv 2309.06180).
//
// Prompts get the rows that decodes and pacing (pace.h) leave. If the pass cannot complete the oldest prompt, half of
// the room goes first to prompts that it can complete, then to a chunk of the shortest other prompt. So a long prompt
// takes at most twice as long, and short prompts do not wait for all of it.
//
// Prefix cache: full blocks stay findable after their sequence has ended (block_manager.h). A sequence whose first
// tokens are cached at the same positions starts after them; its last token is always computed, for its logits. A
// sequence that shares more with a prompt in prefill waits until the shared blocks are computed, and later sequences
// may pass it. So a shared prefix is computed once, even for prompts that arrive together.
//
// Memory: a sequence starts when blocks are free for all its tokens and for a quarter of the output it may still
// generate, in addition to the blocks that running sequences are expected to need by the same rule. Then it grows block
// by block. When no block is free, the running sequence with the fewest unshared cached entries is preempted: it
// releases its blocks and returns to the head of the queue, to be computed again later with the tokens it has
// generated. The sequence with the most unshared entries is never the victim while others run, so every step brings a
// sequence closer to its end. scheduler_add() refuses a sequence that cannot fit the whole cache.
//
// Sampling: the backend samples tokens where it can. The host samples the other tokens, in parallel on the threads of
// the CPU backend. While other sequences run, pacing limits the rows that the host samples. Sequences with such rows
// then take turns, and those without a turn skip the pass. The next turn goes to the sequence that has waited longest,
// since its last token or since it started. So new sequences cannot delay those that decode, and decodes cannot delay a
// first token.
//
// Log-probabilities of a prompt need logits of every row but the last. A pass has at most max_logit_rows rows with
// logits. One is kept for each sequence of the pass, so that every prompt advances; prompts with log-probabilities
// share the rest. The host reads these logits after the pass. Pacing limits them like sampling on the host, and while
// sequences decode such prompts may use half of the limit. They use no cached entries, which have no logits, but
// publish blocks.
//
// Drafts: draft rows (sequence.h) follow the last pending row of their sequence, in the pass that completes a prompt or
// in a decode pass. They get the rows and KV blocks that prompts and other sequences leave; in a decode pass, as many
// rows as lead to the most tokens in a second (draft_pace.h; PACE_UNLIMITED: all). A draft token is accepted if it is
// the token that sampling yields without a draft. So a draft changes no token; it only lets a pass yield several.
// Entries of other draft tokens are overwritten, and never published. A decoding sequence without a draft gets one from
// prompt lookup, if its request allows it (prompt_lookup.h).
//
// Structured output: the mask of the grammar is applied before sampling. A sequence ends with the token that completes
// its grammar, without a pass for EOS.
//
// Exact: tokens depend on model, request and tensor-parallel degree alone. Other sequences, chunks, preemption, replay
// and the content of the prefix cache do not change them.
//
// Owned by one thread, the engine's. No sockets; the clock is read only to measure. A step allocates nothing.
#pragma once

#include "engine/engine.h"
#include "worker/sequence.h"

struct scheduler;

struct sequence_output {
    uint64_t id;
    const struct sampled_token *tokens; // [n_tokens] new tokens
    int n_tokens;
    bool has_logprobs;  // the request wants log-probabilities
    int cached_tokens;  // in the first output: prompt tokens found in the prefix cache
    int drafted;        // draft tokens that had rows in the pass
    int draft_accepted; // draft tokens with rows that are among the new tokens
    enum sequence_finish finish;
    // Log-probabilities of consecutive prompt tokens from index prompt_logprobs_from on. They continue those of earlier
    // outputs.
    const struct sampled_token *prompt_logprobs; // [n_prompt_logprobs]
    int n_prompt_logprobs, prompt_logprobs_from;
    char error[160]; // with SEQUENCE_ERROR
};

// The results of one step; valid during the callback.
struct step_report {
    const struct sequence_output *outputs;
    int n_outputs; // 0 when the pass completed no prompt and gave no log-probabilities
    int rows;
    int64_t pairs; // attention pairs
    int64_t step_us;
    int draft_length; // see scheduler_draft_length()
};

typedef void scheduler_report_fn(void *arg, const struct step_report *report);

// Returns the rows with logits in a pass of a worker: one for each sequence, and 64 more for the drafts of a full
// group, but no more than the pass has rows. Each takes memory for its logits.
static inline int scheduler_logit_rows(int max_seqs, int token_budget)
{
    enum { SPARE = 64 };
    return max_seqs + SPARE < token_budget ? max_seqs + SPARE : token_budget;
}

struct scheduler_limits {
    int token_budget;   // rows of a step, at most the model's max_rows
    int max_seqs;       // running at once, at most token_budget and the model's max_seqs
    int context_tokens; // prompt and output of a sequence, at most the model's
    int kv_blocks;      // at most the model's
    bool prefix_cache;
    int64_t pace_us; // target time of a pass with decode rows, or PACE_TWICE, PACE_UNLIMITED (pace.h)
};

// Borrows the engine. STATUS_INVALID with a sentence when limits contradict each other.
enum status scheduler_create(struct engine *engine, const struct scheduler_limits *limits, scheduler_report_fn *report,
                             void *arg, struct scheduler **scheduler_p);
void scheduler_free(struct scheduler *s); // drops the remaining sequences

// Queues a sequence; holds one with a grammar until scheduler_set_matcher(). INVALID, OUT_OF_RANGE (it can never fit)
// or EXHAUSTED (65,536 sequences wait), with a sentence.
enum status scheduler_add(struct scheduler *s, const struct sequence_request *request);

// Queues the held sequence `id`, which must exist. Owns the matcher from now on. The matcher has accepted the tokens
// that were generated before a replay.
void scheduler_set_matcher(struct scheduler *s, uint64_t id, struct grammar_matcher *matcher);

// Gives the sequence a draft from output token `from` on, see sequence_set_draft(). NOT_FOUND: the scheduler has no
// such sequence.
enum status scheduler_set_draft(struct scheduler *s, uint64_t id, int from, const int32_t *tokens, int n);

// Returns how many draft tokens of each sequence the next passes would verify.
int scheduler_draft_length(const struct scheduler *s);

// Drops the sequence in any state and frees its blocks at once; nothing more is reported for it. False when the
// scheduler has no such sequence. Neither cancel nor clear may be called from the callback.
bool scheduler_cancel(struct scheduler *s, uint64_t id);
void scheduler_clear(struct scheduler *s); // drops all sequences

bool scheduler_busy(const struct scheduler *s);  // true if there are sequences to compute
bool scheduler_holds(const struct scheduler *s); // true if sequences wait for their matchers

// Runs one pass and reports its results. No effect without sequences to compute. A failure comes from the engine, and
// the group cannot go on after it.
enum status scheduler_step(struct scheduler *s);

struct scheduler_load {
    int running, waiting, kv_blocks_free; // waiting includes held sequences
    // Since the start:
    int most_running;
    uint64_t preemptions;
    uint64_t prompt_rows;  // prompt rows computed; those of preempted sequences count again
    uint64_t reused_rows;  // rows found in the prefix cache instead
    uint64_t host_sampled; // tokens sampled on the host, and prompt tokens whose log-probabilities it computed
    uint64_t drafted, draft_accepted; // draft rows computed; draft rows whose token was accepted
};
struct scheduler_load scheduler_get_load(const struct scheduler *s);
