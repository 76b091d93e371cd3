// SPDX-License-Identifier: Apache-2.0
// Runs models in tests. All ranks of a group, with or without pipeline stages, are threads of this process. Batches are
// built sequence by sequence, on purpose without engine/batch_builder.h. Failures abort the test (Check).
#pragma once

#include "engine/model/model.h"

enum { FORWARD_MAX_RANKS = 8 };

struct ranks {
    int size;
    struct comm *comm[FORWARD_MAX_RANKS];
    struct model *model[FORWARD_MAX_RANKS];
};

// Opens one model per rank. On failure nothing stays open, and the status is the first failed rank's.
enum status ranks_try_open(struct ranks *r, const struct model_options *options, int size);
void ranks_open(struct ranks *r, const struct model_options *options, int size);
void ranks_close(struct ranks *r);

// Runs one pass on every rank. Returns the result of rank 0, and a failed status of any rank.
enum status ranks_try_forward(struct ranks *r, const struct ragged_batch *batch, struct forward_result *result);
struct forward_result ranks_forward(struct ranks *r, const struct ragged_batch *batch);

enum { FORWARD_MAX_ROWS = 1024, FORWARD_MAX_SEQS = 16, FORWARD_MAX_BLOCKS = 64 };
enum logit_rows { LOGITS_NONE, LOGITS_LAST, LOGITS_ALL };

// A batch under construction. `slots` sequences can be cached at the same time. Slot s has blocks s, s + slots, s + 2
// slots, ..., so that neighbouring blocks belong to different sequences.
struct forward {
    struct ragged_batch batch; // ready to run after every forward_add
    int slots;
    int32_t token[FORWARD_MAX_ROWS], position[FORWARD_MAX_ROWS], logit_row[FORWARD_MAX_ROWS];
    int32_t row_start[FORWARD_MAX_SEQS + 1], kv_len[FORWARD_MAX_SEQS];
    int32_t block_table[FORWARD_MAX_SEQS * FORWARD_MAX_BLOCKS];
    int32_t importance_row[FORWARD_MAX_ROWS], importance_keys[FORWARD_MAX_ROWS];
};

void forward_start(struct forward *f, int slots);

// Appends a sequence: `n` tokens after `kv_len` cached ones in `slot`. `position` NULL means kv_len, kv_len + 1, ...
void forward_add(struct forward *f, int slot, int kv_len, const int32_t *token, const int32_t *position, int n,
                 enum logit_rows logits);

// Makes the last row added an importance row over the first `keys` entries of its sequence.
void forward_add_importance(struct forward *f, int keys, int window);

int32_t forward_argmax(const float *logits, int n);
