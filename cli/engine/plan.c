// SPDX-License-Identifier: Apache-2.0
// forepack plan: prints the memory that a worker's model needs on each GPU, whether it fits, and how many GPUs it
// needs. Also prints the FLOPs of a prompt and the largest speed-up of speculative prefill. With a rate or a trace,
// prints the smallest cluster for this load instead (sizing.h). No GPU is needed.
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "cli/engine/commands.h"
#include "cli/engine/sizing.h"
#include "cli/request.h"
#include "engine/block_manager.h"
#include "engine/model/model.h"
#include "engine/model/work.h"
#include "lib/base/number_list.h"
#include "lib/base/trace.h"
#include "worker/scheduler.h"

static struct plan_flags o;

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
    {.name = "gpu", .type = OPTION_CHOICE, .value = &o.gpu, .choices = DEVICE_RATES_CHOICES,
     .help = "a GPU of the table: its memory, and the speed from which times are computed"},
    {.name = "tp", .type = OPTION_INT, .value = &o.tp, .default_text = "1", .min = 1, .max = 1024, .unit = "GPUs",
     .help = "tensor-parallel ranks of a group, one per GPU; with a load: by default the cheapest of 1, 2, 4 and 8"},
    {.name = "pp", .type = OPTION_INT, .value = &o.pp, .default_text = "1", .min = 1, .max = MODEL_STAGES_MAX, .unit = "stages",
     .help = "pipeline stages of a group, each of --tp GPUs; not with a load"},
    {.name = "pp-layers", .type = OPTION_STRING, .value = &o.pp_layers, .placeholder = "LIST",
     .help = "numbers of layers of the stages, such as 64,62; default: the longest stage is as short as possible"},
    {.name = "gpus", .type = OPTION_INT, .value = &o.gpus, .default_text = "0", .max = 1024, .unit = "GPUs",
     .help = "GPUs of one group: compares its divisions into --pp and --tp for --prompt-tokens and --output-tokens; needs --gpu"},
    {.name = "allreduce-dtype", .type = OPTION_CHOICE, .value = &o.allreduce_dtype, .default_text = "auto",
     .choices = MODEL_ALLREDUCE_DTYPES, .help = "type in which the GPUs add their partial sums; auto is bf16"},
    {.name = "gpu-mib", .type = OPTION_INT, .value = &o.gpu_mib, .default_text = "81559", .min = 1, .max = 1e9,
     .unit = "MiB", .help = "memory of one GPU as nvidia-smi reports it, in place of --gpu; 81559: H100"},
    {.name = "gpu-memory-utilization", .type = OPTION_REAL, .value = &o.gpu_memory_utilization, .default_text = "0.9", .min = 0.01, .max = 1,
     .help = "share of the GPU's memory that the process may use"},
    {.name = "-Limits, as given to the node"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "2048", .min = 1,
     .max = MODEL_ROWS_MAX, .unit = "tokens", .help = "token budget: rows of one pass; with a load: by default 8192"},
    {.name = "max-num-seqs", .type = OPTION_INT, .value = &o.max_seqs, .default_text = "64", .min = 1, .max = MODEL_SEQS_MAX,
     .help = "concurrent sequences; with a load: by default 256"},
    {.name = "max-model-len", .type = OPTION_INT, .value = &o.max_context, .default_text = "0", .max = 1e7,
     .unit = "tokens", .help = "longest sequence; 0 is the model's context"},
    {.name = "-Prompt"},
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &o.prompt_tokens, .default_text = "16384", .unit = "tokens",
     .help = "lengths of prompts, comma-separated; more than one only with --qps, which cycles through them"},
    {.name = "spec-shape", .type = OPTION_STRING, .value = &o.spec_shape,
     .help = "config.json or directory of the speculator's model"},
    {.name = "keep-rate", .type = OPTION_REAL, .value = &o.keep_rate, .default_text = "0.3", .min = 0.001, .max = 1,
     .help = "keep rate of speculative prefill; forepack calibrate measures which quality it has"},
    {.name = "-Load: prints the smallest cluster that serves it"},
    {.name = "qps", .type = OPTION_STRING, .value = &o.qps, .unit = "requests/s",
     .help = "arrival rates, comma-separated, one plan each; needs --gpu"},
    {.name = "output-tokens", .type = OPTION_INT, .value = &o.output_tokens, .default_text = "0", .max = 1e7, .unit = "tokens",
     .help = "tokens of an answer; 0: as in the trace, 1 with --prompt-tokens"},
    {.name = "trace", .type = OPTION_STRING, .value = &o.trace, .placeholder = "FILE",
     .help = "instead of --prompt-tokens: a CSV as for forepack bench serve; without --qps at its own times"},
    {.name = "shared-prefix-tokens", .type = OPTION_INT, .value = &o.shared_tokens, .default_text = "0", .max = 1e7,
     .unit = "tokens", .help = "first tokens that all prompts share, in multiples of 512"},
    {.name = "ttft-p95", .type = OPTION_REAL, .value = &o.ttft_p95_s, .default_text = "0", .max = 1e4, .unit = "s",
     .help = "time to first token that 95 % of requests must keep; 0: no limit"},
    {.name = "itl-p95", .type = OPTION_REAL, .value = &o.itl_p95_s, .default_text = "0", .max = 1e4, .unit = "s",
     .help = "inter-token latency that 95 % of tokens must keep; 0: no limit, and default pacing"},
    {.name = "spec-dtype", .type = OPTION_CHOICE, .value = &o.spec_dtype, .default_text = "auto", .choices = MODEL_DTYPES,
     .help = "type of the speculator's weights"},
    {.name = "spec-tp", .type = OPTION_INT, .value = &o.spec_tp, .default_text = "0", .max = 8, .unit = "GPUs",
     .help = "tensor-parallel ranks of a speculator; 0: as few as its memory needs"},
    {.name = "tail-tokens", .type = OPTION_INT, .value = &o.tail_tokens, .default_text = "128", .max = 1e9, .unit = "tokens",
     .help = "last tokens of a prompt that are always kept, at most a quarter of the prompt"},
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

struct plan {
    struct plan_node node;
    struct model_config config;
    struct plan_memory memory;
    int gpus_needed;                      // GPUs for one sequence of the full context; 0: no number of GPUs suffices
    double host_gbytes, read_s, upload_s; // a start: bytes that a host reads, and the times of both steps
    double prompt_tokens;
    double prompt_tflop, speed_up; // speed_up is a factor, 0 without a speculator
    // With --gpu: a pass with one row and its lower bound, and the prompt alone.
    double decode_ms, decode_bound_ms, weight_gib, prefill_s;
};

// Returns the smallest number of GPUs that divides the model evenly, in --pp stages, and leaves room for one sequence
// of the full context. Returns 0 if there is no such number.
static int plan_gpus_needed(const struct plan *p)
{
    for (int gpus = 1; gpus <= p->config.n_heads; gpus++) {
        struct plan_memory memory;
        // Skips numbers that the model cannot be divided by.
        if (plan_memory_of(&o, &p->node, gpus, (int)o.pp, &memory) != STATUS_OK) continue;
        if (memory.kv_blocks >= kv_blocks_for(memory.rank.context)) return gpus * (int)o.pp;
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
    p->prompt_tflop = prompt_flop(&p->config, p->prompt_tokens) / 1e12;
    if (!o.spec_shape) return STATUS_OK;
    struct model_config spec;
    enum status status = model_config_read(o.spec_shape, &spec);
    if (status != STATUS_OK) return status;
    double kept = prompt_flop(&p->config, o.keep_rate * p->prompt_tokens);
    p->speed_up = p->prompt_tflop * 1e12 / (kept + prompt_flop(&spec, p->prompt_tokens));
    return STATUS_OK;
}

static double most_weights_mib(const struct plan *p)
{
    double most = 0;
    for (int i = 0; i < p->memory.n_stages; i++)
        most = p->memory.stages[i].weights_mib > most ? p->memory.stages[i].weights_mib : most;
    return most;
}

// Computes the times of a start. Each rank reads only its share of the weights, and reading goes on while weights are
// converted and uploaded, so the longer step decides.
static void plan_start(struct plan *p)
{
    const double rank_bytes = most_weights_mib(p) * (1 << 20);
    const double ranks = (double)(o.tp * o.pp < o.host_gpus ? o.tp * o.pp : o.host_gpus);
    p->host_gbytes = rank_bytes * ranks / 1e9;
    p->read_s = p->host_gbytes / o.disk_rate;
    p->upload_s = rank_bytes / 1e9 / o.upload_rate;
}

static double start_s(const struct plan *p)
{
    return p->read_s > p->upload_s ? p->read_s : p->upload_s;
}

// Computes the times of a group of this GPU.
static void plan_times(struct plan *p)
{
    if (!o.gpu) return;
    const struct device_rates bound = device_rates_bound(device_rates_find(o.gpu));
    struct capacity_node group = {.shape = plan_pass_shape(&o, &p->config, o.dtype, (int)o.tp, &p->memory, NULL),
                                  .token_budget = (double)o.token_budget};
    p->weight_gib = pass_shape_weight_bytes(&group.shape) / (1 << 30);
    p->decode_ms = capacity_decode_us(&group, 0) / 1e3;
    p->prefill_s = capacity_prefill_us(&group, p->prompt_tokens, 0) / 1e6;
    group.shape = plan_pass_shape(&o, &p->config, o.dtype, (int)o.tp, &p->memory, &bound);
    p->decode_bound_ms = capacity_decode_us(&group, 0) / 1e3;
}

// Checks options that contradict each other, and takes the memory of --gpu.
static enum status flags_settle(void)
{
    if (!o.model == !o.shape) return status_fail(STATUS_INVALID, "give exactly one of --model DIR and --shape FILE");
    if (o.gpu && options_given(options, "gpu-mib"))
        return status_fail(STATUS_INVALID, "give one of --gpu and --gpu-mib: the table has the memory of %s", o.gpu);
    if (o.gpu) o.gpu_mib = (int64_t)device_rates_find(o.gpu)->memory_mib;
    o.tp_given = options_given(options, "tp");
    o.pp_given = options_given(options, "pp");
    if (o.pp_layers && o.pp == 1) return status_fail(STATUS_INVALID, "--pp-layers: give --pp too");
    if ((o.pp > 1 || o.gpus) && (o.qps || o.trace))
        return status_fail(STATUS_INVALID, "%s: a load is planned for groups of one stage", o.gpus ? "--gpus" : "--pp");
    if (o.gpus && !o.gpu) return status_fail(STATUS_INVALID, "--gpus: give --gpu too");
    o.seqs_given = options_given(options, "max-num-seqs");
    o.budget_given = options_given(options, "max-num-batched-tokens");
    return STATUS_OK;
}

static enum status plan_make(struct plan *p)
{
    struct count_list lengths;
    TRY(count_list_parse("prompt-tokens", o.prompt_tokens, 1, 10000000, &lengths));
    if (lengths.n > 1) return status_fail(STATUS_INVALID, "--prompt-tokens: give one length, or --qps");
    p->prompt_tokens = lengths.count[0];
    p->node = (struct plan_node){o.model ? o.model : o.shape, !o.model, o.dtype, o.max_seqs, o.token_budget};
    TRY(model_config_read(p->node.path, &p->config));
    TRY(plan_memory_of(&o, &p->node, (int)o.tp, (int)o.pp, &p->memory));
    TRY(plan_bound(p));
    plan_start(p);
    plan_times(p);
    p->gpus_needed = plan_gpus_needed(p);
    return STATUS_OK;
}

static int plan_gpus(void)
{
    return (int)(o.tp * o.pp);
}

static double kv_mib(const struct plan *p)
{
    return (double)p->memory.kv_blocks * plan_least_stage(&p->memory)->block_mib;
}

// Prints the stages of a pipeline in the order of a pass. The leader is in the last one.
static void stages_print(const struct plan *p)
{
    if (p->memory.n_stages == 1) return;
    printf("stage   layers   weights MiB   KV cache MiB\n");
    for (int i = 0; i < p->memory.n_stages; i++) {
        const struct plan_stage *stage = &p->memory.stages[i];
        printf("%5d %8d %13.0f %14.0f\n", i, stage->layers, stage->weights_mib,
               (double)p->memory.kv_blocks * stage->block_mib);
    }
    printf("\n");
}

static double used_mib(const struct plan *p, enum memory_use use)
{
    return PLAN_MIB(p->memory.rank.allocated.bytes[use]);
}

static double workspace_mib(const struct plan *p)
{
    return used_mib(p, MEMORY_GEMM) + used_mib(p, MEMORY_ATTENTION) + used_mib(p, MEMORY_BATCH);
}

static void plan_print(const struct plan *p)
{
    const struct memory_plan *m = &p->memory.rank;
    printf("%s: %.2f billion weights in %s, K and V in %s, on %d GPU%s of %lld MiB\n\n", p->node.path, m->weights / 1e9,
           dtype_name(m->dtype), dtype_name(m->kv_dtype), plan_gpus(), plan_gpus() > 1 ? "s" : "",
           (long long)o.gpu_mib);
    stages_print(p);
    printf("per GPU                    MiB\n");
    printf("weights             %10.0f%s\n", most_weights_mib(p),
           p->memory.n_stages > 1 ? "   of the largest stage" : "");
    printf("activations         %10.0f   a pass of %lld rows, logits of %d\n", used_mib(p, MEMORY_ACTIVATIONS),
           (long long)o.token_budget, scheduler_logit_rows((int)o.max_seqs, (int)o.token_budget));
    printf("workspace           %10.0f   gemms %.0f, attention %.0f, batches %.0f\n", workspace_mib(p),
           used_mib(p, MEMORY_GEMM), used_mib(p, MEMORY_ATTENTION), used_mib(p, MEMORY_BATCH));
    printf("libraries (approx.) %10.0f   CUDA, cuBLASLt%s, rounding to pages\n", plan_libraries_mib(m),
           o.tp > 1 ? ", NCCL" : "");
    printf("KV cache            %10.0f   %lld blocks of %d tokens: %lld tokens, %.1f contexts of %d\n", kv_mib(p),
           (long long)p->memory.kv_blocks, KV_BLOCK_TOKENS, (long long)p->memory.kv_blocks * KV_BLOCK_TOKENS,
           (double)(p->memory.kv_blocks * KV_BLOCK_TOKENS) / m->context, m->context);
    printf("not used            %10.0f   --gpu-memory-utilization %.2f\n\n", (double)o.gpu_mib - plan_usable_mib(&o),
           o.gpu_memory_utilization);
    if (p->memory.kv_blocks <= 0) printf("does not fit: %.0f MiB are missing. ", -p->memory.kv_mib);
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
    printf("a prompt of %.0f tokens needs %.1f TFLOP\n", p->prompt_tokens, p->prompt_tflop);
    if (o.gpu)
        printf("computed for %s: a decode pass takes %.1f ms (at least %.1f, to read %.1f GiB of weights), the prompt "
               "alone %.3g s\n",
               o.gpu, p->decode_ms, p->decode_bound_ms, p->weight_gib, p->prefill_s);
    if (p->speed_up > 0)
        printf("speculative prefill at keep rate %.2f speeds up the first token at most %.2f times\n", o.keep_rate,
               p->speed_up);
}

static json_t *stages_json(const struct plan *p)
{
    json_t *stages = json_array();
    for (int i = 0; i < p->memory.n_stages; i++) {
        const struct plan_stage *stage = &p->memory.stages[i];
        json_array_append_new(stages,
                              json_pack("{s:i,s:f,s:f}", "layers", stage->layers, "weights_mib", stage->weights_mib,
                                        "kv_mib", (double)p->memory.kv_blocks * stage->block_mib));
    }
    return stages;
}

static void plan_print_json(const struct plan *p)
{
    const struct memory_plan *m = &p->memory.rank;
    json_t *object = json_pack(
        "{s:f,s:s,s:s,s:I,s:f,s:f,s:f,s:f,s:f,s:I,s:I,s:b,s:i,s:f}", "weights", m->weights, "dtype",
        dtype_name(m->dtype), "kv_dtype", dtype_name(m->kv_dtype), "gpus", (json_int_t)plan_gpus(), "weights_mib",
        most_weights_mib(p), "activations_mib", used_mib(p, MEMORY_ACTIVATIONS), "workspace_mib", workspace_mib(p),
        "libraries_mib", plan_libraries_mib(m), "kv_mib", kv_mib(p), "kv_blocks", (json_int_t)p->memory.kv_blocks,
        "kv_tokens", (json_int_t)(p->memory.kv_blocks * KV_BLOCK_TOKENS), "fits", (int)(p->memory.kv_blocks > 0),
        "gpus_needed", p->gpus_needed, "prompt_tflop", p->prompt_tflop);
    json_object_set_new(object, "stages", stages_json(p));
    json_object_set_new(object, "start_s", json_real(start_s(p)));
    json_object_set_new(object, "start_read_s", json_real(p->read_s));
    json_object_set_new(object, "start_upload_s", json_real(p->upload_s));
    if (o.gpu) {
        json_object_set_new(object, "decode_ms", json_real(p->decode_ms));
        json_object_set_new(object, "decode_bound_ms", json_real(p->decode_bound_ms));
        json_object_set_new(object, "prefill_s", json_real(p->prefill_s));
    }
    if (p->speed_up > 0) json_object_set_new(object, "speed_up_bound", json_real(p->speed_up));
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(object);
}

// ---- the smallest cluster for a load --------------------------------------------------------------------------------

// Checks the options of a load, and replaces FP8 on a GPU that has none.
static enum status load_settle(void)
{
    struct model_config config;
    if (!o.gpu) return status_fail(STATUS_INVALID, "%s: give --gpu too", o.qps ? "--qps" : "--trace");
    if (o.trace && options_given(options, "prompt-tokens"))
        return status_fail(STATUS_INVALID, "give one of --trace and --prompt-tokens");
    if (o.trace && o.shared_tokens)
        return status_fail(STATUS_INVALID, "--shared-prefix-tokens: a trace names its shared prefixes itself");
    if (o.shared_tokens % TRACE_BLOCK_TOKENS)
        return status_fail(STATUS_INVALID, "--shared-prefix-tokens %lld: must be a multiple of %d",
                           (long long)o.shared_tokens, TRACE_BLOCK_TOKENS);
    if (!o.trace && !o.output_tokens) o.output_tokens = 1;
    if (!options_given(options, "max-num-seqs")) o.max_seqs = PLAN_SEQS_DEFAULT;
    if (options_given(options, "max-num-batched-tokens") && o.max_seqs > o.token_budget)
        return status_fail(STATUS_INVALID, "--max-num-seqs %lld: must be at most --max-num-batched-tokens (%lld)",
                           (long long)o.max_seqs, (long long)o.token_budget);
    TRY(model_config_read(o.model ? o.model : o.shape, &config));
    if (device_rates_find(o.gpu)->tflops[RATE_FP8] > 0) return STATUS_OK;
    if (strcmp(o.dtype, "fp8") == 0 || strcmp(o.kv_dtype, "fp8") == 0)
        return status_fail(STATUS_INVALID, "--gpu %s has no FP8: use bf16", o.gpu);
    return STATUS_OK;
}

// Sizes a cluster for each rate. *code_p becomes 1 if the limits of a rate cannot be kept.
static enum status clusters_size(int *code_p)
{
    double rates[NUMBER_LIST_MAX] = {0};
    int n = 1;
    TRY(load_settle());
    if (o.qps) TRY(real_list_parse("qps", o.qps, 1e-3, 1e6, rates, &n));
    json_t *results = json_array();
    enum status status = STATUS_OK;
    for (int i = 0; i < n && status == STATUS_OK; i++) {
        struct sizing sizing;
        status = sizing_make(&o, rates[i], &sizing);
        if (status != STATUS_OK) break;
        if (sizing.is_relaxed) *code_p = 1;
        if (!o.json && i) printf("\n");
        if (!o.json) sizing_print(&sizing);
        json_array_append_new(results, sizing_json(&sizing));
    }
    if (status == STATUS_OK && o.json) {
        json_dumpf(n > 1 ? results : json_array_get(results, 0), stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
        printf("\n");
    }
    json_decref(results);
    return status;
}

static enum status memory_print(int *code_p)
{
    struct plan plan = {.prompt_tokens = 0};
    if (o.ttft_p95_s > 0 || o.itl_p95_s > 0 || (o.output_tokens && !o.gpus) || o.shared_tokens)
        return status_fail(STATUS_INVALID, "limits and lengths of a load need --qps or --trace");
    if (o.gpus) {
        struct count_list lengths;
        TRY(count_list_parse("prompt-tokens", o.prompt_tokens, 1, 10000000, &lengths));
        if (lengths.n > 1) return status_fail(STATUS_INVALID, "--prompt-tokens: give one length, or --qps");
        return plan_group_print(&o, lengths.count[0], code_p);
    }
    TRY(plan_make(&plan));
    (o.json ? plan_print_json : plan_print)(&plan);
    *code_p = plan.memory.kv_blocks > 0 ? 0 : 1;
    return STATUS_OK;
}

int engine_command_plan(int argc, char **argv)
{
    options_main(
        options,
        "Usage: forepack plan --model DIR|--shape FILE [--gpu NAME | --gpu-mib M] [--tp N] [--pp P] [--dtype D]\n"
        "       forepack plan --model DIR|--shape FILE --gpu NAME --gpus N [--prompt-tokens N] [--output-tokens N]\n"
        "       forepack plan --model DIR|--shape FILE --gpu NAME (--qps R --prompt-tokens N --output-tokens N |\n"
        "                     --trace F) [--ttft-p95 S] [--itl-p95 S] [--spec-shape FILE]\n"
        "Memory of a worker's model on each GPU, whether it fits, and the cost of a prompt. With --gpus: the\n"
        "divisions of a group into pipeline stages and tensor-parallel ranks, and the best. With a load: the\n"
        "smallest cluster that serves it within limits, simulated by forepack-sim. Exit code 1: does not fit,\n"
        "or the limits cannot be kept.",
        argc, argv, NULL);
    int code = 0;
    enum status status = flags_settle();
    if (status == STATUS_OK) status = o.qps || o.trace ? clusters_size(&code) : memory_print(&code);
    if (status != STATUS_OK) code = report_failure(status);
    options_free(options);
    return code;
}
