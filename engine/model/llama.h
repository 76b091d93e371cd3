// SPDX-License-Identifier: Apache-2.0
// Internals of a model, shared by layout.c, load.c, memory.c, layer.c and llama.c. Other folders include
// engine/model/model.h.
#pragma once

#include "engine/model/model.h"
#include "engine/model/stages.h"

struct layer {
    struct weight *attention_norm;   // [hidden]
    struct weight *qkv, *qkv_bias;   // [(H + 2 Hkv) D, hidden], bias or NULL
    struct weight *q_norm, *k_norm;  // [D], with HEAD_NORM_WHOLE [H D] and [Hkv D], or NULL
    struct weight *o, *o_bias;       // [hidden, H D]; bias NULL on ranks > 0, or if the model has none
    struct weight *mlp_norm;         // [hidden]
    struct weight *gate_up;          // [2 I, hidden], or without gate [I, hidden]
    struct weight *gate_up_bias;     // as many, or NULL
    struct weight *down, *down_bias; // [hidden, I]; bias as o_bias
    struct activation activation;    // of an MLP that the backend does not compute as one step
};

struct model {
    struct model_config config;
    uint64_t fingerprint;
    enum dtype dtype, kv_dtype;
    int max_logit_rows;
    struct comm *comm;      // host_comm, or a comm on device memory that the model owns
    struct comm *host_comm; // ranks of this stage; borrowed
    struct comm *group;     // ranks of all stages; borrowed. The same as host_comm with one stage
    struct pipeline_stage stage;
    struct backend *backend;
    struct backend_shape shape;
    size_t weight_bytes, kv_bytes;
    size_t pass_bytes;             // working memory in the backend
    size_t row_bytes, logit_bytes; // see model_row_bytes
    size_t kv_block_bytes;
    size_t host_limit;              // see model_options.memory_bytes; 0: no limit
    int kv_blocks_asked;            // KV blocks requested in the options; 0: as many as fit
    double gpu_memory_utilization;  // fraction of the device's memory, see struct model_options
    bool sums_bf16;                 // devices reduce partial sums in bf16, see struct model_options
    size_t free_at_start;           // bytes of device memory before the backend allocated any
    struct device_memory planned;   // memory that the backend will allocate, without the KV cache
    bool zeros;                     // see struct model_options
    struct load_progress *progress; // borrowed while the weights are loaded; may be NULL
    bool saved;                     // the packed weights come from the file of an earlier start
    char *packed_path;              // see model_packed_path()

    // This rank's share of the model: H, Hkv, the intermediate size I, and V vocabulary ids from first_id on. V is the
    // same on every rank. If the vocabulary is not a multiple of the number of ranks, the last rank's embedding table
    // is shorter, and its head has rows of zeros.
    int n_heads, n_kv_heads, first_kv_head, intermediate;
    int kv_copies; // ranks that have the same KV heads
    int vocab_share, first_id, n_ids;

    struct weight *embedding;  // [n_ids, hidden]; first stage
    struct layer *layers;      // [stage.n_layers] layers of this stage
    struct weight *final_norm; // [hidden]; last stage
    struct weight *head;       // [V, hidden]; last stage

    // Working memory in the backend.
    struct tensor *residual;         // [max_rows, hidden] f32, divided by config.scales.residual
    struct tensor *partial;          // [max_rows, hidden] partial sums; NULL unless devices reduce them in bf16
    struct tensor *normed;           // [max_rows, hidden] activation
    struct tensor *qkv;              // [max_rows, (H + 2 Hkv) D] f32
    struct tensor *attended;         // [max_rows, H D] activation
    struct tensor *mlp;              // [max_rows, I] activation
    struct tensor *mlp_inner;        // [max_rows, 2 I or I] f32; NULL if the backend computes the MLP as one step
    struct tensor *branch;           // [max_rows, hidden] f32: output of attention or MLP that is normalised, or NULL
    struct tensor *squares;          // [max_rows, 2] f32 with HEAD_NORM_WHOLE, else NULL
    struct tensor *last_branch;      // [max_logit_rows, hidden] f32; NULL unless `branch` and the backend gathers rows
    struct tensor *last_attended;    // [max_logit_rows, H D] activation; NULL unless the backend gathers rows
    struct tensor *last_residual;    // [max_logit_rows, hidden] f32; NULL unless the backend gathers rows
    struct tensor *logits;           // [max_logit_rows, V] f32
    struct tensor *gathered;         // [size * max_logit_rows, V] f32; rank 0 of several ranks
    struct tensor *sampled;          // [max_logit_rows, 2] struct sampled_id; NULL if the backend does not sample
    struct tensor *gathered_sampled; // [size * max_logit_rows, 2]; rank 0 of several ranks

    // Host memory on rank 0. A copy is NULL if the backend's memory is host memory.
    float *host_logits;     // [max_logit_rows, vocab_size]: a copy, or the joined logits of all ranks
    float *host_gathered;   // copy [size * max_logit_rows, V]
    float *host_importance; // copy [max_seqs * max_context]
    float *host_sampled;    // copy [size * max_logit_rows, 2]
    int32_t *host_tokens;   // [max_logit_rows]
};

// ---- layer.c ----

// Context of the functions that run a pass.
struct forward_call {
    struct model *m;
    const struct ragged_batch *batch;
    bool gathers; // the last layer computes only the logit rows
};

// Returns the number of layers of this stage that a batch does not leave out.
int layers_of_pass(const struct model *m, const struct ragged_batch *batch);
// Returns true if the last layer computes only the logit rows of a batch.
bool layers_gather(const struct model *m, const struct ragged_batch *batch);
// Returns the number of stages of a layer. Stage i of the layers belongs to layer i / layer_stages().
int layer_stages(const struct model *m);
// Runs a stage for `rows` rows, without its sum over ranks.
enum status layer_stage(const struct forward_call *call, int i, int rows);
// Adds the partial results of a stage over the ranks.
enum status layer_sum(const struct forward_call *call, int i, int first_row, int rows);
// Adds rows of an F32 tensor over the ranks.
enum status model_sum_rows(struct model *m, struct tensor *t, int first_row, int rows);
// Completes the residual stream after the last layer of a stage that is not the last one.
enum status layers_finish(const struct forward_call *call);
// Runs the steps from the residual stream to the logits.
enum status layer_logits(const struct forward_call *call, int logit_rows);

struct safetensors;

// The arrays of a struct rope_shape for a config. Free them with free() when the backend has copied them.
struct model_rope *model_rope_create(const struct model_config *config, struct rope_shape *shape);
// Lists the dims of a q or k head in the order in which the backend has them, as ranges of the checkpoint's dims.
// Returns the number of ranges.
struct head_part {
    int first, n;
};
int model_rope_parts(const struct model_config *config, struct head_part parts[4]);

// Computes model_fingerprint(). `st` is NULL with dummy weights.
uint64_t model_hash(const struct model_config *config, const struct safetensors *st);

// Logs how much device memory the model uses. Call it after all memory is allocated.
void model_log_memory(struct model *m);

// Sets the members that need no backend, from config and comm: the split over ranks, the dtypes, the limits of a batch
// and the size of the KV cache. `st` may be NULL.
enum status model_lay_out(const struct model_options *options, const struct safetensors *st, struct model *m);

// One tensor of working memory: where its pointer is stored, and its size.
struct tensor_need {
    struct tensor **tensor_p;
    enum tensor_kind kind;
    int rows, columns;
    size_t bytes;
    bool of_logits; // its size depends on max_logit_rows instead of max_rows
};
enum { MODEL_TENSORS_MAX = 20 };
// Lists the tensors of working memory in m->backend and returns their number. `samples` is true if the backend samples
// tokens.
int model_list_tensors(struct model *m, bool samples, struct tensor_need list[MODEL_TENSORS_MAX]);

// Counts the device memory of a model that is laid out, without KV cache. Creates weights and tensors in a backend that
// only counts. `st` may be NULL.
enum status model_count_memory(const struct model *m, const struct safetensors *st, struct device_memory *memory_p);

// Fits the model into m->host_limit: lowers the number of KV blocks, or returns STATUS_EXHAUSTED with the numbers. Call
// it before the backend is opened.
enum status model_fit_host(struct model *m, const struct safetensors *st);

// Decides whether the head is the embedding if that depends on the tensors of the checkpoint. `st` may be NULL.
void model_resolve_head(struct model_config *config, const struct safetensors *st);

// Finds the dtype of a checkpoint: the type of quantised matrices if config.json says so, else the dtype of the
// embedding table, or bf16 if `st` is NULL.
enum status model_stored_dtype(const struct model_config *config, const struct safetensors *st, enum dtype *dtype_p);

// Creates the weights m->embedding .. m->head from the mapped files. Reads only this rank's rows and columns. Creates
// dummy weights (dummy.h) if `st` is NULL.
enum status model_load_weights(struct model *m, const struct safetensors *st);
