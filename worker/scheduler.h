// SPDX-License-Identifier: Apache-2.0
// Iteration-level ("continuous") batching (Orca, OSDI'22): every step is one pass with a row for each sequence that
// decodes. The rest of the token budget goes to prompts, first come first served. A prompt that is longer than the
// remaining room is cut into chunks (chunked prefill, arXiv 2308.16369). The KV cache is paged (arXiv 2309.06180).
//
// Prompts get the rows that decodes and pacing (pace.h) leave. If the pass cannot complete the oldest prompt, other
// prompts get half of the room: prompts that the pass can complete, then a chunk of the shortest remaining prompt. So a
// long prompt takes at most twice as long, and short prompts do not wait for its end.
//
// Prefix cache: full blocks stay findable after their sequence has ended (block_manager.h). If the first tokens of a
// sequence are cached at the same positions, the sequence starts after these tokens. Its last token is always computed,
// for its logits. If a sequence shares more blocks with a prompt in prefill, the sequence waits until the shared blocks
// are computed. Later sequences may pass it. So a shared prefix is computed once, even for prompts that arrive
// together.
//
// Memory: a sequence is expected to need blocks for its tokens and for a quarter of the output that it may still
// generate. It starts when this number of blocks is free in addition to the blocks that running sequences are still
// expected to need. Then it grows block by block. When no block is free, the running sequence with the fewest unshared
// cached entries is preempted: it releases its blocks and returns to the head of the queue. Its prompt and generated
// tokens are computed again later. The sequence with the most unshared entries is never the victim while others run, so
// every step brings a sequence closer to its end. scheduler_add() refuses a sequence that cannot fit the whole cache.
//
// Sampling: the backend samples tokens where it can. The host samples the other tokens, in parallel on the threads of
// the CPU backend. While other sequences run, pacing limits the rows that the host samples. If there are too many,
// sequences that the host samples take turns, and a sequence without a turn skips the pass. The next turn goes to the
// sequence that has waited longest since its last token, or since its start. So new sequences cannot delay decoding
// sequences for long, and decoding sequences cannot delay a first token for long.
//
// Log-probabilities of a prompt need the logits of every row but the last. A pass has at most max_logit_rows rows with
// logits. One logit row is reserved for each sequence of the pass, so that every prompt advances. Prompts with
// log-probabilities share the remaining logit rows. The host reads these logits after the pass, and pacing limits them
// like sampling on the host. While sequences decode, prompts with log-probabilities may use half of the limit. Such
// prompts do not reuse cached entries, because these have no logits, but they publish their blocks.
//
// Drafts: draft rows (sequence.h) follow the last pending row of their sequence, in the pass that completes a prompt or
// in a decode pass. They get the rows and KV blocks that prompts and other sequences leave. In a decode pass, the
// number of draft rows is chosen for the most tokens per second (draft_pace.h). With PACE_UNLIMITED, all draft tokens
// get rows. A draft token is accepted if it equals the token that sampling yields without a draft. So a draft changes
// no token: it only lets a pass yield several tokens. KV entries of refused draft tokens are overwritten, and never
// published. A decoding sequence without a draft gets one from prompt lookup, if its request allows it
// (prompt_lookup.h).
//
// Background sequences use what others leave: while there are other sequences, they are paused, which means that they
// get no rows. They are preempted first. A pass of background sequences has few prompt rows, so that another sequence
// waits for a short time only.
//
// Structured output: the mask of the grammar is applied before sampling. A sequence ends with the token that completes
// its grammar, without a pass for EOS.
//
// Exact: tokens depend only on the model, the request and the tensor-parallel degree. Other sequences, chunks,
// preemption, replay and the content of the prefix cache do not change them.
//
// Owned by the engine's thread. Uses no sockets, and reads the clock only to measure. A step allocates nothing.
#pragma once

#include "engine/engine.h"
#include "engine/link_id.h"
#include "worker/sequence.h"

struct scheduler;

struct sequence_output {
    uint64_t id, bin;                   // as in struct sequence_request
    const struct sampled_token *tokens; // [n_tokens] new tokens
    int n_tokens;
    bool has_logprobs;  // the request wants log-probabilities
    int cached_tokens;  // first output only: prompt tokens found in the prefix cache
    int drafted;        // draft tokens that had rows in the pass
    int draft_accepted; // draft tokens with rows that are among the new tokens
    enum sequence_finish finish;
    // Log-probabilities of consecutive prompt tokens, from index prompt_logprobs_from on. Each output continues where
    // the previous output ended.
    const struct sampled_token *prompt_logprobs; // [n_prompt_logprobs]
    int n_prompt_logprobs, prompt_logprobs_from;
    char error[160];     // with SEQUENCE_ERROR
    bool grammar_failed; // with SEQUENCE_ERROR: the request's grammar is the cause
};

// The results of one step; valid during the callback.
struct step_report {
    const struct sequence_output *outputs;
    int n_outputs; // 0 if the pass yielded neither tokens nor log-probabilities
    int rows;
    int64_t pairs; // attention pairs
    int64_t step_us;
    int draft_length; // draft tokens of each sequence that the next passes would verify
};

typedef void scheduler_report_fn(void *arg, const struct step_report *report);

// Returns the largest number of logit rows in a pass of a worker: one for each sequence and 64 for drafts, but at most
// one for each row of the pass. Each logit row takes memory for its logits.
static inline int scheduler_logit_rows(int max_seqs, int token_budget)
{
    enum { SPARE = 64 };
    return max_seqs + SPARE < token_budget ? max_seqs + SPARE : token_budget;
}

struct scheduler_limits {
    int token_budget;   // rows of a step, at most the model's max_rows
    int max_seqs;       // limit of running sequences; at most token_budget and the model's max_seqs
    int context_tokens; // limit of a sequence's prompt and output together; at most the model's context
    int kv_blocks;      // at most model_kv_blocks()
    bool prefix_cache;
    int64_t pace_us; // target time of a pass with decode rows, or PACE_TWICE, PACE_UNLIMITED (pace.h)
};

// Borrows the engine until scheduler_free(). Returns STATUS_INVALID if the limits contradict each other;
// status_message() names them.
enum status scheduler_create(struct engine *engine, const struct scheduler_limits *limits, scheduler_report_fn *report,
                             void *arg, struct scheduler **scheduler_p);
void scheduler_free(struct scheduler *s); // drops the remaining sequences

// Queues a sequence. A sequence with a grammar is held until scheduler_set_matcher(). Returns STATUS_INVALID,
// STATUS_OUT_OF_RANGE (the sequence can never fit) or STATUS_EXHAUSTED (65,536 sequences wait). status_message() gives
// the reason.
enum status scheduler_add(struct scheduler *s, const struct sequence_request *request);

// Queues the held sequence `id`, which must exist. The sequence owns the matcher from now on. In a replay, the matcher
// must have accepted the tokens that were generated earlier.
void scheduler_set_matcher(struct scheduler *s, uint64_t id, struct grammar_matcher *matcher);

// Sets the draft of a sequence, see sequence_set_draft(). Returns STATUS_NOT_FOUND if the scheduler has no such
// sequence.
enum status scheduler_set_draft(struct scheduler *s, uint64_t id, int from, const int32_t *tokens, int n);

// Drops the sequence in any state and frees its blocks immediately. Reports nothing more for the sequence. Returns
// false if the scheduler has no such sequence. Do not call scheduler_cancel() or scheduler_drop_link() from the
// callback.
bool scheduler_cancel(struct scheduler *s, uint64_t id);
void scheduler_drop_link(struct scheduler *s, int link); // drops the sequences of a link, see engine/link_id.h
// Finds a sequence of the link that waits for its matcher. Returns false if there is none.
bool scheduler_find_held(const struct scheduler *s, int link, uint64_t *id_p);

bool scheduler_busy(const struct scheduler *s);  // true if there are sequences to compute
bool scheduler_holds(const struct scheduler *s); // true if sequences wait for their matchers

// Runs one pass and reports its results. Has no effect if there is no sequence to compute. A failure comes from the
// engine, and the group is unusable after a failure.
enum status scheduler_step(struct scheduler *s);

struct scheduler_load {
    int running, waiting, kv_blocks_free; // waiting includes held sequences
    // Since the start:
    int most_running;
    uint64_t preemptions;
    uint64_t prompt_rows;  // prompt rows computed; rows that are computed again after a preemption count again
    uint64_t reused_rows;  // rows found in the prefix cache instead
    uint64_t host_sampled; // tokens sampled on the host, and prompt tokens whose log-probabilities the host computed
    uint64_t drafted, draft_accepted; // draft rows computed; draft rows whose token was accepted
};
struct scheduler_load scheduler_get_load(const struct scheduler *s);
// Counts the sequences of each link: `links` has NODE_LINKS_MAX entries.
void scheduler_count_links(const struct scheduler *s, struct link_load *links);
