// SPDX-License-Identifier: Apache-2.0
// forepack plan: prints the memory that a worker's model needs on each GPU, whether it fits, and how many GPUs it
// needs. Also prints the FLOPs of a prompt and the largest speed-up of speculative prefill. No GPU is needed.
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "cli/engine/commands.h"
#include "cli/request.h"
#include "engine/block_manager.h"
#include "engine/model/model.h"
#include "engine/model/work.h"
#include "worker/scheduler.h"

static struct {
    char *model, *shape, *dtype, *kv_dtype, *allreduce_dtype, *spec_shape;
    int64_t tp, gpu_mib, token_budget, max_seqs, max_context, prompt_tokens, host_gpus;
    double gpu_memory_utilization, keep_rate, disk_rate, upload_rate;
    bool json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "-Model"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .help = "model directory"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .help = "instead of --model: a config.json"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.dtype, .default_text = "auto", .choices = MODEL_DTYPES,
     .help = "type of weights and arithmetic; auto: as in the checkpoint, or bf16 with --shape"},
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &o.kv_dtype, .default_text = "auto", .choices = MODEL_KV_DTYPES,
     .help = "type of the KV cache; auto is f32 with f32 weights, else bf16"},
    {.name = "-GPUs"},
    {.name = "tp", .type = OPTION_INT, .value = &o.tp, .default_text = "1", .min = 1, .max = 1024, .unit = "GPUs",
     .help = "tensor-parallel ranks of the group, one per GPU"},
    {.name = "allreduce-dtype", .type = OPTION_CHOICE, .value = &o.allreduce_dtype, .default_text = "auto",
     .choices = MODEL_ALLREDUCE_DTYPES, .help = "type in which the GPUs add their partial sums; auto is bf16"},
    {.name = "gpu-mib", .type = OPTION_INT, .value = &o.gpu_mib, .default_text = "81559", .min = 1, .max = 1e9,
     .unit = "MiB", .help = "memory of one GPU as nvidia-smi reports it; H100: 81559, H200: 143771"},
    {.name = "gpu-memory-utilization", .type = OPTION_REAL, .value = &o.gpu_memory_utilization, .default_text = "0.9", .min = 0.01, .max = 1,
     .help = "share of the GPU's memory that the process may use"},
    {.name = "-Limits, as given to the node"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = MODEL_ROWS_MAX, .unit = "tokens", .help = "token budget: rows of one pass"},
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &o.max_seqs, .default_text = "64", .min = 1, .max = MODEL_SEQS_MAX,
     .help = "concurrent sequences"},
    {.name = "max-model-len", .type = OPTION_INT, .value = &o.max_context, .default_text = "0", .max = 1e7,
     .unit = "tokens", .help = "longest sequence; 0 is the model's context"},
    {.name = "-Prompt"},
    {.name = "prompt-tokens", .type = OPTION_INT, .value = &o.prompt_tokens, .default_text = "16384", .min = 1,
     .max = 1e7, .unit = "tokens", .help = "length of the prompt"},
    {.name = "spec-shape", .type = OPTION_STRING, .value = &o.spec_shape,
     .help = "config.json or directory of the speculator's model, for the bound on the speed-up"},
    {.name = "keep-rate", .type = OPTION_REAL, .value = &o.keep_rate, .default_text = "0.3", .min = 0.001, .max = 1,
     .help = "keep rate of speculative prefill"},
    {.name = "-Start"},
    {.name = "disk-gbytes-per-s", .type = OPTION_REAL, .value = &o.disk_rate, .default_text = "2", .min = 0.001, .max = 1e6,
     .unit = "GB/s", .help = "rate at which a host reads the checkpoint"},
    {.name = "upload-gbytes-per-s", .type = OPTION_REAL, .value = &o.upload_rate, .default_text = "5", .min = 0.001,
     .max = 1e6, .unit = "GB/s", .help = "rate at which a rank converts and uploads weights; assumed, not measured"},
    {.name = "gpus-per-host", .type = OPTION_INT, .value = &o.host_gpus, .default_text = "8", .min = 1, .max = 1024,
     .unit = "GPUs", .help = "ranks that share the disk of a host"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print JSON"},
    {0},
};
// clang-format on

#define MIB(bytes) ((double)(bytes) / (1 << 20))

struct plan {
    const char *path;
    struct model_config config;
    struct memory_plan memory; // memory of rank 0, which needs the most
    double kv_mib;             // memory that is left for the KV cache; negative: the missing memory
    int64_t kv_blocks;
    int gpus_needed;                      // GPUs for one sequence of the full context; 0: no number of GPUs suffices
    double host_gbytes, read_s, upload_s; // a start: bytes that a host reads, and the times of both steps
    double prompt_tflop, speed_up;        // speed_up is a factor, 0 without a speculator
};

static double usable_mib(void)
{
    return o.gpu_memory_utilization * (double)o.gpu_mib;
}

// Returns the memory that the driver and the libraries use in addition to allocations.
static double libraries_mib(const struct memory_plan *m)
{
    return MIB(m->runtime_bytes) + MIB(m->nccl_bytes) + MIB(m->allocated.rounding);
}

// Computes the memory plan with `gpus` ranks, and the memory that is left on each GPU for the KV cache.
static enum status plan_memory(const struct plan *p, int gpus, struct memory_plan *memory_p, double *kv_mib_p)
{
    const struct model_options model = {.dir = p->path,
                                        .dummy = o.shape != NULL,
                                        .backend = "cuda",
                                        .dtype = o.dtype,
                                        .kv_dtype = o.kv_dtype,
                                        .max_rows = (int)o.token_budget,
                                        .max_seqs = (int)o.max_seqs,
                                        .max_logit_rows = scheduler_logit_rows((int)o.max_seqs, (int)o.token_budget),
                                        .max_context = (int)o.max_context,
                                        .allreduce_dtype = o.allreduce_dtype};
    enum status status = model_plan(&model, 0, gpus, memory_p);
    if (status != STATUS_OK) return status;
    *kv_mib_p = usable_mib() - MIB(device_memory_total(&memory_p->allocated)) - libraries_mib(memory_p);
    return STATUS_OK;
}

// Returns the smallest number of ranks that divides the model evenly and leaves room for one sequence of the full
// context. Returns 0 if there is no such number.
static int plan_gpus_needed(const struct plan *p)
{
    for (int gpus = 1; gpus <= p->config.n_heads; gpus++) {
        struct memory_plan memory;
        double kv_mib;
        if (plan_memory(p, gpus, &memory, &kv_mib) != STATUS_OK) continue; // the model cannot be divided evenly
        if (kv_mib >= (kv_blocks_for(memory.context) + 1) * MIB(memory.kv_block_bytes)) return gpus;
    }
    return 0;
}

// Returns the FLOPs of prefilling n tokens with causal attention. A multiply and an add count as 2.
static double prompt_flop(const struct model_config *config, double n)
{
    struct work_model w = work_model_of(config, 1, 0);
    return 2 * w.layer_weights * n + w.attention_flop * n * (n + 1) / 2 + 2 * w.head_weights;
}

// Computes the bound on the speed-up in the Speculative Prefill paper (arXiv 2502.02789): the main model's FLOPs for
// the whole prompt, divided by its FLOPs for the kept tokens plus the speculator's FLOPs.
static enum status plan_bound(struct plan *p)
{
    p->prompt_tflop = prompt_flop(&p->config, (double)o.prompt_tokens) / 1e12;
    if (!o.spec_shape) return STATUS_OK;
    struct model_config spec;
    enum status status = model_config_read(o.spec_shape, &spec);
    if (status != STATUS_OK) return status;
    double kept = prompt_flop(&p->config, o.keep_rate * (double)o.prompt_tokens);
    p->speed_up = p->prompt_tflop * 1e12 / (kept + prompt_flop(&spec, (double)o.prompt_tokens));
    return STATUS_OK;
}

// Computes the times of a start. Each rank reads only its share of the weights, and reading goes on while weights are
// converted and uploaded, so the longer step decides.
static void plan_start(struct plan *p)
{
    const double rank_bytes = (double)p->memory.allocated.bytes[MEMORY_WEIGHTS];
    const double ranks = (double)(o.tp < o.host_gpus ? o.tp : o.host_gpus);
    p->host_gbytes = rank_bytes * ranks / 1e9;
    p->read_s = p->host_gbytes / o.disk_rate;
    p->upload_s = rank_bytes / 1e9 / o.upload_rate;
}

static double start_s(const struct plan *p)
{
    return p->read_s > p->upload_s ? p->read_s : p->upload_s;
}

static enum status plan_make(struct plan *p)
{
    if (!o.model == !o.shape) return status_fail(STATUS_INVALID, "give exactly one of --model DIR and --shape FILE");
    p->path = o.model ? o.model : o.shape;
    enum status status = model_config_read(p->path, &p->config);
    if (status == STATUS_OK) status = plan_memory(p, (int)o.tp, &p->memory, &p->kv_mib);
    if (status == STATUS_OK) status = plan_bound(p);
    if (status != STATUS_OK) return status;
    plan_start(p);
    // One block is for padding rows of captured passes.
    p->kv_mib -= MIB(p->memory.kv_block_bytes);
    p->kv_blocks = p->kv_mib > 0 ? (int64_t)(p->kv_mib / MIB(p->memory.kv_block_bytes)) : 0;
    p->gpus_needed = plan_gpus_needed(p);
    return STATUS_OK;
}

static double used_mib(const struct plan *p, enum memory_use use)
{
    return MIB(p->memory.allocated.bytes[use]);
}

static double workspace_mib(const struct plan *p)
{
    return used_mib(p, MEMORY_GEMM) + used_mib(p, MEMORY_ATTENTION) + used_mib(p, MEMORY_BATCH);
}

static void plan_print(const struct plan *p)
{
    const struct memory_plan *m = &p->memory;
    printf("%s: %.2f billion weights in %s, K and V in %s, on %d GPU%s of %lld MiB\n\n", p->path, m->weights / 1e9,
           dtype_name(m->dtype), dtype_name(m->kv_dtype), (int)o.tp, o.tp > 1 ? "s" : "", (long long)o.gpu_mib);
    printf("per GPU                    MiB\n");
    printf("weights             %10.0f\n", used_mib(p, MEMORY_WEIGHTS));
    printf("activations         %10.0f   a pass of %lld rows, logits of %d\n", used_mib(p, MEMORY_ACTIVATIONS),
           (long long)o.token_budget, scheduler_logit_rows((int)o.max_seqs, (int)o.token_budget));
    printf("workspace           %10.0f   gemms %.0f, attention %.0f, batches %.0f\n", workspace_mib(p),
           used_mib(p, MEMORY_GEMM), used_mib(p, MEMORY_ATTENTION), used_mib(p, MEMORY_BATCH));
    printf("libraries (approx.) %10.0f   CUDA, cuBLASLt%s, rounding to pages\n", libraries_mib(m),
           o.tp > 1 ? ", NCCL" : "");
    printf("KV cache            %10.0f   %lld blocks of %d tokens: %lld tokens, %.1f contexts of %d\n",
           (double)p->kv_blocks * MIB(m->kv_block_bytes), (long long)p->kv_blocks, KV_BLOCK_TOKENS,
           (long long)p->kv_blocks * KV_BLOCK_TOKENS, (double)(p->kv_blocks * KV_BLOCK_TOKENS) / m->context,
           m->context);
    printf("not used            %10.0f   --gpu-memory-utilization %.2f\n\n", (double)o.gpu_mib - usable_mib(),
           o.gpu_memory_utilization);
    if (p->kv_blocks <= 0) printf("does not fit: %.0f MiB are missing. ", -p->kv_mib);
    if (p->gpus_needed)
        printf("one sequence of the full context fits on %d GPU%s or more\n", p->gpus_needed,
               p->gpus_needed > 1 ? "s" : "");
    else
        printf("one sequence of the full context fits on no number of these GPUs: lower --max-model-len or "
               "--max-num-seqs, or use a smaller --dtype or --kv-cache-dtype\n");
    printf(
        "a start takes about %.0f s: a host reads %.1f GB in %.0f s at %g GB/s (--disk-gbytes-per-s), while each rank "
        "uploads in %.0f s\n",
        start_s(p), p->host_gbytes, p->read_s, o.disk_rate, p->upload_s);
    printf("a prompt of %lld tokens needs %.1f TFLOP\n", (long long)o.prompt_tokens, p->prompt_tflop);
    if (p->speed_up > 0)
        printf("speculative prefill at keep rate %.2f speeds up the first token at most %.2f times\n", o.keep_rate,
               p->speed_up);
}

static void plan_print_json(const struct plan *p)
{
    const struct memory_plan *m = &p->memory;
    json_t *object = json_pack(
        "{s:f,s:s,s:s,s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:b,s:i,s:f}", "weights", m->weights, "dtype",
        dtype_name(m->dtype), "kv_dtype", dtype_name(m->kv_dtype), "gpus", (json_int_t)o.tp, "weights_mib",
        used_mib(p, MEMORY_WEIGHTS), "activations_mib", used_mib(p, MEMORY_ACTIVATIONS), "workspace_mib",
        workspace_mib(p), "libraries_mib", libraries_mib(m), "kv_mib", (double)p->kv_blocks * MIB(m->kv_block_bytes),
        "kv_blocks", (json_int_t)p->kv_blocks, "kv_tokens", (json_int_t)(p->kv_blocks * KV_BLOCK_TOKENS), "fits",
        (int)(p->kv_blocks > 0), "gpus_needed", p->gpus_needed, "prompt_tflop", p->prompt_tflop);
    json_object_set_new(object, "start_s", json_real(start_s(p)));
    json_object_set_new(object, "start_read_s", json_real(p->read_s));
    json_object_set_new(object, "start_upload_s", json_real(p->upload_s));
    if (p->speed_up > 0) json_object_set_new(object, "speed_up_bound", json_real(p->speed_up));
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(object);
}

int engine_command_plan(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack plan --model DIR|--shape FILE [--tp N] [--gpu-mib M] [--dtype D]\n"
                 "Memory of a worker's model on each GPU, whether it fits, and the cost of a prompt.",
                 argc, argv, NULL);
    struct plan plan = {0};
    enum status status = plan_make(&plan);
    if (status == STATUS_OK) (o.json ? plan_print_json : plan_print)(&plan);
    int code = status == STATUS_OK ? plan.kv_blocks > 0 ? 0 : 1 : report_failure(status);
    options_free(options);
    return code;
}
