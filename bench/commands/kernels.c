// SPDX-License-Identifier: Apache-2.0
// forepack bench kernels: the four matrix products of one layer alone, for each number of rows M, as the model calls
// them. Weights rotate through enough copies of the layer that they come from memory, as in a model of many layers;
// oneDNN's products of the same shapes run in the same rounds where its program was built and the CPU computes.
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/options.h"
#include "bench/commands/bench.h"
#include "cli/request.h"
#include "engine/engine.h"
#include "kernels/backend.h"
#include "model/config.h"
#include "model/dummy.h"

static struct {
    char *model, *shape, *backend, *dtype, *m;
    int64_t threads, rounds, probe_ms, min_ms;
    bool onednn, json;
} o;

// clang-format off
static const struct option options[] = {
    {.name = "model", .type = OPTION_STRING, .value = &o.model, .help = "model directory; its config.json is all that is read"},
    {.name = "shape", .type = OPTION_STRING, .value = &o.shape, .help = "instead of --model: a config.json"},
    {.name = "backend", .type = OPTION_CHOICE, .value = &o.backend, .default_text = "cpu", .choices = "cpu|cuda",
     .help = "what computes"},
    {.name = "dtype", .type = OPTION_CHOICE, .value = &o.dtype, .default_text = "bf16", .choices = "bf16|f32|int8",
     .help = "type of the weights"},
    {.name = "threads", .type = OPTION_INT, .value = &o.threads, .default_text = "0", .max = 4096,
     .help = "0 is all the process may use"},
    {.name = "rows", .type = OPTION_STRING, .value = &o.m, .default_text = "1,4,16,64,256,512,1024,2048",
     .help = "rows of the activation: M"},
    {.name = "onednn", .type = OPTION_BOOL, .value = &o.onednn, .default_text = "true",
     .help = "compare with oneDNN where it was found when this was built"},
    {.name = "rounds", .type = OPTION_INT, .value = &o.rounds, .default_text = "3", .min = 1, .max = ROUNDS_MAX,
     .help = "of which the middle one is told"},
    {.name = "min-ms", .type = OPTION_INT, .value = &o.min_ms, .default_text = "300", .max = 1e6, .unit = "ms",
     .help = "a round repeats what takes less"},
    {.name = "probe-ms", .type = OPTION_INT, .value = &o.probe_ms, .default_text = "500", .max = 1e6, .unit = "ms",
     .help = "length of each half (arithmetic, memory) of a reading of what the chip can do, around each round; 0 is none"},
    {.name = "json", .type = OPTION_BOOL, .value = &o.json, .help = "print a JSON list"},
    {0},
};
// clang-format on

enum { N_PRODUCTS = 4, COPIES_MAX = 64 };
static const double ROTATED_BYTES = 320e6; // far more than a last-level cache

struct product {
    const char *name;
    int n, k; // outputs and inputs: x [M, k] times [n, k] transposed
    enum linear_mode mode;
    struct tensor *x, *out;
    struct weight *weights[COPIES_MAX];
    double seconds; // of all runs
};

struct kernels {
    struct model_config config;
    struct backend *backend;
    struct product products[N_PRODUCTS];
    int copies, at; // the copy that is next
    int m, max_rows;
    struct ragged_batch batch;    // of max_rows; its arrays are one allocation, at `token`
    double weights, weight_bytes; // of one layer; of one weight
    int64_t runs;
    struct probe *probe;
};

// ---- ours -----------------------------------------------------------------------------------------------------------

// One layer's products on the next copy of its weights.
static enum status run_ours(struct contender *self, double *seconds_p)
{
    struct kernels *k = self->context;
    const struct backend_ops *ops = k->backend->ops;
    int64_t from_us = clock_now_us(), begun_us = from_us;
    for (int p = 0; p < N_PRODUCTS; p++) {
        struct product *product = &k->products[p];
        enum status status =
            ops->linear(k->backend, product->out, product->x, product->weights[k->at], NULL, product->mode, k->m);
        if (status == STATUS_OK && ops->wait) status = ops->wait(k->backend);
        if (status != STATUS_OK) return status;
        int64_t now_us = clock_now_us();
        product->seconds += (double)(now_us - from_us) / 1e6;
        from_us = now_us;
    }
    k->at = (k->at + 1) % k->copies;
    k->runs++;
    *seconds_p = (double)(from_us - begun_us) / 1e6;
    return STATUS_OK;
}

// An activation of numbers of size 1: embedded tokens, normed.
static enum status fill(struct kernels *k, const struct dummy *dummy, struct tensor *x, int columns)
{
    const struct backend_ops *ops = k->backend->ops;
    struct tensor *random;
    struct weight *ones, *table;
    struct matrix_view gain = dummy_view(dummy, "norm.weight", 0, columns);
    struct matrix_view rows = dummy_view(dummy, "embedding", k->config.vocab_size, columns);
    enum status status = ops->tensor_create(k->backend, TENSOR_F32, k->max_rows, columns, &random);
    if (status == STATUS_OK) status = ops->weight_vector(k->backend, &gain, 1, &ones);
    if (status == STATUS_OK) status = ops->weight_embedding(k->backend, &rows, 0, NULL, &table);
    if (status == STATUS_OK) status = ops->begin(k->backend, &k->batch);
    if (status == STATUS_OK) status = ops->embed(k->backend, random, table);
    return status == STATUS_OK ? ops->rmsnorm(k->backend, x, random, ones, 1e-6f, NULL, k->max_rows) : status;
}

// One prompt of as many rows as there are at most; its KV goes nowhere.
static void make_batch(struct kernels *k)
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

static enum status make_weights(struct kernels *k, const struct dummy *dummy)
{
    const struct backend_ops *ops = k->backend->ops;
    for (int copy = 0; copy < k->copies; copy++)
        for (int p = 0; p < N_PRODUCTS; p++) {
            struct product *product = &k->products[p];
            bool gate_up = product->mode == LINEAR_SWIGLU;
            struct matrix_view views[2] = {dummy_view(dummy, product->name, product->n / (gate_up ? 2 : 1), product->k),
                                           dummy_view(dummy, "up", product->n / (gate_up ? 2 : 1), product->k)};
            struct weight **weight_p = &product->weights[copy];
            enum status status = gate_up ? ops->weight_gate_up(k->backend, &views[0], &views[1], weight_p)
                                         : ops->weight_create(k->backend, views, 1, weight_p);
            if (status != STATUS_OK) return status;
        }
    return STATUS_OK;
}

static enum status dtype_by_name(const char *name, enum dtype *dtype_p)
{
    for (int d = 0; d < DTYPE_COUNT; d++)
        if (strcmp(name, dtype_name((enum dtype)d)) == 0) {
            *dtype_p = (enum dtype)d;
            return STATUS_OK;
        }
    return status_fail(STATUS_UNSUPPORTED, "--dtype %s: the kernels of this build do not know it", name);
}

static enum status open_backend(struct kernels *k)
{
    const struct model_config *c = &k->config;
    enum dtype dtype = DTYPE_F32;
    enum status status = dtype_by_name(o.dtype, &dtype);
    if (status != STATUS_OK) return status;
    float *inv_freq = mem_alloc_array((size_t)c->head_size / 2, sizeof *inv_freq);
    const struct backend_shape shape = {.n_layers = 1,
                                        .n_heads = c->n_heads,
                                        .n_kv_heads = c->n_kv_heads,
                                        .head_size = c->head_size,
                                        .inv_freq = inv_freq,
                                        .max_rows = k->max_rows,
                                        .max_seqs = 1,
                                        .max_context = k->max_rows,
                                        .n_kv_blocks = k->batch.max_blocks};
    status = backend_open(o.backend, &shape, dtype, group_threads((int)o.threads), &k->backend);
    free(inv_freq);
    return status;
}

// Chooses how the device computes them.
static enum status warm_up(struct kernels *k)
{
    struct contender self = {.context = k};
    double seconds;
    k->m = k->max_rows;
    enum status status = run_ours(&self, &seconds);
    return status == STATUS_OK ? k->backend->ops->tune(k->backend) : status;
}

static enum status open_kernels(struct kernels *k)
{
    const struct model_config *c = &k->config;
    const int hidden = c->hidden, q = c->n_heads * c->head_size, kv = c->n_kv_heads * c->head_size;
    const int intermediate = c->intermediate;
    make_batch(k);
    enum status status = open_backend(k);
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
    const struct product products[N_PRODUCTS] = {
        {.name = "qkv", .n = q + 2 * kv, .k = hidden, .mode = LINEAR_STORE, .x = normed, .out = qkv},
        {.name = "o", .n = hidden, .k = q, .mode = LINEAR_ADD, .x = attended, .out = residual},
        {.name = "gate_up", .n = 2 * intermediate, .k = hidden, .mode = LINEAR_SWIGLU, .x = normed, .out = mlp},
        {.name = "down", .n = hidden, .k = intermediate, .mode = LINEAR_ADD, .x = mlp, .out = residual},
    };
    memcpy(k->products, products, sizeof products);
    for (int p = 0; p < N_PRODUCTS; p++)
        k->weights += (double)products[p].n * products[p].k;
    k->weight_bytes = strcmp(o.dtype, "f32") == 0 ? 4 : strcmp(o.dtype, "bf16") == 0 ? 2 : 1;
    double copies = ceil(ROTATED_BYTES / (k->weights * k->weight_bytes));
    k->copies = copies < 2 ? 2 : copies > COPIES_MAX ? COPIES_MAX : (int)copies;

    struct dummy *dummy = dummy_create(c);
    status = make_weights(k, dummy);
    if (status == STATUS_OK) status = fill(k, dummy, normed, hidden);
    if (status == STATUS_OK) status = fill(k, dummy, attended, q);
    dummy_free(dummy);
    return status == STATUS_OK && b->ops->tune ? warm_up(k) : status;
}

// ---- oneDNN: a program that runs one layer for each line with an M, and answers with the seconds
// ---------------------

struct onednn {
    pid_t pid; // 0: not there
    FILE *to, *from;
    int m;
};

static enum status run_onednn(struct contender *self, double *seconds_p)
{
    struct onednn *d = self->context;
    double seconds;
    if (fprintf(d->to, "%d\n", d->m) < 0 || fflush(d->to) != 0 || fscanf(d->from, "%lf", &seconds) != 1)
        return status_fail(STATUS_INTERNAL, "forepack-bench-onednn ended");
    *seconds_p = seconds;
    return STATUS_OK;
}

static void start_onednn(const struct kernels *k, struct onednn *d)
{
    char program[4096], threads[16], copies[16], sizes[N_PRODUCTS][32];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 64);
    program[length > 0 ? length : 0] = 0;
    char *slash = strrchr(program, '/');
    strcpy(slash ? slash + 1 : program, "forepack-bench-onednn");
    int in[2], out[2];
    if (!o.onednn || access(program, X_OK) != 0 || pipe(in) != 0) return;
    if (pipe(out) != 0) {
        close(in[0]);
        close(in[1]);
        return;
    }
    snprintf(threads, sizeof threads, "%d", group_threads((int)o.threads));
    snprintf(copies, sizeof copies, "%d", k->copies);
    for (int p = 0; p < N_PRODUCTS; p++)
        snprintf(sizes[p], sizeof sizes[p], "%dx%d", k->products[p].n, k->products[p].k);
    d->pid = fork();
    if (d->pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[1]);
        close(out[0]);
        execl(program, program, o.dtype, threads, copies, sizes[0], sizes[1], sizes[2], sizes[3], (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    d->to = fdopen(in[1], "w");
    d->from = fdopen(out[0], "r");
    if (d->pid < 0) d->pid = 0;
}

static void stop_onednn(struct onednn *d)
{
    if (d->to) fclose(d->to); // its input ends, and so does it
    if (d->from) fclose(d->from);
    if (d->pid) waitpid(d->pid, NULL, 0);
}

// ---- telling --------------------------------------------------------------------------------------------------------

static void print_heading(const struct kernels *k)
{
    if (o.json) return;
    printf("one layer of %.1f million weights in %s, %d copies in turn, %d threads\n", k->weights / 1e6, o.dtype,
           k->copies, group_threads((int)o.threads));
    printf("share: of the time that the chip would need by the probe's rates, for arithmetic (c) or memory (m)\n\n");
    printf("%6s %10s %7s %9s %9s %7s %7s %7s %9s %9s %9s %9s %9s %9s\n", "M", "us", "+-", "GFLOP/s", "peak", "GB/s",
           "DRAM", "share", "qkv", "o", "gate_up", "down", "oneDNN", "ours by");
}

static void print_row(const struct kernels *k, const struct measurement *m, const struct rounds_readings *readings,
                      double gflop, double gbytes, double onednn_gflops)
{
    if (o.json) return;
    printf("%6d %10.1f %6.1f%% %9.1f %9.1f %7.1f %7.1f %5.1f%%%s", k->m, 1e6 * m->seconds, 100 * m->spread,
           gflop / m->seconds, readings->mean.gflops, gbytes / m->seconds, readings->mean.gbytes_per_s, 100 * m->share,
           m->memory_bound ? "m" : "c");
    for (int p = 0; p < N_PRODUCTS; p++) {
        const struct product *product = &k->products[p];
        printf(" %9.1f", 2e-9 * k->m * product->n * product->k * (double)k->runs / product->seconds);
    }
    if (onednn_gflops > 0) printf(" %9.1f %8.2fx", onednn_gflops, gflop / m->seconds / onednn_gflops);
    printf("\n");
    fflush(stdout);
}

static json_t *make_row(const struct kernels *k, const struct measurement *m, const struct rounds_readings *readings,
                        double gflop, double gbytes, double onednn_gflops)
{
    json_t *row = json_pack("{s:s,s:i,s:s,s:i,s:f,s:f,s:f,s:f}", "phase", "matmul", "m", k->m, "dtype", o.dtype,
                            "threads", group_threads((int)o.threads), "us", 1e6 * m->seconds, "spread", m->spread,
                            "gflops", gflop / m->seconds, "gbytes_per_s", gbytes / m->seconds);
    json_object_set_new(row, "share", bench_number(m->share));
    json_object_set_new(row, "limit",
                        json_string(isnan(m->share)   ? "unknown"
                                    : m->memory_bound ? "memory"
                                                      : "compute"));
    json_t *products = json_array();
    for (int p = 0; p < N_PRODUCTS; p++) {
        const struct product *product = &k->products[p];
        double rate = 2e-9 * k->m * product->n * product->k * (double)k->runs / product->seconds;
        json_array_append_new(products, json_pack("{s:s,s:i,s:i,s:f}", "name", product->name, "n", product->n, "k",
                                                  product->k, "gflops", rate));
    }
    json_object_set_new(row, "products", products);
    json_object_set_new(row, "onednn_gflops", onednn_gflops > 0 ? json_real(onednn_gflops) : json_null());
    bench_add_readings(row, readings);
    return row;
}

// ---- running --------------------------------------------------------------------------------------------------------

// One reading of what the device reaches, after the rounds.
static enum status read_device(struct kernels *k, double gflop, double gbytes, struct measurement *m,
                               struct rounds_readings *readings)
{
    struct probe_reading *mean = &readings->mean;
    mean->instruction = "cuBLASLt bf16";
    enum status status = k->backend->ops->measure(k->backend, (int)o.probe_ms, &mean->gflops, &mean->gbytes_per_s);
    if (status != STATUS_OK) return status;
    double arithmetic = gflop / mean->gflops, memory = gbytes / mean->gbytes_per_s;
    m->memory_bound = memory > arithmetic;
    m->share = (m->memory_bound ? memory : arithmetic) / m->seconds;
    return STATUS_OK;
}

static enum status measure(struct kernels *k, struct onednn *d, json_t *rows)
{
    double gflop = 2e-9 * k->weights * k->m, gbytes = k->weights * k->weight_bytes / 1e9;
    struct contender contenders[2] = {{run_ours, k, gflop, gbytes}, {run_onednn, d, gflop, gbytes}};
    struct measurement measurements[2];
    struct rounds_readings readings;
    const struct rounds rounds = {k->probe, bench_probe_type(o.dtype), (int)o.rounds, (int)o.min_ms};
    d->m = k->m;
    k->runs = 0;
    for (int p = 0; p < N_PRODUCTS; p++)
        k->products[p].seconds = 0;
    enum status status = rounds_run(&rounds, contenders, d->pid ? 2 : 1, measurements, &readings);
    if (status == STATUS_OK && k->backend->ops->measure && o.probe_ms)
        status = read_device(k, gflop, gbytes, &measurements[0], &readings);
    if (status != STATUS_OK) return status;
    double onednn_gflops = d->pid ? gflop / measurements[1].seconds : 0;
    print_row(k, &measurements[0], &readings, gflop, gbytes, onednn_gflops);
    json_array_append_new(rows, make_row(k, &measurements[0], &readings, gflop, gbytes, onednn_gflops));
    return STATUS_OK;
}

static enum status run_all(struct kernels *k, const struct bench_counts *m, json_t *rows)
{
    for (int i = 0; i < m->n; i++)
        k->max_rows = m->count[i] > k->max_rows ? m->count[i] : k->max_rows;
    struct onednn onednn = {0};
    enum status status = open_kernels(k);
    if (status == STATUS_OK) {
        if (!k->backend->ops->measure) start_onednn(k, &onednn);
        print_heading(k);
    }
    for (int i = 0; i < m->n && status == STATUS_OK; i++) {
        k->m = m->count[i];
        status = measure(k, &onednn, rows);
    }
    stop_onednn(&onednn);
    return status;
}

int bench_kernels(int argc, char **argv)
{
    options_main(options,
                 "Usage: forepack bench kernels --model DIR|--shape FILE [--backend cpu|cuda] [--dtype bf16|f32|int8] "
                 "[--rows 1,256]\n"
                 "The matrix products of one layer alone, beside what the chip can do, and beside oneDNN.",
                 argc, argv, NULL);
    struct kernels k = {.copies = 0};
    struct bench_counts m;
    json_t *rows = json_array();
    enum status status = bench_counts_parse("rows", o.m, 1, 1048576, &m);
    if (status == STATUS_OK && !o.model == !o.shape)
        status = status_fail(STATUS_INVALID, "give exactly one of --model DIR and --shape FILE");
    if (status == STATUS_OK) status = model_config_read(o.model ? o.model : o.shape, &k.config);
    if (status == STATUS_OK && o.probe_ms && strcmp(o.backend, "cpu") == 0)
        status = probe_open(group_threads((int)o.threads), (int)o.probe_ms, &k.probe);
    if (status == STATUS_OK) status = run_all(&k, &m, rows);
    if (status == STATUS_OK && o.json) bench_print_json(rows);
    int code = status == STATUS_OK ? 0 : report_failure(status);
    if (k.backend) k.backend->ops->close(k.backend);
    free((void *)k.batch.token);
    probe_close(k.probe);
    json_decref(rows);
    options_free(options);
    return code;
}
