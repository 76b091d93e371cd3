// SPDX-License-Identifier: Apache-2.0
// A Llama-class checkpoint ready to run: one rank's share of the weights in a backend, and the forward pass over a
// ragged batch. The split is Megatron-style: attention heads and MLP columns across ranks, and vocabulary-parallel
// embedding and head (arXiv 1909.08053). Groups may also divide the layers over pipeline stages (stages.h): then the
// ranks of each stage split the layers of the stage, and a pass goes through the stages in order.
//
// Every rank of the group opens the same directory and makes the same calls with the same batches in the same order.
// Only one thread at a time may use a model. The model owns its backend and KV cache; it borrows the comm.
#pragma once

#include <stdbool.h>

#include "kernels/backend.h"
#include "kernels/comm.h"
#include "lib/text/config.h"
#include "lib/text/limits.h"

struct model;

// How much of a rank's weights is loaded. The loader writes it; any thread may read it.
struct load_progress {
    _Atomic uint64_t done_bytes, total_bytes; // total_bytes is 0 until the files are open
};
int load_progress_percent(const struct load_progress *progress); // from 0 to 100

struct model_options {
    const char *dir;     // checkpoint directory or, with `dummy`, a config.json of any name
    bool dummy;          // for measurements: dummy weights of the config's shape, see dummy.h
    bool zeros;          // with `dummy`: all weights are zero; creating them takes no time and no host memory
    const char *backend; // "auto" (cuda if a GPU is found, else cpu), "cpu", "cuda", "reference"
    // "f32", "bf16", "bf12", "int8", "int8-g128", "fp8", "int4-g128" (kernels/backend.h) or "auto". Auto follows the
    // checkpoint: f32 stays f32, and f16 and bf16 become bf16. Quantised types stay if the backend computes in them,
    // else they become bf16.
    const char *dtype;
    // Dtype of K and V: "auto" or NULL (as the activations), or "bf16", "int8", "fp8", which exclude f32 weights.
    const char *kv_dtype;
    int threads;  // compute threads of each rank; 0: all cores that the process may use
    int max_rows; // token budget of one pass
    int max_seqs;
    int max_logit_rows; // logit rows of one pass, each of model_logit_bytes(); 0: max_seqs, at most max_rows
    int max_context;    // limit of KV entries of one sequence; 0: the limit of the config
    // Folder in which packed weights are saved for the next start. "auto": next to the checkpoint; "off" or NULL:
    // nothing is saved.
    const char *packed_cache;
    // Number of KV blocks. 0: on a GPU as many as gpu_memory_utilization allows, else one full context per sequence,
    // but at most 1 GiB.
    int n_kv_blocks;
    // Memory on the host that this process may use; 0: no limit. On the CPU it limits the default number of KV blocks,
    // and a model that does not fit is refused.
    size_t memory_bytes;
    // Fraction of a GPU's memory that this process may use, KV cache included; 0: MODEL_GPU_MEMORY_UTILIZATION.
    double gpu_memory_utilization;
    // GPU groups: passes of at least twice this many rows run as two micro-batches. One is all-reduced while the other
    // is computed. 0: MODEL_OVERLAP_ROWS.
    int overlap_rows;
    // GPU groups: type to which partial sums are rounded and in which they are added: "f32", "bf16", "auto" or NULL
    // (bf16). For ranks on CPUs see group_set_allreduce_bf16().
    const char *allreduce_dtype;
    int stages;                     // pipeline stages of the group; 0 or 1: one stage
    const char *stage_layers;       // see stages_divide(); NULL: as equal as possible
    bool fp8_fast_accum;            // GPUs: faster FP8 gemms with about 14 bits in their sums, see docs/gpus.md
    struct gpu_place gpu;           // set by engine_open()
    struct load_progress *progress; // where model_open() reports its progress, or NULL
};
#define MODEL_OVERLAP_ROWS 1024 // a gemm of fewer rows leaves much of a GPU idle

// Opens one rank's model without communication. With several stages, `comm` has been split into them. On failure,
// status_message() names the file and its defect.
enum status model_open(const struct model_options *options, struct comm *comm, struct model **model_p);
// Second step, called by all ranks together after all models are open. Connects the devices of the ranks, and creates
// the KV cache if its size depends on the free device memory. Returns STATUS_EXHAUSTED if memory is short;
// status_message() says what does not fit.
enum status model_join(struct model *m);
// Third step, called by all ranks together after all have joined, before the first pass. A backend that selects its
// algorithms by timing first runs a pass over the warm-up batch. This pass would wait for a rank that has not joined.
enum status model_warm_up(struct model *m);
void model_close(struct model *m);

// Memory of one rank on a GPU, computed without a GPU, for `forepack plan` and the log at start-up.
struct memory_plan {
    double weights; // number of weights of the whole model
    enum dtype dtype, kv_dtype;
    struct device_memory allocated; // the exact allocations of the backend, without the KV cache
    size_t kv_block_bytes;          // size of a KV block; the cache allocates one block more than it can use
    // Estimates, not measured on hardware, of the memory that libraries allocate: CUDA's context and kernels; NCCL's
    // buffers with several ranks.
    size_t runtime_bytes, nccl_bytes;
    int context; // KV entries of the longest sequence
};
// `rank` of `size` ranks, over all stages. Rank 0 is in the last stage.
enum status model_plan(const struct model_options *options, int rank, int size, struct memory_plan *plan_p);

const struct model_config *model_get_config(const struct model *m);
const char *model_backend(const struct model *m);     // name of the backend, for logs and reports
const char *model_gpu_address(const struct model *m); // see backend_ops.gpu_address; NULL if the model is not on a GPU
// Returns the capabilities, valid as long as the model. Query them instead of comparing model_backend().
const struct backend_capabilities *model_capabilities(const struct model *m);
enum dtype model_dtype(const struct model *m);
enum dtype model_kv_dtype(const struct model *m); // type of K and V
int model_kv_blocks(const struct model *m);
size_t model_kv_bytes(const struct model *m); // this rank's KV cache
// Return the bytes of this rank per row of a pass (activations, allocated for max_rows rows) and per logit row
// (allocated for max_logit_rows rows). A logit row has logits in the backend and, on rank 0, host copies.
size_t model_row_bytes(const struct model *m);
size_t model_logit_bytes(const struct model *m);
int model_max_logit_rows(const struct model *m); // largest number in one pass
// Returns the share of a layer's weights that the last layer multiplies with rows without logits: q, k and v only on
// backends that gather rows, all weights on the others.
double model_last_layer_share(const struct model *m);

// Returns true if the backend samples tokens: batches may then have `sampling`.
bool model_samples(const struct model *m);

// Returns the path of this rank's packed weights without its ending; names of other files may be appended. NULL
// if no packed weights are kept. Owned by the model.
const char *model_packed_path(const struct model *m);
// Returns a key of the machine and of the way in which this rank uses it, see backend_ops.machine.
uint64_t model_machine(const struct model *m);

// Runs fn(arg, item, thread) once for each item of [0, n_items) and returns when all calls have returned. Uses the
// threads of the CPU backend, else the calling thread. `thread` is in [0, model_host_threads()). Call it only between
// passes.
int model_host_threads(const struct model *m);
struct host_cores model_host_cores(const struct model *m); // empty if the model is not on the CPU; owned by the model
void model_run_on_host(struct model *m, void (*fn)(void *arg, int item, int thread), void *arg, int n_items);

// Checks the way of rows through the stages: every stage receives a number from the stage before and sends it on.
// Called by all ranks together. No effect with one stage.
enum status model_check_stages(struct model *m);

// Results of a pass on rank 0. A member is NULL on other ranks, and if the batch does not ask for it. Valid until the
// next pass.
struct forward_result {
    const float *logits;     // [n_logit_rows - n_unread_rows][vocab_size]
    const float *importance; // [sum of importance_keys]: maximum over all ranks
    const int32_t *tokens;   // [n_logit_rows]; -1 if no token can be sampled: all logits are NaN or -inf
};

// Runs one pass. Every rank calls it with the same batch. Returns when rank 0 has the results. Allocates nothing. A
// batch over the limits, or outside vocabulary, context or cache, is a bug of the caller: every rank returns
// STATUS_INTERNAL before it computes anything, and the model stays usable. After any other failure the ranks are out of
// step and the group must end.
enum status model_forward(struct model *m, const struct ragged_batch *batch, struct forward_result *result);

// Measure the speed of this rank's device, see backend_ops.measure. Call model_measure() only if model_measures()
// returns true.
bool model_measures(const struct model *m);
enum status model_measure(struct model *m, int ms, double *gflops_p, double *gbytes_per_s_p);

// Returns a digest of the config and the weights (all names, types and shapes, and samples of the data). Copies of one
// checkpoint, sharded or not, have equal digests; different checkpoints have different digests. With dummy weights, the
// digest depends only on the shape and never equals the digest of a checkpoint.
uint64_t model_fingerprint(const struct model *m);
