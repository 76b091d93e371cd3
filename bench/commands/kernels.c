// SPDX-License-Identifier: Apache-2.0
// forepack bench kernels: the four gemms of one layer, for each number of rows M, called as the model calls them. Runs
// cycle through enough copies of the layer's weights that weights are read from memory, as in a model with many layers.
// With the CPU backend, oneDNN's gemms of the same shapes run in the same rounds if its program was built. With
// --attention, kernels_attention.c measures attention instead.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/commands/kernels.h"
#include "bench/commands/onednn_process.h"
#include "cli/request.h"
#include "engine/engine.h"
#include "engine/model/dummy.h"
#include "kernels/cpu/stream_tuning.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/options.h"

static struct kernels_flags o;

// clang-format off
static const struct option options[] = {
    {.name = "-Model"},
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .help = "model directory; only its config.json is read"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .help = "instead of --model: a config.json"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.backend, .default_text = "cpu",
     .choices = "cpu|cuda|reference", .help = "backend; reference is the slow oracle of the other backends"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.dtype, .default_text = "bf16", .choices = "bf16|f32|bf12|int8|int4-g128",
     .help = "type of the weights; attention computes in bf16 with int8 and int4 weights"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "compute threads; 0 is every core the process may use"},
    {.name = "-Gemms"},
    {.name = "rows", .type = OPTION_STRING, .value = &o.m, .default_text = "1,4,16,64,256,512,1024,2048",
     .help = "rows M of the activation, comma-separated"},
    {.name = "prefetch", .type = OPTION_STRING, .value = &o.prefetch, .default_text = "auto",
     .help = "CPU only: software prefetch of weights that are read once: auto measures like a node at its start; "
             "none; or a cache and a distance in bytes, such as L1:2048"},
    {.name = "onednn", .type = OPTION_BOOL, .value = &o.onednn, .default_text = "true",
     .help = "compare with oneDNN, if it was installed when Forepack was built"},
    {.name = "-Attention"},
    {.name = "attention", .type = OPTION_BOOL, .value = &o.attention, .help = "measure attention instead of the gemms"},
    {.name = "prompt-tokens", .type = OPTION_STRING, .value = &o.prompt_tokens, .default_text = "2048,8192",
     .unit = "tokens", .help = "prefill one prompt of each of these lengths, comma-separated; 0 is no prefill"},
    {.name = "cached-tokens", .type = OPTION_STRING, .value = &o.cached_tokens, .default_text = "0", .unit = "tokens",
     .help = "KV entries cached before the tokens of --prompt-tokens, comma-separated: each prompt with each number"},
    {.name = "max-num-batched-tokens", .type = OPTION_INT, .value = &o.token_budget, .default_text = "4096", .min = 1,
     .max = 1048576, .unit = "tokens", .help = "rows of one pass; a longer prompt is cut into chunks"},
    {.name = "batch", .type = OPTION_STRING, .value = &o.batch, .default_text = "1,8,64", .unit = "sequences",
     .help = "decode one row of each of this many sequences, comma-separated"},
    {.name = "context", .type = OPTION_STRING, .value = &o.context, .default_text = "1024", .unit = "tokens",
     .help = "cached tokens of each sequence that decodes, comma-separated; 0 is no decode"},
    {.name = "head-size", .type = OPTION_INT, .value = &o.head_size, .default_text = "0", .max = 1024,
     .help = "head size to use instead of the head size of the shape, with as many heads; 0: as in the shape"},
    {.name = "kv-cache-dtype", .type = OPTION_CHOICE, .value = &o.kv_dtype, .default_text = "auto",
     .choices = MODEL_KV_DTYPES, .help = "type of the KV cache; auto is f32 with f32 weights, else bf16"},
    {.name = "-Timing and output"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "3", .min = 1, .max = ROUNDS_MAX,
     .help = "number of rounds; the median is reported"},
    BENCH_TIMING_OPTION_ROWS(o),
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

enum { N_GEMMS = 4, COPIES_MAX = 64 };
static const double COPIES_BYTES_MIN = 320e6, DEVICE_COPIES_BYTES_MIN = 128e6; // much larger than a last-level cache
// On a device, the host waits once for this many launches of a gemm: one wait takes about 10 us, as long as a small
// gemm.
enum { BURST_FEW_ROWS = 64, BURST = 8, FEW_ROWS = 512 };

struct gemm {
    const char *name;
    int n, k; // outputs and inputs: x [M, k] times the transposed weights [n, k]
    enum linear_mode mode;
    struct tensor *x, *out;
    struct weight *weights[COPIES_MAX];
    double seconds; // seconds of all runs of this gemm
};

struct kernels {
    struct model_config config;
    struct backend *backend;
    struct gemm gemms[N_GEMMS];
    int copies, next_copy;
    bool on_device; // launches return before the gemm has run
    int m, max_rows;
    struct ragged_batch batch; // max_rows rows; its arrays are one allocation that starts at `token`
    double weights;            // number of weights of one layer
    double weight_bytes;       // bytes of one weight
    int64_t runs;
    struct probe *probe;
};

// Counts all runs since the last reset of `seconds`.
static double gemm_gflops(const struct kernels *k, const struct gemm *gemm)
{
    return 2e-9 * k->m * gemm->n * gemm->k * (double)k->runs / gemm->seconds;
}

// ---- the layer ------------------------------------------------------------------------------------------------------

static int burst_of(const struct kernels *k)
{
    return !k->on_device ? 1 : k->m <= FEW_ROWS ? BURST_FEW_ROWS : BURST;
}

// Runs a gemm `n` times, each time on another copy of its weights, and waits for the last run.
static enum status gemm_run(struct kernels *k, const struct gemm *gemm, int n)
{
    const struct backend_ops *ops = k->backend->ops;
    for (int i = 0; i < n; i++)
        TRY(ops->linear(k->backend, gemm->out, gemm->x, gemm->weights[(k->next_copy + i) % k->copies], NULL, gemm->mode,
                        k->m));
    return ops->wait ? ops->wait(k->backend) : STATUS_OK;
}

// Runs a burst of each of the layer's gemms. Reports the time of one run of all gemms.
static enum status kernels_run(struct contender *self, double *seconds_p)
{
    struct kernels *k = self->context;
    const int burst = burst_of(k);
    *seconds_p = 0;
    for (int p = 0; p < N_GEMMS; p++) {
        struct gemm *gemm = &k->gemms[p];
        const int64_t from_us = clock_now_us();
        TRY(gemm_run(k, gemm, burst));
        const double seconds = (double)(clock_now_us() - from_us) / 1e6 / burst;
        gemm->seconds += seconds;
        *seconds_p += seconds;
    }
    k->next_copy = (k->next_copy + burst) % k->copies;
    k->runs++;
    return STATUS_OK;
}

// Fills an activation with normed embeddings of the batch, numbers of magnitude 1.
static enum status kernels_fill_activation(struct kernels *k, const struct dummy *dummy, struct tensor *x, int columns)
{
    const struct backend_ops *ops = k->backend->ops;
    struct tensor *random;
    struct weight *ones, *table;
    struct matrix_view gain = dummy_view(dummy, "norm.weight", 0, columns, false);
    struct matrix_view rows = dummy_view(dummy, "embedding", k->config.vocab_size, columns, false);
    enum status status = ops->tensor_create(k->backend, TENSOR_F32, k->max_rows, columns, &random);
    if (status == STATUS_OK) status = ops->weight_vector(k->backend, &gain, 1, &ones);
    if (status == STATUS_OK) status = ops->weight_embedding(k->backend, &rows, 0, NULL, &table);
    if (status == STATUS_OK) status = ops->begin(k->backend, &k->batch);
    if (status == STATUS_OK) status = ops->embed(k->backend, random, table);
    return status == STATUS_OK ? ops->rmsnorm(k->backend, x, random, ones, 1e-6f, NULL, k->max_rows) : status;
}

// Makes a batch of one prompt with max_rows rows. The gemms do not use its KV cache.
static void kernels_make_batch(struct kernels *k)
{
    const int n = k->max_rows, blocks = (n + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    int32_t *token = mem_alloc_array((size_t)(2 * n + blocks + 3), sizeof *token), *position = token + n;
    int32_t *block_table = position + n, *row_start = block_table + blocks, *kv_len = row_start + 2;
    for (int i = 0; i < n; i++) {
        token[i] = i % k->config.vocab_size;
        position[i] = i;
    }
    for (int i = 0; i < blocks; i++)
        block_table[i] = i;
    row_start[0] = kv_len[0] = 0;
    row_start[1] = n;
    k->batch = (struct ragged_batch){.n_rows = n,
                                     .n_seqs = 1,
                                     .max_blocks = blocks,
                                     .token = token,
                                     .position = position,
                                     .row_start = row_start,
                                     .kv_len = kv_len,
                                     .block_table = block_table};
}

static enum status kernels_make_weights(struct kernels *k, const struct dummy *dummy)
{
    const struct backend_ops *ops = k->backend->ops;
    for (int copy = 0; copy < k->copies; copy++)
        for (int p = 0; p < N_GEMMS; p++) {
            struct gemm *gemm = &k->gemms[p];
            bool gate_up = gemm->mode == LINEAR_SWIGLU;
            struct matrix_view views[2] = {dummy_view(dummy, gemm->name, gemm->n / (gate_up ? 2 : 1), gemm->k, false),
                                           dummy_view(dummy, "up", gemm->n / (gate_up ? 2 : 1), gemm->k, false)};
            struct weight **weight_p = &gemm->weights[copy];
            enum status status = gate_up ? ops->weight_gate_up(k->backend, &views[0], &views[1], weight_p)
                                         : ops->weight_create(k->backend, views, 1, weight_p);
            if (status != STATUS_OK) return status;
        }
    if (ops->weights_finish) ops->weights_finish(k->backend);
    return STATUS_OK;
}

static enum status kernels_open_backend(struct kernels *k)
{
    const struct model_config *c = &k->config;
    enum dtype dtype = DTYPE_F32;
    enum status status = kernels_dtype(o.dtype, &dtype);
    if (status != STATUS_OK) return status;
    float *inv_freq = mem_alloc_array((size_t)c->head_size / 2, sizeof *inv_freq);
    const struct backend_shape shape = {.n_layers = 1,
                                        .n_heads = c->n_heads,
                                        .n_kv_heads = c->n_kv_heads,
                                        .head_size = c->head_size,
                                        .rope.inv_freq = inv_freq,
                                        .max_rows = k->max_rows,
                                        .max_seqs = 1,
                                        .max_context = k->max_rows,
                                        .n_kv_blocks = k->batch.max_blocks};
    status = backend_open(o.backend, &shape, dtype, group_threads((int)o.threads), &k->backend);
    free(inv_freq);
    return status;
}

// Lets a device choose its gemm algorithms.
static enum status kernels_warm_up(struct kernels *k)
{
    struct contender self = {.context = k};
    double seconds;
    k->m = k->max_rows;
    enum status status = kernels_run(&self, &seconds);
    return status == STATUS_OK ? k->backend->ops->tune(k->backend) : status;
}

static enum status kernels_open(struct kernels *k)
{
    const struct model_config *c = &k->config;
    const int hidden = c->hidden, q = c->n_heads * c->head_size, kv = c->n_kv_heads * c->head_size;
    const int intermediate = c->intermediate;
    kernels_make_batch(k);
    enum status status = kernels_open_backend(k);
    if (status != STATUS_OK) return status;

    struct backend *b = k->backend;
    struct tensor *normed, *qkv, *attended, *residual, *mlp;
    const struct {
        struct tensor **tensor_p;
        enum tensor_kind kind;
        int columns;
    } tensors[] = {{&normed, TENSOR_ACTIVATION, hidden},
                   {&qkv, TENSOR_F32, q + 2 * kv},
                   {&attended, TENSOR_ACTIVATION, q},
                   {&residual, TENSOR_F32, hidden},
                   {&mlp, TENSOR_ACTIVATION, intermediate}};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0] && status == STATUS_OK; i++)
        status = b->ops->tensor_create(b, tensors[i].kind, k->max_rows, tensors[i].columns, tensors[i].tensor_p);
    if (status != STATUS_OK) return status;
    const struct gemm gemms[N_GEMMS] = {
        {.name = "qkv", .n = q + 2 * kv, .k = hidden, .mode = LINEAR_STORE, .x = normed, .out = qkv},
        {.name = "o", .n = hidden, .k = q, .mode = LINEAR_ADD, .x = attended, .out = residual},
        {.name = "gate_up", .n = 2 * intermediate, .k = hidden, .mode = LINEAR_SWIGLU, .x = normed, .out = mlp},
        {.name = "down", .n = hidden, .k = intermediate, .mode = LINEAR_ADD, .x = mlp, .out = residual},
    };
    memcpy(k->gemms, gemms, sizeof gemms);
    for (int p = 0; p < N_GEMMS; p++)
        k->weights += (double)gemms[p].n * gemms[p].k;
    k->weight_bytes = bench_weight_bytes(o.dtype);
    k->on_device = !b->ops->capabilities.host_memory;
    // A burst reads all copies of one gemm, so the copies of the smallest gemm must not fit into the cache.
    double smallest = k->weights;
    for (int p = 0; p < N_GEMMS; p++)
        smallest = fmin(smallest, (double)gemms[p].n * gemms[p].k);
    double copies = k->on_device ? ceil(DEVICE_COPIES_BYTES_MIN / (smallest * k->weight_bytes))
                                 : ceil(COPIES_BYTES_MIN / (k->weights * k->weight_bytes));
    k->copies = copies < 2 ? 2 : copies > COPIES_MAX ? COPIES_MAX : (int)copies;

    struct dummy *dummy = dummy_create(c, false);
    status = kernels_make_weights(k, dummy);
    if (status == STATUS_OK) status = kernels_fill_activation(k, dummy, normed, hidden);
    if (status == STATUS_OK) status = kernels_fill_activation(k, dummy, attended, q);
    dummy_free(dummy);
    return status == STATUS_OK && b->ops->tune ? kernels_warm_up(k) : status;
}

// ---- report ---------------------------------------------------------------------------------------------------------

// Returns "used", or the reason why there are no figures of oneDNN.
static const char *kernels_onednn_state(const struct kernels *k, const struct onednn_process *onednn)
{
    if (onednn->pid) return "used";
    if (!o.onednn) return "off (--no-onednn)";
    if (k->backend->ops->measure) return "off (the backend runs on a device)";
    return onednn_is_installed() ? "could not be started"
                                 : "not built: install libdnnl-dev and build Forepack again; its columns stay empty";
}

// Returns the software prefetch of weights that are read once.
static const char *kernels_prefetch(const struct kernels *k, char name[STREAM_NAME_BYTES])
{
    if (strcmp(k->backend->ops->name, "cpu") != 0) return "none";
    cpu_stream_name(k->backend, name);
    return name;
}

static void kernels_print_heading(const struct kernels *k, const struct onednn_process *onednn)
{
    char prefetch[STREAM_NAME_BYTES];
    if (o.json) return;
    printf("one layer of %.1f million weights in %s, %d copies, %d threads, prefetch %s\n", k->weights / 1e6, o.dtype,
           k->copies, group_threads((int)o.threads), kernels_prefetch(k, prefetch));
    printf("oneDNN: %s\n" BENCH_SHARE_LEGEND "\n\n", kernels_onednn_state(k, onednn));
    printf("%6s %10s %7s %9s %9s %7s %7s %7s %9s %9s %9s %9s %9s %9s\n", "M", "us", "spread", "GFLOP/s", "peak", "GB/s",
           "DRAM", "share", "qkv", "o", "gate_up", "down", "oneDNN", "ratio");
}

static void kernels_print_row(const struct kernels *k, const struct measurement *m,
                              const struct rounds_readings *readings, double gflop, double gbytes, double onednn_gflops)
{
    if (o.json) return;
    char share[BENCH_SHARE_BYTES];
    printf("%6d %10.1f %6.1f%% %9.1f %9.1f %7.1f %7.1f %7s", k->m, 1e6 * m->seconds, 100 * m->spread,
           gflop / m->seconds, readings->mean.gflops, gbytes / m->seconds, readings->mean.gbytes_per_s,
           bench_share_text(m, share));
    for (int i = 0; i < N_GEMMS; i++)
        printf(" %9.1f", gemm_gflops(k, &k->gemms[i]));
    if (onednn_gflops > 0) printf(" %9.1f %8.2fx", onednn_gflops, gflop / m->seconds / onednn_gflops);
    printf("\n");
    fflush(stdout);
}

static json_t *kernels_make_row(const struct kernels *k, const struct onednn_process *onednn,
                                const struct measurement *m, const struct rounds_readings *readings, double gflop,
                                double gbytes, double onednn_gflops)
{
    json_t *row = json_pack("{s:s,s:i,s:s,s:i,s:f,s:f,s:f,s:f}", "phase", "matmul", "m", k->m, "dtype", o.dtype,
                            "threads", group_threads((int)o.threads), "us", 1e6 * m->seconds, "spread", m->spread,
                            "gflops", gflop / m->seconds, "gbytes_per_s", gbytes / m->seconds);
    bench_add_share(row, m);
    json_t *products = json_array();
    for (int i = 0; i < N_GEMMS; i++) {
        const struct gemm *gemm = &k->gemms[i];
        json_array_append_new(products, json_pack("{s:s,s:i,s:i,s:f}", "name", gemm->name, "n", gemm->n, "k", gemm->k,
                                                  "gflops", gemm_gflops(k, gemm)));
    }
    json_object_set_new(row, "products", products);
    char prefetch[STREAM_NAME_BYTES];
    json_object_set_new(row, "prefetch", json_string(kernels_prefetch(k, prefetch)));
    json_object_set_new(row, "onednn", json_string(kernels_onednn_state(k, onednn)));
    json_object_set_new(row, "onednn_gflops", onednn_gflops > 0 ? json_real(onednn_gflops) : json_null());
    bench_add_readings(row, readings);
    return row;
}

// ---- run ------------------------------------------------------------------------------------------------------------

static enum status kernels_measure(struct kernels *k, struct onednn_process *onednn, json_t *rows)
{
    double gflop = 2e-9 * k->weights * k->m, gbytes = k->weights * k->weight_bytes / 1e9;
    struct contender contenders[2] = {{kernels_run, k, gflop, gbytes, burst_of(k)},
                                      {onednn_process_run, onednn, gflop, gbytes, 1}};
    struct measurement measurements[2];
    struct rounds_readings readings;
    const struct rounds rounds = {k->probe, bench_probe_type(o.dtype), (int)o.rounds, (int)o.min_ms};
    onednn->m = k->m;
    k->runs = 0;
    for (int i = 0; i < N_GEMMS; i++)
        k->gemms[i].seconds = 0;
    enum status status = rounds_run(&rounds, contenders, onednn->pid ? 2 : 1, measurements, &readings);
    if (status == STATUS_OK && k->backend->ops->measure && o.probe_ms)
        status = kernels_read_device(k->backend, (int)o.probe_ms, gflop, gbytes, &measurements[0], &readings);
    if (status != STATUS_OK) return status;
    double onednn_gflops = onednn->pid ? gflop / measurements[1].seconds : 0;
    kernels_print_row(k, &measurements[0], &readings, gflop, gbytes, onednn_gflops);
    json_array_append_new(rows, kernels_make_row(k, onednn, &measurements[0], &readings, gflop, gbytes, onednn_gflops));
    return STATUS_OK;
}

static void kernels_start_onednn(const struct kernels *k, struct onednn_process *onednn)
{
    if (!o.onednn || k->backend->ops->measure || !onednn_is_installed()) return;
    struct onednn_gemm gemms[N_GEMMS];
    for (int i = 0; i < N_GEMMS; i++)
        gemms[i] = (struct onednn_gemm){k->gemms[i].n, k->gemms[i].k};
    onednn_process_start(onednn, o.dtype, group_threads((int)o.threads), k->copies, gemms, N_GEMMS);
}

static enum status kernels_measure_gemms(struct kernels *k, json_t *rows)
{
    struct count_list m;
    enum status status = count_list_parse("rows", o.m, 1, 1048576, &m);
    if (status != STATUS_OK) return status;
    for (int i = 0; i < m.n; i++)
        k->max_rows = m.count[i] > k->max_rows ? m.count[i] : k->max_rows;
    struct onednn_process onednn = {0};
    status = kernels_open(k);
    if (status == STATUS_OK) {
        kernels_start_onednn(k, &onednn);
        kernels_print_heading(k, &onednn);
    }
    for (int i = 0; i < m.n && status == STATUS_OK; i++) {
        k->m = m.count[i];
        status = kernels_measure(k, &onednn, rows);
    }
    onednn_process_stop(&onednn);
    return status;
}

int bench_kernels(int argc, char **argv)
{
    options_main(
        options,
        "Usage: forepack bench kernels --model DIR|--shape FILE [--backend cpu|cuda] [--dtype "
        "bf16|f32|bf12|int8|int4-g128] "
        "[--rows 1,256]\n"
        "       forepack bench kernels --attention --model DIR|--shape FILE [--prompt-tokens 2048] "
        "[--cached-tokens 0] [--batch 1,8] [--context 1024]\n"
        "The gemms of one layer alone, compared with the machine probe and with oneDNN, or the layer's attention, "
        "compared with the machine probe.",
        argc, argv, NULL);
    struct kernels k = {.copies = 0};
    json_t *rows = json_array();
    enum status status = STATUS_OK;
    if (!o.model == !o.shape) status = status_fail(STATUS_INVALID, "give exactly one of --model DIR and --shape FILE");
    if (status == STATUS_OK && strcmp(o.prefetch, "auto") != 0 && !stream_prefer(o.prefetch))
        status = status_fail(STATUS_INVALID,
                             "--prefetch %s: must be auto or a prefetch that a node measures at its start, "
                             "such as none, L1:2048 and L2:8192",
                             o.prefetch);
    if (status == STATUS_OK) status = model_config_read(o.model ? o.model : o.shape, &k.config);
    if (status == STATUS_OK && o.probe_ms && strcmp(o.backend, "cuda") != 0)
        status = probe_open(group_threads((int)o.threads), (int)o.probe_ms, &k.probe);
    if (status == STATUS_OK)
        status =
            o.attention ? kernels_measure_attention(&o, &k.config, k.probe, rows) : kernels_measure_gemms(&k, rows);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    if (k.backend) k.backend->ops->close(k.backend);
    free((void *)k.batch.token);
    probe_close(k.probe);
    json_decref(rows);
    options_free(options);
    return code;
}
