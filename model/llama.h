// SPDX-License-Identifier: Apache-2.0
// Inside of a model: what load.c fills and llama.c runs. Not for other folders.
#pragma once

#include "model/model.h"

struct layer {
    struct weight *input_norm;          // [hidden]
    struct weight *qkv, *qkv_bias;      // [(H + 2 Hkv) D, hidden], bias or NULL
    struct weight *q_norm, *k_norm;     // [D] or NULL
    struct weight *o, *o_bias;          // [hidden, H D], bias on rank 0 alone or NULL
    struct weight *post_attention_norm; // [hidden]
    struct weight *gate_up;             // [2 I, hidden]
    struct weight *down;                // [hidden, I]
};

struct model {
    struct model_config config;
    enum dtype dtype, kv_dtype;
    int max_logit_rows;
    struct comm *comm;      // host_comm, or one on the device's memory that is ours
    struct comm *host_comm; // borrowed
    struct backend *backend;
    struct backend_shape shape;
    size_t weight_bytes, kv_bytes;
    size_t pass_bytes;             // of working memory, in the backend
    size_t row_bytes, logit_bytes; // see model_row_bytes
    size_t kv_block_bytes;
    int kv_blocks_asked;           // 0: as many as there is room for
    double gpu_memory_utilization; // of the device's memory, see struct model_options
    size_t free_at_start;          // of the device's memory, before weights
    bool saves, saved;             // packed weights are kept between starts; those of the last start are there

    // This rank's share: H, Hkv and I above, and V vocabulary ids from first_id on. V is the same on every rank; where
    // the ranks do not divide the vocabulary, the last rank's table ends early and its head has rows of zeros.
    int n_heads, n_kv_heads, first_kv_head, intermediate;
    int vocab_share, first_id, n_ids;

    struct weight *embedding;  // [n_ids, hidden]
    struct layer *layers;      // [n_layers]
    struct weight *final_norm; // [hidden]
    struct weight *head;       // [V, hidden]

    // Working memory, in the backend.
    struct tensor *residual;       // [max_rows, hidden] f32
    struct tensor *normed;         // [max_rows, hidden] activation
    struct tensor *qkv;            // [max_rows, (H + 2 Hkv) D] f32
    struct tensor *attended;       // [max_rows, H D] activation
    struct tensor *mlp;            // [max_rows, I] activation
    struct tensor *logits;         // [max_logit_rows, V] f32
    struct tensor *gathered;       // [size * max_logit_rows, V] f32, on rank 0 of several
    struct tensor *picks;          // [max_logit_rows, 2] struct pick; where the backend samples, like
    struct tensor *gathered_picks; // [size * max_logit_rows, 2], on rank 0 of several

    // On rank 0, in host memory. What would only be a copy is NULL where the backend's memory is the host's.
    float *host_logits;   // [max_logit_rows, vocab_size]: a copy, or of several ranks put together
    float *host_gathered; // copy [size * max_logit_rows, V]
    float *host_probes;   // copy [max_seqs * max_context]
    float *host_picks;    // copy [size * max_logit_rows, 2]
    int32_t *host_tokens; // [max_logit_rows]
};

struct safetensors;

// A pass that is nobody's, once passes can be made, from which the backend chooses how to compute. All ranks together.
enum status model_warm_up(struct model *m);

// What is known of a rank's model before a backend is open, from its config and comm: the split, the dtypes, sizes of
// the batch and the KV cache. st may be NULL.
enum status model_lay_out(const struct model_options *options, const struct safetensors *st, struct model *m);

// Working memory in the backend: where each tensor goes, and how large it is.
struct tensor_need {
    struct tensor **tensor_p;
    enum tensor_kind kind;
    int rows, columns;
    size_t bytes;
    bool of_logits; // its rows are for max_logit_rows, not for max_rows
};
enum { MODEL_TENSORS_MAX = 16 };
int model_list_tensors(struct model *m, bool samples, struct tensor_need list[MODEL_TENSORS_MAX]); // how many

// The dtype of a checkpoint: FP8 if config.json says so, else that of its embedding table; bf16 where there is none (st
// NULL).
enum status model_stored_dtype(const struct model_config *config, const struct safetensors *st, enum dtype *dtype_p);

// Fills m->embedding .. m->head from the mapped files, reading this rank's rows and columns only; from dummy.h where
// there are none (st NULL).
enum status model_load_weights(struct model *m, const struct safetensors *st);
