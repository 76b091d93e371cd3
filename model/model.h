// SPDX-License-Identifier: Apache-2.0
// A Llama-class checkpoint ready to run: one rank's share of the weights in a backend, and the forward pass over a
// ragged batch. Megatron-style split: attention heads and MLP columns across ranks, vocabulary-parallel embedding
// and head (arXiv 1909.08053).
//
// Every rank of the group opens the same directory and calls model_forward with the same batch, in step.
// One thread at a time. The model owns its backend and KV cache; it borrows the comm.
#pragma once

#include <stdbool.h>

#include "kernels/backend.h"
#include "kernels/comm.h"
#include "model/config.h"
#include "model/limits.h"

struct model;

struct model_options {
    const char *dir;      // or, with `dummy`, a config.json of any name
    bool dummy;           // no checkpoint: weights are made up for the shape, see dummy.h. For measurements
    const char *backend;  // "auto" (cuda where there is a GPU, else cpu), "cpu", "cuda", "reference"
    const char *dtype;    // "auto" (the checkpoint's: f32 stays f32, f16 and bf16 become bf16, fp8 stays fp8 where
                          // the backend computes in it, else bf16), "f32", "bf16", "int8", "int8-g128", "fp8"
                          // (kernels/backend.h)
    const char *kv_dtype; // of K and V: "auto" or NULL (as the activations), "bf16", "int8", "fp8" (none of these with
                          // f32 weights)
    int threads;          // per rank, 0: all the process may use
    int max_rows;         // token budget of one pass
    int max_seqs;
    int max_logit_rows;       // of one pass, 0: max_seqs. Each costs model_logit_bytes
    int max_context;          // KV entries of one sequence at most; 0: what the config allows
    const char *packed_cache; // where packed weights are kept for the next start: a folder, "auto" (beside the
                              // checkpoint), NULL or "off" (nowhere)
    int n_kv_blocks; // of KV_BLOCK_TOKENS entries; 0: on a GPU what gpu_memory_utilization leaves room for, else as
                     // many as one full context per sequence, at most 1 GiB
    double gpu_memory_utilization; // of a GPU's memory that all of this process may take, the KV cache with what the
                                   // rest leaves of it; 0: MODEL_KV_FRACTION
    int overlap_rows; // between GPUs, passes of twice as many rows or more go in halves, one summed over ranks while
                      // the other computes; 0: MODEL_OVERLAP_ROWS
    int host_rank, host_ranks; // this rank among those of its host, see struct backend_shape; engine_open fills them in
};
#define MODEL_OVERLAP_ROWS 1024 // products of fewer rows leave much of a GPU idle

// Opens one rank's model, alone. On failure status_message() names the file and what is wrong with it.
enum status model_open(const struct model_options *options, struct comm *comm, struct model **model_p);
// Then, all ranks together once all are open, before the first pass: connects their devices and makes the KV cache
// where the device's memory decides its size. STATUS_EXHAUSTED says with numbers what does not fit.
enum status model_join(struct model *m);
void model_close(struct model *m);

// What one rank of a model takes, counted from its shape: for `forepack plan`, and for the log at start-up.
struct memory_plan {
    double weights; // of the whole model, a count
    enum dtype dtype, kv_dtype;
    size_t weight_bytes; // of this rank, as computed with
    size_t pass_bytes;   // activations and logits of a pass of max_rows, in the backend
    size_t kv_block_bytes;
    size_t workspace_bytes; // on a GPU, about: cuBLASLt, products before they are rounded, split attention, the runtime
                            // and between ranks NCCL
    int context;            // tokens of the longest sequence
};
enum status model_plan(const struct model_options *options, int rank, int size, struct memory_plan *plan_p);

const struct model_config *model_get_config(const struct model *m);
const char *model_backend(const struct model *m); // what computes: "cpu", "cuda", "reference"
enum dtype model_dtype(const struct model *m);
enum dtype model_kv_dtype(const struct model *m); // of K and V
int model_kv_blocks(const struct model *m);
size_t model_weight_bytes(const struct model *m); // this rank's weights as read from the files (dummy: as bf16)
size_t model_kv_bytes(const struct model *m);     // this rank's KV cache
// What this rank holds for a pass: activations for each of max_rows; logits for each of max_logit_rows, in the backend
// and, on rank 0, where the host keeps them beside.
size_t model_row_bytes(const struct model *m);
size_t model_logit_bytes(const struct model *m);

// Whether tokens can be drawn where the logits are: batches may then have `draw`.
bool model_samples(const struct model *m);

// On rank 0, NULL elsewhere and where the batch does not ask for it; valid until the next forward.
struct forward_result {
    const float *logits;   // [n_logit_rows][vocab_size]
    const float *probes;   // [sum of importance_keys]: max over all ranks
    const int32_t *tokens; // [n_logit_rows], -1 where none can be chosen: all logits are NaN or -inf
};

// One pass. A batch over the limits or outside vocabulary, context or cache is its maker's bug and gets
// STATUS_INTERNAL before anything is computed; every rank then says so alike. Any other failure leaves the ranks out
// of step: the group must end.
enum status model_forward(struct model *m, const struct ragged_batch *batch, struct forward_result *result);

// What this rank's device reaches (backend_ops.measure), where the backend can tell.
bool model_measures(const struct model *m);
enum status model_measure(struct model *m, int ms, double *gflops_p, double *gbytes_per_s_p);

// Digest of config and weights (names, types and shapes whole, data sampled): equal for copies of one checkpoint,
// sharded or not, different for another.
enum status model_fingerprint(const char *dir, uint64_t *fingerprint_p);
// The same for made-up weights, which the shape alone decides; never that of a checkpoint of this shape.
enum status model_dummy_fingerprint(const char *path, uint64_t *fingerprint_p);
