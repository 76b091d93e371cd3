// SPDX-License-Identifier: Apache-2.0
// One pass of a worker group, from its first row to its results, and the builder that adds its rows.
//
//     struct pass_builder b;
//     pass_builder_begin(&b, &pass, &limits);
//     pass_builder_add_rows(&b, sequence, rows, drafts);    // for each sequence of the pass
//     const struct ragged_batch *batch = pass_builder_finish(&b);
//
// The builder is used while rows are added, and counts the rows that the pass may still contain. struct scheduled_pass
// is the memory of the pass: its batch, and the data that is needed to read the results. A pass refers to no other
// pass, so several passes can be in progress, each with its own memory. Nothing is allocated after
// scheduled_pass_init().
#pragma once

#include "engine/batch_builder.h"
#include "worker/pace_budget.h"
#include "worker/sampler.h"
#include "worker/sequence.h"

// The rows of one sequence.
struct pass_part {
    struct sequence *sequence; // borrowed
    int rows;                  // pending rows
    int logprobs;              // pending rows that yield the log-probability of a prompt token
    int drafts;                // draft rows, after the last pending row
    // Rows that yield tokens sampled by the host; they precede the rows sampled by the backend.
    int host_rows;
};

// A logit row that the host reads.
struct host_row {
    struct sequence *sequence;
    int prompt_token;   // index of the prompt token that the row predicts; 0: the row yields a new token
    int drafted;        // number of draft tokens between the last token of the sequence and the new token
    enum status status; // result of the sampler; the token is valid only if it is STATUS_OK
};

struct scheduled_pass {
    uint64_t number;                   // 1 for the first pass of the scheduler
    struct batch_builder builder;      // the batch
    struct pass_part *parts;           // [builder.batch.n_seqs] in the order of the batch
    struct host_row *host_rows;        // [n_host_rows] in the order of the logit rows
    struct sampled_token *host_tokens; // [n_host_rows] the tokens of host_rows
    int n_host_rows;
    struct pace_budget budget;
    int prompt_rows, draft_rows; // prompt rows and draft rows in the batch
};

void scheduled_pass_init(struct scheduled_pass *pass, const struct batch_limits *limits);
void scheduled_pass_fini(struct scheduled_pass *pass);

// Limits of a pass that do not change while it is built, and the objects that the builder borrows.
struct pass_limits {
    uint64_t number; // number of the pass
    int rows;
    int spare_logit_rows; // logit rows in addition to one for each sequence
    const struct model_config *config;
    bool backend_samples; // the backend can sample tokens, see model_samples()
    struct pace *pace;
};

struct pass_builder {
    struct scheduled_pass *pass;
    const struct model_config *config;
    bool backend_samples;
    int rows_max;              // rows that the pass may contain
    int logit_rows_left;       // logit rows that may be added, in addition to one for each sequence
    int host_rows_left;        // logit rows that the host may still read
    bool host_is_paced;        // pacing limits host_rows_left
    int decodes_left;          // decode rows that will still be added
    int drafts_max;            // draft rows of a decoding sequence
    struct pace_budget budget; // remaining budget of pacing for prompts
};

void pass_builder_begin(struct pass_builder *b, struct scheduled_pass *pass, const struct pass_limits *limits);

// Returns how many rows the pass has room for.
int pass_builder_rows_left(const struct pass_builder *b);

// Returns how many pending rows of a prompt with `entries` cached entries fit the pass, with their logits. The result
// is at least 1 while rows are left, because one logit row is reserved for each sequence.
int pass_builder_prompt_rows(const struct pass_builder *b, const struct sequence *q, int entries);

// Returns true if the pass contains rows of the sequence.
bool pass_builder_contains(const struct pass_builder *b, const struct sequence *q);

// Returns true if the host samples the sequence's next token.
bool pass_builder_host_samples(const struct pass_builder *b, const struct sequence *q);

// Adds the next n rows of the sequence. If no pending rows remain, adds `drafts` draft rows as well. No effect if n is
// 0.
void pass_builder_add_rows(struct pass_builder *b, struct sequence *q, int n, int drafts);

// Returns a builder of the same pass that may use half of the remaining rows and work. pass_builder_merge() gives the
// unused part of this half back to `b`. Add no rows to `b` between the two calls.
struct pass_builder pass_builder_half(const struct pass_builder *b);
void pass_builder_merge(struct pass_builder *b, const struct pass_builder *half);

// Completes the pass. The batch is valid until the memory of the pass is used again.
const struct ragged_batch *pass_builder_finish(struct pass_builder *b);
